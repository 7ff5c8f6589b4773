//! Custom resources: defaults, schema and rules of CRDs, conversion of versions, and storage of the CRDs themselves.

mod convert;
mod structural;

use std::collections::HashSet;

use kube_cel::{CompiledSchema, RootContext, Validator, compile_schema};
use serde_json::{Value, json};

use super::value::{map_of, object_of};
use crate::registry::{CustomResource, Registry};
use crate::server::wire::error::Cause;

pub use structural::add_defaults;

/// A compiled version of a CustomResourceDefinition.
pub struct Definition {
    checks: Checks,
    /// Validation if the spec is unchanged, unless rules use the whole object.
    beside_spec: Option<Checks>,
    validator: Validator,
    root: RootContext,
}

/// A schema and its compiled rules.
struct Checks {
    schema: Value,
    /// Absent if the schema has none: checking this again would traverse the whole object.
    rules: Option<CompiledSchema>,
}

impl Checks {
    fn of(schema: Value) -> Self {
        Self {
            rules: Some(compile_schema(&schema)).filter(has_rules),
            schema,
        }
    }
}

fn has_rules(schema: &CompiledSchema) -> bool {
    let parts = [&schema.items, &schema.additional_properties];
    let branches = [&schema.all_of, &schema.one_of, &schema.any_of];
    !schema.validations.is_empty()
        || schema.properties.values().any(has_rules)
        || parts.into_iter().flatten().any(|part| has_rules(part))
        || branches.into_iter().flatten().any(has_rules)
}

impl std::fmt::Debug for Definition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Definition").finish_non_exhaustive()
    }
}

impl Definition {
    /// Compiles the checks of every write.
    #[must_use]
    pub fn compile(custom: &CustomResource, group: &str, version: &str, kind: &str) -> Self {
        let schema = without_metadata(&custom.open_api_schema);
        let beside_spec = schema
            .get("x-kubernetes-validations")
            .is_none()
            .then(|| Checks::of(without_spec(&schema)));
        Self {
            checks: Checks::of(schema),
            beside_spec,
            validator: Validator::new(),
            root: RootContext {
                api_version: crate::registry::api_version(group, version),
                api_group: group.to_owned(),
                kind: kind.to_owned(),
            },
        }
    }

    pub fn default(&self, object: &mut Value) {
        add_defaults(&self.checks.schema, object);
    }

    /// Validates an object: its structure first, and then, if that is valid, its rules.
    ///
    /// An invalid but unchanged spec does not block other changes, which most writes are.
    #[must_use]
    pub fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<Cause> {
        let same_spec = old.is_some_and(|old| old.get("spec") == object.get("spec"));
        let checks = match &self.beside_spec {
            Some(beside_spec) if same_spec => beside_spec,
            _ => &self.checks,
        };
        let mut causes = structural::validate(&checks.schema, object);
        if !causes.is_empty() {
            causes.sort_by_key(|c| c.field.matches('.').count());
            causes.push(Cause {
                reason: "FieldValueInvalid",
                message: "Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation".to_owned(),
                field: "<nil>".to_owned(),
            });
            return causes;
        }
        let Some(rules) = &checks.rules else {
            return Vec::new();
        };
        let result =
            self.validator
                .validate_compiled_with_context(rules, object, old, Some(&self.root));
        let Err(errors) = result else {
            return Vec::new();
        };
        let mut seen = HashSet::new();
        errors
            .into_vec()
            .into_iter()
            .filter(|e| seen.insert((e.field_path.clone(), e.message.clone())))
            .map(|e| rule_cause(object, &e))
            .collect()
    }
}

fn rule_cause(object: &Value, error: &kube_cel::ValidationError) -> Cause {
    let value = at(object, &error.field_path);
    // Values that are not scalars are omitted.
    let shown = match value {
        Some(v @ (Value::String(_) | Value::Number(_) | Value::Bool(_))) => format!("{v}: "),
        _ => String::new(),
    };
    let (reason, message) = match error.reason.as_deref() {
        Some("FieldValueRequired") => (
            "FieldValueRequired",
            format!("Required value: {}", error.message),
        ),
        Some("FieldValueForbidden") => (
            "FieldValueForbidden",
            format!("Forbidden: {}", error.message),
        ),
        Some("FieldValueDuplicate") => (
            "FieldValueDuplicate",
            format!("Duplicate value: {shown}{}", error.message),
        ),
        _ => (
            "FieldValueInvalid",
            format!("Invalid value: {shown}{}", error.message),
        ),
    };
    Cause {
        reason,
        message,
        field: if error.field_path.is_empty() {
            "<nil>".to_owned()
        } else {
            error.field_path.clone()
        },
    }
}

/// Returns the value at a path such as `spec.terms[0].alias`.
fn at<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    let mut value = object;
    for segment in path.split('.').filter(|s| !s.is_empty()) {
        let (name, indexes) = segment.split_once('[').unwrap_or((segment, ""));
        value = value.get(name)?;
        for index in indexes.split('[').filter(|i| !i.is_empty()) {
            let index = index.trim_end_matches(']');
            value = match index.parse::<usize>() {
                Ok(i) if value.is_array() => value.get(i)?,
                _ => value.get(index)?,
            };
        }
    }
    Some(value)
}

/// Returns the schema without its metadata, which the server validates itself.
fn without_metadata(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.insert(
            "metadata".into(),
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
        );
        for key in ["apiVersion", "kind"] {
            properties.insert(key.into(), json!({"type": "string"}));
        }
    }
    schema
}

/// Returns the schema of an object with any spec.
fn without_spec(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut)
        && properties.contains_key("spec")
    {
        properties.insert(
            "spec".into(),
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
        );
    }
    schema
}

/// Completes a CRD before it is stored: defaults of names, accepted names and conditions in its status.
pub fn complete(crd: &mut Value, now: &Value) {
    let kind = crd["spec"]["names"]["kind"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let names = map_of(
        object_of(crd, "spec")
            .entry("names")
            .or_insert_with(|| json!({})),
    );
    for (key, by_default) in [
        ("singular", kind.to_lowercase()),
        ("listKind", format!("{kind}List")),
    ] {
        let name = names.entry(key).or_insert_with(|| "".into());
        if name == "" {
            *name = by_default.into();
        }
    }
    let accepted = Value::Object(names.clone());
    object_of(crd, "spec")
        .entry("conversion")
        .or_insert_with(|| json!({"strategy": "None"}));
    let storage: Vec<Value> = crd["spec"]["versions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|v| v["storage"] == true)
        .map(|v| v["name"].clone())
        .collect();
    let status = object_of(crd, "status");
    status.insert("acceptedNames".into(), accepted);
    let stored = status.entry("storedVersions").or_insert_with(|| json!([]));
    if let Some(stored) = stored.as_array_mut() {
        for version in storage {
            if !stored.contains(&version) {
                stored.push(version);
            }
        }
    }
    status.entry("conditions").or_insert_with(|| {
        json!([
            {
                "type": "NamesAccepted",
                "status": "True",
                "reason": "NoConflicts",
                "message": "no conflicts found",
                "lastTransitionTime": now,
            },
            {
                "type": "Established",
                "status": "True",
                "reason": "InitialNamesAccepted",
                "message": "the initial names have been accepted",
                "lastTransitionTime": now,
            },
        ])
    });
}

/// Validates that the registry can serve a CRD. Schemas and rules are not validated: the suite on a real API server
/// (`tests/real-cluster`) applies all of this repository's CRDs.
#[must_use]
pub fn validate_definition(crd: &Value) -> Option<Cause> {
    let error = Registry::default().register_crd(crd).err()?;
    let name = &crd["metadata"]["name"];
    Some(Cause::invalid("spec", name, &error.to_string()))
}
