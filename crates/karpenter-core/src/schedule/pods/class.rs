//! Classes of pods: pods that are equal in everything the solver reads, identity apart.
//!
//! What is known about a class has three lifetimes: the [`Class`] is formed from the shape of its pods, its [`Links`] to topology
//! groups are completed once all classes are known, and the `Placer` of `place` keeps its progress.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::pod::Shape;
use crate::requirements::Requirements;
use crate::schedule::compile::algebra::SetId;
use crate::schedule::compile::ids::{GroupId, Target};
use crate::schedule::reasons::Unschedulable;

/// The state of a pod in the pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodState {
    Waiting,
    Placed(Target),
    Refused,
    /// Only reserved capacity is compatible, and it is used up.
    Deferred,
}

/// A class of pods.
#[derive(Clone, Debug)]
pub(crate) struct Class {
    pub(crate) shape: Arc<Shape>,
    pub(crate) requests: Box<[i64]>,
    /// Alternatives that the volumes allow; one without requirements if they allow all nodes.
    pub(crate) volumes: Vec<SetId>,
    pub(crate) volume_requirements: Vec<Requirements>,
    pub(crate) attached: BTreeSet<(String, String)>,
    pub(crate) resource_claims: Vec<String>,
    /// Alternatives of the required node affinity, with the node selector; all are tried before a preference is dropped. One without
    /// requirements if there are none.
    pub(crate) terms: Vec<Requirements>,
    /// The same, interned.
    pub(crate) term_sets: Vec<SetId>,
    /// Why no pod of the class can be placed, independent of the state of the pass.
    pub(crate) problem: Option<Unschedulable>,
    pub(crate) links: Links,
}

/// The topology groups that constrain or count the pods of a class, and its preferences.
#[derive(Clone, Debug, Default)]
pub(crate) struct Links {
    /// The required constraints.
    pub(crate) hard: Vec<Owned>,
    pub(crate) soft: Soft,
    /// Inverse groups of the class's own anti-affinity.
    pub(crate) keeps_away: Vec<GroupId>,
    /// Inverse groups whose anti-affinity terms select the class.
    pub(crate) kept_away: Vec<GroupId>,
    /// Groups that count the class.
    pub(crate) counted: Vec<GroupId>,
    /// Required spreads that count domains the class cannot use, if nodes are there (node affinity policy Ignore).
    pub(crate) counts_elsewhere: Vec<GroupId>,
    pub(crate) bind_order: BindOrder,
    /// Placements of other pods can make the class placeable: it has affinity or spread constraints, or resource claims.
    pub(crate) retryable: bool,
}

/// A group whose constraint applies to a pod, and whether the group counts the pod itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owned {
    pub(crate) group: GroupId,
    pub(crate) own: bool,
    /// The constraint is a preference, treated as required at this step.
    pub(crate) soft: bool,
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

/// Which spreads must see the pods of a class before their own pods are bound.
///
/// kube-scheduler binds pods one by one, in an order that the plan does not decide, and counts only bound pods. A pod on a planned
/// node whose zone is still open is counted nowhere. That is harmless if it can be bound last. Where it may have to be bound first, its
/// node gets one zone before a pod of the spread is placed.
#[derive(Clone, Debug, Default)]
pub(crate) struct BindOrder {
    /// Required spreads that count this class, and whose pods may have to wait for it. If the class has a required spread itself these
    /// are all that count it; else those of pods beside which it could not start its affinity group.
    pub(crate) before: Vec<GroupId>,
    /// Pairs of required spreads by different labels. The second is the class's own; the first is its own too, or one of `before`. Pods
    /// that the second counts may have to be bound before this class, and so before the pods of the first.
    pub(crate) chains: Vec<(GroupId, GroupId)>,
}

impl Soft {
    fn steps(&self) -> usize {
        self.affinity.len()
            + self.anti_affinity.len()
            + self.nodes.len()
            + self.spread.len()
            + usize::from(self.tolerate)
    }
}

impl Class {
    /// Returns all groups that constrain the class, preferred ones included, or that count it.
    pub(crate) fn groups(&self) -> impl Iterator<Item = GroupId> + '_ {
        let Links { hard, soft, .. } = &self.links;
        let owned = hard.iter().chain(&soft.affinity);
        let owned = owned.chain(&soft.anti_affinity).chain(&soft.spread);
        let others = self.links.kept_away.iter().chain(&self.links.counted);
        owned
            .map(|owned| owned.group)
            .chain(others.chain(&self.links.keeps_away).copied())
    }

    /// Returns the number of variants.
    pub(crate) fn variant_count(&self) -> usize {
        (self.links.soft.steps() + 1) * self.terms.len()
    }
}
