//! Lossless conversion between v1beta1 and v1.
//!
//! The two versions differ in a few fields, so conversion changes those and keeps all others: it works on documents
//! ([`serde_json::Value`]), not on types, and keeps unknown fields.
//!
//! 1. `meaning` translates fields that have an equivalent. It may lose a default or a policy that the other version lacks.
//! 2. [`carry`] makes it lossless. It translates back; where the result differs from the original, the path is written into an
//!    annotation with the translated and the original value. When converting back, an entry applies as long as translation still
//!    gives the same value, so that an edit in the other version overrides the carried value.
//!
//! Upstream's annotations (kubelet, nodeClassRef, Ubuntu) are read and written, so that objects stored by its webhooks convert.
//! The status has the same schema in both versions.
//!
//! UPSTREAM: pkg/apis/v1/{nodepool,nodeclaim,ec2nodeclass}_conversion.go of v1.0

mod carry;
mod ec2_node_class;
mod node_claim;
mod node_pool;
mod object;

use serde_json::Value;

pub(crate) use ec2_node_class::PLACEHOLDER;

use crate::names;
use object::{annotate, drop_empty_annotations, take_annotation};

/// The version before v1.
pub const V1BETA1: &str = "v1beta1";
pub const V1: &str = "v1";

/// The error of converting an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConversionError {
    /// The object is not of a convertible kind.
    #[error("cannot convert `{api_version}`, Kind={kind}")]
    Unknown { api_version: String, kind: String },
    /// The kind does not have the version.
    #[error("unknown version `{0}`")]
    Version(String),
    /// It is not an object with a spec.
    #[error("`{0}` is not an object")]
    Malformed(&'static str),
}

/// Lookup of values that conversion needs and the object does not have.
pub trait Lookup {
    /// Returns `expireAfter` of a NodePool's template. v1beta1 NodeClaims expire by the NodePool's setting; v1 has it on each
    /// NodeClaim.
    fn expire_after(&self, node_pool: &str) -> Option<String>;

    /// Returns whether the NodePools are listed. Until then NodeClaims of v1beta1 are not converted.
    fn is_ready(&self) -> bool {
        true
    }
}

/// A lookup without NodePools: missing values stay absent.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLookup;

impl Lookup for NoLookup {
    fn expire_after(&self, _: &str) -> Option<String> {
        None
    }
}

/// The kinds with both versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    NodePool,
    NodeClaim,
    EC2NodeClass,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::NodePool, Self::NodeClaim, Self::EC2NodeClass];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NodePool => "NodePool",
            Self::NodeClaim => "NodeClaim",
            Self::EC2NodeClass => "EC2NodeClass",
        }
    }

    /// Returns the API group of the kind.
    #[must_use]
    pub fn group(self) -> &'static str {
        match self {
            Self::NodePool | Self::NodeClaim => "karpenter.sh",
            Self::EC2NodeClass => "karpenter.k8s.aws",
        }
    }

    /// Returns the kind and version of an object, if it is of a convertible kind.
    #[must_use]
    pub fn of(object: &Value) -> Option<(Self, &str)> {
        Self::named(object["apiVersion"].as_str()?, object["kind"].as_str()?)
    }

    /// Returns the kind and version of an object with this apiVersion and kind, if it is convertible.
    #[must_use]
    pub fn named<'v>(api_version: &'v str, kind: &str) -> Option<(Self, &'v str)> {
        let (group, version) = api_version.split_once('/')?;
        let found = Self::ALL
            .into_iter()
            .find(|known| known.as_str() == kind && known.group() == group)?;
        [V1, V1BETA1].contains(&version).then_some((found, version))
    }
}

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

    /// Returns the annotation with carried fields that the source object may have.
    fn carried_annotation(self) -> &'static str {
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
/// Returns an error if the object is not of a convertible kind, or not an object.
pub fn convert(
    object: &Value,
    version: &str,
    lookup: &dyn Lookup,
) -> Result<Value, ConversionError> {
    let Some((kind, direction)) = plan(object, version)? else {
        return Ok(object.clone());
    };
    let (source, mut target) = restored(kind, direction, object);
    if (kind, direction) == (Kind::NodeClaim, Direction::Up) {
        node_claim::look_up(&mut target, lookup);
    }
    // INVARIANT: converting back starts from exactly this object, without the annotation, which it removes first.
    take_annotation(&mut target, direction.back().carried_annotation());
    drop_empty_annotations(&mut target);
    let again = meaning(kind, direction.back(), &target);
    if let Some(lost) = carry::difference(&again, &source) {
        annotate(&mut target, direction.back().carried_annotation(), lost);
    }
    Ok(target)
}

/// Translates a v1beta1 document to v1 permanently, without the annotations for converting back.
///
/// # Errors
/// Returns an error if the object is not of a convertible kind, or not an object.
pub fn upgrade(object: &Value) -> Result<Value, ConversionError> {
    let Some((kind, direction)) = plan(object, V1)? else {
        return Ok(object.clone());
    };
    Ok(restored(kind, direction, object).1)
}

/// Returns the kind and direction of the conversion, or `None` if the object has the version.
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

/// Returns the object without the annotation of carried fields, and its translation with these fields.
fn restored(kind: Kind, direction: Direction, object: &Value) -> (Value, Value) {
    let mut source = object.clone();
    let carried = take_annotation(&mut source, direction.carried_annotation());
    let mut target = meaning(kind, direction, &source);
    if let Some(carried) = carried.as_deref().and_then(carry::read) {
        carry::apply(&carried, &mut target);
    }
    (source, target)
}

/// Translates fields that have an equivalent.
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

#[cfg(test)]
mod tests;
