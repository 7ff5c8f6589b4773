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
        let known = WellKnown::default().with_resource("example.com/gpu");
        let errors = |mut spec: Value| {
            spec["requirements"] = json!(spec["requirements"].as_array().unwrap_or(&vec![]));
            let overlay = NodeOverlay::new("a", serde_json::from_value(spec).unwrap());
            node_overlay(&overlay, &known).errors.len()
        };
        let requiring = |requirement: Value| errors(json!({ "requirements": [requirement] }));
        let capacity = |capacity: Value| errors(json!({ "capacity": capacity }));
        let own = json!({ "key": "karpenter.sh/nodepool", "operator": "In", "values": ["a"] });
        assert_eq!(requiring(own), 0);
        assert_eq!(requiring(json!({ "key": "a", "operator": "NotIn" })), 1);
        assert_eq!(
            requiring(json!({ "key": "karpenter.sh/x", "operator": "Exists" })),
            1
        );
        assert_eq!(capacity(json!({ "smarter-devices/fuse": "1" })), 0);
        assert_eq!(capacity(json!({ "example.com/gpu": "1", "cpu": "1" })), 2);
    }
}
