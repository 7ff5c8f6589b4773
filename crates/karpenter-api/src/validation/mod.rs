//! Checks beyond the CRD schema, reported in the ValidationSucceeded condition of the object.
//!
//! Every problem is reported, not just the first. [`Findings::errors`] make an object unusable; [`Findings::warnings`] do not.
//!
//! UPSTREAM: pkg/apis/v1/nodepool_validation.go, pkg/apis/v1/nodeclaim_validation.go, pkg/apis/v1alpha1/nodeoverlay_validation.go

mod names;
mod well_known;

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Taint;

pub use names::{InvalidName, label_value, qualified_name};
pub use well_known::{RestrictedLabel, WellKnown};

use crate::budget::InvalidBudget;
use crate::labels;
use crate::labels::taints;
use crate::v1::{NodePool, Operator};
use crate::v1alpha1::NodeOverlay;

/// A problem with a field that a user wrote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The key is reserved.
    #[error(transparent)]
    Restricted(#[from] RestrictedLabel),
    /// The key is set by Karpenter alone.
    #[error("label key `{key}` is set by Karpenter alone")]
    OwnedByKarpenter {
        /// The key.
        key: String,
    },
    /// The key is not a valid label key.
    #[error("key `{key}` is not a qualified name: {problem}")]
    Key {
        /// The key.
        key: String,
        /// The problem.
        problem: InvalidName,
    },
    /// The value is not a valid label value.
    #[error("invalid value `{value}` for key `{key}`: {problem}")]
    Value {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// The problem.
        problem: InvalidName,
    },
    /// The operator is unknown.
    #[error("key `{key}` has an unknown operator `{operator}`")]
    UnknownOperator {
        /// The key.
        key: String,
        /// The operator.
        operator: String,
    },
    /// In without values, or NotIn without values in a NodeOverlay.
    #[error("key `{key}` with operator {operator} must have a value")]
    NoValues {
        /// The key.
        key: String,
        /// The operator.
        operator: Operator,
    },
    /// In with fewer values than minValues.
    #[error("key `{key}` has {values} values, fewer than its minValues of {min_values}")]
    FewerThanMinValues {
        /// The key.
        key: String,
        /// The number of values.
        values: usize,
        /// The value of minValues.
        min_values: i64,
    },
    /// A bound that is not one non-negative integer.
    #[error("key `{key}` with operator {operator} must have a single positive integer value")]
    Bound {
        /// The key.
        key: String,
        /// The operator.
        operator: Operator,
    },
    /// None of the values of a key with known values is known.
    #[error("no value of key `{key}` is valid: {values:?} not in {known:?}")]
    NoKnownValue {
        /// The key.
        key: String,
        /// The values of the requirement.
        values: Vec<String>,
        /// The valid values.
        known: Vec<String>,
    },
    /// Some of the values of a key with known values are not known.
    #[error("invalid values of key `{key}` are ignored: {values:?} not in {known:?}")]
    UnknownValues {
        /// The key.
        key: String,
        /// The unknown values.
        values: Vec<String>,
        /// The valid values.
        known: Vec<String>,
    },
    /// A taint with an effect that does not exist.
    #[error("taint `{key}` has an unknown effect `{effect}`")]
    TaintEffect {
        /// The taint's key.
        key: String,
        /// Its effect.
        effect: String,
    },
    /// An invalid taint value.
    #[error("invalid value `{value}` of taint `{key}`: {problem}")]
    TaintValue {
        /// The taint's key.
        key: String,
        /// Its value.
        value: String,
        /// The problem.
        problem: InvalidName,
    },
    /// The same taint twice, within or across taints and startupTaints.
    #[error("duplicate taint `{key}:{effect}`")]
    DuplicateTaint {
        /// The taint's key.
        key: String,
        /// Its effect.
        effect: String,
    },
    /// A NodeOverlay that changes a resource of the provider.
    #[error("capacity of resource `{resource}` cannot be changed")]
    RestrictedResource {
        /// The resource.
        resource: String,
    },
    /// An invalid disruption budget.
    #[error("budget {index} allows no disruption: {problem}")]
    Budget {
        /// Its index in the list.
        index: usize,
        /// The problem.
        problem: InvalidBudget,
    },
}

/// The result of validation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Problems that make the object unusable.
    pub errors: Vec<Problem>,
    /// Problems that do not make the object unusable.
    pub warnings: Vec<Problem>,
}

impl Findings {
    /// Returns whether the object is usable.
    pub fn is_ok(&self) -> bool {
        self.errors.is_empty()
    }

    /// Returns the errors as one text, for the message of a condition.
    pub fn message(&self) -> String {
        self.errors
            .iter()
            .map(Problem::to_string)
            .collect::<Vec<_>>()
            .join("; ")
    }
}

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

/// Checks a NodePool: labels, taints, requirements; budgets as warnings.
pub fn node_pool(pool: &NodePool, well_known: &WellKnown) -> Findings {
    let mut findings = Findings::default();
    let template = &pool.spec.template;
    for (key, value) in template.metadata.labels.iter().flatten() {
        if key == labels::NODE_POOL {
            findings
                .errors
                .push(Problem::OwnedByKarpenter { key: key.clone() });
        }
        check_key(key, &mut findings);
        check_value(key, value, &mut findings);
        findings
            .errors
            .extend(well_known.check(key).err().map(Problem::from));
    }
    let mut seen = BTreeSet::new();
    for taint in template
        .spec
        .taints
        .iter()
        .flatten()
        .chain(template.spec.startup_taints.iter().flatten())
    {
        check_taint(taint, &mut seen, &mut findings);
    }
    for requirement in &template.spec.requirements {
        if requirement.key == labels::NODE_POOL {
            findings.errors.push(Problem::OwnedByKarpenter {
                key: requirement.key.clone(),
            });
        }
        let parts = RequirementParts {
            key: &requirement.key,
            operator: &requirement.operator,
            values: &requirement.values,
            min_values: requirement.min_values,
        };
        self::requirement(parts, well_known, &mut findings);
    }
    for (index, budget) in pool.spec.disruption.budgets.iter().enumerate() {
        if let Err(problem) = budget.validate() {
            findings.warnings.push(Problem::Budget { index, problem });
        }
    }
    findings
}

/// Checks a NodeOverlay: requirements and capacity.
pub fn node_overlay(overlay: &NodeOverlay, well_known: &WellKnown) -> Findings {
    let mut findings = Findings::default();
    for requirement in &overlay.spec.requirements {
        let (key, operator, values) =
            (&requirement.key, &requirement.operator, &requirement.values);
        self::requirement(
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

fn check_key(key: &str, findings: &mut Findings) {
    if let Err(problem) = qualified_name(key) {
        findings.errors.push(Problem::Key {
            key: key.to_owned(),
            problem,
        });
    }
}

fn check_value(key: &str, value: &str, findings: &mut Findings) {
    if let Err(problem) = label_value(value) {
        findings.errors.push(Problem::Value {
            key: key.to_owned(),
            value: value.to_owned(),
            problem,
        });
    }
}

fn check_taint(taint: &Taint, seen: &mut BTreeSet<(String, String)>, findings: &mut Findings) {
    let (key, effect) = (taint.key.clone(), taint.effect.clone());
    check_key(&key, findings);
    if let Some(value) = taint.value.as_ref().filter(|value| !value.is_empty())
        && let Err(problem) = qualified_name(value)
    {
        findings.errors.push(Problem::TaintValue {
            key: key.clone(),
            value: value.clone(),
            problem,
        });
    }
    if ![
        taints::NO_SCHEDULE,
        taints::PREFER_NO_SCHEDULE,
        taints::NO_EXECUTE,
    ]
    .contains(&effect.as_str())
    {
        findings.errors.push(Problem::TaintEffect {
            key: key.clone(),
            effect: effect.clone(),
        });
    }
    if !seen.insert((key.clone(), effect.clone())) {
        findings
            .errors
            .push(Problem::DuplicateTaint { key, effect });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pool(template: Value) -> NodePool {
        let mut pool = NodePool::default();
        let mut spec = json!({ "nodeClassRef": { "group": "g", "kind": "K", "name": "n" }, "requirements": [] });
        for (field, value) in template["spec"].as_object().into_iter().flatten() {
            spec[field] = value.clone();
        }
        pool.spec.template =
            serde_json::from_value(json!({ "metadata": template["metadata"], "spec": spec }))
                .unwrap();
        pool
    }

    fn errors(template: Value) -> Vec<String> {
        node_pool(&pool(template), &WellKnown::default())
            .errors
            .iter()
            .map(Problem::to_string)
            .collect()
    }

    fn requirement_errors(requirement: Value) -> Vec<String> {
        errors(json!({ "spec": { "requirements": [requirement] } }))
    }

    /// Conformance: API-050
    #[test]
    fn template_labels_are_qualified_names_that_are_not_reserved() {
        assert_eq!(
            errors(
                json!({ "metadata": { "labels": { "team": "a", "example.com/x": "", "karpenter.sh/capacity-type": "spot" } } })
            ),
            [""; 0]
        );
        let long = "a".repeat(64);
        for (key, value) in [
            ("karpenter.sh/nodepool", "a"),
            ("karpenter.sh/custom", "a"),
            ("sub.karpenter.sh/custom", "a"),
            ("kubernetes.io/hostname", "a"),
            ("/x", "a"),
            ("a/b/c", "a"),
            ("UPPER.com/x", "a"),
            (long.as_str(), "a"),
            ("x", long.as_str()),
            ("x", "-a"),
        ] {
            assert_eq!(
                errors(json!({ "metadata": { "labels": { key: value } } })).len(),
                1,
                "{key}={value}"
            );
        }
    }

    /// Conformance: API-051
    #[test]
    fn a_taint_may_occur_once_in_taints_and_startup_taints_together() {
        let taint = json!({ "key": "a", "effect": "NoSchedule" });
        let other_effect = json!({ "key": "a", "effect": "NoExecute" });
        assert_eq!(
            errors(json!({ "spec": { "taints": [taint, other_effect] } })),
            [""; 0]
        );
        let duplicate = ["duplicate taint `a:NoSchedule`"];
        assert_eq!(
            errors(json!({ "spec": { "taints": [taint, taint] } })),
            duplicate
        );
        assert_eq!(
            errors(json!({ "spec": { "taints": [taint], "startupTaints": [taint] } })),
            duplicate
        );
    }

    /// Conformance: API-052
    #[test]
    fn taint_keys_values_and_effects_are_checked() {
        for taint in [
            json!({ "key": "", "effect": "NoSchedule" }),
            json!({ "key": "a".repeat(64), "effect": "NoSchedule" }),
            json!({ "key": "a", "value": "b".repeat(64), "effect": "NoSchedule" }),
            json!({ "key": "a", "effect": "Never" }),
        ] {
            assert_eq!(
                errors(json!({ "spec": { "taints": [taint] } })).len(),
                1,
                "{taint}"
            );
        }
        let prefixed = json!({ "key": "a", "value": "example.com/b", "effect": "NoSchedule" });
        assert_eq!(errors(json!({ "spec": { "taints": [prefixed] } })), [""; 0]);
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
            assert_eq!(requirement_errors(accepted.clone()), [""; 0], "{accepted}");
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
            let found = requirement_errors(rejected.clone()).len();
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
            node_pool(
                &pool(json!({ "spec": { "requirements": [
                    { "key": "karpenter.sh/capacity-type", "operator": "In", "values": values, "minValues": min_values },
                ] } })),
                &WellKnown::default(),
            )
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

    /// Conformance: API-055
    #[test]
    fn the_node_pool_label_cannot_be_required() {
        let found = requirement_errors(
            json!({ "key": "karpenter.sh/nodepool", "operator": "In", "values": ["a"] }),
        );
        assert_eq!(
            found,
            ["label key `karpenter.sh/nodepool` is set by Karpenter alone"]
        );
    }

    /// Conformance: API-056
    #[test]
    fn a_legacy_key_is_normalized_before_it_is_checked() {
        let values =
            json!({ "key": "beta.kubernetes.io/arch", "operator": "In", "values": ["amd64"] });
        assert_eq!(requirement_errors(values), [""; 0]);
        let bad = json!({ "key": "beta.kubernetes.io/arch", "operator": "In" });
        assert_eq!(
            requirement_errors(bad),
            ["key `kubernetes.io/arch` with operator In must have a value"]
        );
    }

    #[test]
    fn a_bad_schedule_is_a_warning() {
        let mut pool = pool(json!({}));
        pool.spec.disruption.budgets[0].schedule = Some("TZ=UTC 0 0 * * *".into());
        let findings = node_pool(&pool, &WellKnown::default());
        assert!(findings.is_ok());
        assert_eq!(
            findings.warnings[0].to_string(),
            "budget 0 allows no disruption: invalid schedule `TZ=UTC 0 0 * * *`: 6 fields instead of 5"
        );
    }

    #[test]
    fn every_problem_is_reported() {
        let findings = node_pool(
            &pool(
                json!({ "spec": { "requirements": [{ "key": "a", "operator": "In" }, { "key": "b", "operator": "In" }] } }),
            ),
            &WellKnown::default(),
        );
        assert_eq!(
            findings.message(),
            "key `a` with operator In must have a value; key `b` with operator In must have a value"
        );
    }

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
