//! Request bodies in Kubernetes' protobuf envelope, decoded to JSON.
//!
//! kubectl sends protobuf for `create deployment`, `create namespace`, `auth can-i`, `drain --disable-eviction` and the like.
//! The decoder parses the wire format with the built-in schemas and the field numbers of `data/builtin-protobuf-tags.json`, so
//! that every built-in kind is supported.
//!
//! Go serializes empty strings, zeros and `false` of fields that are not pointers; JSON omits them. The schema does not say which
//! numbers and booleans those are: `VALUE_FIELDS` lists them.

mod message;
mod wire;

use serde_json::{Value, json};

use self::message::message;
use self::wire::{fields, utf8};
use crate::registry::schema::Schema;
use crate::registry::{Registry, split_api_version};

/// The prefix of every body.
const MAGIC: &[u8] = b"k8s\0";

/// The reason why a body cannot be decoded: 400 `BadRequest`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtobufError {
    /// The envelope's magic number is missing.
    #[error(
        "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
    )]
    Magic,
    /// The bytes end early or contradict the wire format.
    #[error("proto: illegal wire format")]
    Wire,
    /// The kind is not served.
    #[error("no kind \"{kind}\" is registered for version \"{api_version}\"")]
    Kind { api_version: String, kind: String },
}

/// Decodes a body to its JSON object, `apiVersion` and `kind` included.
///
/// Kinds: every built-in resource, the bodies of subresources (Eviction, Binding, Scale) and DeleteOptions.
///
/// # Errors
///
/// [`ProtobufError`].
pub fn decode(body: &[u8], registry: &Registry) -> Result<Value, ProtobufError> {
    let envelope = body.strip_prefix(MAGIC).ok_or(ProtobufError::Magic)?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for field in fields(envelope)? {
        match (field.number, field.bytes()) {
            (1, Some(meta)) => {
                for field in fields(meta)? {
                    match (field.number, field.bytes()) {
                        (1, Some(text)) => api_version = utf8(text)?,
                        (2, Some(text)) => kind = utf8(text)?,
                        _ => {}
                    }
                }
            }
            (2, Some(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let schema = schema_of(registry, &api_version, &kind).ok_or_else(|| ProtobufError::Kind {
        api_version: api_version.clone(),
        kind: kind.clone(),
    })?;
    let mut object = message(raw, &schema)?;
    object.insert("apiVersion".into(), json!(api_version));
    object.insert("kind".into(), json!(kind));
    Ok(Value::Object(object))
}

fn schema_of(registry: &Registry, api_version: &str, kind: &str) -> Option<Schema> {
    match (api_version, kind) {
        (_, "DeleteOptions") => {
            return Some(Schema::named(
                "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions",
            ));
        }
        ("policy/v1", "Eviction") => return Some(Schema::named("io.k8s.api.policy.v1.Eviction")),
        ("v1", "Binding") => return Some(Schema::named("io.k8s.api.core.v1.Binding")),
        ("autoscaling/v1", "Scale") => {
            return Some(Schema::named("io.k8s.api.autoscaling.v1.Scale"));
        }
        _ => {}
    }
    let (group, version) = split_api_version(api_version);
    let resource = registry
        .find_kind(group, version, kind)
        .filter(|resource| !resource.is_custom())?;
    Some(resource.schema.as_ref().clone())
}
