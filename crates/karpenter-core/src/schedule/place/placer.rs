//! Placing pods one by one: on existing nodes, then planned nodes, then new planned nodes, variant by variant.

use std::collections::BTreeSet;

use index_vec::IndexVec;
use rustc_hash::FxHashMap;

use crate::pod::PodKey;
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{AxisId, ClassId, GroupId, NodeIdx, PodIdx, Target};
use crate::schedule::compile::solver::Solver;
use crate::schedule::place::placement::{Manner, Placement};
use crate::schedule::place::refusal::Refusal;
use crate::schedule::place::variant::{FreshVariants, Variant};
use crate::schedule::pods::class::{Class, PodState};
use crate::schedule::pods::queue::{PodQueue, QueuedPod};
use crate::schedule::request::{Packing, Query};
use crate::schedule::topology::choices::Choices;
use crate::schedule::topology::group::Among;

/// Places the pods of a queue on the nodes of a pass.
pub(crate) struct Placer<'p, 'a> {
    pub(super) nodes: Placement<'p, 'a>,
    pub(super) pods: &'p mut IndexVec<PodIdx, QueuedPod>,
    pub(super) classes: &'p IndexVec<ClassId, Class>,
    progress: IndexVec<ClassId, Progress>,
    query: &'p Query,
    solver: &'a Solver,
    /// Whether some NodePool can be used.
    may_open: bool,
    /// The variants of classes before any pod is placed, if the pods are placed several times.
    fresh: &'p mut Option<FreshVariants>,
    /// Whether the query wants reports of the progress.
    reports: bool,
}

/// What the pass has found out about a class so far.
#[derive(Debug)]
struct Progress {
    /// The variants that were tried.
    variants: Vec<Option<Box<Variant>>>,
    /// No pod of the class can be placed in the rest of this pass.
    unplaceable: bool,
    refused: Option<LastRefusal>,
    /// Whether some node has room for a pod of the class, topology and the other pods apart; `None` until it is asked for.
    has_a_node: Option<bool>,
    /// How many of the partly counted planned nodes the chains of its bind order were applied to.
    chained: usize,
}

/// The last refusal of a pod of a class.
#[derive(Clone, Copy, Debug)]
struct LastRefusal {
    /// The epoch of the pass: as long as it is the same, another pod of the class is refused too.
    epoch: u64,
    state: PodState,
    /// The variant that was tried last.
    variant: usize,
}

impl Progress {
    fn of(class: &Class) -> Self {
        Self {
            variants: vec![None; class.variant_count()],
            unplaceable: class.problem.is_some(),
            refused: None,
            has_a_node: None,
            chained: 0,
        }
    }
}

impl<'p, 'a> Placer<'p, 'a> {
    pub(crate) fn new(
        nodes: Placement<'p, 'a>,
        queue: &'p mut PodQueue,
        query: &'p Query,
        may_open: bool,
        fresh: &'p mut Option<FreshVariants>,
        reports: bool,
    ) -> Self {
        Self {
            solver: nodes.solver,
            progress: queue.classes.iter().map(Progress::of).collect(),
            pods: &mut queue.pods,
            classes: &queue.classes,
            nodes,
            query,
            may_open,
            fresh,
            reports,
        }
    }

    /// Places the pods, then those of capacity buffers: a pod that is refused in the first round may fit later, and a buffer must
    /// not have taken its place by then.
    ///
    /// Planning a node in a new domain adds a domain with zero pods. If a spread counts domains that its pods cannot use, that lowers
    /// the minimum count, so kube-scheduler would reject pods already placed. Pods with such a spread are therefore placed last, unless
    /// they fit even with an empty domain. Where each domain that the NodePools offer has a node, no planned node adds one.
    pub(crate) fn place_all(&mut self, mut order: Vec<PodIdx>) {
        self.place_nominated(&mut order);
        let (buffers, pods): (Vec<PodIdx>, _) =
            order.into_iter().partition(|pod| self.pods[*pod].buffer);
        let growing = self.growing_groups();
        let (left, mut last) = self.place_in_rounds(pods, &growing, buffers.len());
        let none = Bits::default();
        if !last.is_empty() {
            self.fix_counted_elsewhere(&last);
            last.extend(left);
            self.put_opening_first(&mut last, &growing);
            self.place_in_rounds(last, &none, buffers.len());
        }
        self.place_in_rounds(buffers, &none, 0);
    }

    /// Counts the preferences that are not met, and returns the variant of each class that was refused last, with what refused it.
    pub(crate) fn finish(mut self) -> IndexVec<ClassId, Option<Box<Variant>>> {
        if self.query.packing(&self.solver.policy) != Packing::FewestNodes {
            self.count_unmet();
        }
        let refused = |mut progress: Progress| {
            let variant = progress.refused?.variant;
            progress.variants[variant].take()
        };
        self.progress.into_iter().map(refused).collect()
    }

    fn class(&self, pod: PodIdx) -> &'p Class {
        &self.classes[self.pods[pod].class]
    }

    /// Returns the spreads that count domains their pods cannot use, if planned nodes may add one to those that have nodes.
    fn growing_groups(&mut self) -> Bits<GroupId> {
        let links = self.classes.iter().map(|class| &class.links);
        let groups: BTreeSet<GroupId> = links
            .flat_map(|links| links.counts_elsewhere.iter().copied())
            .collect();
        let templates = &self.solver.templates;
        let grows = |group: &GroupId| {
            let occupied = self.nodes.topology.occupied_domains(*group);
            let axis = self.nodes.topology[*group].axis;
            templates.iter().any(|template| {
                let algebra = &mut self.nodes.rows.algebra;
                let offered = self.nodes.topology.reach(algebra, axis, template.set);
                offered.iter().any(|domain| !occupied.contains(domain))
            })
        };
        groups.into_iter().filter(grows).collect()
    }

    /// Moves pods to the front that may be in a domain of these spreads that has no node yet.
    fn put_opening_first(&mut self, pods: &mut [PodIdx], growing: &Bits<GroupId>) {
        let mut opening: BTreeSet<ClassId> = BTreeSet::new();
        for group in growing.iter() {
            let axis = self.nodes.topology[group].axis;
            let occupied = self.nodes.topology.occupied_domains(group);
            for (class, terms) in self.classes.iter_enumerated() {
                let mut terms = terms.term_sets.iter();
                let opens = terms.any(|term| {
                    let algebra = &mut self.nodes.rows.algebra;
                    let admitted = self.nodes.topology.domains_of(algebra, axis, *term);
                    admitted.is_none_or(|all| all.iter().any(|domain| !occupied.contains(domain)))
                });
                opening.extend(opens.then_some(class));
            }
        }
        pods.sort_by_key(|pod| !opening.contains(&self.pods[*pod].class));
    }

    /// Fixes the cheapest domain of each planned node where a spread of these pods counts the domains that have nodes.
    fn fix_counted_elsewhere(&mut self, pods: &[PodIdx]) {
        let links = pods.iter().map(|pod| &self.class(*pod).links);
        let groups = links.flat_map(|links| &links.counts_elsewhere);
        let axes: BTreeSet<AxisId> = groups
            .map(|group| self.nodes.topology[*group].axis)
            .collect();
        for axis in axes {
            for planned in self.nodes.planned.all().indices() {
                self.nodes.fix_cheapest(planned, axis);
            }
        }
    }

    /// Places pods until a round places none. Returns those left, and those with a spread in `growing` that must come after the other
    /// pods; `later` pods are placed after them.
    fn place_in_rounds(
        &mut self,
        mut queue: Vec<PodIdx>,
        growing: &Bits<GroupId>,
        later: usize,
    ) -> (Vec<PodIdx>, Vec<PodIdx>) {
        let (mut last, mut refused_early) = (Vec::new(), BTreeSet::new());
        loop {
            let before = queue.len();
            let mut again = Vec::new();
            for (position, pod) in queue.iter().enumerate() {
                if position % 128 == 0 {
                    if let Some(progress) = self.query.progress.as_ref().filter(|_| self.reports) {
                        progress(before - position + again.len() + last.len() + later);
                    }
                    if self.query.is_cancelled() {
                        return (Vec::new(), Vec::new());
                    }
                }
                let id = self.pods[*pod].class;
                let links = &self.classes[id].links;
                let mut elsewhere = links.counts_elsewhere.iter();
                if elsewhere.any(|group| growing.contains(*group)) {
                    if refused_early.contains(&id) || !self.place_early(*pod, growing) {
                        refused_early.insert(id);
                        last.push(*pod);
                    }
                    continue;
                }
                let state = match self.progress[id].unplaceable {
                    true => PodState::Refused,
                    false => self.place(*pod),
                };
                self.pods[*pod].state = state;
                if self.query.ends_when_stuck && self.is_stuck(*pod) {
                    return (Vec::new(), Vec::new());
                }
                let is_placed = matches!(state, PodState::Placed(_));
                if !is_placed && !self.progress[id].unplaceable {
                    again.push(*pod);
                }
            }
            if again.is_empty() || again.len() == before {
                return (again, last);
            }
            queue = again;
        }
    }

    /// Reports whether a pod that does not wait is placed on a node that is not initialized.
    fn is_stuck(&self, pod: PodIdx) -> bool {
        let queued = &self.pods[pod];
        let PodState::Placed(Target::Node(node)) = queued.state else {
            return false;
        };
        !queued.waiting && !queued.buffer && !self.solver.nodes[node].state.is_initialized()
    }

    /// Places nominated pods on their node where they still fit, and removes them from the queue.
    fn place_nominated(&mut self, queue: &mut Vec<PodIdx>) {
        let (solver, nominated) = (self.solver, &self.query.nominated);
        if nominated.is_empty() {
            return;
        }
        let mut nodes: FxHashMap<&PodKey, NodeIdx> = FxHashMap::default();
        for (pod, target) in nominated {
            let state = solver.snapshot.node(target);
            let node = state.and_then(|state| solver.nodes.find(state.name()));
            nodes.extend(node.map(|node| (pod, node)));
        }
        queue.retain(|pod| {
            let node = nodes.get(&self.pods[*pod].pod.key);
            !node.is_some_and(|node| self.place_on_nominated_node(*pod, *node))
        });
    }

    fn place_on_nominated_node(&mut self, pod: PodIdx, node: NodeIdx) -> bool {
        let (class, only) = (self.class(pod), Bits::from_iter([node]));
        let mut variants = 0..class.variant_count();
        class.problem.is_none()
            && variants.any(|index| {
                let target = self.place_on_existing(pod, index, Some(&only));
                if let Some(target) = target {
                    let queued = &mut self.pods[pod];
                    queued.state = PodState::Placed(target);
                    queued.dropped = index / class.terms.len();
                }
                target.is_some()
            })
    }

    /// Places a pod with all of its preferences where it fits even if some domain of its spreads in `growing` has no pods.
    fn place_early(&mut self, pod: PodIdx, growing: &Bits<GroupId>) -> bool {
        self.fix_counted_by(pod);
        self.nodes.topology.assume_empty(growing.clone());
        let (state, _) = self.place_within(pod, self.class(pod).terms.len());
        self.nodes.topology.assume_empty(Bits::default());
        let is_placed = matches!(state, PodState::Placed(_));
        if is_placed {
            self.pods[pod].state = state;
        }
        is_placed
    }

    fn place(&mut self, pod: PodIdx) -> PodState {
        let (id, class) = (self.pods[pod].class, self.class(pod));
        let progress = &mut self.progress[id];
        if let Some(refused) = &progress.refused {
            if refused.epoch == self.nodes.epoch() {
                return refused.state;
            }
            if !class.resource_claims.is_empty() {
                // Devices may have been released: no refusal is permanent.
                progress.variants.fill(None);
            }
        }
        self.fix_counted_by(pod);
        let (state, variant) = self.place_within(pod, class.variant_count());
        if !matches!(state, PodState::Placed(_)) {
            let progress = &mut self.progress[id];
            progress.refused = Some(LastRefusal {
                epoch: self.nodes.epoch(),
                state,
                variant,
            });
            progress.unplaceable = !class.links.retryable && !self.solver.releases_capacity;
        }
        state
    }

    /// Before a pod is placed, fixes what its required spreads read of planned nodes. A pod that cannot be placed at all decides nothing.
    fn fix_counted_by(&mut self, pod: PodIdx) {
        let spreads = self.nodes.topology.spreads_to_settle(self.class(pod));
        if !spreads.is_empty() && self.has_a_node(self.pods[pod].class) {
            self.nodes.fix_counted_by(&spreads);
        }
    }

    /// Reports whether some node has room for a pod of the class, topology and the other pods apart.
    fn has_a_node(&mut self, id: ClassId) -> bool {
        if let Some(known) = self.progress[id].has_a_node {
            return known;
        }
        let class = &self.classes[id];
        let count = class.variant_count();
        // Which devices are left depends on the other pods.
        let mut found = !class.resource_claims.is_empty();
        for index in count - class.terms.len()..count {
            self.with_variant(id, index, |this, variant| {
                found |= variant.open_nodes.iter().next().is_some();
                for template in this.solver.templates.indices() {
                    let choices = Choices::default();
                    found = found
                        || match this.nodes.try_new(template, class, variant, &choices) {
                            Ok(_) | Err(Refusal::NodeLimit | Refusal::Limits) => true,
                            Err(refusal) => !refusal.is_permanent(),
                        };
                }
            });
        }
        self.progress[id].has_a_node = Some(found);
        found
    }

    /// Calls `read` with a variant of a class, which is formed when it is first needed.
    fn with_variant<R>(
        &mut self,
        id: ClassId,
        index: usize,
        read: impl FnOnce(&mut Self, &mut Variant) -> R,
    ) -> R {
        let known = self.progress[id].variants[index].take();
        let mut variant = known.unwrap_or_else(|| {
            let algebra = &mut self.nodes.rows.algebra;
            let mut new = || Variant::new(self.solver, algebra, &self.classes[id], index);
            match self.fresh {
                Some(fresh) => fresh.entry((id, index)).or_insert_with(new).clone(),
                None => new(),
            }
        });
        let result = read(self, &mut variant);
        self.progress[id].variants[index] = Some(variant);
        result
    }

    /// Places a pod with one of its first variants. Returns also which was tried last.
    fn place_within(&mut self, pod: PodIdx, variants: usize) -> (PodState, usize) {
        let class = self.class(pod);
        let alternatives = class.terms.len();
        let upstreams = self.nodes.manner == Manner::Upstream;
        for index in 0..variants {
            let (step, alternative) = (index / alternatives, index % alternatives);
            let is_last = index + 1 == class.variant_count();
            if upstreams && step > 0 && alternative + 1 < alternatives {
                continue;
            }
            let state = match alternative == 0 && alternatives > 1 {
                // Room that is paid for comes before a new node for an earlier alternative of the node affinity.
                // DIFFERS: upstream plans a node for the first alternative before it tries existing nodes with the second.
                true => (index..index + alternatives)
                    .find_map(|index| self.place_on_existing(pod, index, None))
                    .map(PodState::Placed),
                false => None,
            };
            let state = state.unwrap_or_else(|| {
                self.with_variant(self.pods[pod].class, index, |this, variant| {
                    this.try_variant(pod, class, variant, is_last)
                })
            });
            match state {
                PodState::Placed(_) => {
                    self.pods[pod].dropped = step;
                    let chained = &mut self.progress[self.pods[pod].class].chained;
                    let algebra = &self.nodes.rows.algebra;
                    self.nodes.topology.note_chains(algebra, class, chained);
                    return (state, index);
                }
                PodState::Deferred => return (state, index),
                PodState::Refused | PodState::Waiting => {}
            }
        }
        (PodState::Refused, variants - 1)
    }

    /// Places a pod on an existing node that accepts a variant, of `only` those if given.
    fn place_on_existing(
        &mut self,
        pod: PodIdx,
        index: usize,
        only: Option<&Bits<NodeIdx>>,
    ) -> Option<Target> {
        let class = self.class(pod);
        self.with_variant(self.pods[pod].class, index, |this, variant| {
            let choices = this.nodes.choices(class, variant, Among::Existing).ok()?;
            this.try_existing(pod, variant, &choices, only)
        })
    }

    fn try_existing(
        &mut self,
        pod: PodIdx,
        variant: &mut Variant,
        choices: &Choices,
        only: Option<&Bits<NodeIdx>>,
    ) -> Option<Target> {
        let class = self.class(pod);
        let queued = &self.pods[pod];
        let waiting = queued.waiting || queued.buffer;
        (self.nodes).place_on_existing(waiting, class, variant, choices, only)
    }

    fn try_variant(
        &mut self,
        pod: PodIdx,
        class: &Class,
        variant: &mut Variant,
        is_last: bool,
    ) -> PodState {
        let choices = self.nodes.choices(class, variant, Among::Existing);
        let mut choices = match choices {
            Ok(choices) => choices,
            Err(refusal) => return self.refuse(class, variant, &refusal, is_last),
        };
        if let Some(target) = self.try_existing(pod, variant, &choices, None) {
            return PodState::Placed(target);
        }
        if class.terms.len() > 1 && self.nodes.planned.all().is_empty() {
            match self.nodes.choices(class, variant, Among::Planned) {
                Ok(planned) => choices = planned,
                Err(refusal) => return self.refuse(class, variant, &refusal, is_last),
            }
        }
        self.pods[pod].requirements = variant.set;
        let may_open = choices.no_new_node.is_none() && self.may_open;
        let found = match self.nodes.find_planned(class, variant, &choices, may_open) {
            Some(found) => Ok(found),
            None => match choices.no_new_node {
                Some(group) => {
                    return self.refuse(class, variant, &Refusal::Topology(group), is_last);
                }
                None if !self.may_open => return PodState::Refused,
                None => {
                    let new = self.nodes.find_new(class, variant, &choices);
                    new.map(|(template, fit)| (self.nodes.open(template), fit))
                }
            },
        };
        match found {
            Ok((planned, fit)) => {
                self.pods[pod].volumes = fit.volume;
                let target = self.nodes.join(planned, fit, pod, class);
                self.nodes.fix_undecided(&choices, target);
                PodState::Placed(target)
            }
            Err(state) => {
                variant.choices = Some(choices);
                state
            }
        }
    }

    /// Records that topology constraints refuse the last variant of a class, whatever the NodePool.
    fn refuse(
        &mut self,
        class: &Class,
        variant: &mut Variant,
        refusal: &Refusal,
        is_last: bool,
    ) -> PodState {
        if is_last && self.may_open {
            variant.choices = None;
            self.nodes.refuse_new(class, variant, refusal);
        }
        PodState::Refused
    }
}
