//! Node selectors and the terms of node affinity, as requirements.

use karpenter_api::validation::WellKnown;

use crate::pod::{LabelExpr, NodeTerm, Shape};
use crate::requirements::{Operator, Requirement, Requirements};

/// Combines the node selector with each alternative; returns the node selector alone if there are none.
pub(crate) fn alternatives(
    shape: &Shape,
    terms: &[NodeTerm],
    well_known: &WellKnown,
) -> Vec<Requirements> {
    let selector = Requirements::from_labels(&shape.node_selector, well_known);
    if terms.is_empty() {
        return vec![selector];
    }
    terms
        .iter()
        .map(|term| with_term(&selector, &term.expressions, well_known))
        .collect()
}

/// Adds all expressions of a term to `base`. An invalid expression is never met.
pub(crate) fn with_term(
    base: &Requirements,
    term: &[LabelExpr],
    well_known: &WellKnown,
) -> Requirements {
    let mut all = base.clone();
    for expression in term {
        let parsed = Requirement::parse(&expression.key, &expression.operator, &expression.values);
        let requirement =
            parsed.unwrap_or_else(|_| Requirement::new(&expression.key, Operator::In, [""; 0]));
        all.add(requirement.canonical(well_known));
    }
    all
}
