//! The worst-case cost of a CRD's validation rules, and the budgets of the API server.
//!
//! A rule that may take too long is rejected before it is ever evaluated: its cost is estimated from the largest values that the
//! schema allows, and multiplied by the maximum number of these values in one object.
//!
//! UPSTREAM: apiextensions-apiserver pkg/apis/apiextensions/validation/{validation,cel_validation}.go,
//! pkg/apiserver/schema/cel/compilation.go

mod declaration;
mod expression;
mod library;
mod node;
mod size;

use std::rc::Rc;

use kube_cel::CompiledSchema;
use serde_json::Value;

use crate::server::wire::error::Cause;
use declaration::{Declaration, REQUEST};

/// Maximum cost of one rule.
const RULE_LIMIT: u64 = 10_000_000;
/// Maximum total cost of the rules of one version.
const VERSION_LIMIT: u64 = 100_000_000;
/// Number of the most expensive rules that are named if their total is too high.
const NAMED: usize = 4;

/// Adds the cost errors of the rules of a version's schema, which is at `path`. Single rules are not checked if the schema is
/// `unchanged`.
pub fn check(
    schema: &Value,
    compiled: &CompiledSchema,
    path: &str,
    unchanged: bool,
    causes: &mut Vec<Cause>,
) {
    let mut rules = Vec::new();
    collect(schema, compiled, path, Place::ROOT, &mut rules);
    if !unchanged {
        for rule in rules.iter().filter(|rule| rule.cost() > RULE_LIMIT) {
            let what = format!("estimated {} cost", rule.kind);
            causes.push(Cause::forbidden(
                &rule.path,
                &exceeded(&what, rule.cost(), RULE_LIMIT),
            ));
        }
    }
    let total = rules
        .iter()
        .fold(0, |sum: u64, rule| sum.saturating_add(rule.cost()));
    if total > VERSION_LIMIT {
        rules.retain(|rule| rule.cost() >= VERSION_LIMIT / 100);
        rules.sort_by_key(|rule| std::cmp::Reverse(rule.cost()));
        for rule in rules.iter().take(NAMED) {
            causes.push(Cause::forbidden(
                &rule.path,
                "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema",
            ));
        }
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        causes.push(Cause::forbidden(
            path,
            &exceeded(what, total, VERSION_LIMIT),
        ));
    }
}

/// A rule or its message expression.
#[derive(Debug)]
struct Rule {
    path: String,
    kind: &'static str,
    /// The cost of one evaluation.
    once: u64,
    /// Maximum number of evaluations for one object.
    times: u64,
}

impl Rule {
    fn cost(&self) -> u64 {
        self.once.saturating_mul(self.times)
    }
}

/// The position of a schema.
#[derive(Clone, Copy)]
struct Place {
    root: bool,
    /// Maximum number of its values in one object, if the surrounding schemas limit it.
    times: Option<u64>,
}

impl Place {
    const ROOT: Self = Self {
        root: true,
        times: Some(1),
    };

    /// Returns the schemas inside of `schema`.
    fn inside(self, schema: &Value) -> Self {
        let bound = |key: &str| {
            let bound = schema.get(key)?;
            bound.as_u64().or_else(|| bound.as_i64().map(|_| 0))
        };
        let each = match schema["type"].as_str() {
            Some("object") if schema.get("additionalProperties").is_some() => {
                bound("maxProperties")
            }
            Some("array") => bound("maxItems"),
            _ => Some(1),
        };
        Self {
            root: false,
            times: self
                .times
                .zip(each)
                .map(|(times, each)| times.saturating_mul(each)),
        }
    }
}

/// Estimates the rules of a schema and of the schemas inside of it, the innermost first.
fn collect(
    schema: &Value,
    compiled: &CompiledSchema,
    path: &str,
    place: Place,
    rules: &mut Vec<Rule>,
) {
    let inside = place.inside(schema);
    if let Some(values) = &compiled.additional_properties {
        let path = format!("{path}.additionalProperties");
        collect(
            &schema["additionalProperties"],
            values,
            &path,
            inside,
            rules,
        );
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        if let Some(compiled) = compiled.properties.get(name) {
            let path = format!("{path}.properties[{name}]");
            collect(property, compiled, &path, inside, rules);
        }
    }
    if let Some(items) = &compiled.items {
        collect(
            &schema["items"],
            items,
            &format!("{path}.items"),
            inside,
            rules,
        );
    }
    if compiled.validations.is_empty() {
        return;
    }
    let root = place.root || schema["x-kubernetes-embedded-resource"] == true;
    let Some(declaration) = Declaration::of(schema, root).map(Rc::new) else {
        return;
    };
    let times = place
        .times
        .unwrap_or(REQUEST / declaration.min_bytes.saturating_add(1));
    for (i, compiled) in compiled.validations.iter().enumerate() {
        // An expression that does not compile has been rejected already.
        let Ok(compiled) = compiled else { continue };
        let optional = compiled.rule.optional_old_self == Some(true);
        let path = format!("{path}.x-kubernetes-validations[{i}]");
        rules.push(Rule {
            path: format!("{path}.rule"),
            kind: "rule",
            once: expression::cost(compiled.program.expression(), &declaration, optional),
            times,
        });
        if let Some(message) = &compiled.message_program {
            // A message is evaluated once, even if the rule is violated several times.
            rules.push(Rule {
                path: format!("{path}.messageExpression"),
                kind: "messageExpression",
                once: expression::cost(message.expression(), &declaration, optional),
                times: 1,
            });
        }
    }
}

fn exceeded(what: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kube_cel::compile_schema;

    use super::*;

    /// The costs are those of the API server's own code (k8s.io/apiextensions-apiserver 0.36.3), rule by rule.
    #[test]
    fn every_rule_costs_what_the_api_server_estimates() {
        let golden = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/golden/crd-cost-golden.jsonl"
        );
        let mut different = Vec::new();
        for line in std::fs::read_to_string(golden).unwrap().lines() {
            let case: Value = serde_json::from_str(line).unwrap();
            let mut costs: BTreeMap<String, u64> = BTreeMap::new();
            let mut texts: BTreeMap<String, String> = BTreeMap::new();
            let versions = case["object"]["spec"]["versions"].as_array().unwrap();
            for (i, version) in versions.iter().enumerate() {
                let schema = &version["schema"]["openAPIV3Schema"];
                let path = format!("spec.versions[{i}].schema.openAPIV3Schema");
                let mut rules = Vec::new();
                collect(
                    schema,
                    &compile_schema(schema),
                    &path,
                    Place::ROOT,
                    &mut rules,
                );
                texts.extend(rules.iter().map(|r| (r.path.clone(), format!("{r:?}"))));
                costs.extend(rules.into_iter().map(|r| (r.path, r.once)));
            }
            let recorded = case["costs"].as_object().unwrap();
            assert_eq!(costs.len(), recorded.len(), "{}", case["name"]);
            for (path, cost) in recorded {
                if costs.get(path).copied() != cost.as_u64() {
                    let name = &case["name"];
                    different.push(format!("{name} {cost} but {:?}", texts.get(path)));
                }
            }
        }
        assert!(different.is_empty(), "{}", different.join("\n"));
    }

    #[test]
    fn a_rule_that_was_accepted_once_is_not_refused_when_its_schema_stays() {
        let schema = serde_json::json!({"type": "object", "properties": {"text": {"type": "string", "x-kubernetes-validations": [
            {"rule": format!("self.matches('{}')", "a".repeat(200))},
        ]}}});
        let causes = |unchanged| {
            let mut causes = Vec::new();
            let compiled = compile_schema(&schema);
            check(&schema, &compiled, "schema", unchanged, &mut causes);
            causes
        };
        assert_eq!(causes(false).len(), 1, "{:?}", causes(false));
        assert!(causes(false)[0].message.contains("factor of 1.6x"));
        assert_eq!(causes(true), []);
    }

    #[test]
    fn factors_near_one_are_told_exactly_and_huge_ones_not_at_all() {
        assert!(exceeded("cost", 10_000_001, RULE_LIMIT).contains("factor of 1.000000x ("));
        assert!(exceeded("cost", 82_575_210, RULE_LIMIT).contains("factor of 8.3x ("));
        assert!(exceeded("cost", u64::MAX, RULE_LIMIT).contains("factor of more than 100x ("));
    }
}
