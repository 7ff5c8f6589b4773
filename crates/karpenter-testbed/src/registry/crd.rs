//! The resources of a CustomResourceDefinition.

use std::sync::Arc;

use serde_json::{Value, json};

use super::schema::Schema;
use super::{
    CUSTOM_VERBS, CustomResource, FieldSelector, GroupVersionKind, PrinterColumn, Resource,
    STATUS_VERBS, ScalePaths, StorageKey, Subresource,
};

/// The reason why an object is not a valid CustomResourceDefinition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CrdError {
    /// A field is missing or has the wrong type.
    #[error("custom resource definition lacks `{0}`")]
    Missing(&'static str),
    /// The name is not `PLURAL.GROUP`.
    #[error("custom resource definition is named `{found}` instead of `{wanted}`")]
    Name {
        /// The name it has.
        found: String,
        /// The name it must have.
        wanted: String,
    },
    /// Not exactly one version is marked as stored.
    #[error("custom resource definition must have exactly one storage version")]
    StorageVersion,
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value
        .get(key)
        .and_then(Value::as_str)
        .filter(|text| !text.is_empty())
}

fn strings(value: &Value, key: &str) -> Vec<String> {
    value
        .get(key)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

/// Returns the CRD's name and its served resources, one for each served version.
pub(super) fn resources(definition: &Value) -> Result<(String, Vec<Resource>), CrdError> {
    let spec = definition.get("spec").ok_or(CrdError::Missing("spec"))?;
    let group = text(spec, "group").ok_or(CrdError::Missing("spec.group"))?;
    let names = spec.get("names").ok_or(CrdError::Missing("spec.names"))?;
    let plural = text(names, "plural").ok_or(CrdError::Missing("spec.names.plural"))?;
    let kind = text(names, "kind").ok_or(CrdError::Missing("spec.names.kind"))?;
    let wanted = format!("{plural}.{group}");
    let found = definition
        .pointer("/metadata/name")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if found != wanted {
        return Err(CrdError::Name {
            found: found.to_owned(),
            wanted,
        });
    }
    let versions = spec
        .get("versions")
        .and_then(Value::as_array)
        .ok_or(CrdError::Missing("spec.versions"))?;
    let flag =
        |version: &Value, key: &str| version.get(key).and_then(Value::as_bool).unwrap_or(false);
    let mut stored = versions.iter().filter(|version| flag(version, "storage"));
    let storage_version = match (stored.next(), stored.next()) {
        (Some(version), None) => {
            text(version, "name").ok_or(CrdError::Missing("spec.versions.name"))?
        }
        _ => return Err(CrdError::StorageVersion),
    };
    let all_versions: Vec<String> = versions
        .iter()
        .filter_map(|version| text(version, "name"))
        .map(str::to_owned)
        .collect();
    let singular = text(names, "singular").map_or_else(|| kind.to_lowercase(), str::to_owned);
    let list_kind = text(names, "listKind").map_or_else(|| format!("{kind}List"), str::to_owned);
    let mut served = Vec::new();
    for version in versions.iter().filter(|version| flag(version, "served")) {
        let name = text(version, "name").ok_or(CrdError::Missing("spec.versions.name"))?;
        let open_api_schema = version
            .pointer("/schema/openAPIV3Schema")
            .cloned()
            .unwrap_or_else(|| json!({"type": "object"}));
        let has_status = version
            .pointer("/subresources/status")
            .is_some_and(|status| !status.is_null());
        let scale = version.pointer("/subresources/scale").and_then(|scale| {
            Some(ScalePaths {
                spec_replicas: text(scale, "specReplicasPath")?.to_owned(),
                status_replicas: text(scale, "statusReplicasPath")?.to_owned(),
                label_selector: text(scale, "labelSelectorPath").map(str::to_owned),
            })
        });
        let mut subresources = Vec::new();
        if has_status {
            subresources.push(Subresource {
                name: "status".into(),
                kind: GroupVersionKind::new(group, name, kind),
                verbs: STATUS_VERBS,
            });
        }
        if scale.is_some() {
            subresources.push(Subresource {
                name: "scale".into(),
                kind: GroupVersionKind::new("autoscaling", "v1", "Scale"),
                verbs: STATUS_VERBS,
            });
        }
        served.push(Resource {
            group: group.to_owned(),
            version: name.to_owned(),
            kind: kind.to_owned(),
            list_kind: list_kind.clone(),
            plural: plural.to_owned(),
            singular: singular.clone(),
            short_names: strings(names, "shortNames"),
            categories: strings(names, "categories"),
            namespaced: text(spec, "scope") == Some("Namespaced"),
            verbs: CUSTOM_VERBS,
            subresources,
            field_selectors: selectable_fields(version),
            storage: StorageKey {
                group: group.to_owned(),
                plural: plural.to_owned(),
            },
            storage_version: storage_version.to_owned(),
            schema: Arc::new(Schema::of_custom_resource(&open_api_schema)),
            custom: Some(CustomResource {
                crd: wanted.clone(),
                open_api_schema,
                columns: columns(version),
                scale,
                has_status,
                conversion: spec
                    .get("conversion")
                    .filter(|value| value.is_object())
                    .cloned()
                    .unwrap_or_else(|| json!({"strategy": "None"})),
                versions: all_versions.clone(),
            }),
        });
    }
    Ok((wanted, served))
}

fn selectable_fields(version: &Value) -> Vec<FieldSelector> {
    let fields = version
        .get("selectableFields")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    fields
        .filter_map(|field| text(field, "jsonPath"))
        .map(|path| {
            let label = path.trim_start_matches('.').to_owned();
            FieldSelector {
                path: label.split('.').map(str::to_owned).collect(),
                label,
                absent: "",
            }
        })
        .collect()
}

fn columns(version: &Value) -> Vec<PrinterColumn> {
    let named = version
        .get("additionalPrinterColumns")
        .and_then(Value::as_array);
    match named {
        Some(columns) if !columns.is_empty() => columns
            .iter()
            .map(|column| PrinterColumn {
                name: text(column, "name").unwrap_or_default().to_owned(),
                kind: text(column, "type").unwrap_or("string").to_owned(),
                format: text(column, "format").unwrap_or_default().to_owned(),
                description: text(column, "description").map_or_else(
                    || format!("Custom resource definition column (in JSONPath format): {}", text(column, "jsonPath").unwrap_or_default()),
                    str::to_owned,
                ),
                priority: column.get("priority").and_then(Value::as_i64).unwrap_or(0),
                json_path: text(column, "jsonPath").unwrap_or_default().to_owned(),
            })
            .collect(),
        _ => vec![PrinterColumn {
            name: "Age".into(),
            kind: "date".into(),
            format: String::new(),
            description: "CreationTimestamp is a timestamp representing the server time when this object was created.".into(),
            priority: 0,
            json_path: ".metadata.creationTimestamp".into(),
        }],
    }
}
