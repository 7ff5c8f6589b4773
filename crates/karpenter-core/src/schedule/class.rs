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

use super::algebra::SetId;
use super::bits::Bits;
use super::plan::Unschedulable;
use super::run::Fate;
use crate::pod::{HostPort, Shape, Toleration};
use crate::requirements::Requirements;

/// Index of a group.
pub(super) type GroupId = usize;

/// A group whose constraint applies to a pod, and whether the group counts the pod itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owned {
    pub(super) group: GroupId,
    pub(super) own: bool,
    /// The constraint is a preference, treated as required at this step.
    pub(super) soft: bool,
}

impl Owned {
    pub(super) fn as_preference(self) -> Self {
        Self { soft: true, ..self }
    }
}

/// Preferences, in the order they are dropped.
#[derive(Clone, Debug, Default)]
pub(super) struct Soft {
    pub(super) affinity: Vec<Owned>,
    pub(super) anti_affinity: Vec<Owned>,
    pub(super) nodes: Vec<Requirements>,
    pub(super) spread: Vec<Owned>,
    pub(super) tolerate: bool,
}

impl Soft {
    pub(super) fn steps(&self) -> usize {
        self.affinity.len()
            + self.anti_affinity.len()
            + self.nodes.len()
            + self.spread.len()
            + usize::from(self.tolerate)
    }
}

/// The constraints of a class at one step of relaxation.
#[derive(Clone, Debug)]
pub(super) struct Variant {
    /// Node selector, one alternative of the required node affinity, preferred node affinity.
    pub(super) set: SetId,
    /// The same without preferences; domains of spread constraints are filtered by it.
    pub(super) strict: SetId,
    pub(super) tolerations: Arc<Vec<Toleration>>,
    pub(super) owned: Vec<Owned>,
    /// Existing nodes that refuse it permanently in this pass.
    pub(super) refused_nodes: Bits,
    /// Planned nodes that refuse it permanently in this pass.
    pub(super) refused_claims: Bits,
    /// Templates that refuse it permanently in this pass.
    pub(super) refused_templates: Bits,
    /// Templates whose taints are tolerated.
    pub(super) tolerated_templates: Bits,
}

/// A class of pods.
#[derive(Clone, Debug)]
pub(super) struct Class {
    pub(super) shape: Arc<Shape>,
    pub(super) requests: Box<[i64]>,
    pub(super) ports: Vec<HostPort>,
    /// Alternatives that the volumes allow; one without requirements if they allow all nodes.
    pub(super) volumes: Vec<SetId>,
    pub(super) volume_requirements: Vec<Requirements>,
    pub(super) attached: BTreeSet<(String, String)>,
    /// Resource claims of the pods.
    pub(super) claims: Vec<String>,
    /// Alternatives of the required node affinity, with the node selector.
    pub(super) terms: Vec<Requirements>,
    /// The same, interned.
    pub(super) term_sets: Vec<SetId>,
    pub(super) hard: Vec<Owned>,
    pub(super) soft: Soft,
    /// Inverse groups whose anti-affinity terms select the class.
    pub(super) kept_away: Vec<GroupId>,
    /// Groups that count the class.
    pub(super) counted: Vec<GroupId>,
    /// Inverse groups of the class's own anti-affinity.
    pub(super) keeps_away: Vec<GroupId>,
    pub(super) variants: Vec<Option<Box<Variant>>>,
    /// Why no pod of the class can be placed, independent of the state of the pass.
    pub(super) problem: Option<Unschedulable>,
    /// No pod of the class can be placed in the rest of this pass.
    pub(super) unplaceable: bool,
    /// The epoch of the pass at which a pod of the class was last refused.
    pub(super) refused_at: u64,
    /// The result of that refusal.
    pub(super) refused_as: Fate,
    /// Placements of other pods can make the class placeable: it has affinity or spread constraints.
    pub(super) retryable: bool,
}

impl Class {
    /// Returns all groups that constrain the class, preferred ones included, or that count it.
    pub(super) fn groups(&self) -> impl Iterator<Item = GroupId> + '_ {
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
    pub(super) fn variant_count(&self) -> usize {
        (self.soft.steps() + 1) * self.terms.len().max(1)
    }

    /// Returns the constraints of variant `index`: alternative, heaviest preferred node affinity left, groups, extra toleration.
    pub(super) fn demands(
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
