//! Volumes.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use serde_json::json;

use crate::{Object, ZONE, expression, term};

/// The driver of volumes, unless a test has another one.
const DRIVER: &str = "ebs.csi.aws.com";

/// Returns a StorageClass whose volumes are created where their first pod runs.
pub fn storage_class(name: &str) -> Object<StorageClass> {
    Object::from_json(json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": name },
        "provisioner": DRIVER, "volumeBindingMode": "WaitForFirstConsumer",
    }))
}

impl Object<StorageClass> {
    /// Adds an allowed topology: the zones in which volumes can be created.
    #[must_use]
    pub fn zones(self, zones: &[&str]) -> Self {
        self.push(
            "/allowedTopologies",
            json!({ "matchLabelExpressions": [{ "key": ZONE, "values": zones }] }),
        )
    }

    #[must_use]
    pub fn provisioner(self, driver: &str) -> Self {
        self.set("/provisioner", driver)
    }
}

/// Returns a CSI volume that can be attached everywhere.
pub fn persistent_volume(name: &str) -> Object<PersistentVolume> {
    Object::from_json(json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
        "spec": { "csi": { "driver": DRIVER, "volumeHandle": name } },
    }))
}

impl Object<PersistentVolume> {
    /// Adds a node selector term of several expressions: a set of nodes to which the volume can be attached.
    #[must_use]
    pub fn reachable_from_term(self, expressions: &[(&str, &str, &[&str])]) -> Self {
        self.push(
            "/spec/nodeAffinity/required/nodeSelectorTerms",
            term(expressions),
        )
    }

    /// Adds a node selector term of one expression: a set of nodes to which the volume can be attached.
    #[must_use]
    pub fn reachable_from(self, key: &str, operator: &str, values: &[&str]) -> Self {
        let term = json!({ "matchExpressions": [expression(key, operator, values)] });
        self.push("/spec/nodeAffinity/required/nodeSelectorTerms", term)
    }

    /// Limits the volume to nodes of a zone.
    #[must_use]
    pub fn zone(self, zone: &str) -> Self {
        self.reachable_from(ZONE, "In", &[zone])
    }

    #[must_use]
    pub fn driver(self, driver: &str) -> Self {
        self.set("/spec/csi/driver", driver)
    }
}

/// Returns a pending claim without StorageClass.
pub fn persistent_volume_claim(name: &str) -> Object<PersistentVolumeClaim> {
    Object::from_json(json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": name, "namespace": "default", "uid": name },
        "spec": {}, "status": { "phase": "Pending" },
    }))
}

impl Object<PersistentVolumeClaim> {
    #[must_use]
    pub fn storage_class(self, name: &str) -> Self {
        self.set("/spec/storageClassName", name)
    }

    /// Names the volume without binding the claim.
    #[must_use]
    pub fn volume_name(self, volume: &str) -> Self {
        self.set("/spec/volumeName", volume)
    }

    /// Binds the claim to a volume.
    #[must_use]
    pub fn bound_to(self, volume: &str) -> Self {
        self.volume_name(volume)
            .annotation("pv.kubernetes.io/bind-completed", "yes")
    }
}

/// Returns a CSINode without drivers.
pub fn csi_node(name: &str) -> Object<CSINode> {
    Object::from_json(json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": { "name": name }, "spec": { "drivers": [] },
    }))
}

impl Object<CSINode> {
    /// Adds a driver that can attach a number of volumes.
    #[must_use]
    pub fn driver(self, name: &str, volumes: i32) -> Self {
        let driver = json!({ "name": name, "nodeID": name, "allocatable": { "count": volumes } });
        self.push("/spec/drivers", driver)
    }
}
