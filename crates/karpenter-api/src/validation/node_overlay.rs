//! Checks of a NodeOverlay.

use super::requirement::{RequirementParts, requirement};
use super::{Findings, Problem, WellKnown};
use crate::v1::Operator;
use crate::v1alpha1::NodeOverlay;

/// Checks a NodeOverlay: requirements and capacity.
pub fn node_overlay(overlay: &NodeOverlay, well_known: &WellKnown) -> Findings {
    let mut findings = Findings::default();
    for entry in &overlay.spec.requirements {
        let (key, operator, values) = (&entry.key, &entry.operator, &entry.values);
        requirement(
            RequirementParts {
                key,
                operator,
                values,
                min_values: None,
            },
            well_known,
            &mut findings,
        );
        if *operator == Operator::NotIn && values.is_empty() {
            findings.errors.push(Problem::NoValues {
                key: key.clone(),
                operator: operator.clone(),
            });
        }
    }
    for resource in overlay
        .spec
        .capacity
        .keys()
        .filter(|resource| well_known.is_resource(resource))
    {
        findings.errors.push(Problem::RestrictedResource {
            resource: resource.clone(),
        });
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Conformance: API-080
    #[test]
    fn an_overlay_s_requirements_and_capacity_are_checked() {
        let overlay = |spec: Value| {
            let overlay = NodeOverlay::new("a", serde_json::from_value(spec).unwrap());
            node_overlay(
                &overlay,
                &WellKnown::default().with_resource("example.com/gpu"),
            )
            .errors
        };
        assert_eq!(
            overlay(
                json!({ "requirements": [{ "key": "karpenter.sh/nodepool", "operator": "In", "values": ["a"] }] })
            ),
            []
        );
        assert_eq!(
            overlay(json!({ "requirements": [], "capacity": { "smarter-devices/fuse": "1" } })),
            []
        );
        assert_eq!(
            overlay(json!({ "requirements": [{ "key": "a", "operator": "NotIn" }] })).len(),
            1
        );
        assert_eq!(
            overlay(json!({ "requirements": [{ "key": "karpenter.sh/x", "operator": "Exists" }] }))
                .len(),
            1
        );
        assert_eq!(
            overlay(
                json!({ "requirements": [], "capacity": { "example.com/gpu": "1", "cpu": "1" } })
            )
            .len(),
            2
        );
    }
}
