//! The topology groups of a pod: one for each of its constraints.

use karpenter_api::validation::WellKnown;

use crate::pod::{Shape, SpreadConstraint, Toleration, Weighted};
use crate::requirements::{LabelNames, Operator, Requirement, Requirements};
use crate::schedule::compile::group_identity::{
    GroupIdentity, GroupKind, Namespaces, NodeFilter, is_hostname,
};
use crate::schedule::compile::solver::Solver;
use crate::schedule::request::PreferencePolicy;

impl GroupIdentity {
    /// Returns the identity of a spread constraint of a pod whose node selector and affinity are `terms`; `keys` are labels that
    /// counted nodes have.
    pub(crate) fn spread(
        solver: &Solver,
        shape: &Shape,
        terms: &[Requirements],
        constraint: &SpreadConstraint,
        keys: &[String],
    ) -> Self {
        let names = &solver.snapshot.config().well_known;
        let constrains = terms.iter().any(|term| !term.is_empty());
        let honors_affinity = constraint.honor_affinity && constrains;
        let key = names.canonical_key(&constraint.topology_key).to_owned();
        let mut counted = if honors_affinity {
            terms.to_vec()
        } else {
            vec![Requirements::new()]
        };
        // A node without the label of the constraint itself is not counted in any case, and a node is its own domain for hostname.
        let others = keys
            .iter()
            .filter(|other| **other != key && !is_hostname(&key));
        for other in others {
            let exists = Requirement::new(other, Operator::Exists, [""; 0]);
            counted.iter_mut().for_each(|term| term.add(exists.clone()));
        }
        let filters = counted.iter().any(|term| !term.is_empty());
        Self {
            kind: GroupKind::Spread,
            key,
            namespaces: Namespaces {
                list: vec![shape.namespace.clone()],
                selector: None,
            },
            selector: constraint.selector.clone(),
            also: Vec::new(),
            max_skew: constraint.max_skew,
            min_domains: constraint.min_domains,
            filter: NodeFilter {
                terms: filters.then_some(counted),
                honors_affinity,
                tolerations: constraint
                    .honor_taints
                    .then(|| with_soft_taints(&shape.tolerations)),
            },
        }
    }
}

/// Returns the labels of the hard spread constraints of a pod, if there are several: kube-scheduler counts only nodes that have the
/// labels of all of them. Well-known labels and the hostname are left out: all nodes that are planned have them.
///
/// DIFFERS: upstream counts, for each constraint, all nodes with its label.
pub(crate) fn keys_of_counted_nodes<'a>(
    constraints: &'a [SpreadConstraint],
    names: &'a WellKnown,
) -> Vec<&'a str> {
    let hard = constraints.iter().filter(|constraint| constraint.hard);
    let mut keys: Vec<&str> = hard
        .map(|constraint| names.canonical_key(&constraint.topology_key))
        .collect();
    keys.sort_unstable();
    keys.dedup();
    if keys.len() < 2 {
        return Vec::new();
    }
    keys.retain(|key| !names.contains(key) && !is_hostname(key));
    keys
}

/// Returns tolerations as node inclusion policies see them: a PreferNoSchedule taint does not exclude a node.
///
/// DIFFERS: upstream excludes nodes with an untolerated PreferNoSchedule taint.
fn with_soft_taints(tolerations: &[Toleration]) -> Vec<Toleration> {
    let mut all = tolerations.to_vec();
    all.push(Toleration::any_prefer_no_schedule());
    all
}

/// Returns the constraints of a pod, each with whether it is required; `keys` are labels that nodes have that its spreads count. Those
/// that are preferred come in the order in which they are dropped.
pub(crate) fn own_constraints(
    solver: &Solver,
    shape: &Shape,
    terms: &[Requirements],
    spreads: &[SpreadConstraint],
    keys: &[String],
) -> Vec<(GroupIdentity, bool)> {
    let names = &solver.snapshot.config().well_known;
    let respect = solver.policy.preference_policy == PreferencePolicy::Respect;
    let affinity = &shape.required_affinity;
    let of = |kind, term| GroupIdentity::affinity(kind, term, names);
    let spread = |constraint: &SpreadConstraint| {
        let keys = if constraint.hard { keys } else { &[] };
        let identity = GroupIdentity::spread(solver, shape, terms, constraint, keys);
        (identity, constraint.hard)
    };
    let required = |term| {
        (
            GroupIdentity::required_affinity(term, affinity, names),
            true,
        )
    };
    let anti = |term| (of(GroupKind::Anti, term), true);
    let mut constraints: Vec<(GroupIdentity, bool)> = spreads.iter().map(spread).collect();
    constraints.extend(affinity.iter().map(required));
    constraints.extend(shape.required_anti_affinity.iter().map(anti));
    let preferred = [
        (GroupKind::Affinity, &shape.preferred_affinity),
        (GroupKind::Anti, &shape.preferred_anti_affinity),
    ];
    for (kind, preferred) in preferred {
        let terms = heaviest_first(preferred).into_iter();
        constraints.extend(terms.map(|preferred| (of(kind, &preferred.term), false)));
    }
    constraints.retain(|(_, required)| *required || respect);
    constraints
}

/// Sorts by weight, heaviest first; equal weights keep their order.
pub(crate) fn heaviest_first<T>(preferred: &[Weighted<T>]) -> Vec<&Weighted<T>> {
    let mut sorted: Vec<&Weighted<T>> = preferred.iter().collect();
    sorted.sort_by_key(|preferred| std::cmp::Reverse(preferred.weight));
    sorted
}
