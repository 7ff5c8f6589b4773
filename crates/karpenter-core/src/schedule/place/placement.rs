//! Placing a pod on a node, existing or planned, and the updates that follow: resources, requirements, limits, counters.
//!
//! Existing nodes are tried by name, initialized ones first. Requirements, taints and the room before the pass are bitsets computed
//! once per variant; free resources, ports and attachments only shrink, so a node that refused a class is not tried again for it.
//!
//! Planned nodes are tried by number of pods, then by age. A planned node only fills up and narrows, so most refusals are permanent
//! and cached with the variant; a refusal by topology or a reservation is tried again.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::pod::ports_conflict;
use crate::schedule::compile::bits::{Bits, members};
use crate::schedule::compile::group_identity::GroupKind;
use crate::schedule::compile::ids::{
    NodeIdx, PlannedId, PodIdx, ReservationId, Target, TemplateId,
};
use crate::schedule::compile::solver::Solver;
use crate::schedule::compile::vectors::add;
use crate::schedule::place::budgets::PoolBudgets;
use crate::schedule::place::devices::Devices;
use crate::schedule::place::existing_nodes::ExistingNodes;
use crate::schedule::place::fit::Fitter;
use crate::schedule::place::planned_node::{Fit, PlannedNode, PlannedNodes};
use crate::schedule::place::refusal::Refusal;
use crate::schedule::place::row_cache::RowCache;
use crate::schedule::place::variant::{RefusedBy, Variant};
use crate::schedule::pods::class::{Class, PodState};
use crate::schedule::topology::choices::Choices;
use crate::schedule::topology::domains::Topology;
use crate::schedule::topology::group::{Among, DomainQuery};

/// How pods are placed where the constraints leave a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Manner {
    /// Each pod joins the first planned node with room, and of domains that rank equal gets the cheapest.
    FirstFit,
    /// The same, but each pod joins the planned node whose price rises least, or opens one if that costs less.
    Cheapest,
    /// First fit as upstream has it: of domains that rank equal a pod gets the first by name, required anti-affinity leaves a planned node
    /// all its domains, and once a preference is dropped only the last alternative of the node affinity is tried. Such a plan is a
    /// bound for what the others leave out.
    Upstream,
}

/// The nodes of a pass, and the owners of what a placement changes.
pub(crate) struct Placement<'p, 'a> {
    pub(super) solver: &'a Solver,
    pub(super) manner: Manner,
    pub(super) rows: &'p mut RowCache<'a>,
    pub(super) topology: &'p mut Topology<'a>,
    pub(super) planned: &'p mut PlannedNodes,
    pub(super) budgets: &'p mut PoolBudgets<'a>,
    existing: &'p mut ExistingNodes<'a>,
    /// Allocates devices for resource claims, if some pod has any.
    devices: Option<&'p mut Devices<'a>>,
    /// Incremented by each change that can make a refused pod placeable.
    epoch: u64,
}

impl<'p, 'a> Placement<'p, 'a> {
    pub(crate) fn new(
        manner: Manner,
        rows: &'p mut RowCache<'a>,
        topology: &'p mut Topology<'a>,
        planned: &'p mut PlannedNodes,
        budgets: &'p mut PoolBudgets<'a>,
        existing: &'p mut ExistingNodes<'a>,
        devices: Option<&'p mut Devices<'a>>,
    ) -> Self {
        Self {
            solver: rows.solver(),
            manner,
            rows,
            topology,
            planned,
            budgets,
            existing,
            devices,
            epoch: 1,
        }
    }

    /// Returns a number that changes whenever a pod that was refused may fit.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Records a change, if there is one, after which pods that were refused may fit.
    pub(super) fn changed(&mut self, changed: bool) {
        self.epoch += u64::from(changed);
    }

    /// Places a pod on the first existing node that accepts it, of `only` those if given.
    pub(super) fn place_on_existing(
        &mut self,
        waiting: bool,
        class: &Class,
        variant: &mut Variant,
        choices: &Choices,
        only: Option<&Bits<NodeIdx>>,
    ) -> Option<Target> {
        let in_domains = choices.domains.iter().map(|domains| {
            let mut nodes = Bits::default();
            for domain in domains.allowed.iter() {
                nodes.unite(&self.topology[domains.axis].labels.nodes[domain]);
            }
            nodes
        });
        let in_domains: SmallVec<[Bits<NodeIdx>; 2]> = in_domains.collect();
        for index in 0..variant.open_nodes.words().len() {
            let mut word = variant.open_nodes.word(index) & self.existing.usable(waiting, index);
            for allowed in in_domains.iter().chain(only) {
                word &= allowed.word(index);
            }
            if word != 0 {
                word &= self
                    .topology
                    .target_word(choices, index, |targets| &*targets.nodes);
            }
            for node in members(index, word) {
                if self.node_accepts(node, class) {
                    self.put_on_existing(node, class);
                    let target = Target::Node(node);
                    self.fix_undecided(choices, target);
                    return Some(target);
                }
                Arc::make_mut(&mut variant.open_nodes).remove(node);
            }
        }
        None
    }

    fn node_accepts(&mut self, node: NodeIdx, class: &Class) -> bool {
        let devices = self.devices.as_deref_mut();
        self.existing.accepts(node, class)
            && (class.resource_claims.is_empty()
                || devices.is_some_and(|devices| devices.find_on_node(node, class)))
    }

    fn put_on_existing(&mut self, node: NodeIdx, class: &Class) {
        self.existing.place(node, class);
        if !class.resource_claims.is_empty()
            && let Some(devices) = &mut self.devices
        {
            devices.commit_on_node(node);
        }
        let counted = self.topology.record_on_node(node, class);
        self.changed(counted);
    }

    /// Returns the first planned node that accepts a pod. If that is the manner and a node `may_open`, it is that whose price rises
    /// least, or a new one of the first NodePool that accepts the pod if it costs less.
    pub(super) fn find_planned(
        &mut self,
        class: &Class,
        variant: &mut Variant,
        choices: &Choices,
        may_open: bool,
    ) -> Option<(PlannedId, Fit)> {
        let compares = self.manner == Manner::Cheapest && may_open;
        let candidates = self.candidates(variant, choices)?;
        let levels = std::mem::take(&mut self.planned.levels);
        let mut best: Option<(f64, PlannedId, Fit)> = None;
        'search: for level in levels.values() {
            for (index, candidates) in candidates.iter().enumerate() {
                for planned in members(index, level.word(index) & candidates) {
                    let fit = match self.try_planned(planned, class, variant, choices) {
                        Ok(fit) => fit,
                        Err(refusal) => {
                            if refusal.is_permanent() {
                                variant.refused_planned.insert(planned);
                            }
                            continue;
                        }
                    };
                    let increase = match compares {
                        true => self.increase(planned, class, &fit),
                        false => 0.0,
                    };
                    if best.as_ref().is_none_or(|(least, ..)| increase < *least) {
                        best = Some((increase, planned, fit));
                    }
                    if increase <= 0.0 {
                        break 'search;
                    }
                }
            }
        }
        self.planned.levels = levels;
        let (increase, planned, fit) = best?;
        if increase > 0.0
            && let Ok((template, fit)) = self.find_new(class, variant, choices)
        {
            let allowed = fit.allowed.as_deref();
            let rows = &mut *self.rows;
            let price = rows.lowest_price(template, fit.set, &class.requests, allowed);
            if price + self.solver.policy.node_overhead_price < increase {
                return Some((self.open(template), fit));
            }
        }
        Some((planned, fit))
    }

    /// Returns how a pod fits on a new node of the first NodePool that accepts it; else what becomes of the pod. Refusals are recorded.
    pub(super) fn find_new(
        &mut self,
        class: &Class,
        variant: &mut Variant,
        choices: &Choices,
    ) -> Result<(TemplateId, Fit), PodState> {
        for template in self.open_templates(variant) {
            match self.try_new(template, class, variant, choices) {
                Ok(fit) => return Ok((template, fit)),
                Err(refusal) => {
                    let is_reserved = refusal == Refusal::Reserved;
                    self.record(template, variant, refusal);
                    if is_reserved {
                        return Err(PodState::Deferred);
                    }
                }
            }
        }
        Err(PodState::Refused)
    }

    /// Records that no NodePool may launch a node for a pod, and why: `refusal`, if the NodePool admits the pod.
    pub(super) fn refuse_new(&mut self, class: &Class, variant: &mut Variant, refusal: &Refusal) {
        for template in self.open_templates(variant) {
            let (_, mut fitter) = self.fitter(class, self.planned.all().next_idx());
            let admitted = fitter.admit(template, variant);
            let refusal = admitted.err().unwrap_or_else(|| refusal.clone());
            self.record(template, variant, refusal);
        }
    }

    /// Returns the templates that have not refused a variant permanently.
    fn open_templates(&self, variant: &Variant) -> SmallVec<[TemplateId; 8]> {
        let releases_capacity = self.solver.releases_capacity;
        let is_open = |known: &Option<RefusedBy>| {
            let mut known = known.iter();
            releases_capacity || !known.any(|known| known.refusal.is_permanent())
        };
        let known = variant.refused_by.iter_enumerated();
        known
            .filter(|(_, known)| is_open(known))
            .map(|(template, _)| template)
            .collect()
    }

    fn record(&self, template: TemplateId, variant: &mut Variant, refusal: Refusal) {
        variant.refused_by[template] = Some(RefusedBy {
            refusal,
            limits_left: self.budgets.left(template).into(),
        });
    }

    /// Returns how much the price of a planned node rises with the pod.
    fn increase(&mut self, planned: PlannedId, class: &Class, fit: &Fit) -> f64 {
        let node = &self.planned[planned];
        let before = node.lowest_price(self.rows);
        let mut used = node.used.clone();
        add(&mut used, &class.requests);
        let allowed = fit.allowed.as_deref();
        let rows = &mut *self.rows;
        rows.lowest_price(node.template, fit.set, &used, allowed) - before
    }

    /// Returns the planned nodes that have not refused the variant permanently and are in its domains, 64 per word; `None` if
    /// there are none.
    fn candidates(&self, variant: &Variant, choices: &Choices) -> Option<SmallVec<[u64; 64]>> {
        let words = self.planned.all().len().div_ceil(64);
        let mut candidates: SmallVec<[u64; 64]> = SmallVec::with_capacity(words);
        let mut any = 0;
        for index in 0..words {
            let mut word = !variant.refused_planned.word(index)
                & self
                    .topology
                    .target_word(choices, index, |targets| &targets.planned);
            for domains in &choices.domains {
                if word == 0 {
                    break;
                }
                let axis = &self.topology[domains.axis];
                word &= domains
                    .allowed
                    .iter()
                    .fold(0, |reach, domain| reach | axis.planned[domain].word(index));
            }
            any |= word;
            candidates.push(word);
        }
        (any != 0).then_some(candidates)
    }

    fn try_planned(
        &mut self,
        planned: PlannedId,
        class: &Class,
        variant: &Variant,
        choices: &Choices,
    ) -> Result<Fit, Refusal> {
        let node = &self.planned[planned];
        if !variant.tolerated_templates.contains(node.template) {
            return Err(Refusal::Taints);
        }
        if ports_conflict(&class.shape.host_ports, &node.ports) {
            return Err(Refusal::HostPorts);
        }
        let others = self.others_along(planned, class, variant, choices)?;
        let (planned_nodes, mut fitter) = self.fitter(class, planned);
        fitter.try_on(
            &planned_nodes[planned],
            variant,
            others.as_ref().unwrap_or(choices),
        )
    }

    /// Tries a new planned node of a NodePool.
    pub(super) fn try_new(
        &mut self,
        template: TemplateId,
        class: &Class,
        variant: &Variant,
        choices: &Choices,
    ) -> Result<Fit, Refusal> {
        let index = self.planned.all().next_idx();
        let (_, mut fitter) = self.fitter(class, index);
        fitter.try_new(template, variant, choices)
    }

    fn fitter<'f>(
        &'f mut self,
        class: &'f Class,
        index: PlannedId,
    ) -> (&'f PlannedNodes, Fitter<'f, 'a>) {
        let fitter = Fitter {
            solver: self.solver,
            class,
            manner: self.manner,
            rows: self.rows,
            topology: self.topology,
            budgets: self.budgets,
            devices: self.devices.as_deref_mut(),
            index,
        };
        (self.planned, fitter)
    }

    /// Returns the choices left on a planned node if pods on it are counted by a spread constraint of the pod only from now on:
    /// their domain is still open and becomes that of this pod, or this pod's requirements make the node pass the node filter.
    ///
    /// DIFFERS: upstream does not count such pods, before or after.
    fn others_along(
        &mut self,
        planned: PlannedId,
        class: &Class,
        variant: &Variant,
        choices: &Choices,
    ) -> Result<Option<Choices>, Refusal> {
        if !self.topology.has_uncounted(planned) {
            return Ok(None);
        }
        let mut narrowed: Option<Choices> = None;
        for owned in &variant.owned {
            let along = self.topology.uncounted(planned, owned.group);
            let group = &self.topology[owned.group];
            if along == 0 || group.kind() != GroupKind::Spread {
                continue;
            }
            let axis = group.axis;
            if self.topology[axis].is_hostname {
                let there = i64::from(group.count_of(Target::Planned(planned)));
                if there + i64::from(along) + i64::from(owned.own)
                    > i64::from(group.identity.max_skew)
                {
                    return Err(Refusal::Topology(owned.group));
                }
                continue;
            }
            let query = DomainQuery {
                own: owned.own,
                along,
                ..DomainQuery::new(class, variant.alternative, Among::Planned)
            };
            let algebra = &mut self.rows.algebra;
            let valid = self.topology.valid_domains(algebra, owned.group, &query);
            let narrowed = narrowed.get_or_insert_with(|| choices.clone());
            for domains in narrowed.domains.iter_mut().filter(|all| all.axis == axis) {
                domains.allowed.intersect(&valid);
                if domains.allowed.is_empty() {
                    return Err(Refusal::Topology(owned.group));
                }
            }
        }
        Ok(narrowed)
    }

    /// Adds a planned node, still without pods.
    pub(super) fn open(&mut self, template: TemplateId) -> PlannedId {
        let index = self.planned.push(PlannedNode::new(template, self.solver));
        let algebra = &mut self.rows.algebra;
        self.topology.add_planned_node(algebra, index, template);
        self.changed(true);
        index
    }

    /// Places a pod on a planned node that accepts it.
    pub(super) fn join(
        &mut self,
        index: PlannedId,
        fit: Fit,
        pod: PodIdx,
        class: &Class,
    ) -> Target {
        let node = &mut self.planned[index];
        node.pods.push(pod);
        add(&mut node.used, &class.requests);
        node.allowed = fit.allowed;
        node.min_values_relaxed |= fit.min_values_relaxed;
        node.ports.extend(class.shape.host_ports.iter().cloned());
        node.narrow(fit.set, fit.witness, self.rows);
        if let Some(allocation) = &fit.devices {
            let drivers = node.drivers.get_or_insert_default();
            drivers.extend(allocation.drivers.iter().cloned());
        }
        if let (Some(devices), Some(allocation)) = (&mut self.devices, fit.devices) {
            devices.commit_on_planned(index, Rc::unwrap_or_clone(allocation));
        }
        self.settle(index, fit.reservations);
        self.planned.relevel(index, self.rows);
        self.narrowed(index);
        self.fix_labels(index, class);
        self.topology.note_bind_order(index, class);
        self.count_on_planned(index, class);
        self.topology.note_counted(&self.rows.algebra, index);
        Target::Planned(index)
    }

    /// Updates reservations, limits and devices once the requirements or resources of a planned node changed.
    pub(super) fn settle(
        &mut self,
        index: PlannedId,
        reservations: Option<BTreeSet<ReservationId>>,
    ) {
        let node = &mut self.planned[index];
        let mut released = false;
        if let Some(reservations) = reservations {
            released |= self.budgets.hold(node, reservations);
        }
        if let Some(devices) = self.devices.as_mut().filter(|_| node.drivers.is_some()) {
            devices.release(index, node, self.rows);
            released = true;
        }
        released |= self.budgets.charge(node, self.rows);
        self.changed(released);
    }
}
