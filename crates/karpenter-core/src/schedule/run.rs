//! One scheduling run.
//!
//! 1. Pods are sorted: cpu descending, memory descending, creation, uid. Buffers' pods come last.
//! 2. Each pod is tried on machines that exist, then on claims of this run, then on a new claim of each NodePool; if none
//!    takes it, its demands are relaxed by a step and everything is tried again.
//! 3. Pods that failed are tried again as long as others were placed since and that can have made a difference.
//!
//! Ties: machines go by name (initialised first), claims by number of pods and then by age, NodePools by weight and then by
//! name descending, domains by count, then by price for a new claim, then by name.
//!
//! UPSTREAM: pkg/controllers/provisioning/scheduling/scheduler.go

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::Arc,
};

use jiff::Timestamp;
use karpenter_api::{labels, v1::NodeClaim};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    algebra::{ANYTHING, Algebra, ReqId, SetId},
    bits::Bits,
    claim::Claim,
    class::{Class, GroupId, Owned, Soft, Variant},
    defaults::spread_of,
    plan::{DraftShape, Plan, PoolOutcome, WhyNot},
    prepare::{Solver, limit_usage, node_filter_terms},
    request::{PodSet, PreferencePolicy, ScheduleRequest},
    template::with_term,
    topology::{Axis, Group, GroupIdentity, GroupKind, Host, Namespaces, NodeFilter, is_hostname},
    vectors::fits,
    volumes::Volumes,
};
use crate::{
    pod::{
        HostPort, NodeTerm, Pod, PodProblem, Shape, SpreadConstraint, Toleration, Weighted,
        validate,
    },
    requirements::{Operator, Requirement, Requirements},
    taints::untolerated,
};

/// Rows that meet a set, with the most any of them has room for.
#[derive(Debug)]
pub(super) struct RowMask {
    pub(super) rows: Bits,
    pub(super) peak: Box<[i64]>,
}

/// Where a pod went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Waiting,
    Placed(Host),
    Refused,
    /// Reserved capacity would do but is used up.
    Deferred,
}

/// A pod of the run.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) pod: Arc<Pod>,
    pub(super) class: usize,
    pub(super) buffer: bool,
    /// It is pending or comes from a machine that is going away.
    pub(super) waiting: bool,
    pub(super) fate: Fate,
}

/// A pod on its way in.
struct Entrant {
    /// Where it stands in the queue: buffers' pods last, then by cpu and memory descending and by age.
    place: (bool, i64, i64, Option<Timestamp>),
    pod: Arc<Pod>,
    waiting: bool,
}

/// What a run added to a machine, beside resources.
#[derive(Debug, Default)]
pub(super) struct Load {
    pub(super) ports: Vec<HostPort>,
    /// Claims attached by driver, the bound pods' included.
    pub(super) attached: Option<BTreeMap<String, FxHashSet<String>>>,
}

/// What drafts must have in common to be alike: template, requirements, rows, reservations.
pub(super) type ShapeKey = (usize, SetId, Bits, BTreeSet<usize>);

/// What alike drafts share.
pub(super) type SharedDraft = (DraftShape, Arc<NodeClaim>);

/// See the module documentation.
pub(super) struct Run<'a> {
    pub(super) solver: &'a Solver,
    pub(super) request: &'a ScheduleRequest,
    pub(super) algebra: Algebra,
    pub(super) width: usize,
    pub(super) items: Vec<Item>,
    pub(super) classes: Vec<Class>,
    pub(super) axes: Vec<Axis>,
    axis_ids: FxHashMap<String, usize>,
    pub(super) groups: Vec<Group>,
    group_ids: FxHashMap<Arc<GroupIdentity>, GroupId>,
    /// Machines that are not supposed gone.
    present: Bits,
    /// Machines that may be used.
    pub(super) usable: Bits,
    /// Machines that only waiting pods may use.
    pub(super) reluctant: Bits,
    pub(super) remaining: Vec<i64>,
    pub(super) loads: FxHashMap<usize, Load>,
    pub(super) claims: Vec<Claim>,
    /// Open claims by number of pods.
    pub(super) levels: BTreeMap<u32, Bits>,
    /// What is left of each template's limits.
    pub(super) limits: Vec<Vec<i64>>,
    /// Rows within the limits of each template.
    pub(super) within_limits: Vec<Option<Rc<Bits>>>,
    pub(super) reservations_left: Vec<u32>,
    pub(super) masks: RefCell<FxHashMap<(usize, SetId), Rc<RowMask>>>,
    pub(super) rows_meeting: FxHashMap<(usize, ReqId), Rc<Bits>>,
    pub(super) kinds: FxHashMap<(usize, SetId), Rc<Bits>>,
    pub(super) shapes: FxHashMap<ShapeKey, Option<Arc<SharedDraft>>>,
    /// The least any class asks for, by resource: a claim without this much room is closed.
    pub(super) least: Box<[i64]>,
    /// Changes whenever something happened that can make room for a pod that was refused.
    pub(super) epoch: u64,
    /// No NodePool can be used at all.
    pub(super) hopeless: Option<WhyNot>,
}

impl<'a> Run<'a> {
    pub(super) fn new(solver: &'a Solver, request: &'a ScheduleRequest) -> Self {
        let width = solver.dimensions.len();
        let machine = |name: &String| solver.machine_of.get(name).map(|index| *index as usize);
        let mut usable = Bits::full(solver.machines.len());
        for index in request.without.iter().filter_map(machine) {
            usable.remove(index);
        }
        let present = usable.clone();
        for (index, machine) in solver.machines.iter().enumerate() {
            if machine.broken {
                usable.remove(index);
            }
        }
        let mut limits: Vec<Vec<i64>> = solver
            .templates
            .iter()
            .map(|template| template.limits.clone())
            .collect();
        for index in request.without.iter().filter_map(machine) {
            let state = &solver.machines[index].state;
            let Some(template) = solver
                .templates
                .iter()
                .position(|template| Some(template.name.as_str()) == state.node_pool())
            else {
                continue;
            };
            let usage = limit_usage(state);
            for (left, name) in limits[template]
                .iter_mut()
                .zip(&solver.templates[template].limit_names)
            {
                *left = left.saturating_add(usage.get(name));
            }
        }
        let mut run = Self {
            solver,
            request,
            algebra: solver.algebra.layer(),
            width,
            items: Vec::new(),
            classes: Vec::new(),
            axes: Vec::new(),
            axis_ids: FxHashMap::default(),
            groups: Vec::new(),
            group_ids: FxHashMap::default(),
            present,
            usable,
            reluctant: request.reluctant.iter().filter_map(machine).collect(),
            remaining: solver.remaining.clone(),
            loads: FxHashMap::default(),
            claims: Vec::new(),
            levels: BTreeMap::new(),
            within_limits: vec![None; solver.templates.len()],
            limits,
            reservations_left: solver.reservations.left.clone(),
            masks: RefCell::default(),
            rows_meeting: FxHashMap::default(),
            kinds: FxHashMap::default(),
            shapes: FxHashMap::default(),
            least: Box::default(),
            epoch: 1,
            hopeless: None,
        };
        for template in 0..solver.templates.len() {
            run.refresh_limits(template);
        }
        run
    }

    pub(super) fn solve(mut self) -> Plan {
        self.collect();
        let any_dynamic = self.solver.pools.iter().any(|pool| {
            matches!(
                pool.outcome,
                PoolOutcome::Used | PoolOutcome::NoCompatibleInstanceTypes { .. }
            )
        });
        if !any_dynamic {
            self.hopeless = Some(WhyNot::NoNodePools);
        } else if self.solver.templates.is_empty() {
            self.hopeless = Some(WhyNot::NoInstanceTypes);
        }
        self.place_all();
        self.into_plan()
    }

    /// Takes the pods in, sorts them and forms their classes.
    fn collect(&mut self) {
        let solver = self.solver;
        let snapshot = &solver.snapshot;
        let mut pods: Vec<Entrant> = Vec::new();
        let mut enter = |pod: &Arc<Pod>, waiting: bool, buffer: bool| {
            let asked = &pod.shape.requests;
            let place = (
                buffer,
                asked.get("cpu").saturating_neg(),
                asked.get("memory").saturating_neg(),
                pod.created_at,
            );
            pods.push(Entrant {
                place,
                pod: pod.clone(),
                waiting,
            });
        };
        let (waiting, given): (bool, &[Arc<Pod>]) = match &self.request.pods {
            PodSet::Waiting => (true, &[]),
            PodSet::Given(pods) => (false, pods),
            PodSet::WaitingAnd(pods) => (true, pods),
        };
        if waiting {
            snapshot
                .pending_pods()
                .for_each(|pod| enter(pod, true, false));
            snapshot
                .pods_of_deleting_nodes()
                .for_each(|pod| enter(pod, true, false));
        }
        given.iter().for_each(|pod| enter(pod, false, false));
        self.request
            .buffer_pods
            .iter()
            .for_each(|pod| enter(pod, false, true));
        pods.sort_by(|a, b| {
            a.place
                .cmp(&b.place)
                .then_with(|| a.pod.key.uid.cmp(&b.pod.key.uid))
                .then_with(|| a.pod.key.cmp(&b.pod.key))
        });
        pods.dedup_by(|a, b| a.place.0 == b.place.0 && a.pod.key == b.pod.key);
        let mut class_of: FxHashMap<(*const Shape, bool), usize> = FxHashMap::default();
        for Entrant {
            place,
            pod,
            waiting,
        } in pods
        {
            let buffer = place.0;
            let validated = waiting && pod.node_name.is_none();
            let class = if pod.shape.volumes.is_empty() {
                let key = (Arc::as_ptr(&pod.shape), validated);
                match class_of.get(&key) {
                    Some(class) => *class,
                    None => {
                        let class = self.form_class(&pod, validated);
                        class_of.insert(key, class);
                        class
                    }
                }
            } else {
                self.form_class(&pod, validated)
            };
            self.items.push(Item {
                pod,
                class,
                buffer,
                waiting,
                fate: Fate::Waiting,
            });
        }
        self.count_what_is_there();
        self.link_classes();
        let mut least: Option<Box<[i64]>> = None;
        for class in self.classes.iter().filter(|class| class.problem.is_none()) {
            match &mut least {
                None => least = Some(class.requests.clone()),
                Some(least) => least
                    .iter_mut()
                    .zip(class.requests.iter())
                    .for_each(|(least, asked)| *least = (*least).min(*asked)),
            }
        }
        self.least = least.unwrap_or_else(|| vec![0; self.width].into());
    }

    fn form_class(&mut self, pod: &Pod, validated: bool) -> usize {
        let solver = self.solver;
        let snapshot = &solver.snapshot;
        let names = &snapshot.config().well_known;
        let shape = &pod.shape;
        let mut problems = if validated {
            validate(shape, names)
        } else {
            Vec::new()
        };
        let volumes = Volumes::resolve(snapshot, pod).unwrap_or_else(|problem| {
            problems.push(PodProblem::Volume(problem));
            Volumes::default()
        });
        // The allocator of `dra` is not part of a run yet: such pods are refused, whatever the flag says.
        if !shape.resource_claims.is_empty() {
            problems.push(PodProblem::DynamicResources);
        }
        let mut class = Class {
            shape: shape.clone(),
            requests: solver.dimensions.vector(&shape.requests),
            ports: shape.host_ports.clone(),
            volumes: Vec::new(),
            volume_requirements: volumes.alternatives,
            attached: volumes.attached,
            terms: node_filter_terms(shape, names),
            hard: Vec::new(),
            soft: Soft::default(),
            kept_away: Vec::new(),
            counted: Vec::new(),
            keeps_away: Vec::new(),
            variants: Vec::new(),
            problem: None,
            dead: false,
            refused_at: 0,
            refused_as: Fate::Refused,
            hopeful: false,
        };
        if solver.dimensions.misses(&shape.requests) {
            class.requests.fill(i64::MAX);
        }
        class.volumes = class
            .volume_requirements
            .iter()
            .map(|all| self.algebra.set(all, |key| names.contains(key)))
            .collect();
        if class.volumes.is_empty() {
            class.volumes.push(ANYTHING);
        }
        if problems.is_empty() {
            self.constrain(&mut class);
        } else {
            class.problem = Some(WhyNot::Invalid(problems));
        }
        class.variants.resize(class.variant_count(), None);
        self.classes.push(class);
        self.classes.len() - 1
    }

    /// Makes or finds the groups a class is subject to.
    fn constrain(&mut self, class: &mut Class) {
        let names = &self.solver.snapshot.config().well_known;
        let shape = class.shape.clone();
        let respect = self.request.preference_policy == PreferencePolicy::Respect;
        for constraint in spread_of(&shape, &self.request.default_spread, &self.solver.snapshot) {
            if constraint.hard {
                let owned = self.spread_group(&shape, &class.terms, &constraint);
                class.hard.push(owned);
            } else if respect {
                let owned = self.spread_group(&shape, &class.terms, &constraint);
                class.soft.spread.push(owned);
            }
        }
        for term in &shape.required_affinity {
            let owned = self.group(
                &shape,
                GroupIdentity::affinity(GroupKind::Affinity, term, names),
            );
            class.hard.push(owned);
        }
        for term in &shape.required_anti_affinity {
            let owned = self.group(
                &shape,
                GroupIdentity::affinity(GroupKind::Anti, term, names),
            );
            class.hard.push(owned);
            let inverse = self.group(&shape, GroupIdentity::inverse(term, names));
            class.keeps_away.push(inverse.group);
        }
        if respect {
            for preferred in heaviest_first(&shape.preferred_affinity) {
                let owned = self.group(
                    &shape,
                    GroupIdentity::affinity(GroupKind::Affinity, &preferred.term, names),
                );
                class.soft.affinity.push(owned);
            }
            for preferred in heaviest_first(&shape.preferred_anti_affinity) {
                let owned = self.group(
                    &shape,
                    GroupIdentity::affinity(GroupKind::Anti, &preferred.term, names),
                );
                class.soft.anti_affinity.push(owned);
            }
            let preferred: Vec<&Weighted<NodeTerm>> = heaviest_first(&shape.preferred_nodes);
            class.soft.nodes = preferred
                .iter()
                .map(|preferred| with_term(&Requirements::new(), &preferred.term, names))
                .collect();
        }
        class.soft.tolerate = self.solver.has_soft_taints;
        let hopeful = |owned: &Owned| {
            matches!(
                self.groups[owned.group].kind(),
                GroupKind::Spread | GroupKind::Affinity
            )
        };
        class.hopeful = class
            .hard
            .iter()
            .chain(&class.soft.spread)
            .chain(&class.soft.affinity)
            .any(hopeful);
    }

    fn spread_group(
        &mut self,
        shape: &Shape,
        terms: &[Requirements],
        constraint: &SpreadConstraint,
    ) -> Owned {
        let names = &self.solver.snapshot.config().well_known;
        let constrains = terms.iter().any(|term| !term.is_empty());
        let identity = GroupIdentity {
            kind: GroupKind::Spread,
            key: super::prepare::canonical_key(&constraint.topology_key, names),
            namespaces: Namespaces {
                list: vec![shape.namespace.clone()],
                selector: None,
            },
            selector: constraint.selector.clone(),
            max_skew: constraint.max_skew,
            min_domains: constraint.min_domains,
            filter: NodeFilter {
                terms: (constraint.honor_affinity && constrains).then(|| terms.to_vec()),
                tolerations: constraint.honor_taints.then(|| shape.tolerations.clone()),
            },
        };
        self.group(shape, identity)
    }

    fn group(&mut self, shape: &Shape, identity: GroupIdentity) -> Owned {
        let own = identity.selects(&shape.namespace, &shape.labels, &self.solver.snapshot);
        if let Some(group) = self.group_ids.get(&identity) {
            return Owned { group: *group, own };
        }
        let axis = self.axis(&identity.key);
        let identity = Arc::new(identity);
        let mut group = Group::new(identity.clone(), axis);
        let filter = &identity.filter;
        if filter.terms.is_some() || filter.tolerations.is_some() {
            let mut machines = Bits::full(self.solver.machines.len());
            if let Some(terms) = &filter.terms {
                let mut any = Bits::default();
                for term in terms {
                    any.unite(&self.machines_meeting_all(term));
                }
                machines.intersect(&any);
            }
            if let Some(tolerations) = &filter.tolerations {
                machines.intersect(&self.solver.machines_tolerated(tolerations));
            }
            group.machines = Some(Arc::new(machines));
            let names = &self.solver.snapshot.config().well_known;
            group.filter_sets = filter.terms.as_ref().map(|terms| {
                terms
                    .iter()
                    .map(|term| self.algebra.set(term, |key| names.contains(key)))
                    .collect()
            });
        }
        self.groups.push(group);
        self.group_ids.insert(identity, self.groups.len() - 1);
        Owned {
            group: self.groups.len() - 1,
            own,
        }
    }

    pub(super) fn machines_meeting_all(&self, requirements: &Requirements) -> Bits {
        let mut machines = Bits::full(self.solver.machines.len());
        for requirement in requirements.iter() {
            machines.intersect(&self.solver.machines_meeting(requirement));
        }
        machines
    }

    /// Makes or finds the axis of a label: its domains over machines and templates.
    fn axis(&mut self, name: &str) -> usize {
        if let Some(axis) = self.axis_ids.get(name) {
            return *axis;
        }
        let solver = self.solver;
        let names = &solver.snapshot.config().well_known;
        let key = self.algebra.key(name, || names.contains(name));
        let mut axis = Axis {
            name: name.to_owned(),
            key,
            is_hostname: is_hostname(name),
            domains: Vec::new(),
            ids: FxHashMap::default(),
            of_machine: Vec::new(),
            machines: Vec::new(),
            claims: Vec::new(),
            admitted: FxHashMap::default(),
            of_template: Vec::new(),
            requirements: FxHashMap::default(),
        };
        if !axis.is_hostname {
            let on_machines = solver.machine_domains(name);
            for domain in &on_machines.names {
                axis.domain(domain);
            }
            axis.of_machine.clone_from(&on_machines.of_machine);
            for (machine, domain) in axis.of_machine.iter().enumerate() {
                if *domain != u32::MAX {
                    axis.machines[*domain as usize].insert(machine);
                }
            }
            for template in &solver.templates {
                let domains = self.template_domains(template, &mut axis);
                axis.of_template.push(domains);
            }
        }
        self.axes.push(axis);
        self.axis_ids.insert(name.to_owned(), self.axes.len() - 1);
        self.axes.len() - 1
    }

    /// The values of a label that machines of a template can have.
    fn template_domains(&self, template: &super::template::Template, axis: &mut Axis) -> Bits {
        let catalogue = &self.solver.catalogues[template.catalogue];
        let own = self
            .algebra
            .get(template.set, axis.key)
            .map(|req| self.algebra.requirement(req).clone());
        let mut values: BTreeSet<String> = BTreeSet::new();
        if let Some(own) = own.as_ref().filter(|own| !own.is_complement()) {
            values.extend(own.values().map(str::to_owned));
        }
        let mut seen: FxHashSet<ReqId> = FxHashSet::default();
        for row in template.rows.iter() {
            let Some(req) = catalogue
                .requirement(row, axis.key)
                .filter(|req| seen.insert(*req))
            else {
                continue;
            };
            let requirement = self.algebra.requirement(req);
            if !requirement.is_complement() {
                let within = |value: &&str| own.as_ref().is_none_or(|own| own.has(value));
                values.extend(requirement.values().filter(within).map(str::to_owned));
            }
        }
        values.iter().map(|value| axis.domain(value)).collect()
    }

    /// Fills the counters with the pods that are bound, and finds which domains exist for each group.
    fn count_what_is_there(&mut self) {
        let solver = self.solver;
        let inverse: Vec<_> = solver.inverse.iter().collect();
        for (identity, places) in inverse {
            let concerns = |class: &Class| {
                identity.selects(
                    &class.shape.namespace,
                    &class.shape.labels,
                    &solver.snapshot,
                )
            };
            if !self.classes.iter().any(concerns) {
                continue;
            }
            let group = match self.group_ids.get(identity) {
                Some(group) => *group,
                None => {
                    let axis = self.axis(&identity.key);
                    let identity = Arc::new(identity.clone());
                    self.groups.push(Group::new(identity.clone(), axis));
                    self.group_ids.insert(identity, self.groups.len() - 1);
                    self.groups.len() - 1
                }
            };
            self.count_places(group, places);
        }
        for group in 0..self.groups.len() {
            self.find_domains(group);
            if self.groups[group].kind() != GroupKind::Inverse {
                let counts = solver.base_counts(&self.groups[group].identity.clone());
                self.count_places(group, &counts.places);
            }
        }
        let moved: Vec<Arc<Pod>> = self
            .items
            .iter()
            .filter(|item| item.pod.node_name.is_some())
            .map(|item| item.pod.clone())
            .collect();
        for pod in moved {
            let machine = pod
                .node_name
                .as_ref()
                .and_then(|name| solver.machine_of.get(name))
                .map(|index| *index as usize);
            if let Some(machine) =
                machine.filter(|machine| self.present.contains(*machine) && pod.is_active())
            {
                self.uncount(&pod, machine);
            }
        }
    }

    fn count_places(&mut self, group: GroupId, places: &[(u32, u32)]) {
        let axis = self.groups[group].axis;
        for (machine, number) in places {
            let index = *machine as usize;
            let counts = self.groups[group]
                .machines
                .as_ref()
                .is_none_or(|machines| machines.contains(index));
            if !counts || !self.present.contains(index) {
                continue;
            }
            if self.axes[axis].is_hostname {
                self.groups[group].count_on_host(Host::Machine(index), *number);
            } else {
                let domain = self.axes[axis].of_machine[index];
                if domain != u32::MAX {
                    self.groups[group].count_in(domain as usize, *number);
                }
            }
        }
    }

    /// A pod of the run is bound to a machine that stays: it no longer counts there.
    fn uncount(&mut self, pod: &Pod, machine: usize) {
        let names = &self.solver.snapshot.config().well_known;
        for group in 0..self.groups.len() {
            let identity = self.groups[group].identity.clone();
            let counted = match identity.kind {
                GroupKind::Inverse => pod
                    .shape
                    .required_anti_affinity
                    .iter()
                    .any(|term| GroupIdentity::inverse(term, names) == *identity),
                _ => identity.selects(
                    &pod.shape.namespace,
                    &pod.shape.labels,
                    &self.solver.snapshot,
                ),
            };
            let axis = &self.axes[self.groups[group].axis];
            if counted && !axis.is_hostname && axis.of_machine[machine] != u32::MAX {
                let domain = axis.of_machine[machine] as usize;
                self.groups[group].uncount_in(domain, 1);
            }
        }
    }

    fn find_domains(&mut self, group: GroupId) {
        let axis = self.groups[group].axis;
        if self.axes[axis].is_hostname {
            return;
        }
        let mut known = Bits::default();
        let passing = self.groups[group].machines.clone();
        for (domain, machines) in self.axes[axis].machines.iter().enumerate() {
            let mut machines = machines.clone();
            machines.intersect(&self.present);
            if let Some(passing) = &passing {
                machines.intersect(passing);
            }
            if !machines.is_empty() {
                known.insert(domain);
            }
        }
        let filter = self.groups[group].identity.filter.clone();
        let names = &self.solver.snapshot.config().well_known;
        for (index, template) in self.solver.templates.iter().enumerate() {
            let tolerated = filter
                .tolerations
                .as_ref()
                .is_none_or(|tolerations| untolerated(&template.taints, tolerations).is_none());
            let meets = filter.terms.as_ref().is_none_or(|terms| {
                terms.iter().any(|term| {
                    let wanted = self.algebra.set(term, |key| names.contains(key));
                    self.algebra.join(template.set, wanted).is_some()
                })
            });
            if tolerated && meets {
                known.unite(&self.axes[axis].of_template[index]);
            }
        }
        self.groups[group].known.unite(&known);
    }

    /// Finds which groups count each class, and which keep it away.
    fn link_classes(&mut self) {
        let mut anchored: FxHashMap<(&str, &str), Vec<GroupId>> = FxHashMap::default();
        let mut others: Vec<GroupId> = Vec::new();
        let identities: Vec<Arc<GroupIdentity>> = self
            .groups
            .iter()
            .map(|group| group.identity.clone())
            .collect();
        for (group, identity) in identities.iter().enumerate() {
            match identity.selector.anchor() {
                Some((key, values)) => {
                    for value in values {
                        anchored
                            .entry((key, value.as_str()))
                            .or_default()
                            .push(group);
                    }
                }
                None => others.push(group),
            }
        }
        let snapshot = &self.solver.snapshot;
        for class in self
            .classes
            .iter_mut()
            .filter(|class| class.problem.is_none())
        {
            let by_label = class
                .shape
                .labels
                .iter()
                .filter_map(|(key, value)| anchored.get(&(key.as_str(), value.as_str())));
            let mut candidates: Vec<GroupId> = by_label
                .flatten()
                .copied()
                .chain(others.iter().copied())
                .collect();
            candidates.sort_unstable();
            candidates.dedup();
            for group in candidates {
                if identities[group].selects(&class.shape.namespace, &class.shape.labels, snapshot)
                {
                    if identities[group].kind == GroupKind::Inverse {
                        class.kept_away.push(group);
                    } else {
                        class.counted.push(group);
                    }
                }
            }
        }
    }

    /// Works out a variant: its requirements and what refuses it from the start.
    pub(super) fn form_variant(&mut self, class: usize, index: usize) -> Box<Variant> {
        let names = &self.solver.snapshot.config().well_known;
        let known = |key: &str| names.contains(key);
        let (term, preferred, owned, tolerate) = self.classes[class].demands(index);
        let strict = term.clone();
        let mut all = strict.clone();
        if let Some(preferred) = preferred {
            all.add_all(preferred);
        }
        let mut tolerations = self.classes[class].shape.tolerations.clone();
        if tolerate {
            tolerations.push(Toleration::any_prefer_no_schedule());
        }
        let mut machines = self.usable.clone();
        machines.intersect(&self.machines_meeting_all(&all));
        machines.intersect(&self.solver.machines_tolerated(&tolerations));
        if !self.classes[class].volume_requirements.is_empty() {
            let mut reachable = Bits::default();
            for alternative in &self.classes[class].volume_requirements {
                reachable.unite(&self.machines_meeting_all(alternative));
            }
            machines.intersect(&reachable);
        }
        let mut refused_machines = Bits::full(self.solver.machines.len());
        refused_machines.subtract(&machines);
        let templates = self.solver.templates.iter().enumerate();
        let tolerated_templates: Bits = templates
            .filter(|(_, template)| untolerated(&template.taints, &tolerations).is_none())
            .map(|(index, _)| index)
            .collect();
        Box::new(Variant {
            set: self.algebra.set(&all, known),
            strict: self.algebra.set(&strict, known),
            tolerations: Arc::new(tolerations),
            owned,
            refused_machines,
            refused_claims: Bits::default(),
            refused_templates: Bits::default(),
            tolerated_templates,
        })
    }

    /// Rows of a template that meet a set.
    pub(super) fn mask(&mut self, template: usize, set: SetId) -> Rc<RowMask> {
        if let Some(mask) = self.masks.borrow().get(&(template, set)) {
            return mask.clone();
        }
        let compiled = &self.solver.templates[template];
        let catalogue_index = compiled.catalogue;
        let catalogue = &self.solver.catalogues[catalogue_index];
        let mut rows = Bits::default();
        for kind in self.kinds(catalogue_index, set).iter() {
            rows.unite(&catalogue.kinds[kind].rows);
        }
        rows.intersect(&compiled.rows);
        for (_, req) in self.algebra.members(set).to_vec() {
            let algebra = &mut self.algebra;
            let meeting = self
                .rows_meeting
                .entry((catalogue_index, req))
                .or_insert_with(|| Rc::new(catalogue.rows_meeting(algebra, req)));
            rows.intersect(meeting);
        }
        let mut peak = vec![i64::MIN; self.width].into_boxed_slice();
        for row in rows.iter() {
            for (peak, room) in peak.iter_mut().zip(compiled.row_room(row, self.width)) {
                *peak = (*peak).max(*room);
            }
        }
        let mask = Rc::new(RowMask { rows, peak });
        self.masks
            .borrow_mut()
            .insert((template, set), mask.clone());
        mask
    }

    /// Kinds of offerings that a set admits.
    pub(super) fn kinds(&mut self, catalogue: usize, set: SetId) -> Rc<Bits> {
        if let Some(kinds) = self.kinds.get(&(catalogue, set)) {
            return kinds.clone();
        }
        let kinds = Rc::new(self.solver.catalogues[catalogue].kinds_in(&mut self.algebra, set));
        self.kinds.insert((catalogue, set), kinds.clone());
        kinds
    }

    /// Domains of an axis that a set admits.
    pub(super) fn domains_of(&mut self, axis: usize, set: SetId) -> Option<Arc<Bits>> {
        let key = self.axes[axis].key;
        let Some(req) = self.algebra.get(set, key) else {
            return if self.algebra.is_known(key) {
                None
            } else {
                Some(Arc::default())
            };
        };
        Some(self.admitted(axis, req))
    }

    pub(super) fn admitted(&mut self, axis: usize, req: ReqId) -> Arc<Bits> {
        let axis = &mut self.axes[axis];
        if let Some(domains) = axis.admitted.get(&req) {
            return domains.clone();
        }
        let requirement = self.algebra.requirement(req);
        let admitted = axis
            .domains
            .iter()
            .enumerate()
            .filter(|(_, name)| requirement.has(name))
            .map(|(index, _)| index);
        let domains: Arc<Bits> = Arc::new(admitted.collect());
        axis.admitted.insert(req, domains.clone());
        domains
    }

    /// The requirement that admits exactly these domains.
    pub(super) fn requirement_for(&mut self, axis: usize, domains: &Bits) -> ReqId {
        if let Some(req) = self.axes[axis].requirements.get(domains) {
            return *req;
        }
        let names: Vec<Arc<str>> = domains
            .iter()
            .map(|domain| self.axes[axis].domains[domain].clone())
            .collect();
        let well_known = &self.solver.snapshot.config().well_known;
        let requirement = Requirement::new(&self.axes[axis].name, Operator::In, names);
        let req = self
            .algebra
            .req(&requirement, || well_known.contains(requirement.key()));
        self.axes[axis].requirements.insert(domains.clone(), req);
        req
    }

    /// Rows of a template whose whole capacity is within what is left of its limits; `None` is all.
    pub(super) fn refresh_limits(&mut self, template: usize) {
        let compiled = &self.solver.templates[template];
        if compiled.limit_names.is_empty() {
            return;
        }
        let left = &self.limits[template];
        let count = left.len();
        let within = |row: &usize| {
            compiled.limit_costs[row * count..(row + 1) * count]
                .iter()
                .zip(left)
                .all(|(cost, left)| cost <= left)
        };
        self.within_limits[template] = Some(Rc::new(compiled.rows.iter().filter(within).collect()));
    }

    /// Whether a machine has room for a class.
    pub(super) fn machine_fits(&self, machine: usize, class: usize) -> bool {
        let room = &self.remaining[machine * self.width..(machine + 1) * self.width];
        self.classes[class]
            .requests
            .iter()
            .zip(room)
            .all(|(need, room)| need <= room)
    }

    /// Whether a row has room for something beside what is used.
    #[inline]
    pub(super) fn row_fits(&self, template: usize, row: usize, used: &[i64], need: &[i64]) -> bool {
        fits(
            used,
            need,
            self.solver.templates[template].row_room(row, self.width),
        )
    }

    /// Labels that exist in the simulation only.
    pub(super) fn is_simulated_label(key: &str) -> bool {
        matches!(
            key,
            labels::REGISTERED | labels::INITIALIZED | labels::HOSTNAME
        )
    }
}

/// Heaviest first; equal weights stay in the order they were written.
fn heaviest_first<T>(preferred: &[Weighted<T>]) -> Vec<&Weighted<T>> {
    let mut sorted: Vec<&Weighted<T>> = preferred.iter().collect();
    sorted.sort_by_key(|preferred| std::cmp::Reverse(preferred.weight));
    sorted
}
