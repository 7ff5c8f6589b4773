//! Classes of pods: pods that are equal in everything the solver reads, identity apart.
//!
//! A class has variants: its constraints at each step of relaxation. Variant 0 has all of them; each later one tries another
//! alternative of the required node affinity, or drops one more preference, in upstream's order: pod affinity, pod
//! anti-affinity, node affinity (heaviest first), soft spread constraints, and last it tolerates PreferNoSchedule taints.
//! The nodes and planned nodes that permanently refuse a variant are cached with it.
//!
//! UPSTREAM: pkg/controllers/provisioning/scheduling/preferences.go
//! DIFFERS: alternatives of the required node affinity are all tried before a preference is dropped.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::pod::{HostPort, Shape, Toleration};
use crate::requirements::Requirements;
use crate::schedule::compile::algebra::SetId;
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{GroupId, NodeIdx, PlannedId, TemplateId};
use crate::schedule::report::reasons::Unschedulable;
use crate::schedule::topology::group::Target;

/// The state of a pod in the pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodState {
    Waiting,
    Placed(Target),
    Refused,
    /// Only reserved capacity is compatible, and it is used up.
    Deferred,
}

/// A group whose constraint applies to a pod, and whether the group counts the pod itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owned {
    pub(crate) group: GroupId,
    pub(crate) own: bool,
    /// The constraint is a preference, treated as required at this step.
    pub(crate) soft: bool,
}

impl Owned {
    pub(crate) fn as_preference(self) -> Self {
        Self { soft: true, ..self }
    }
}

/// Preferences, in the order they are dropped.
#[derive(Clone, Debug, Default)]
pub(crate) struct Soft {
    pub(crate) affinity: Vec<Owned>,
    pub(crate) anti_affinity: Vec<Owned>,
    pub(crate) nodes: Vec<Requirements>,
    pub(crate) spread: Vec<Owned>,
    pub(crate) tolerate: bool,
}

impl Soft {
    pub(crate) fn steps(&self) -> usize {
        self.affinity.len()
            + self.anti_affinity.len()
            + self.nodes.len()
            + self.spread.len()
            + usize::from(self.tolerate)
    }
}

/// The constraints of a class at one step of relaxation.
#[derive(Clone, Debug)]
pub(crate) struct Variant {
    /// Node selector, one alternative of the required node affinity, preferred node affinity.
    pub(crate) set: SetId,
    /// The same without preferences; domains of spread constraints are filtered by it.
    pub(crate) strict: SetId,
    /// The alternative, by its index among the terms of the class.
    pub(crate) alternative: usize,
    pub(crate) tolerations: Arc<Vec<Toleration>>,
    pub(crate) owned: Vec<Owned>,
    /// Existing nodes that have not refused it permanently in this pass. May contain nodes treated as deleted.
    pub(crate) open_nodes: Arc<Bits<NodeIdx>>,
    /// Planned nodes that refuse it permanently in this pass.
    pub(crate) refused_planned: Bits<PlannedId>,
    /// Templates that refuse it permanently in this pass.
    pub(crate) refused_templates: Bits<TemplateId>,
    /// Templates whose taints are tolerated.
    pub(crate) tolerated_templates: Bits<TemplateId>,
}

/// A class of pods.
#[derive(Clone, Debug)]
pub(crate) struct Class {
    pub(crate) shape: Arc<Shape>,
    pub(crate) requests: Box<[i64]>,
    pub(crate) ports: Vec<HostPort>,
    /// Alternatives that the volumes allow; one without requirements if they allow all nodes.
    pub(crate) volumes: Vec<SetId>,
    pub(crate) volume_requirements: Vec<Requirements>,
    pub(crate) attached: BTreeSet<(String, String)>,
    /// Resource claims of the pods.
    pub(crate) resource_claims: Vec<String>,
    /// Alternatives of the required node affinity, with the node selector.
    pub(crate) terms: Vec<Requirements>,
    /// The same, interned.
    pub(crate) term_sets: Vec<SetId>,
    pub(crate) hard: Vec<Owned>,
    pub(crate) soft: Soft,
    /// Inverse groups whose anti-affinity terms select the class.
    pub(crate) kept_away: Vec<GroupId>,
    /// Groups that count the class.
    pub(crate) counted: Vec<GroupId>,
    /// Required spreads over domains that count the class and whose pods may have to be bound after its own: all, if it has a required
    /// spread of its own; else those after whose pods it cannot start its affinity group.
    pub(crate) bound_early: Vec<GroupId>,
    /// Pairs of required spreads by different labels: the second is its own, the first is its own as well or counts the class. Pods that
    /// the second counts may have to be bound before the class, and the first must count them, too.
    pub(crate) relies_on: Vec<(GroupId, GroupId)>,
    /// How many of the planned nodes in `PlannedNodes::counted_in_part` were looked at for it.
    pub(crate) seen_in_part: usize,
    /// Required spreads that count domains the class cannot use, if nodes are there (node affinity policy Ignore).
    pub(crate) counts_elsewhere: Vec<GroupId>,
    /// Inverse groups of the class's own anti-affinity.
    pub(crate) keeps_away: Vec<GroupId>,
    pub(crate) variants: Vec<Option<Box<Variant>>>,
    /// Why no pod of the class can be placed, independent of the state of the pass.
    pub(crate) problem: Option<Unschedulable>,
    /// No pod of the class can be placed in the rest of this pass.
    pub(crate) unplaceable: bool,
    /// The epoch of the pass at which a pod of the class was last refused.
    pub(crate) refused_at: u64,
    /// The result of that refusal.
    pub(crate) refused_as: PodState,
    /// Whether some node has room for a pod of the class, topology and the other pods apart; `None` until it is asked for.
    pub(crate) has_a_node: Option<bool>,
    /// Placements of other pods can make the class placeable: it has affinity or spread constraints.
    pub(crate) retryable: bool,
}

impl Class {
    /// Returns all groups that constrain the class, preferred ones included, or that count it.
    pub(crate) fn groups(&self) -> impl Iterator<Item = GroupId> + '_ {
        let owned = self
            .hard
            .iter()
            .chain(&self.soft.affinity)
            .chain(&self.soft.anti_affinity)
            .chain(&self.soft.spread);
        owned
            .map(|owned| owned.group)
            .chain(self.kept_away.iter().copied())
            .chain(self.counted.iter().copied())
            .chain(self.keeps_away.iter().copied())
    }

    /// Returns the number of variants.
    pub(crate) fn variant_count(&self) -> usize {
        (self.soft.steps() + 1) * self.terms.len().max(1)
    }

    /// Returns the constraints of variant `index`: alternative, heaviest preferred node affinity left, groups, extra toleration.
    pub(crate) fn demands(
        &self,
        index: usize,
    ) -> (&Requirements, Option<&Requirements>, Vec<Owned>, bool) {
        let term = index % self.terms.len();
        let mut dropped = index / self.terms.len();
        let mut drop_from = |available: usize| {
            let here = dropped.min(available);
            dropped -= here;
            here
        };
        let affinity = drop_from(self.soft.affinity.len());
        let anti_affinity = drop_from(self.soft.anti_affinity.len());
        let nodes = drop_from(self.soft.nodes.len());
        let spread = drop_from(self.soft.spread.len());
        let mut owned = self.hard.clone();
        owned.extend_from_slice(&self.soft.spread[spread..]);
        owned.extend_from_slice(&self.soft.affinity[affinity..]);
        owned.extend_from_slice(&self.soft.anti_affinity[anti_affinity..]);
        (
            &self.terms[term],
            self.soft.nodes.get(nodes),
            owned,
            dropped > 0,
        )
    }
}
