//! The declaration of a schema for rules: its type, the maximum number of its elements, and its minimum serialized size.
//!
//! UPSTREAM: k8s.io/apiserver pkg/cel/common/schemas.go, pkg/cel/types.go, pkg/cel/limits.go, pkg/cel/escaping.go

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Value, json};

/// The size of the largest request, in bytes.
pub const REQUEST: u64 = 3 * 1024 * 1024;

const RESERVED: &[&str] = &[
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// The type of an expression, as far as costs depend on it.
#[derive(Clone, Debug)]
pub enum Type {
    /// Any type, or an unknown one.
    Dyn,
    /// The elements of an empty list: compatible with every type.
    Free,
    /// Null.
    Null,
    /// Boolean.
    Bool,
    /// Signed integer.
    Int,
    /// Unsigned integer.
    Uint,
    /// Floating point number.
    Double,
    /// String.
    String,
    /// Bytes.
    Bytes,
    /// Duration.
    Duration,
    /// Point in time.
    Timestamp,
    /// A type such as `int`.
    Meta,
    /// List of elements.
    List(Rc<Type>),
    /// Map from keys to values.
    Map(Rc<Type>, Rc<Type>),
    /// Object with declared fields.
    Object(Rc<Declaration>),
    /// An optional value.
    Optional(Rc<Type>),
    /// A type of Kubernetes' libraries, such as `Quantity`: compared in one step.
    Library(&'static str),
}

impl Type {
    /// Returns a list of elements of this type.
    #[must_use]
    pub fn list(element: Self) -> Self {
        Self::List(Rc::new(element))
    }

    /// Whether the type may be dynamic.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Dyn | Self::Free)
    }

    /// Whether all values have the same size.
    #[must_use]
    pub fn is_scalar(&self) -> bool {
        match self {
            Self::Bool
            | Self::Int
            | Self::Uint
            | Self::Double
            | Self::Duration
            | Self::Timestamp => true,
            Self::Optional(inner) => inner.is_scalar(),
            _ => false,
        }
    }

    /// Returns the type of a value that has one of two types.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Free, other) => other.clone(),
            (this, Self::Free) => this.clone(),
            (Self::List(a), Self::List(b)) => Self::list(a.or(b)),
            (Self::Map(a, v), Self::Map(b, w)) => Self::Map(Rc::new(a.or(b)), Rc::new(v.or(w))),
            (a, b) if std::mem::discriminant(a) == std::mem::discriminant(b) => a.clone(),
            _ => Self::Dyn,
        }
    }
}

/// The properties of a schema's values that rules use.
#[derive(Clone, Debug)]
pub struct Declaration {
    kind: Kind,
    /// The fields of an object, by their names in rules.
    pub fields: BTreeMap<String, Rc<Declaration>>,
    /// The elements of a list, the values of a map.
    pub element: Option<Rc<Declaration>>,
    /// Maximum number of characters, elements or entries; 0 if that is not counted.
    pub max_elements: u64,
    /// Minimum size of the serialized JSON in bytes.
    pub min_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Dyn,
    Bool,
    Int,
    Double,
    String,
    Bytes,
    Duration,
    Timestamp,
    List,
    Map,
    Object,
}

impl Declaration {
    /// Declares a schema; returns `None` if rules cannot access its values. `root` is the root of an object, which has its name
    /// and kind even if the schema does not declare them.
    #[must_use]
    pub fn of(schema: &Value, root: bool) -> Option<Self> {
        if schema["x-kubernetes-int-or-string"] == true {
            let max = max_length(schema).unwrap_or(REQUEST - 2);
            return Some(Self::simple(Kind::Dyn, max, 1));
        }
        match schema["type"].as_str()? {
            "array" => {
                let element = Self::embedded(schema.get("items")?)?;
                let max = bound(schema, "maxItems")
                    .unwrap_or_else(|| (REQUEST - 2) / (element.min_bytes + 1));
                Some(Self {
                    element: Some(Rc::new(element)),
                    ..Self::simple(Kind::List, max, 2)
                })
            }
            "object" if schema["additionalProperties"].is_object() => {
                let element = Self::embedded(&schema["additionalProperties"])?;
                // Two bytes for the key, two for its quotation marks, a colon and a comma.
                let max = bound(schema, "maxProperties")
                    .unwrap_or_else(|| (REQUEST - 2) / (element.min_bytes + 6));
                Some(Self {
                    element: Some(Rc::new(element)),
                    ..Self::simple(Kind::Map, max, 2)
                })
            }
            "object" => Some(Self::object(schema, root)),
            "string" => Some(Self::string(schema)),
            "boolean" => Some(Self::simple(Kind::Bool, 0, 4)),
            "number" => Some(Self::simple(Kind::Double, 0, 1)),
            "integer" => Some(Self::simple(Kind::Int, 0, 1)),
            _ => None,
        }
    }

    fn simple(kind: Kind, max_elements: u64, min_bytes: u64) -> Self {
        Self {
            kind,
            fields: BTreeMap::new(),
            element: None,
            max_elements,
            min_bytes,
        }
    }

    fn embedded(schema: &Value) -> Option<Self> {
        Self::of(schema, schema["x-kubernetes-embedded-resource"] == true)
    }

    fn object(schema: &Value, root: bool) -> Self {
        let mut properties: BTreeMap<&str, &Value> = BTreeMap::new();
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            properties.insert(name, property);
        }
        let implied = if root { implied() } else { Value::Null };
        if root && !says_all_of(&schema["properties"], &implied) {
            for (name, property) in implied.as_object().into_iter().flatten() {
                properties.insert(name, property);
            }
        }
        let mut declaration = Self::simple(Kind::Object, 0, 2);
        for (name, property) in properties {
            let Some(field) = Self::embedded(property) else {
                continue;
            };
            let required = schema["required"]
                .as_array()
                .is_some_and(|names| names.iter().any(|n| n == name));
            if required && property.get("default").is_none_or(Value::is_null) {
                let length = u64::try_from(name.len()).unwrap_or(u64::MAX);
                declaration.min_bytes = declaration
                    .min_bytes
                    .saturating_add(length)
                    .saturating_add(field.min_bytes)
                    .saturating_add(4);
            }
            if let Some(name) = escape(name) {
                declaration.fields.insert(name, Rc::new(field));
            }
        }
        declaration
    }

    fn string(schema: &Value) -> Self {
        match schema["format"].as_str() {
            Some("byte") => {
                let max = bound(schema, "maxLength").unwrap_or(REQUEST - 2);
                Self::simple(Kind::Bytes, max, 2)
            }
            Some("duration") => Self::simple(Kind::Duration, 32, 3),
            Some("date") => Self::simple(Kind::Timestamp, 12, 12),
            Some("date-time") => Self::simple(Kind::Timestamp, 32, 21),
            _ => {
                let longest = || {
                    let values = schema["enum"].as_array().filter(|v| !v.is_empty())?;
                    let lengths = values.iter().filter_map(Value::as_str).map(str::len);
                    u64::try_from(lengths.max().unwrap_or(0)).ok()
                };
                let max = max_length(schema).or_else(longest).unwrap_or(REQUEST - 2);
                Self::simple(Kind::String, max, 2)
            }
        }
    }

    /// The type of the values.
    #[must_use]
    pub fn type_of(this: &Rc<Self>) -> Type {
        let element = || this.element.as_ref().map_or(Type::Dyn, Self::type_of);
        match this.kind {
            Kind::Dyn => Type::Dyn,
            Kind::Bool => Type::Bool,
            Kind::Int => Type::Int,
            Kind::Double => Type::Double,
            Kind::String => Type::String,
            Kind::Bytes => Type::Bytes,
            Kind::Duration => Type::Duration,
            Kind::Timestamp => Type::Timestamp,
            Kind::List => Type::list(element()),
            Kind::Map => Type::Map(Rc::new(Type::String), Rc::new(element())),
            Kind::Object => Type::Object(Rc::clone(this)),
        }
    }

    /// Returns the maximum number of elements at a path of field names, `@items`, `@values` and `@keys`.
    #[must_use]
    pub fn max_elements_at(&self, path: &[String]) -> Option<u64> {
        let mut at = self;
        for (i, name) in path.iter().enumerate() {
            at = match name.as_str() {
                "@items" | "@values" => at.element.as_deref()?,
                // Keys are strings whose length is not counted.
                "@keys" if matches!(at.kind, Kind::Map) => {
                    return (i + 1 == path.len()).then_some(0);
                }
                name => at.fields.get(name)?,
            };
        }
        Some(at.max_elements)
    }
}

/// The fields that the root of every object has.
fn implied() -> Value {
    json!({
        "apiVersion": {"type": "string"}, "kind": {"type": "string"},
        "metadata": {"type": "object", "properties": {"name": {"type": "string"}, "generateName": {"type": "string"}}},
    })
}

/// Whether a schema declares all fields that the root of every object has.
fn says_all_of(properties: &Value, implied: &Value) -> bool {
    implied.as_object().is_some_and(|implied| {
        implied.iter().all(|(name, property)| {
            properties[name]["type"] == property["type"]
                && (property.get("properties").is_none()
                    || says_all_of(&properties[name]["properties"], &property["properties"]))
        })
    })
}

fn bound(schema: &Value, key: &str) -> Option<u64> {
    let bound = schema.get(key)?;
    bound.as_u64().or_else(|| bound.as_i64().map(|_| 0))
}

/// `maxLength` counts characters, of up to four bytes each.
fn max_length(schema: &Value) -> Option<u64> {
    bound(schema, "maxLength").map(|max| max.saturating_mul(4))
}

/// Returns the name of a field in rules, if it is accessible.
fn escape(name: &str) -> Option<String> {
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if RESERVED.contains(&name) {
        return Some(format!("__{name}__"));
    }
    let known = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    name.chars().all(known).then(|| {
        name.replace("__", "\u{0}")
            .replace('.', "__dot__")
            .replace('-', "__dash__")
            .replace('/', "__slash__")
            .replace('\u{0}', "__underscores__")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(schema: Value) -> Declaration {
        Declaration::of(&schema, false).unwrap()
    }

    #[test]
    fn what_is_not_bounded_is_bounded_by_the_largest_request() {
        assert_eq!(of(json!({"type": "string"})).max_elements, 3_145_726);
        assert_eq!(
            of(json!({"type": "string", "maxLength": 5})).max_elements,
            20
        );
        assert_eq!(
            of(json!({"type": "string", "enum": ["a", "abc"]})).max_elements,
            3
        );
        let list = of(json!({"type": "array", "items": {"type": "string"}}));
        assert_eq!(list.max_elements, 1_048_575);
        let map = of(json!({"type": "object", "additionalProperties": {"type": "string"}}));
        assert_eq!(map.max_elements, 393_215);
        assert_eq!(map.max_elements_at(&["@keys".into()]), Some(0));
        assert_eq!(map.max_elements_at(&["@values".into()]), Some(3_145_726));
    }

    #[test]
    fn an_object_is_at_least_as_long_as_its_required_fields() {
        let object = of(
            json!({"type": "object", "required": ["name", "with"], "properties": {
                "name": {"type": "string"}, "with": {"type": "integer", "default": 3}, "free": {"type": "string"},
            }}),
        );
        assert_eq!(object.min_bytes, 2 + 4 + 2 + 4);
    }

    #[test]
    fn field_names_are_escaped_as_rules_write_them() {
        assert_eq!(escape("namespace").as_deref(), Some("__namespace__"));
        assert_eq!(
            escape("a.b-c/d").as_deref(),
            Some("a__dot__b__dash__c__slash__d")
        );
        assert_eq!(escape("a_b__c").as_deref(), Some("a_b__underscores__c"));
        assert_eq!(escape("$ref"), None);
        assert_eq!(escape("1st"), None);
    }
}
