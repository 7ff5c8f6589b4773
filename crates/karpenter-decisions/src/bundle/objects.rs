//! Objects reduced to the fields that decisions read.
//!
//! The model keeps some objects whole, because controllers patch them. A bundle has of them what the engine and the answers read:
//! no managed fields, no annotations of other programs, no messages of node conditions, no opaque parameters of drivers.

use karpenter_api::k8s_openapi::api::core::v1 as corev1;
use karpenter_api::k8s_openapi::api::policy::v1 as policy;
use karpenter_api::k8s_openapi::api::resource::v1 as resource;
use karpenter_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_api::v1alpha1::NodeOverlay;
use karpenter_core::cluster::Node;

/// Annotations outside of the domains of Karpenter that decisions read.
const DECISION_ANNOTATIONS: [&str; 1] = ["controller.kubernetes.io/pod-deletion-cost"];

/// Reports whether a decision can depend on an annotation: its domain is one of Karpenter's, or of a provider for it.
fn is_read(annotation: &str) -> bool {
    let domain = annotation.split_once('/').map(|(domain, _)| domain);
    let of_karpenter =
        |domain: &str| domain.split('.').any(|label| label == "karpenter") && domain.contains('.');
    domain.is_some_and(of_karpenter) || DECISION_ANNOTATIONS.contains(&annotation)
}

fn meta(meta: &ObjectMeta) -> ObjectMeta {
    let annotations = meta.annotations.iter().flatten();
    let annotations = annotations.filter(|(key, _)| is_read(key));
    ObjectMeta {
        name: meta.name.clone(),
        namespace: meta.namespace.clone(),
        uid: meta.uid.clone(),
        generation: meta.generation,
        labels: meta.labels.clone(),
        annotations: meta.annotations.as_ref().map(|_| {
            annotations
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect()
        }),
        owner_references: meta.owner_references.clone(),
        finalizers: meta.finalizers.clone(),
        creation_timestamp: meta.creation_timestamp.clone(),
        deletion_timestamp: meta.deletion_timestamp.clone(),
        ..ObjectMeta::default()
    }
}

/// Returns a Node with the fields of the parsed one.
pub(super) fn node(object: &corev1::Node) -> corev1::Node {
    let parsed = Node::parse(object);
    let reduced = meta(&object.metadata);
    let status = object.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.clone());
    corev1::Node {
        metadata: ObjectMeta {
            generation: None,
            finalizers: None,
            owner_references: reduced.owner_references.map(|owners| {
                let reduced = owners.into_iter().map(|owner| OwnerReference {
                    block_owner_deletion: None,
                    ..owner
                });
                reduced.collect()
            }),
            ..reduced
        },
        spec: Some(corev1::NodeSpec {
            provider_id: parsed.provider_id,
            taints: Some(parsed.taints).filter(|taints| !taints.is_empty()),
            unschedulable: Some(true).filter(|_| parsed.unschedulable),
            ..corev1::NodeSpec::default()
        }),
        status: status.map(|_| corev1::NodeStatus {
            capacity: Some(parsed.capacity.to_quantities()),
            allocatable: Some(parsed.allocatable.to_quantities()),
            conditions: conditions.map(|all| all.into_iter().map(condition).collect()),
            ..corev1::NodeStatus::default()
        }),
    }
}

/// Returns a condition without its message and without the heartbeat, which changes all the time.
fn condition(condition: corev1::NodeCondition) -> corev1::NodeCondition {
    corev1::NodeCondition {
        message: None,
        last_heartbeat_time: None,
        ..condition
    }
}

pub(super) fn node_claim(claim: &NodeClaim) -> NodeClaim {
    let mut reduced = claim.clone();
    reduced.metadata = meta(&claim.metadata);
    reduced
}

pub(super) fn node_pool(pool: &NodePool) -> NodePool {
    let mut reduced = pool.clone();
    reduced.metadata = meta(&pool.metadata);
    reduced
}

pub(super) fn node_overlay(overlay: &NodeOverlay) -> NodeOverlay {
    let mut reduced = overlay.clone();
    reduced.metadata = meta(&overlay.metadata);
    reduced
}

pub(super) fn pdb(budget: &policy::PodDisruptionBudget) -> policy::PodDisruptionBudget {
    let mut reduced = budget.clone();
    reduced.metadata = meta(&budget.metadata);
    if let Some(status) = &mut reduced.status {
        status.disrupted_pods = None;
    }
    reduced
}

pub(super) fn resource_slice(slice: &resource::ResourceSlice) -> resource::ResourceSlice {
    let mut reduced = slice.clone();
    reduced.metadata = meta(&slice.metadata);
    reduced
}

/// Returns a ResourceClaim without the opaque parameters and the data of drivers.
pub(super) fn resource_claim(claim: &resource::ResourceClaim) -> resource::ResourceClaim {
    let mut reduced = claim.clone();
    reduced.metadata = meta(&claim.metadata);
    if let Some(devices) = &mut reduced.spec.devices {
        devices.config = None;
    }
    if let Some(status) = &mut reduced.status {
        status.devices = None;
        let allocated = status.allocation.as_mut();
        if let Some(devices) = allocated.and_then(|allocation| allocation.devices.as_mut()) {
            devices.config = None;
        }
    }
    reduced
}

/// Returns a DeviceClass without the opaque parameters of drivers.
pub(super) fn device_class(class: &resource::DeviceClass) -> resource::DeviceClass {
    let mut reduced = class.clone();
    reduced.metadata = meta(&class.metadata);
    reduced.spec.config = None;
    reduced
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_annotations_of_karpenter_and_its_providers_are_kept() {
        for (annotation, kept) in [
            ("karpenter.sh/do-not-disrupt", true),
            ("compatibility.karpenter.sh/v1beta1-x", true),
            ("karpenter.k8s.aws/ec2nodeclass-hash", true),
            ("controller.kubernetes.io/pod-deletion-cost", true),
            ("kubectl.kubernetes.io/last-applied-configuration", false),
            ("karpenter/password", false),
            ("example.com/karpenter.sh", false),
            ("notkarpenter.sh/a", false),
            ("password", false),
        ] {
            assert_eq!(is_read(annotation), kept, "{annotation}");
        }
    }

    #[test]
    fn a_reduced_node_is_parsed_as_the_whole_one_and_has_no_free_text() {
        let object: corev1::Node = serde_json::from_value(json!({
            "metadata": {
                "name": "a", "uid": "u", "resourceVersion": "7", "labels": { "team": "red" },
                "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-02T00:00:00Z",
                "annotations": { "karpenter.sh/do-not-disrupt": "true", "csi.volume.kubernetes.io/nodeid": "SECRET" },
                "ownerReferences": [{ "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": "c", "uid": "1", "controller": true }],
                "managedFields": [{ "manager": "SECRET" }],
            },
            "spec": { "providerID": "x://a", "podCIDR": "SECRET", "unschedulable": true, "taints": [{ "key": "k", "effect": "NoSchedule" }] },
            "status": {
                "capacity": { "cpu": "1999999u", "memory": "1.5Gi" }, "allocatable": { "cpu": "1", "pods": "110" },
                "conditions": [{ "type": "Ready", "status": "True", "message": "SECRET", "lastTransitionTime": "2026-01-01T00:00:00Z" }],
                "addresses": [{ "type": "InternalIP", "address": "SECRET" }],
                "images": [{ "names": ["SECRET"] }],
            },
        }))
        .unwrap();
        let reduced = node(&object);
        let text = serde_json::to_string(&reduced).unwrap();
        assert!(!text.contains("SECRET"), "{text}");
        let mut expected = object.clone();
        let annotations = expected.metadata.annotations.as_mut().unwrap();
        assert!(
            annotations
                .remove("csi.volume.kubernetes.io/nodeid")
                .is_some()
        );
        assert_eq!(Node::parse(&reduced), Node::parse(&expected));
        assert_eq!(node(&reduced), reduced);
    }

    #[test]
    fn opaque_parameters_of_drivers_are_dropped() {
        let config =
            json!([{ "opaque": { "driver": "d", "parameters": { "password": "SECRET" } } }]);
        let claim: resource::ResourceClaim = serde_json::from_value(json!({
            "metadata": { "name": "a", "namespace": "n" },
            "spec": { "devices": { "config": config } },
            "status": {
                "allocation": { "devices": { "config": [{ "source": "FromClaim", "opaque": { "driver": "d", "parameters": { "p": "SECRET" } } }] } },
                "devices": [{ "driver": "d", "pool": "p", "device": "x", "data": { "token": "SECRET" } }],
            },
        }))
        .unwrap();
        let class: resource::DeviceClass = serde_json::from_value(
            json!({ "metadata": { "name": "c" }, "spec": { "config": config } }),
        )
        .unwrap();
        let text = serde_json::to_string(&(resource_claim(&claim), device_class(&class))).unwrap();
        assert!(!text.contains("SECRET"), "{text}");
    }
}
