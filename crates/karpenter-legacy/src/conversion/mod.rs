//! v1beta1 ↔ v1, without loss.
//!
//! The two generations differ in a few places, so conversion moves those and leaves everything else as it is: it works on
//! documents ([`serde_json::Value`]), not on types, and fields that nobody knows survive.
//!
//! 1. `meaning` translates what has an equivalent. It may lose: a default, a policy that the other side lacks.
//! 2. [`carry`] makes it lossless. Translating back is tried; where that gives something else than the original, the path is
//!    written into an annotation, with what translation gives and what it really was. On the way back an entry counts as
//!    long as translation still gives the same, so that an edit in the other version wins over what was carried.
//!
//! Upstream's annotations (kubelet, nodeClassRef, Ubuntu) are read and written, so that objects stored by its webhooks convert.
//! The status has the same shape in both versions.
//!
//! UPSTREAM: pkg/apis/v1/{nodepool,nodeclaim,ec2nodeclass}_conversion.go of v1.0

mod carry;
mod ec2_node_class;
mod node_claim;
mod node_pool;

use serde_json::{Map, Value};

pub(crate) use ec2_node_class::PLACEHOLDER;

use crate::names;

/// The version before v1.
pub const V1BETA1: &str = "v1beta1";
/// The stored version.
pub const V1: &str = "v1";

/// Why an object cannot be converted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConversionError {
    /// It is none of ours.
    #[error("`{api_version}`, Kind={kind} is not converted here")]
    Unknown {
        /// Its apiVersion.
        api_version: String,
        /// Its kind.
        kind: String,
    },
    /// There is no such version of its kind.
    #[error("there is no version `{0}` of it")]
    Version(String),
    /// It is not even an object with a spec.
    #[error("`{0}` is not an object")]
    Malformed(&'static str),
}

/// Where conversion can look up what an object alone does not say.
pub trait Lookup {
    /// `expireAfter` of a NodePool's template. v1beta1 NodeClaims expired by the NodePool's setting; v1 has it on each.
    fn expire_after(&self, node_pool: &str) -> Option<String>;

    /// Whether there is anything to look up in yet. Until then NodeClaims of v1beta1 had better wait.
    fn is_ready(&self) -> bool {
        true
    }
}

/// Knows nothing: what is not said stays unsaid.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLookup;

impl Lookup for NoLookup {
    fn expire_after(&self, _: &str) -> Option<String> {
        None
    }
}

/// The kinds that have both versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// NodePool.
    NodePool,
    /// NodeClaim.
    NodeClaim,
    /// EC2NodeClass.
    EC2NodeClass,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::NodePool, Self::NodeClaim, Self::EC2NodeClass];

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NodePool => "NodePool",
            Self::NodeClaim => "NodeClaim",
            Self::EC2NodeClass => "EC2NodeClass",
        }
    }

    /// Its API group.
    #[must_use]
    pub fn group(self) -> &'static str {
        match self {
            Self::NodePool | Self::NodeClaim => "karpenter.sh",
            Self::EC2NodeClass => "karpenter.k8s.aws",
        }
    }

    /// The kind and version of an object, if it is one of ours.
    #[must_use]
    pub fn of(object: &Value) -> Option<(Self, &str)> {
        let (group, version) = object["apiVersion"].as_str()?.split_once('/')?;
        let kind = object["kind"].as_str()?;
        let found = Self::ALL
            .into_iter()
            .find(|known| known.as_str() == kind && known.group() == group)?;
        [V1, V1BETA1].contains(&version).then_some((found, version))
    }
}

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    /// v1beta1 to v1.
    Up,
    /// v1 to v1beta1.
    Down,
}

impl Direction {
    fn back(self) -> Self {
        match self {
            Self::Up => Self::Down,
            Self::Down => Self::Up,
        }
    }

    fn target(self) -> &'static str {
        match self {
            Self::Up => V1,
            Self::Down => V1BETA1,
        }
    }

    /// The annotation that what comes from here may have: the other version's fields.
    fn brought(self) -> &'static str {
        match self {
            Self::Up => names::V1_FIELDS,
            Self::Down => names::V1BETA1_FIELDS,
        }
    }
}

/// Converts an object to a version (`v1`, `v1beta1`, or an apiVersion with one of them) so that converting it back gives
/// the same object.
///
/// # Errors
/// When the object is none of ours, or no object at all.
pub fn convert(
    object: &Value,
    version: &str,
    lookup: &dyn Lookup,
) -> Result<Value, ConversionError> {
    let (kind, direction) = match plan(object, version)? {
        Some(plan) => plan,
        None => return Ok(object.clone()),
    };
    let mut source = object.clone();
    let brought = take_annotation(&mut source, direction.brought());
    let mut target = meaning(kind, direction, &source);
    if let Some(brought) = brought.as_deref().and_then(carry::read) {
        carry::apply(&brought, &mut target);
    }
    if (kind, direction) == (Kind::NodeClaim, Direction::Up) {
        node_claim::look_up(&mut target, lookup);
    }
    // INVARIANT: the way back starts from exactly this object, without the annotation that it takes off first.
    take_annotation(&mut target, direction.back().brought());
    drop_empty_annotations(&mut target);
    let again = meaning(kind, direction.back(), &target);
    if let Some(lost) = carry::difference(&again, &source) {
        annotate(&mut target, direction.back().brought(), lost);
    }
    Ok(target)
}

/// Translates a v1beta1 document to v1 for good: what it means, without what would be needed to go back.
///
/// # Errors
/// When the object is none of ours, or no object at all.
pub fn upgrade(object: &Value) -> Result<Value, ConversionError> {
    let (kind, direction) = match plan(object, V1)? {
        Some(plan) => plan,
        None => return Ok(object.clone()),
    };
    let mut source = object.clone();
    let brought = take_annotation(&mut source, direction.brought());
    let mut target = meaning(kind, direction, &source);
    if let Some(brought) = brought.as_deref().and_then(carry::read) {
        carry::apply(&brought, &mut target);
    }
    Ok(target)
}

/// What is to be done; `None` if nothing.
fn plan(object: &Value, version: &str) -> Result<Option<(Kind, Direction)>, ConversionError> {
    let unknown = || ConversionError::Unknown {
        api_version: object["apiVersion"].as_str().unwrap_or_default().to_owned(),
        kind: object["kind"].as_str().unwrap_or_default().to_owned(),
    };
    let (kind, from) = Kind::of(object).ok_or_else(unknown)?;
    let wanted = match version.split_once('/') {
        Some((group, version)) if group == kind.group() => version,
        Some(_) => return Err(ConversionError::Version(version.to_owned())),
        None => version,
    };
    for (field, part) in [("metadata", &object["metadata"]), ("spec", &object["spec"])] {
        if !part.is_object() && !part.is_null() {
            return Err(ConversionError::Malformed(field));
        }
    }
    match (from, wanted) {
        (from, wanted) if from == wanted => Ok(None),
        (V1BETA1, V1) => Ok(Some((kind, Direction::Up))),
        (V1, V1BETA1) => Ok(Some((kind, Direction::Down))),
        (_, other) => Err(ConversionError::Version(other.to_owned())),
    }
}

/// Translates what has an equivalent.
fn meaning(kind: Kind, direction: Direction, object: &Value) -> Value {
    let mut object = object.clone();
    object["apiVersion"] = format!("{}/{}", kind.group(), direction.target()).into();
    match (kind, direction) {
        (Kind::NodePool, Direction::Up) => node_pool::up(&mut object),
        (Kind::NodePool, Direction::Down) => node_pool::down(&mut object),
        (Kind::NodeClaim, Direction::Up) => node_claim::up(&mut object),
        (Kind::NodeClaim, Direction::Down) => node_claim::down(&mut object),
        (Kind::EC2NodeClass, Direction::Up) => ec2_node_class::up(&mut object),
        (Kind::EC2NodeClass, Direction::Down) => ec2_node_class::down(&mut object),
    }
    object
}

/// The object at this path, if there is one.
fn object_at<'a>(value: &'a mut Value, pointer: &str) -> Option<&'a mut Map<String, Value>> {
    value.pointer_mut(pointer)?.as_object_mut()
}

fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object["metadata"]["annotations"].get(key)?.as_str()
}

/// Removes an annotation, and the map of them when it was the last.
fn take_annotation(object: &mut Value, key: &str) -> Option<String> {
    let metadata = object_at(object, "/metadata")?;
    let annotations = metadata.get_mut("annotations")?.as_object_mut()?;
    let value = annotations.remove(key)?;
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
    value.as_str().map(str::to_owned)
}

fn drop_empty_annotations(object: &mut Value) {
    if let Some(metadata) = object_at(object, "/metadata") {
        let empty = |annotations: &Value| annotations.as_object().is_some_and(Map::is_empty);
        if metadata.get("annotations").is_some_and(empty) {
            metadata.remove("annotations");
        }
    }
}

fn annotate(object: &mut Value, key: &str, value: String) {
    if !object["metadata"].is_object() {
        object["metadata"] = Value::Object(Map::new());
    }
    if !object["metadata"]["annotations"].is_object() {
        object["metadata"]["annotations"] = Value::Object(Map::new());
    }
    object["metadata"]["annotations"][key] = value.into();
}

#[cfg(test)]
mod tests;
