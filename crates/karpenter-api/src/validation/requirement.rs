//! Checks of one requirement: of a NodePool, a NodeOverlay or a pod.

use super::names::{check_key, check_value};
use super::{Findings, Problem, WellKnown};
use crate::v1::Operator;

/// A requirement of a NodePool, a NodeOverlay or a pod.
#[derive(Clone, Copy, Debug)]
pub struct RequirementParts<'a> {
    /// The label key.
    pub key: &'a str,
    /// The operator.
    pub operator: &'a Operator,
    /// The values.
    pub values: &'a [String],
    /// The minimum of different values, if any.
    pub min_values: Option<i64>,
}

/// Checks one requirement after normalizing its key.
pub fn requirement(
    requirement: RequirementParts<'_>,
    well_known: &WellKnown,
    findings: &mut Findings,
) {
    let RequirementParts {
        operator,
        values,
        min_values,
        ..
    } = requirement;
    let key = well_known.normalize_key(requirement.key);
    if let Operator::Other(unknown) = operator {
        findings.errors.push(Problem::UnknownOperator {
            key: key.to_owned(),
            operator: unknown.clone(),
        });
    }
    findings
        .errors
        .extend(well_known.check(key).err().map(Problem::from));
    check_known_values(key, requirement, well_known, findings);
    check_key(key, findings);
    for value in values {
        check_value(key, value, findings);
    }
    if *operator == Operator::In {
        if values.is_empty() {
            findings.errors.push(Problem::NoValues {
                key: key.to_owned(),
                operator: Operator::In,
            });
        }
        if let Some(min_values) = min_values.filter(|min_values| count(values.len()) < *min_values)
        {
            findings.errors.push(Problem::FewerThanMinValues {
                key: key.to_owned(),
                values: values.len(),
                min_values,
            });
        }
    }
    if operator.is_bound()
        && !matches!(values, [value] if value.parse::<i64>().is_ok_and(|bound| bound >= 0))
    {
        findings.errors.push(Problem::Bound {
            key: key.to_owned(),
            operator: operator.clone(),
        });
    }
}

/// Checks the values of a key whose valid values are declared. A partly valid list passes, since invalid values are never chosen.
fn check_known_values(
    key: &str,
    requirement: RequirementParts<'_>,
    well_known: &WellKnown,
    findings: &mut Findings,
) {
    let Some(known) = well_known
        .values_of(key)
        .filter(|_| *requirement.operator == Operator::In && !requirement.values.is_empty())
    else {
        return;
    };
    let (valid, unknown): (Vec<&String>, Vec<&String>) = requirement
        .values
        .iter()
        .partition(|value| known.contains(*value));
    let known: Vec<String> = known.iter().cloned().collect();
    if valid.is_empty() {
        findings.errors.push(Problem::NoKnownValue {
            key: key.to_owned(),
            values: requirement.values.to_vec(),
            known,
        });
        return;
    }
    if let Some(min_values) = requirement
        .min_values
        .filter(|min_values| count(valid.len()) < *min_values)
    {
        findings.errors.push(Problem::FewerThanMinValues {
            key: key.to_owned(),
            values: valid.len(),
            min_values,
        });
    } else if !unknown.is_empty() {
        let values = unknown.into_iter().cloned().collect();
        findings.warnings.push(Problem::UnknownValues {
            key: key.to_owned(),
            values,
            known,
        });
    }
}

fn count(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::v1::NodeSelectorRequirementWithMinValues;

    fn findings(requirement: Value) -> Findings {
        let requirement: NodeSelectorRequirementWithMinValues =
            serde_json::from_value(requirement).unwrap();
        let parts = RequirementParts {
            key: &requirement.key,
            operator: &requirement.operator,
            values: &requirement.values,
            min_values: requirement.min_values,
        };
        let mut findings = Findings::default();
        super::requirement(parts, &WellKnown::default(), &mut findings);
        findings
    }

    fn errors(requirement: Value) -> Vec<String> {
        let findings = findings(requirement);
        findings.errors.iter().map(Problem::to_string).collect()
    }

    /// Conformance: API-053
    #[test]
    fn requirements_are_checked_operator_by_operator() {
        for accepted in [
            json!({ "key": "a", "operator": "In", "values": ["x", "x"], "minValues": 2 }),
            json!({ "key": "a", "operator": "NotIn" }),
            json!({ "key": "a", "operator": "Exists", "values": ["x"] }),
            json!({ "key": "a", "operator": "DoesNotExist" }),
            json!({ "key": "a", "operator": "Gt", "values": ["0"] }),
            json!({ "key": "a", "operator": "Lte", "values": ["9223372036854775807"] }),
        ] {
            assert_eq!(errors(accepted.clone()), [""; 0], "{accepted}");
        }
        for rejected in [
            json!({ "key": "a", "operator": "in", "values": ["x"] }),
            json!({ "key": "a", "operator": "In" }),
            json!({ "key": "a", "operator": "In", "values": ["x"], "minValues": 2 }),
            json!({ "key": "a", "operator": "In", "values": ["x y"] }),
            json!({ "key": "a", "operator": "Gt", "values": ["-1"] }),
            json!({ "key": "a", "operator": "Gte", "values": [] }),
            json!({ "key": "a", "operator": "Lt", "values": ["1", "2"] }),
            json!({ "key": "a", "operator": "Lte", "values": ["1.5"] }),
            json!({ "key": "karpenter.sh/x", "operator": "Exists" }),
            json!({ "key": "kubernetes.io/hostname", "operator": "Exists" }),
            json!({ "key": format!("{}/x", "a".repeat(254)), "operator": "Exists" }),
        ] {
            let found = errors(rejected.clone()).len();
            // A negative bound is not a valid label value either.
            assert_eq!(
                found,
                if rejected["values"][0] == "-1" { 2 } else { 1 },
                "{rejected}"
            );
        }
    }

    /// Conformance: API-054
    #[test]
    fn unknown_capacity_types_pass_while_one_is_known() {
        let capacity_type = |values: Value, min_values: Value| {
            findings(json!({
                "key": "karpenter.sh/capacity-type", "operator": "In", "values": values, "minValues": min_values,
            }))
        };
        assert!(!capacity_type(json!(["preemptible"]), json!(null)).is_ok());
        let partly = capacity_type(json!(["spot", "preemptible"]), json!(null));
        assert!(partly.is_ok());
        assert_eq!(partly.warnings.len(), 1);
        assert!(!capacity_type(json!(["spot", "preemptible"]), json!(2)).is_ok());
        assert_eq!(
            capacity_type(json!(["spot", "on-demand", "reserved"]), json!(3)),
            Findings::default()
        );
    }

    /// Conformance: API-056
    #[test]
    fn a_legacy_key_is_normalized_before_it_is_checked() {
        let values =
            json!({ "key": "beta.kubernetes.io/arch", "operator": "In", "values": ["amd64"] });
        assert_eq!(errors(values), [""; 0]);
        let bad = json!({ "key": "beta.kubernetes.io/arch", "operator": "In" });
        assert_eq!(
            errors(bad),
            ["key `kubernetes.io/arch` with operator In must have a value"]
        );
    }
}
