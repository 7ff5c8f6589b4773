//! Classes of pods: everything the solver looks at, minus identity.
//!
//! A class has variants: what is left of its demands after relaxation. Variant 0 asks for everything; each later one tries
//! another alternative of the required node affinity, or has dropped one more preference, in upstream's order: pod affinity,
//! pod anti-affinity, node affinity (heaviest first), soft spread constraints, and last it tolerates PreferNoSchedule taints.
//! What was learned about a variant, which machines and claims refuse it for good, is kept with it.
//!
//! UPSTREAM: pkg/controllers/provisioning/scheduling/preferences.go
//! DIFFERS: alternatives of the required node affinity are all tried before a preference is dropped.

use std::{collections::BTreeSet, sync::Arc};

use super::{algebra::SetId, bits::Bits, plan::WhyNot, run::Fate};
use crate::{
    pod::{HostPort, Shape, Toleration},
    requirements::Requirements,
};

/// Index of a group.
pub(super) type GroupId = usize;

/// A group a pod is subject to, and whether the pod counts itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owned {
    pub(super) group: GroupId,
    pub(super) own: bool,
    /// It is a preference, as yet asked for as if it were required.
    pub(super) soft: bool,
}

impl Owned {
    pub(super) fn as_preference(self) -> Self {
        Self { soft: true, ..self }
    }
}

/// What can be dropped, in the order it is dropped.
#[derive(Clone, Debug, Default)]
pub(super) struct Soft {
    pub(super) affinity: Vec<Owned>,
    pub(super) anti_affinity: Vec<Owned>,
    pub(super) nodes: Vec<Requirements>,
    pub(super) spread: Vec<Owned>,
    pub(super) tolerate: bool,
}

impl Soft {
    /// How many steps there are.
    pub(super) fn steps(&self) -> usize {
        self.affinity.len()
            + self.anti_affinity.len()
            + self.nodes.len()
            + self.spread.len()
            + usize::from(self.tolerate)
    }
}

/// What is asked for at one step of relaxation.
#[derive(Clone, Debug)]
pub(super) struct Variant {
    /// Node selector, alternative, preferred node affinity.
    pub(super) set: SetId,
    /// The same without preferences: what spread domains are seen through.
    pub(super) strict: SetId,
    pub(super) tolerations: Arc<Vec<Toleration>>,
    pub(super) owned: Vec<Owned>,
    /// Machines that will never take it in this run.
    pub(super) refused_machines: Bits,
    /// Claims that will never take it in this run.
    pub(super) refused_claims: Bits,
    /// Templates that will never take it in this run.
    pub(super) refused_templates: Bits,
    /// Taints of these templates are tolerated.
    pub(super) tolerated_templates: Bits,
}

/// A class of pods.
#[derive(Clone, Debug)]
pub(super) struct Class {
    pub(super) shape: Arc<Shape>,
    pub(super) requests: Box<[i64]>,
    pub(super) ports: Vec<HostPort>,
    /// Alternatives the volumes leave; one without requirements if they leave all.
    pub(super) volumes: Vec<SetId>,
    pub(super) volume_requirements: Vec<Requirements>,
    pub(super) attached: BTreeSet<(String, String)>,
    /// Resource claims to be served.
    pub(super) claims: Vec<String>,
    /// Alternatives of the required node affinity, with the node selector.
    pub(super) terms: Vec<Requirements>,
    /// The same, interned.
    pub(super) term_sets: Vec<SetId>,
    pub(super) hard: Vec<Owned>,
    pub(super) soft: Soft,
    /// Groups that keep the class away from where their owners are.
    pub(super) kept_away: Vec<GroupId>,
    /// Groups that count the class.
    pub(super) counted: Vec<GroupId>,
    /// Inverse groups of the class's own anti-affinity.
    pub(super) keeps_away: Vec<GroupId>,
    pub(super) variants: Vec<Option<Box<Variant>>>,
    /// No pod of the class can be placed, whatever happens.
    pub(super) problem: Option<WhyNot>,
    /// No pod of the class can be placed any more in this run.
    pub(super) dead: bool,
    /// The state of the run at which a pod of the class was last refused.
    pub(super) refused_at: u64,
    /// How it was refused then.
    pub(super) refused_as: Fate,
    /// Placements of others can make room for the class: it has affinity or spread constraints.
    pub(super) hopeful: bool,
}

impl Class {
    /// Every group it is subject to, preferred ones included, or counted by.
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

    /// How many variants there are.
    pub(super) fn variant_count(&self) -> usize {
        (self.soft.steps() + 1) * self.terms.len().max(1)
    }

    /// The demands of variant `index`: which alternative, the heaviest preferred node affinity left, groups, extra toleration.
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
