//! Parsing of query strings into typed values, checked against the call's published parameters.
//!
//! The Query protocols flatten a request to `Filter.1.Value.2=x`. The table of parameters (from botocore's service
//! models) defines the names, the lists and the types of leaves, so an unknown, mistyped or missing parameter is
//! refused as EC2 refuses it, and handlers get a tree.

use std::collections::{BTreeMap, HashMap};
use std::io::Read as _;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::AwsError;

/// Type of a parameter.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum Shape {
    /// `b` boolean, `i` integer, `d` decimal, `t` timestamp, `s` string, `x` bytes, `a` anything.
    Leaf(String),
    /// A structure with its required members.
    Struct {
        #[serde(rename = "s")]
        members: HashMap<String, Shape>,
        #[serde(rename = "r", default)]
        required: Vec<String>,
    },
    List {
        #[serde(rename = "l")]
        element: Box<Shape>,
    },
    /// A string of this set.
    Enum {
        #[serde(rename = "e")]
        values: Vec<String>,
    },
}

static REQUESTS: LazyLock<HashMap<String, Shape>> =
    LazyLock::new(|| embedded(include_bytes!("../../data/requests.json.gz")).unwrap_or_default());

/// Parses an embedded gzipped JSON file.
pub(crate) fn embedded<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let mut json = Vec::new();
    flate2::read::GzDecoder::new(bytes)
        .read_to_end(&mut json)
        .ok()?;
    serde_json::from_slice(&json).ok()
}

/// Returns the parameters of `service:action`, if the stand-in supports that call.
pub(crate) fn request_shape(service: &str, action: &str) -> Option<&'static Shape> {
    REQUESTS.get(&format!("{service}:{action}"))
}

/// Parses flat parameters into a typed tree.
///
/// # Errors
/// `UnknownParameter`, `InvalidParameterValue` or `MissingParameter`, with EC2's messages.
pub(crate) fn typed(shape: &Shape, pairs: &[(String, String)]) -> Result<Value, AwsError> {
    let mut root = Node::default();
    for (key, value) in pairs {
        if !matches!(key.as_str(), "Action" | "Version") {
            root.insert(key, value)?;
        }
    }
    root.typed(shape, "")
}

/// Maximum nesting of a request; real requests stay below ten.
const MAX_DEPTH: usize = 16;

#[derive(Debug, Default)]
struct Node {
    value: Option<String>,
    children: BTreeMap<Segment, Node>,
}

/// A part of a dotted name; numbers sort as numbers.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Segment {
    Index(u32),
    Name(String),
}

impl Node {
    fn insert(&mut self, key: &str, value: &str) -> Result<(), AwsError> {
        let unknown = || unknown_parameter(key);
        let mut node = self;
        for (depth, part) in key.split('.').enumerate() {
            if depth >= MAX_DEPTH || part.is_empty() {
                return Err(unknown());
            }
            let segment = part
                .parse()
                .map_or_else(|_| Segment::Name(part.to_owned()), Segment::Index);
            node = node.children.entry(segment).or_default();
        }
        node.value = Some(value.to_owned());
        Ok(())
    }

    fn typed(&self, shape: &Shape, path: &str) -> Result<Value, AwsError> {
        match shape {
            Shape::Struct { members, required } => {
                if self.value.as_deref().is_some_and(|v| !v.is_empty()) {
                    return Err(unknown_parameter(path));
                }
                let mut out = Map::new();
                for (segment, child) in &self.children {
                    let name = segment.to_string();
                    let path = join(path, &name);
                    let shape = members.get(&name).ok_or_else(|| unknown_parameter(&path))?;
                    out.insert(name, child.typed(shape, &path)?);
                }
                if let Some(name) = required.iter().find(|name| !out.contains_key(*name)) {
                    return Err(AwsError::missing(&join(path, name)));
                }
                Ok(Value::Object(out))
            }
            Shape::List { element } => {
                let elements = match self.children.get(&Segment::Name("member".to_owned())) {
                    Some(member) => member,
                    None => self,
                };
                elements
                    .children
                    .iter()
                    .map(|(segment, child)| match segment {
                        Segment::Index(_) => {
                            child.typed(element, &join(path, &segment.to_string()))
                        }
                        Segment::Name(name) => Err(unknown_parameter(&join(path, name))),
                    })
                    .collect()
            }
            Shape::Leaf(_) | Shape::Enum { .. } => {
                if let Some(child) = self.children.keys().next() {
                    return Err(unknown_parameter(&join(path, &child.to_string())));
                }
                leaf(shape, self.value.as_deref().unwrap_or_default(), path)
            }
        }
    }
}

fn leaf(shape: &Shape, text: &str, path: &str) -> Result<Value, AwsError> {
    let invalid = |what: &str| {
        AwsError::invalid_value(format!(
            "Value ({text}) for parameter {path} is invalid. {what}"
        ))
    };
    let kind = match shape {
        Shape::Leaf(kind) => kind.as_str(),
        Shape::Enum { values } => {
            return if values.iter().any(|v| v == text) {
                Ok(text.into())
            } else {
                Err(invalid(&format!(
                    "Valid values are: {}",
                    values.join(" | ")
                )))
            };
        }
        _ => "a",
    };
    match kind {
        "b" => match text.to_ascii_lowercase().as_str() {
            "true" | "1" => Ok(true.into()),
            "false" | "0" => Ok(false.into()),
            _ => Err(invalid("Expected a boolean.")),
        },
        "i" => text
            .parse::<i64>()
            .map(Value::from)
            .map_err(|_| invalid("Expected an integer.")),
        "d" => text
            .parse::<f64>()
            .ok()
            .filter(|n| n.is_finite())
            .map(Value::from)
            .ok_or_else(|| invalid("Expected a number.")),
        "t" => text
            .parse::<jiff::Timestamp>()
            .map(|_| text.into())
            .map_err(|_| invalid("Expected a timestamp.")),
        _ => Ok(text.into()),
    }
}

impl std::fmt::Display for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Index(i) => write!(f, "{i}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

fn unknown_parameter(name: &str) -> AwsError {
    AwsError::new(
        "UnknownParameter",
        format!("The parameter {name} is not recognized"),
    )
}
