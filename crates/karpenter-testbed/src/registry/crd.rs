//! The resources of a CustomResourceDefinition.

use std::sync::Arc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceDefinitionNames, CustomResourceSubresources,
    SelectableField,
};
use kube::core::GroupVersionKind;
use serde::Deserialize;
use serde_json::{Value, json};

use super::schema::Schema;
use super::{
    CUSTOM_VERBS, CustomResource, FieldSelector, Resource, STATUS_VERBS, StorageKey, Subresource,
};

/// The reason why an object is not a valid CustomResourceDefinition.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CrdError {
    #[error("custom resource definition lacks `{0}`")]
    Missing(&'static str),
    #[error("invalid custom resource definition: {0}")]
    Invalid(#[from] serde_json::Error),
    /// The name is not `PLURAL.GROUP`.
    #[error("custom resource definition is named `{found}` instead of `{wanted}`")]
    Name { found: String, wanted: String },
    /// Not exactly one version is marked as stored.
    #[error("custom resource definition must have exactly one storage version")]
    StorageVersion,
}

/// `spec` with the schemas as written.
#[derive(Deserialize)]
struct Spec {
    group: String,
    names: CustomResourceDefinitionNames,
    #[serde(default)]
    scope: String,
    versions: Vec<Version>,
    conversion: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    name: String,
    #[serde(default)]
    served: bool,
    #[serde(default)]
    storage: bool,
    #[serde(default)]
    schema: Value,
    subresources: Option<CustomResourceSubresources>,
    selectable_fields: Option<Vec<SelectableField>>,
    additional_printer_columns: Option<Vec<CustomResourceColumnDefinition>>,
}

/// Returns the CRD's name and its served resources, one for each served version. Its names are complete.
pub(super) fn resources(definition: &Value) -> Result<(String, Vec<Resource>), CrdError> {
    let spec: Spec = serde_json::from_value(definition["spec"].clone())?;
    let (group, names) = (&spec.group, &spec.names);
    for (text, field) in [
        (group, "spec.group"),
        (&names.plural, "spec.names.plural"),
        (&names.kind, "spec.names.kind"),
    ] {
        if text.is_empty() {
            return Err(CrdError::Missing(field));
        }
    }
    let wanted = format!("{}.{group}", names.plural);
    let found = definition["metadata"]["name"].as_str().unwrap_or_default();
    if found != wanted {
        let found = found.to_owned();
        return Err(CrdError::Name { found, wanted });
    }
    let mut stored = spec.versions.iter().filter(|version| version.storage);
    let (Some(stored), None) = (stored.next(), stored.next()) else {
        return Err(CrdError::StorageVersion);
    };
    let versions: Vec<String> = spec.versions.iter().map(|v| v.name.clone()).collect();
    let resource = |version: &Version| {
        let open_api_schema = version.schema.get("openAPIV3Schema").cloned();
        let open_api_schema = open_api_schema.unwrap_or_else(|| json!({"type": "object"}));
        let subresources = version.subresources.clone().unwrap_or_default();
        let has_status = subresources.status.is_some();
        let scale = subresources.scale;
        let own = GroupVersionKind::gvk(group, &version.name, &names.kind);
        let subresource = |name: &str, kind| Subresource {
            name: name.to_owned(),
            kind,
            verbs: STATUS_VERBS,
        };
        let status = has_status.then(|| subresource("status", own));
        let scaled = GroupVersionKind::gvk("autoscaling", "v1", "Scale");
        let scaled = scale.is_some().then(|| subresource("scale", scaled));
        Resource {
            group: group.clone(),
            version: version.name.clone(),
            kind: names.kind.clone(),
            list_kind: names.list_kind.clone().unwrap_or_default(),
            plural: names.plural.clone(),
            singular: names.singular.clone().unwrap_or_default(),
            short_names: names.short_names.clone().unwrap_or_default(),
            categories: names.categories.clone().unwrap_or_default(),
            namespaced: spec.scope == "Namespaced",
            verbs: CUSTOM_VERBS,
            subresources: status.into_iter().chain(scaled).collect(),
            field_selectors: selectable_fields(version),
            storage: StorageKey {
                group: group.clone(),
                plural: names.plural.clone(),
            },
            storage_version: stored.name.clone(),
            schema: Arc::new(Schema::of_custom_resource(&open_api_schema)),
            custom: Some(CustomResource {
                crd: wanted.clone(),
                open_api_schema,
                columns: columns(version),
                scale,
                has_status,
                conversion: spec.conversion.clone().unwrap_or_default(),
                versions: versions.clone(),
            }),
        }
    };
    let served = spec.versions.iter().filter(|version| version.served);
    let served = served.map(resource).collect();
    Ok((wanted, served))
}

fn selectable_fields(version: &Version) -> Vec<FieldSelector> {
    let fields = version.selectable_fields.iter().flatten();
    let selector = |field: &SelectableField| {
        let label = field.json_path.trim_start_matches('.').to_owned();
        FieldSelector {
            path: label.split('.').map(str::to_owned).collect(),
            label,
            absent: "",
        }
    };
    fields.map(selector).collect()
}

fn columns(version: &Version) -> Vec<CustomResourceColumnDefinition> {
    let mut columns = version
        .additional_printer_columns
        .clone()
        .unwrap_or_default();
    for column in &mut columns {
        let path = &column.json_path;
        column.description.get_or_insert_with(|| {
            format!("Custom resource definition column (in JSONPath format): {path}")
        });
    }
    if columns.is_empty() {
        columns.push(CustomResourceColumnDefinition {
            name: "Age".into(),
            type_: "date".into(),
            description: Some("CreationTimestamp is a timestamp representing the server time when this object was created.".into()),
            json_path: ".metadata.creationTimestamp".into(),
            ..CustomResourceColumnDefinition::default()
        });
    }
    columns
}
