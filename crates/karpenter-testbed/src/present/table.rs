//! `Table` responses: the output of kubectl, computed by the server.
//!
//! UPSTREAM: kubernetes pkg/printers/internalversion (built-in kinds), apiextensions-apiserver tableconvertor (custom ones).

use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceColumnDefinition;
use serde_json::{Map, Value, json};

use super::age::age;
use super::jsonpath::JsonPath;
use super::rows;
use crate::registry::Resource;

/// The object in a Table row (`includeObject`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IncludeObject {
    None,
    /// A `PartialObjectMetadata`.
    #[default]
    Metadata,
    Object,
}

impl IncludeObject {
    /// Parses the query parameter `includeObject`; returns `None` if the value is unknown (a 400).
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "Metadata" => Some(Self::Metadata),
            "None" => Some(Self::None),
            "Object" => Some(Self::Object),
            _ => None,
        }
    }
}

/// Returns a `Table` of `objects`, all of kind `resource`.
///
/// `list_metadata` is the `metadata` of the list (for a single object: its `resourceVersion` alone). `with_columns` is
/// false for the second and later events of a watch.
pub fn table<'a>(
    resource: &Resource,
    objects: impl IntoIterator<Item = &'a Value>,
    list_metadata: Value,
    include: IncludeObject,
    with_columns: bool,
    now: Timestamp,
) -> Value {
    let painter = Painter::new(resource);
    let rows: Vec<Value> = objects
        .into_iter()
        .map(|object| painter.row(object, include, now))
        .collect();
    let columns = if with_columns {
        painter.columns()
    } else {
        Value::Null
    };
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": list_metadata,
        "columnDefinitions": columns,
        "rows": rows,
    })
}

pub fn partial_metadata(object: &Value) -> Value {
    let metadata = object.get("metadata").cloned().unwrap_or_else(|| json!({}));
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
}

pub fn partial_metadata_list<'a>(
    objects: impl IntoIterator<Item = &'a Value>,
    list_metadata: Value,
) -> Value {
    let items: Vec<Value> = objects.into_iter().map(partial_metadata).collect();
    json!({
        "kind": "PartialObjectMetadataList",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": list_metadata,
        "items": items,
    })
}

/// The columns and cells of one kind.
enum Painter<'a> {
    Builtin(&'static [rows::Column]),
    Custom(Vec<(&'a CustomResourceColumnDefinition, Option<JsonPath>)>),
}

impl<'a> Painter<'a> {
    fn new(resource: &'a Resource) -> Self {
        match &resource.custom {
            Some(custom) => Self::Custom(
                custom
                    .columns
                    .iter()
                    .map(|column| (column, JsonPath::parse(&column.json_path)))
                    .collect(),
            ),
            None => Self::Builtin(rows::columns(&resource.group, &resource.kind)),
        }
    }

    fn columns(&self) -> Value {
        let name = "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client to request the generation of an appropriate name automatically.";
        let definition = |name: &str,
                          kind: &str,
                          format: &str,
                          description: &str,
                          priority: i64| json!({"name": name, "type": kind, "format": format, "description": description, "priority": priority});
        match self {
            // kubectl does not show the descriptions.
            Self::Builtin(columns) => columns
                .iter()
                .map(|c| definition(c.name, c.kind, c.format, "", c.priority))
                .collect(),
            Self::Custom(columns) => std::iter::once(definition("Name", "string", "name", name, 0))
                .chain(columns.iter().map(|(c, _)| {
                    let format = c.format.as_deref().unwrap_or_default();
                    let description = c.description.as_deref().unwrap_or_default();
                    let priority = c.priority.unwrap_or(0).into();
                    definition(&c.name, &c.type_, format, description, priority)
                }))
                .collect(),
        }
    }

    fn row(&self, object: &Value, include: IncludeObject, now: Timestamp) -> Value {
        let mut row = Map::new();
        let cells = match self {
            Self::Builtin(columns) => {
                let view = rows::View { object, now };
                columns.iter().map(|column| column.cell(&view)).collect()
            }
            Self::Custom(columns) => {
                let name = object
                    .pointer("/metadata/name")
                    .cloned()
                    .unwrap_or_default();
                let cell =
                    |(column, path): &(&CustomResourceColumnDefinition, Option<JsonPath>)| {
                        path.as_ref()
                            .and_then(|path| path.first(object))
                            .map_or(Value::Null, |value| custom_cell(&column.type_, value, now))
                    };
                std::iter::once(name)
                    .chain(columns.iter().map(cell))
                    .collect()
            }
        };
        row.insert("cells".into(), Value::Array(cells));
        let shown = match include {
            IncludeObject::None => Value::Null,
            IncludeObject::Metadata => partial_metadata(object),
            IncludeObject::Object => object.clone(),
        };
        row.insert("object".into(), shown);
        Value::Object(row)
    }
}

fn custom_cell(kind: &str, value: &Value, now: Timestamp) -> Value {
    match (kind, value) {
        (_, Value::Null) => Value::Null,
        ("string", Value::String(_)) => value.clone(),
        ("string", other) => Value::String(other.to_string()),
        ("integer", Value::Number(number)) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => json!(whole),
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a real server cuts fractions off integer columns too"
            )]
            (None, Some(fraction)) => json!(fraction as i64),
            (None, None) => Value::Null,
        },
        ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => value.clone(),
        ("date", Value::String(text)) => Value::String(age(Some(text), now)),
        _ => Value::Null,
    }
}
