//! Request bodies in Kubernetes' protobuf envelope, decoded to JSON.
//!
//! kubectl sends protobuf for `create deployment`, `create namespace`, `auth can-i`, `drain --disable-eviction` and the like.
//! The decoder parses the wire format with the built-in schemas and the field numbers of `data/builtin-protobuf-tags.json`, so
//! that every built-in kind is supported.
//!
//! Go serializes empty strings, zeros and `false` of fields that are not pointers; JSON omits them. The schema does not say which
//! numbers and booleans those are: `VALUE_FIELDS` lists them.

use std::sync::OnceLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::registry::schema::{Schema, Type};
use crate::registry::{Registry, split_api_version};

/// Content type of protobuf bodies.
pub const CONTENT_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// The prefix of every body.
const MAGIC: &[u8] = b"k8s\0";

/// Numbers and booleans whose zero means absent.
const VALUE_FIELDS: &[&str] = &[
    "allowed",
    "collisionCount",
    "continue",
    "denied",
    "failureThreshold",
    "generation",
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "hostPort",
    "initialDelaySeconds",
    "minReadySeconds",
    "nodePort",
    "observedGeneration",
    "paused",
    "periodSeconds",
    "publishNotReadyAddresses",
    "readOnly",
    "stdin",
    "stdinOnce",
    "successThreshold",
    "timeoutSeconds",
    "tty",
    "unschedulable",
];

const TAGS_SOURCE: &str = include_str!("../../data/builtin-protobuf-tags.json");

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
    Kind {
        /// `apiVersion` of the envelope.
        api_version: String,
        /// `kind` of the envelope.
        kind: String,
    },
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

fn tags() -> &'static Map<String, Value> {
    static TAGS: OnceLock<Map<String, Value>> = OnceLock::new();
    TAGS.get_or_init(|| serde_json::from_str(TAGS_SOURCE).unwrap_or_default())
}

/// A field on the wire.
struct Field<'a> {
    number: u64,
    wire: Wire<'a>,
}

enum Wire<'a> {
    Varint(u64),
    Fixed(u64),
    Bytes(&'a [u8]),
}

impl<'a> Field<'a> {
    fn bytes(&self) -> Option<&'a [u8]> {
        match self.wire {
            Wire::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }
}

fn varint(bytes: &mut &[u8]) -> Result<u64, ProtobufError> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().ok_or(ProtobufError::Wire)?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(ProtobufError::Wire)
}

fn fields(mut bytes: &[u8]) -> Result<Vec<Field<'_>>, ProtobufError> {
    fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], ProtobufError> {
        let (taken, rest) = bytes.split_at_checked(length).ok_or(ProtobufError::Wire)?;
        *bytes = rest;
        Ok(taken)
    }
    let little_endian = |bytes: &[u8]| {
        bytes
            .iter()
            .rev()
            .fold(0_u64, |value, byte| value << 8 | u64::from(*byte))
    };
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let wire = match key & 7 {
            0 => Wire::Varint(varint(&mut bytes)?),
            1 => Wire::Fixed(little_endian(take(&mut bytes, 8)?)),
            2 => {
                let length =
                    usize::try_from(varint(&mut bytes)?).map_err(|_| ProtobufError::Wire)?;
                Wire::Bytes(take(&mut bytes, length)?)
            }
            5 => Wire::Fixed(little_endian(take(&mut bytes, 4)?)),
            _ => return Err(ProtobufError::Wire),
        };
        found.push(Field {
            number: key >> 3,
            wire,
        });
    }
    Ok(found)
}

fn utf8(bytes: &[u8]) -> Result<String, ProtobufError> {
    std::str::from_utf8(bytes)
        .map(str::to_owned)
        .map_err(|_| ProtobufError::Wire)
}

fn message(bytes: &[u8], schema: &Schema) -> Result<Map<String, Value>, ProtobufError> {
    let table = schema
        .reference
        .as_deref()
        .and_then(|name| tags().get(name))
        .and_then(Value::as_object);
    let mut object = Map::new();
    if let Some(table) = table {
        fill(bytes, schema, table, &mut object)?;
    }
    Ok(object)
}

/// Reads a message's fields into the object; a number that maps to a table is an embedded struct.
fn fill(
    bytes: &[u8],
    schema: &Schema,
    table: &Map<String, Value>,
    object: &mut Map<String, Value>,
) -> Result<(), ProtobufError> {
    for found in fields(bytes)? {
        match (table.get(&found.number.to_string()), found.bytes()) {
            (Some(Value::Object(embedded)), Some(bytes)) => fill(bytes, schema, embedded, object)?,
            (Some(Value::String(name)), _) => {
                if let Some(field) = schema.field(name) {
                    put(object, name, &found, field, schema)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn put(
    object: &mut Map<String, Value>,
    name: &str,
    found: &Field<'_>,
    field: &Schema,
    owner: &Schema,
) -> Result<(), ProtobufError> {
    let target = field.resolve();
    match (target.kind, found.bytes()) {
        (Type::Array, bytes) => {
            let list = object.entry(name).or_insert_with(|| json!([]));
            let Value::Array(list) = list else {
                return Ok(());
            };
            match bytes {
                // Packed numbers.
                Some(mut packed) if field.item().resolve().kind == Type::Integer => {
                    while !packed.is_empty() {
                        list.push(json!(varint(&mut packed)?.cast_signed()));
                    }
                }
                _ => list.push(value(found, field.item())?),
            }
        }
        (Type::Object, Some(bytes)) if target.values.is_some() => {
            let map = object.entry(name).or_insert_with(|| json!({}));
            let values = target.values.as_deref().unwrap_or(Schema::any());
            let mut key = String::new();
            let mut entry = zero(values);
            for part in fields(bytes)? {
                match part.number {
                    1 => key = utf8(part.bytes().unwrap_or_default())?,
                    2 => entry = value(&part, values)?,
                    _ => {}
                }
            }
            map[key] = entry;
        }
        _ => {
            let decoded = value(found, field)?;
            let required = owner
                .resolve()
                .required
                .iter()
                .any(|required| required == name);
            let in_status = owner
                .type_name()
                .is_some_and(|name| name.ends_with("Status"));
            let absent = match &decoded {
                Value::Null => true,
                Value::String(text) => text.is_empty() && !required,
                Value::Number(number) => {
                    number.as_f64() == Some(0.0)
                        && !required
                        && (in_status || VALUE_FIELDS.contains(&name))
                }
                Value::Bool(flag) => {
                    !flag && !required && (in_status || VALUE_FIELDS.contains(&name))
                }
                _ => false,
            };
            if !absent {
                object.insert(name.to_owned(), decoded);
            }
        }
    }
    Ok(())
}

/// A map entry's value when the entry carries none.
fn zero(schema: &Schema) -> Value {
    match schema.resolve().kind {
        Type::String => json!(""),
        Type::Array => json!([]),
        _ => Value::Null,
    }
}

fn value(found: &Field<'_>, schema: &Schema) -> Result<Value, ProtobufError> {
    let target = schema.resolve();
    let number = match found.wire {
        Wire::Varint(number) | Wire::Fixed(number) => number,
        Wire::Bytes(_) => 0,
    };
    let bytes = found.bytes().unwrap_or_default();
    Ok(match (schema.type_name(), target.kind) {
        (Some("Time"), _) => time(bytes, false)?,
        (Some("MicroTime"), _) => time(bytes, true)?,
        (Some("FieldsV1" | "RawExtension" | "JSON"), _) => raw_json(bytes)?,
        (_, Type::IntOrString) => int_or_string(bytes)?,
        (_, Type::String) => match target.format.as_deref() {
            Some("quantity") => json!(first_text(bytes)?),
            Some("byte") => json!(STANDARD.encode(bytes)),
            _ => json!(utf8(bytes)?),
        },
        (_, Type::Integer) => json!(number.cast_signed()),
        (_, Type::Number) => json!(f64::from_bits(number)),
        (_, Type::Boolean) => json!(number != 0),
        // A list inside a map or list is a message with the items as its field 1.
        (_, Type::Array) => {
            let items = fields(bytes)?;
            let items: Result<Vec<Value>, _> = items
                .iter()
                .filter(|item| item.number == 1)
                .map(|item| value(item, schema.item()))
                .collect();
            Value::Array(items?)
        }
        (_, Type::Object) => Value::Object(message(bytes, schema)?),
        (_, Type::Any) => Value::Null,
    })
}

fn first_text(bytes: &[u8]) -> Result<String, ProtobufError> {
    let first = fields(bytes)?.into_iter().find(|field| field.number == 1);
    first
        .and_then(|field| field.bytes())
        .map_or_else(|| Ok(String::new()), utf8)
}

fn raw_json(bytes: &[u8]) -> Result<Value, ProtobufError> {
    let raw = fields(bytes)?
        .into_iter()
        .find(|field| field.number == 1)
        .and_then(|field| field.bytes());
    raw.map_or(Ok(Value::Null), |raw| {
        serde_json::from_slice(raw).map_err(|_| ProtobufError::Wire)
    })
}

fn int_or_string(bytes: &[u8]) -> Result<Value, ProtobufError> {
    let (mut is_text, mut number, mut text) = (false, 0_i64, String::new());
    for field in fields(bytes)? {
        match (field.number, &field.wire) {
            (1, Wire::Varint(kind)) => is_text = *kind == 1,
            (2, Wire::Varint(value)) => number = value.cast_signed(),
            (3, Wire::Bytes(bytes)) => text = utf8(bytes)?,
            _ => {}
        }
    }
    Ok(if is_text { json!(text) } else { json!(number) })
}

/// Seconds and nanoseconds since 1970; an empty message is Go's zero time.
fn time(bytes: &[u8], micro: bool) -> Result<Value, ProtobufError> {
    let (mut seconds, mut nanos) = (None, 0_i64);
    for field in fields(bytes)? {
        match (field.number, &field.wire) {
            (1, Wire::Varint(value)) => seconds = Some(value.cast_signed()),
            (2, Wire::Varint(value)) => nanos = value.cast_signed(),
            _ => {}
        }
    }
    let Some(seconds) = seconds else {
        return Ok(Value::Null);
    };
    let nanos = i32::try_from(nanos).map_err(|_| ProtobufError::Wire)?;
    let instant = jiff::Timestamp::new(seconds, if micro { nanos } else { 0 })
        .map_err(|_| ProtobufError::Wire)?;
    Ok(json!(if micro {
        format!("{instant:.6}")
    } else {
        instant.to_string()
    }))
}

#[cfg(test)]
mod tests {
    use k8s_pb::api::apps::v1 as apps;
    use k8s_pb::api::authorization::v1 as authorization;
    use k8s_pb::api::core::v1 as core;
    use k8s_pb::apimachinery::pkg::api::resource::Quantity;
    use k8s_pb::apimachinery::pkg::apis::meta::v1 as meta;
    use k8s_pb::apimachinery::pkg::runtime::{TypeMeta, Unknown};
    use k8s_pb::apimachinery::pkg::util::intstr::IntOrString;
    use prost::Message;

    use super::*;

    fn envelope(api_version: &str, kind: &str, message: &impl Message) -> Vec<u8> {
        let unknown = Unknown {
            type_meta: Some(TypeMeta {
                api_version: Some(api_version.into()),
                kind: Some(kind.into()),
            }),
            raw: Some(message.encode_to_vec()),
            ..Unknown::default()
        };
        [MAGIC, &unknown.encode_to_vec()].concat()
    }

    fn decoded(api_version: &str, kind: &str, message: &impl Message) -> Value {
        decode(&envelope(api_version, kind, message), &Registry::builtin()).unwrap()
    }

    #[test]
    fn delete_options_keep_an_explicit_zero() {
        let options = meta::DeleteOptions {
            grace_period_seconds: Some(0),
            propagation_policy: Some("Background".into()),
            preconditions: Some(meta::Preconditions {
                uid: Some("u".into()),
                resource_version: None,
            }),
            ..meta::DeleteOptions::default()
        };
        assert_eq!(
            decoded("policy/v1", "DeleteOptions", &options),
            json!({"apiVersion": "policy/v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "propagationPolicy": "Background", "preconditions": {"uid": "u"}})
        );
    }

    #[test]
    fn a_namespace_drops_gos_empty_values() {
        let namespace = core::Namespace {
            metadata: Some(meta::ObjectMeta {
                name: Some("n".into()),
                generate_name: Some(String::new()),
                generation: Some(0),
                creation_timestamp: Some(meta::Time::default()),
                ..meta::ObjectMeta::default()
            }),
            spec: Some(core::NamespaceSpec::default()),
            status: Some(core::NamespaceStatus {
                phase: Some(String::new()),
                conditions: Vec::new(),
            }),
        };
        assert_eq!(
            decoded("v1", "Namespace", &namespace),
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}, "spec": {}, "status": {}})
        );
    }

    #[test]
    fn a_deployment_with_volumes_probes_and_quantities_is_complete() {
        let probe = core::Probe {
            handler: Some(core::ProbeHandler {
                http_get: Some(core::HttpGetAction {
                    path: Some("/".into()),
                    port: Some(IntOrString {
                        r#type: Some(1),
                        int_val: Some(0),
                        str_val: Some("web".into()),
                    }),
                    ..core::HttpGetAction::default()
                }),
                ..core::ProbeHandler::default()
            }),
            period_seconds: Some(5),
            ..core::Probe::default()
        };
        let container = core::Container {
            name: Some("c".into()),
            image: Some("i".into()),
            args: vec!["a".into(), "b".into()],
            ports: vec![core::ContainerPort {
                container_port: Some(80),
                host_port: Some(0),
                ..core::ContainerPort::default()
            }],
            resources: Some(core::ResourceRequirements {
                requests: [(
                    "cpu".to_owned(),
                    Quantity {
                        string: Some("100m".into()),
                    },
                )]
                .into(),
                ..core::ResourceRequirements::default()
            }),
            readiness_probe: Some(probe),
            ..core::Container::default()
        };
        let volume = core::Volume {
            name: Some("v".into()),
            volume_source: Some(core::VolumeSource {
                empty_dir: Some(core::EmptyDirVolumeSource::default()),
                ..core::VolumeSource::default()
            }),
        };
        let deployment = apps::Deployment {
            metadata: Some(meta::ObjectMeta {
                name: Some("d".into()),
                labels: [("app".to_owned(), "d".to_owned())].into(),
                creation_timestamp: Some(meta::Time {
                    seconds: Some(1_767_225_600),
                    nanos: Some(0),
                }),
                ..meta::ObjectMeta::default()
            }),
            spec: Some(apps::DeploymentSpec {
                replicas: Some(0),
                min_ready_seconds: Some(0),
                paused: Some(false),
                selector: Some(meta::LabelSelector {
                    match_labels: [("app".to_owned(), "d".to_owned())].into(),
                    match_expressions: Vec::new(),
                }),
                strategy: Some(apps::DeploymentStrategy {
                    r#type: Some("RollingUpdate".into()),
                    rolling_update: Some(apps::RollingUpdateDeployment {
                        max_surge: Some(IntOrString {
                            r#type: Some(0),
                            int_val: Some(1),
                            str_val: Some(String::new()),
                        }),
                        max_unavailable: None,
                    }),
                }),
                template: Some(core::PodTemplateSpec {
                    metadata: Some(meta::ObjectMeta::default()),
                    spec: Some(core::PodSpec {
                        containers: vec![container],
                        volumes: vec![volume],
                        ..core::PodSpec::default()
                    }),
                }),
                ..apps::DeploymentSpec::default()
            }),
            status: Some(apps::DeploymentStatus {
                replicas: Some(0),
                ..apps::DeploymentStatus::default()
            }),
        };
        assert_eq!(
            decoded("apps/v1", "Deployment", &deployment),
            json!({"apiVersion": "apps/v1", "kind": "Deployment",
                "metadata": {"name": "d", "labels": {"app": "d"}, "creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "d"}},
                    "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}},
                    "template": {"metadata": {}, "spec": {
                        "containers": [{"name": "c", "image": "i", "args": ["a", "b"], "ports": [{"containerPort": 80}],
                            "resources": {"requests": {"cpu": "100m"}}, "readinessProbe": {"httpGet": {"path": "/", "port": "web"}, "periodSeconds": 5}}],
                        "volumes": [{"name": "v", "emptyDir": {}}]}}},
                "status": {}})
        );
    }

    #[test]
    fn an_access_review_keeps_its_attributes() {
        let review = authorization::SelfSubjectAccessReview {
            metadata: Some(meta::ObjectMeta::default()),
            spec: Some(authorization::SelfSubjectAccessReviewSpec {
                resource_attributes: Some(authorization::ResourceAttributes {
                    verb: Some("create".into()),
                    resource: Some("pods".into()),
                    namespace: Some("default".into()),
                    ..authorization::ResourceAttributes::default()
                }),
                non_resource_attributes: None,
            }),
            status: Some(authorization::SubjectAccessReviewStatus {
                allowed: Some(false),
                ..Default::default()
            }),
        };
        assert_eq!(
            decoded(
                "authorization.k8s.io/v1",
                "SelfSubjectAccessReview",
                &review
            ),
            json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "metadata": {},
                "spec": {"resourceAttributes": {"verb": "create", "resource": "pods", "namespace": "default"}}, "status": {"allowed": false}})
        );
    }

    #[test]
    fn secrets_and_times_decode() {
        let secret = core::Secret {
            data: [("k".to_owned(), b"hi".to_vec())].into(),
            r#type: Some("Opaque".into()),
            ..core::Secret::default()
        };
        assert_eq!(
            decoded("v1", "Secret", &secret)["data"],
            json!({"k": "aGk="})
        );
        let event = core::Event {
            event_time: Some(meta::MicroTime {
                seconds: Some(1_767_225_600),
                nanos: Some(123_456_000),
            }),
            ..core::Event::default()
        };
        assert_eq!(
            decoded("v1", "Event", &event)["eventTime"],
            "2026-01-01T00:00:00.123456Z"
        );
    }

    #[test]
    fn damaged_and_foreign_bodies_are_refused() {
        let registry = Registry::builtin();
        assert_eq!(decode(b"{}", &registry), Err(ProtobufError::Magic));
        let good = envelope(
            "v1",
            "Namespace",
            &core::Namespace {
                metadata: Some(meta::ObjectMeta {
                    name: Some("n".into()),
                    ..Default::default()
                }),
                ..Default::default()
            },
        );
        for length in MAGIC.len() + 1..good.len() {
            // Truncated anywhere: an error or an object, never a panic.
            let _ = decode(&good[..length], &registry).map(|value| assert!(value.is_object()));
        }
        let unknown = envelope("x/v1", "Y", &core::Namespace::default());
        assert_eq!(
            decode(&unknown, &registry).unwrap_err().to_string(),
            "no kind \"Y\" is registered for version \"x/v1\""
        );
    }
}
