//! The topology groups of a pod: one for each of its constraints.

use crate::pod::{Shape, SpreadConstraint, Toleration};
use crate::requirements::{LabelNames, Requirements};
use crate::schedule::compile::node_affinity::alternatives;
use crate::schedule::compile::solver::Solver;
use crate::schedule::pods::defaults::spread_of;
use crate::schedule::request::PreferencePolicy;
use crate::schedule::topology::group::{GroupIdentity, GroupKind, Namespaces, NodeFilter};

impl GroupIdentity {
    /// Returns the identity of a spread constraint of a pod whose node selector and affinity are `terms`.
    pub(crate) fn spread(
        solver: &Solver,
        shape: &Shape,
        terms: &[Requirements],
        constraint: &SpreadConstraint,
    ) -> Self {
        let names = &solver.snapshot.config().well_known;
        let constrains = terms.iter().any(|term| !term.is_empty());
        Self {
            kind: GroupKind::Spread,
            key: names.canonical_key(&constraint.topology_key).to_owned(),
            namespaces: Namespaces {
                list: vec![shape.namespace.clone()],
                selector: None,
            },
            selector: constraint.selector.clone(),
            also: Vec::new(),
            max_skew: constraint.max_skew,
            min_domains: constraint.min_domains,
            filter: NodeFilter {
                terms: (constraint.honor_affinity && constrains).then(|| terms.to_vec()),
                tolerations: constraint
                    .honor_taints
                    .then(|| with_soft_taints(&shape.tolerations)),
            },
        }
    }
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
    let spread = spread
        .iter()
        .filter(|constraint| constraint.hard || respect);
    let mut groups: Vec<GroupIdentity> = spread
        .map(|constraint| GroupIdentity::spread(solver, shape, &terms, constraint))
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
