//! One interface for the structure of built-in types and of CRD structural schemas.
//!
//! A [`Schema`] describes the contents of a value and how lists and maps are merged. References to named built-in types are
//! followed with [`Schema::resolve`]; keywords next to a reference (list type, patch strategy) belong to the place of use and are
//! read from the schema before resolving.
//!
//! The built-in types come from `data/builtin-schemas.json`, parsed on first use.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde_json::Value;

/// Full name of the built-in ObjectMeta.
pub const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// The type of a schema's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Type {
    #[default]
    Any,
    /// An object: a struct when it has properties, a map when it has values.
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
    /// A whole number or a string.
    IntOrString,
}

/// How server-side apply merges a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ListType {
    /// Replaced as a whole.
    #[default]
    Atomic,
    Set,
    /// Objects identified by keys.
    Map(Vec<String>),
}

/// How a strategic merge patch treats a field.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PatchStrategy {
    /// Merge list items instead of replacing the list.
    pub merge: bool,
    /// Drop fields that the patch's `$retainKeys` does not name.
    pub retain_keys: bool,
    /// Field that identifies list items.
    pub merge_key: Option<String>,
}

/// The structure of a value.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Schema {
    /// The type of the value.
    pub kind: Type,
    /// Name of the built-in type that describes the value.
    pub reference: Option<String>,
    pub properties: BTreeMap<String, Schema>,
    pub required: Vec<String>,
    pub values: Option<Box<Schema>>,
    pub items: Option<Box<Schema>>,
    /// How a list is merged by server-side apply.
    pub list: ListType,
    /// Whether an object is replaced as a whole by server-side apply.
    pub atomic_map: bool,
    /// How a strategic merge patch treats the field.
    pub patch: PatchStrategy,
    /// Unknown fields are kept.
    pub preserve_unknown: bool,
    /// The object has its own apiVersion, kind and metadata.
    pub embedded: bool,
    /// null is a value.
    pub nullable: bool,
    /// OpenAPI format, such as `int32`, `date-time`, `quantity`.
    pub format: Option<String>,
    /// First sentence of the description.
    pub description: Option<String>,
    /// Default value (custom resources, and the list keys of built-in types that have one).
    pub default: Option<Value>,
}

static ANY: Schema = Schema {
    kind: Type::Any,
    reference: None,
    properties: BTreeMap::new(),
    required: Vec::new(),
    values: None,
    items: None,
    list: ListType::Atomic,
    atomic_map: false,
    patch: PatchStrategy {
        merge: false,
        retain_keys: false,
        merge_key: None,
    },
    preserve_unknown: true,
    embedded: false,
    nullable: false,
    format: None,
    description: None,
    default: None,
};

impl Schema {
    /// Returns a schema that accepts every value.
    pub fn any() -> &'static Self {
        &ANY
    }

    /// Returns a reference to a built-in type by its full name.
    pub fn named(name: &str) -> Self {
        Self {
            reference: Some(name.to_owned()),
            ..Self::default()
        }
    }

    /// Returns the schema itself, or the built-in type it refers to.
    pub fn resolve(&self) -> &Self {
        match &self.reference {
            None => self,
            Some(name) => builtin_types().get(name).map_or(&ANY, Arc::as_ref),
        }
    }

    /// Whether objects of this schema have named fields.
    pub fn is_struct(&self) -> bool {
        !self.resolve().properties.is_empty()
    }

    /// Whether the object is replaced as a whole by server-side apply: set at the place of use or by the type.
    pub fn is_atomic_map(&self) -> bool {
        self.atomic_map || self.resolve().atomic_map
    }

    /// Returns the schema of field `name` of an object: a property, the map's values, or any value where unknown fields are kept.
    /// `None`: the field is unknown.
    pub fn field(&self, name: &str) -> Option<&Self> {
        let this = self.resolve();
        if let Some(found) = this.properties.get(name) {
            return Some(found);
        }
        if let Some(values) = &this.values {
            return Some(values);
        }
        (this.preserve_unknown || this.kind == Type::Any).then_some(&ANY)
    }

    /// Returns the schema of the items of a list.
    pub fn item(&self) -> &Self {
        self.resolve().items.as_deref().unwrap_or(&ANY)
    }

    /// Returns the last segment of the built-in type's name, such as `PodSpec`.
    pub fn type_name(&self) -> Option<&str> {
        self.reference
            .as_deref()
            .and_then(|name| name.rsplit('.').next())
    }

    /// Returns the schema of a version of a CustomResourceDefinition: its `openAPIV3Schema` with the object metadata of every
    /// kind.
    pub fn of_custom_resource(open_api_schema: &Value) -> Self {
        let mut schema = Self::parse(open_api_schema);
        schema.embed();
        schema
    }

    /// Adds to an object with its own kind the fields of every object.
    fn embed(&mut self) {
        self.kind = Type::Object;
        let text = |description: &str| Self {
            kind: Type::String,
            description: Some(description.to_owned()),
            ..Self::default()
        };
        self.properties.insert(
            "apiVersion".into(),
            text("APIVersion defines the versioned schema of this representation of an object."),
        );
        self.properties.insert(
            "kind".into(),
            text("Kind is a string value representing the REST resource this object represents."),
        );
        self.properties.insert(
            "metadata".into(),
            Self {
                description: Some("Standard object's metadata.".into()),
                ..Self::named(OBJECT_META)
            },
        );
    }

    /// Converts an OpenAPI schema: a definition of the built-in data or a CRD's structural schema.
    pub fn parse(source: &Value) -> Self {
        let text = |key: &str| source.get(key).and_then(Value::as_str).map(str::to_owned);
        let flag = |key: &str| source.get(key).and_then(Value::as_bool).unwrap_or(false);
        let strings = |key: &str| -> Vec<String> {
            let items = source.get(key).and_then(Value::as_array);
            items
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect()
        };
        let properties: BTreeMap<String, Self> = source
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .map(|(name, value)| (name.clone(), Self::parse(value)))
            .collect();
        let values = match source.get("additionalProperties") {
            Some(Value::Bool(true)) => Some(Box::new(ANY.clone())),
            Some(value @ Value::Object(_)) => Some(Box::new(Self::parse(value))),
            _ => None,
        };
        let kind = if flag("x-kubernetes-int-or-string")
            || text("format").as_deref() == Some("int-or-string")
        {
            Type::IntOrString
        } else {
            match source.get("type").and_then(Value::as_str) {
                Some("object") => Type::Object,
                Some("array") => Type::Array,
                Some("string") => Type::String,
                Some("integer") => Type::Integer,
                Some("number") => Type::Number,
                Some("boolean") => Type::Boolean,
                _ if !properties.is_empty() || values.is_some() => Type::Object,
                _ => Type::Any,
            }
        };
        let list = match source.get("x-kubernetes-list-type").and_then(Value::as_str) {
            Some("set") => ListType::Set,
            Some("map") => ListType::Map(strings("x-kubernetes-list-map-keys")),
            _ => ListType::Atomic,
        };
        let strategy = text("x-kubernetes-patch-strategy").unwrap_or_default();
        let mut schema = Self {
            kind,
            reference: text("$ref"),
            required: strings("required"),
            values,
            items: source
                .get("items")
                .map(|items| Box::new(Self::parse(items))),
            list,
            atomic_map: text("x-kubernetes-map-type").as_deref() == Some("atomic"),
            patch: PatchStrategy {
                merge: strategy.split(',').any(|part| part == "merge"),
                retain_keys: strategy.split(',').any(|part| part == "retainKeys"),
                merge_key: text("x-kubernetes-patch-merge-key"),
            },
            preserve_unknown: flag("x-kubernetes-preserve-unknown-fields"),
            embedded: flag("x-kubernetes-embedded-resource"),
            nullable: flag("nullable"),
            format: text("format"),
            description: text("description"),
            default: source.get("default").cloned(),
            properties,
        };
        if schema.embedded {
            schema.embed();
        }
        schema
    }
}

const BUILTIN_SOURCE: &str = include_str!("../../data/builtin-schemas.json");

/// Returns the built-in definitions as OpenAPI documents, by full name.
pub fn builtin_definitions() -> &'static serde_json::Map<String, Value> {
    static DEFINITIONS: OnceLock<serde_json::Map<String, Value>> = OnceLock::new();
    DEFINITIONS.get_or_init(|| serde_json::from_str(BUILTIN_SOURCE).unwrap_or_default())
}

/// Returns the built-in types, by full name.
fn builtin_types() -> &'static BTreeMap<String, Arc<Schema>> {
    static TYPES: OnceLock<BTreeMap<String, Arc<Schema>>> = OnceLock::new();
    TYPES.get_or_init(|| {
        let parse = |(name, source): (&String, &Value)| {
            let mut schema = Schema::parse(source);
            // Raw JSON (FieldsV1, RawExtension) is an object with unspecified fields.
            if schema.kind == Type::Object
                && schema.properties.is_empty()
                && schema.values.is_none()
            {
                schema.preserve_unknown = true;
            }
            (name.clone(), Arc::new(schema))
        };
        builtin_definitions().iter().map(parse).collect()
    })
}
