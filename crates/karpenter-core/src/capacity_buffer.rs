//! Capacity buffers: the number of chunks of spare capacity that a buffer requests, and the in-memory pods that reserve them.
//!
//! A chunk has the size of one pod of a template or a workload. It is scheduled like a pod, after the real ones, and is never
//! written to the API server.
//!
//! UPSTREAM: pkg/controllers/capacitybuffer, pkg/controllers/provisioning (buffer pods)
//! DIFFERS: a percentage of a workload scaled to zero is zero chunks; upstream ignores the percentage then, so that a buffer
//! with limits grows to the limits.

use std::collections::BTreeMap;
use std::sync::Arc;

use karpenter_api::autoscaling::{CapacityBuffer, CapacityBufferSpec};
use karpenter_api::k8s_openapi::api::core::v1 as corev1;
use karpenter_api::labels::annotations;

use crate::pod::{Pod, PodKey};
use crate::resources::{InvalidResource, Resources};

/// The most in-memory pods of a buffer. The owner of a namespace can request any number.
pub const MAX_PODS: u32 = 10_000;
/// The most in-memory pods of all buffers.
pub const MAX_PODS_OF_ALL: usize = 50_000;

/// Returns the number of chunks of a buffer: the larger of `replicas` and the percentage of the workload's `scale`, up to the
/// limits; without both, as many as the limits allow.
///
/// # Errors
/// Fails for an invalid quantity in the limits.
pub fn chunks(
    spec: &CapacityBufferSpec,
    scale: Option<i32>,
    chunk: &Resources,
) -> Result<u32, InvalidResource> {
    let fixed = spec
        .replicas
        .map(|replicas| u32::try_from(replicas).unwrap_or(0));
    let share = spec
        .percentage
        .zip(scale)
        .map(|(percentage, scale)| share(percentage, scale));
    let wanted = fixed.max(share);
    let limit = match &spec.limits {
        Some(limits) => most(&Resources::allocatable_from(limits)?, chunk),
        None => None,
    };
    Ok(match (wanted, limit) {
        (Some(wanted), Some(limit)) => wanted.min(limit),
        (Some(count), None) | (None, Some(count)) => count,
        (None, None) => 0,
    })
}

/// Returns a percentage of the scale, rounded up.
fn share(percentage: i32, scale: i32) -> u32 {
    let product = u64::try_from(percentage).unwrap_or(0) * u64::try_from(scale).unwrap_or(0);
    u32::try_from(product.div_ceil(100)).unwrap_or(u32::MAX)
}

/// Returns how many chunks fit the limits; `None` if no resource of a chunk is limited.
fn most(limits: &Resources, chunk: &Resources) -> Option<u32> {
    let asked = chunk
        .iter()
        .filter(|(name, amount)| *amount > 0 && limits.contains(name));
    let fit = asked
        .map(|(name, amount)| u32::try_from(limits.get(name).max(0) / amount).unwrap_or(u32::MAX));
    fit.min()
}

/// The source of a buffer's chunks: a pod template, or a workload's template with the workload's scale.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// The pods' labels and annotations.
    pub metadata: Option<karpenter_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta>,
    /// The pods' specification.
    pub spec: corev1::PodSpec,
    /// The workload's replicas; `None` for a bare template.
    pub scale: Option<i32>,
}

impl Source {
    /// Builds the chunk of a buffer, the pod that every chunk is a copy of.
    pub fn chunk(&self, buffer: &CapacityBuffer) -> Pod {
        let own = self.metadata.clone().unwrap_or_default();
        let mut marks: BTreeMap<String, String> = own.annotations.unwrap_or_default();
        let (namespace, name) = (
            buffer.metadata.namespace.clone().unwrap_or_default(),
            buffer.name().to_owned(),
        );
        marks.insert(
            annotations::CAPACITY_BUFFER_FAKE_POD.to_owned(),
            "true".to_owned(),
        );
        marks.insert(annotations::CAPACITY_BUFFER_NAME.to_owned(), name.clone());
        marks.insert(
            annotations::CAPACITY_BUFFER_NAMESPACE.to_owned(),
            namespace.clone(),
        );
        let mut spec = self.spec.clone();
        spec.node_name = None;
        spec.priority = Some(i32::MIN);
        spec.priority_class_name = None;
        if let Some(volumes) = &mut spec.volumes {
            volumes.retain(|volume| {
                volume.persistent_volume_claim.is_none() && volume.ephemeral.is_none()
            });
        }
        let mut pod = corev1::Pod {
            spec: Some(spec),
            ..corev1::Pod::default()
        };
        pod.metadata.namespace = Some(namespace);
        pod.metadata.name = Some(format!("capacity-buffer-{name}"));
        pod.metadata.uid = Some(buffer.uid().to_owned());
        pod.metadata.labels = own.labels;
        pod.metadata.annotations = Some(marks);
        pod.metadata.creation_timestamp = buffer.metadata.creation_timestamp.clone();
        let mut pod = Pod::parse(&pod);
        pod.unschedulable = true;
        pod
    }
}

/// Returns the in-memory pods of a buffer: copies of the chunk that share its shape.
pub fn pods(chunk: &Pod, count: u32) -> Vec<Arc<Pod>> {
    let numbered = |index: u32| {
        let key = PodKey::new(
            &chunk.key.namespace,
            &format!("{}-{index}", chunk.key.name),
            &format!("{}-{index}", chunk.key.uid),
        );
        Arc::new(Pod {
            key,
            ..chunk.clone()
        })
    };
    (1..=count).map(numbered).collect()
}

/// Returns namespace and name of the buffer that an in-memory pod belongs to.
pub fn buffer_of(pod: &Pod) -> Option<(&str, &str)> {
    let name = pod.annotations.get(annotations::CAPACITY_BUFFER_NAME)?;
    Some((
        pod.annotations
            .get(annotations::CAPACITY_BUFFER_NAMESPACE)?,
        name,
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn count(spec: Value, scale: Option<i32>) -> u32 {
        let chunk = Resources::new()
            .with("cpu", 500)
            .with("memory", 1 << 30)
            .with("pods", 1)
            .with("example.com/fpga", 0);
        chunks(&serde_json::from_value(spec).unwrap(), scale, &chunk).unwrap()
    }

    /// Conformance: API-106
    #[test]
    fn the_larger_of_replicas_and_percentage_counts_up_to_the_limits() {
        for (spec, scale, expected, why) in [
            (json!({ "replicas": 3 }), None, 3, "replicas"),
            (json!({ "percentage": 20 }), Some(11), 3, "rounded up"),
            (json!({ "percentage": 1 }), Some(1), 1, "at least one"),
            (json!({ "percentage": 250 }), Some(2), 5, "percentage"),
            (
                json!({ "replicas": 3, "percentage": 50 }),
                Some(10),
                5,
                "the larger",
            ),
            (
                json!({ "replicas": 8, "percentage": 50 }),
                Some(10),
                8,
                "the larger",
            ),
            (
                json!({ "replicas": 8, "limits": { "cpu": "2" } }),
                None,
                4,
                "limited",
            ),
            (json!({ "percentage": 0 }), Some(10), 0, "no percentage"),
            (
                json!({ "percentage": 50, "limits": { "cpu": "2" } }),
                Some(0),
                0,
                "scaled to zero",
            ),
            (
                json!({ "percentage": 50 }),
                None,
                0,
                "a template has no scale",
            ),
            (json!({}), None, 0, "neither"),
        ] {
            assert_eq!(count(spec, scale), expected, "{why}");
        }
    }

    /// Conformance: API-107
    #[test]
    fn the_scarcest_limited_resource_decides() {
        for (spec, expected) in [
            (json!({ "limits": { "cpu": "2", "memory": "3Gi" } }), 3),
            (json!({ "limits": { "cpu": "400m" } }), 0),
            // A chunk requests none of it.
            (
                json!({ "limits": { "cpu": "2", "example.com/fpga": "1" } }),
                4,
            ),
            // A chunk does not request it.
            (
                json!({ "replicas": 2, "limits": { "example.com/gpu": "1" } }),
                2,
            ),
            (json!({ "limits": { "example.com/gpu": "1" } }), 0),
        ] {
            assert_eq!(count(spec, None), expected);
        }
        let chunk = Resources::new().with("cpu", 500);
        let spec: CapacityBufferSpec =
            serde_json::from_value(json!({ "limits": { "cpu": "x" } })).unwrap();
        assert!(chunks(&spec, None, &chunk).is_err());
    }

    /// Conformance: SCH-166, SCH-167, API-109
    #[test]
    fn chunks_are_pods_of_lowest_priority_without_identity_volumes_or_node() {
        let buffer = |namespace: &str| -> CapacityBuffer {
            serde_json::from_value(json!({ "metadata": { "name": "b", "namespace": namespace, "uid": format!("u-{namespace}") }, "spec": {} })).unwrap()
        };
        let source = Source {
            metadata: Some(serde_json::from_value(json!({ "labels": { "app": "a" } })).unwrap()),
            spec: serde_json::from_value(json!({
                "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }], "nodeName": "n", "priority": 7,
                "tolerations": [{ "key": "t", "operator": "Exists" }], "nodeSelector": { "zone": "a" },
                "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "v" } }, { "name": "e", "ephemeral": {} }, { "name": "t", "emptyDir": {} }],
            }))
            .unwrap(),
            scale: None,
        };
        let made = pods(&source.chunk(&buffer("x")), 2);
        let keys: Vec<String> = made
            .iter()
            .map(|pod| format!("{} {}", pod.key, pod.key.uid))
            .collect();
        assert_eq!(
            keys,
            ["x/capacity-buffer-b-1 u-x-1", "x/capacity-buffer-b-2 u-x-2"]
        );
        let pod = &made[0];
        let shape = &pod.shape;
        assert!(pod.is_buffer() && pod.is_provisionable() && Arc::ptr_eq(shape, &made[1].shape));
        assert_eq!((shape.priority, shape.volumes.len()), (i32::MIN, 0));
        assert_eq!(
            (shape.requests.get("cpu"), shape.tolerations.len()),
            (1000, 1)
        );
        assert_eq!(
            (&*shape.labels["app"], &*shape.node_selector["zone"]),
            ("a", "a")
        );
        assert_eq!(buffer_of(pod), Some(("x", "b")));
        let other = pods(&source.chunk(&buffer("y")), 1);
        assert_ne!(
            buffer_of(&other[0]),
            buffer_of(pod),
            "the same name in another namespace is another buffer"
        );
    }
}
