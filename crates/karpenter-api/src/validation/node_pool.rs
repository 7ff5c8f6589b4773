//! Checks of a NodePool.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Taint;

use super::names::{check_key, check_value};
use super::requirement::{RequirementParts, requirement};
use super::{Findings, Problem, WellKnown, qualified_name};
use crate::labels;
use crate::labels::taints;
use crate::v1::NodePool;

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
    for entry in &template.spec.requirements {
        if entry.key == labels::NODE_POOL {
            findings.errors.push(Problem::OwnedByKarpenter {
                key: entry.key.clone(),
            });
        }
        let parts = RequirementParts {
            key: &entry.key,
            operator: &entry.operator,
            values: &entry.values,
            min_values: entry.min_values,
        };
        requirement(parts, well_known, &mut findings);
    }
    for (index, budget) in pool.spec.disruption.budgets.iter().enumerate() {
        if let Err(problem) = budget.validate() {
            findings.warnings.push(Problem::Budget { index, problem });
        }
    }
    findings
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

    fn label_errors(key: &str, value: &str) -> Vec<String> {
        errors(json!({ "metadata": { "labels": { key: value } } }))
    }

    fn taint_errors(taints: &[&Value], startup_taints: &[&Value]) -> Vec<String> {
        errors(json!({ "spec": { "taints": taints, "startupTaints": startup_taints } }))
    }

    /// Conformance: API-050
    #[test]
    fn template_labels_are_qualified_names_that_are_not_reserved() {
        for (key, value) in [
            ("team", "a"),
            ("example.com/x", ""),
            ("karpenter.sh/capacity-type", "spot"),
        ] {
            assert_eq!(label_errors(key, value), [""; 0], "{key}={value}");
        }
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
            assert_eq!(label_errors(key, value).len(), 1, "{key}={value}");
        }
    }

    /// Conformance: API-051
    #[test]
    fn a_taint_may_occur_once_in_taints_and_startup_taints_together() {
        let taint = json!({ "key": "a", "effect": "NoSchedule" });
        let other_effect = json!({ "key": "a", "effect": "NoExecute" });
        assert_eq!(taint_errors(&[&taint, &other_effect], &[]), [""; 0]);
        let duplicate = ["duplicate taint `a:NoSchedule`"];
        assert_eq!(taint_errors(&[&taint, &taint], &[]), duplicate);
        assert_eq!(taint_errors(&[&taint], &[&taint]), duplicate);
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
            assert_eq!(taint_errors(&[&taint], &[]).len(), 1, "{taint}");
        }
        let prefixed = json!({ "key": "a", "value": "example.com/b", "effect": "NoSchedule" });
        assert_eq!(taint_errors(&[&prefixed], &[]), [""; 0]);
    }

    /// Conformance: API-055
    #[test]
    fn the_node_pool_label_cannot_be_required() {
        let own = json!({ "key": "karpenter.sh/nodepool", "operator": "In", "values": ["a"] });
        assert_eq!(
            errors(json!({ "spec": { "requirements": [own] } })),
            ["label key `karpenter.sh/nodepool` is set by Karpenter alone"]
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
        let without_values = ["a", "b"].map(|key| json!({ "key": key, "operator": "In" }));
        let pool = pool(json!({ "spec": { "requirements": without_values } }));
        assert_eq!(
            node_pool(&pool, &WellKnown::default()).message(),
            "key `a` with operator In must have a value; key `b` with operator In must have a value"
        );
    }
}
