//! The constraints of topology groups, by which pods share them.

use std::collections::BTreeMap;

use karpenter_api::labels::HOSTNAME;
use karpenter_api::validation::WellKnown;

use crate::cluster::Snapshot;
use crate::pod::{AffinityTerm, LabelSelector, Pod, Toleration};
use crate::requirements::{LabelNames, Requirements};

/// The kind of constraint of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum GroupKind {
    Spread,
    Affinity,
    Anti,
    Inverse,
}

impl GroupKind {
    /// Reports whether the pods of the group exclude others from their domain.
    pub(crate) fn keeps_away(self) -> bool {
        matches!(self, Self::Anti | Self::Inverse)
    }
}

/// Namespaces by name and by label.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct Namespaces {
    pub(crate) list: Vec<String>,
    pub(crate) selector: Option<LabelSelector>,
}

impl Namespaces {
    fn of(term: &AffinityTerm) -> Self {
        Self {
            list: term.namespaces.clone(),
            selector: term.namespace_selector.clone(),
        }
    }

    /// Reports whether `namespace` is in the list or matches the selector.
    pub(crate) fn contain(&self, namespace: &str, snapshot: &Snapshot) -> bool {
        if self.list.iter().any(|listed| listed == namespace) {
            return true;
        }
        self.selector.as_ref().is_some_and(|selector| {
            let labels = snapshot.namespace_labels(namespace);
            labels.map_or_else(
                || selector.matches(&BTreeMap::new()),
                |labels| selector.matches(labels),
            )
        })
    }
}

/// Filters the nodes that count for a spread constraint.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct NodeFilter {
    /// Node selector with each alternative, if the node affinity policy is Honor; each with the labels of the pod's other spread
    /// constraints, which kube-scheduler requires of a node that it counts.
    pub(crate) terms: Option<Vec<Requirements>>,
    /// Whether the node affinity policy is Honor and the pod has a node selector or node affinity.
    pub(crate) honors_affinity: bool,
    /// Tolerations, if the node taints policy is Honor.
    pub(crate) tolerations: Option<Vec<Toleration>>,
}

/// The parts in which two constraints must be equal to share a group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GroupIdentity {
    pub(crate) kind: GroupKind,
    pub(crate) key: String,
    pub(crate) namespaces: Namespaces,
    pub(crate) selector: LabelSelector,
    /// Namespaces and selectors that a counted pod must match as well: kube-scheduler lets pods count for a required affinity
    /// term only if they match all of them.
    pub(crate) also: Vec<(Namespaces, LabelSelector)>,
    pub(crate) max_skew: i32,
    pub(crate) min_domains: Option<i32>,
    pub(crate) filter: NodeFilter,
}

impl GroupIdentity {
    pub(crate) fn affinity(kind: GroupKind, term: &AffinityTerm, names: &WellKnown) -> Self {
        Self {
            kind,
            key: names.canonical_key(&term.topology_key).to_owned(),
            namespaces: Namespaces::of(term),
            selector: term.selector.clone(),
            also: Vec::new(),
            max_skew: 0,
            min_domains: None,
            filter: NodeFilter::default(),
        }
    }

    /// Returns the identity of one of a pod's required affinity terms; it counts pods that match all of those terms.
    ///
    /// DIFFERS: upstream counts pods that match this term, whether or not they match the others.
    pub(crate) fn required_affinity(
        term: &AffinityTerm,
        all: &[AffinityTerm],
        names: &WellKnown,
    ) -> Self {
        let own = (Namespaces::of(term), term.selector.clone());
        let others = all
            .iter()
            .map(|other| (Namespaces::of(other), other.selector.clone()));
        let mut also: Vec<_> = others.filter(|other| *other != own).collect();
        also.sort();
        also.dedup();
        Self {
            also,
            ..Self::affinity(GroupKind::Affinity, term, names)
        }
    }

    pub(crate) fn inverse(term: &AffinityTerm, names: &WellKnown) -> Self {
        Self::affinity(GroupKind::Inverse, term, names)
    }

    /// Compares groups without a node filter, as a total order.
    pub(crate) fn order(&self, other: &Self) -> std::cmp::Ordering {
        (self.kind, &self.key, &self.namespaces, &self.selector).cmp(&(
            other.kind,
            &other.key,
            &other.namespaces,
            &other.selector,
        ))
    }

    /// Reports whether pods with these labels are counted (for Inverse: excluded).
    pub(crate) fn selects(
        &self,
        namespace: &str,
        labels: &BTreeMap<String, String>,
        snapshot: &Snapshot,
    ) -> bool {
        self.selector.matches(labels)
            && self.namespaces.contain(namespace, snapshot)
            && self.also.iter().all(|(namespaces, selector)| {
                selector.matches(labels) && namespaces.contain(namespace, snapshot)
            })
    }

    /// Reports whether the group counts a bound pod: by its labels, or (for Inverse) by the pod's own anti-affinity terms.
    pub(crate) fn counts(&self, pod: &Pod, snapshot: &Snapshot) -> bool {
        let shape = &pod.shape;
        match self.kind {
            GroupKind::Inverse => {
                let names = &snapshot.config().well_known;
                let mut terms = shape.required_anti_affinity.iter();
                terms.any(|term| Self::inverse(term, names) == *self)
            }
            _ => self.selects(&shape.namespace, &shape.labels, snapshot),
        }
    }
}

/// Reports whether the domains of a key are the nodes themselves.
pub(crate) fn is_hostname(key: &str) -> bool {
    key == HOSTNAME
}
