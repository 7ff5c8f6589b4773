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

/// Content type of protobuf bodies.
pub const CONTENT_TYPE: &str = "application/vnd.kubernetes.protobuf";

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

#[cfg(test)]
mod tests {
    use k8s_pb::api::apps::v1 as apps;
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
