//! The topology groups of a pod: one for each of its constraints.

use karpenter_api::validation::WellKnown;

use crate::pod::{Shape, SpreadConstraint, Toleration};
use crate::requirements::{LabelNames, Operator, Requirement, Requirements};
use crate::schedule::compile::node_affinity::alternatives;
use crate::schedule::compile::solver::Solver;
use crate::schedule::pods::defaults::spread_of;
use crate::schedule::request::PreferencePolicy;
use crate::schedule::topology::group::{
    GroupIdentity, GroupKind, Namespaces, NodeFilter, is_hostname,
};

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

/// Returns the groups of a pod's own constraints: those that hold, and those that it prefers.
pub(crate) fn own_groups(solver: &Solver, shape: &Shape) -> Vec<GroupIdentity> {
    let names = &solver.snapshot.config().well_known;
    let respect = solver.policy.preference_policy == PreferencePolicy::Respect;
    let terms = alternatives(shape, &shape.required_nodes, names);
    let spread = spread_of(shape, &solver.policy.default_spread, &solver.snapshot);
    let keys = keys_of_counted_nodes(&spread, names);
    let keys: Vec<String> = keys.into_iter().map(str::to_owned).collect();
    let spread = spread
        .iter()
        .filter(|constraint| constraint.hard || respect);
    let mut groups: Vec<GroupIdentity> = spread
        .map(|constraint| {
            let keys = if constraint.hard {
                keys.as_slice()
            } else {
                &[]
            };
            GroupIdentity::spread(solver, shape, &terms, constraint, keys)
        })
        .collect();
    let affinity = &shape.required_affinity;
    let required = |term| GroupIdentity::required_affinity(term, affinity, names);
    groups.extend(affinity.iter().map(required));
    let of = |kind, term| GroupIdentity::affinity(kind, term, names);
    let anti = shape.required_anti_affinity.iter();
    groups.extend(anti.map(|term| of(GroupKind::Anti, term)));
    if respect {
        let preferred = shape.preferred_affinity.iter();
        groups.extend(preferred.map(|preferred| of(GroupKind::Affinity, &preferred.term)));
        let preferred = shape.preferred_anti_affinity.iter();
        groups.extend(preferred.map(|preferred| of(GroupKind::Anti, &preferred.term)));
    }
    groups
}
