//! The manifests of docs/examples are admitted, valid, and deserialized without loss.

use std::fs;
use std::path::PathBuf;

use karpenter_api::autoscaling::CapacityBuffer;
use karpenter_api::v1::NodePool;
use karpenter_api::v1alpha1::NodeOverlay;
use karpenter_api::validation;
use karpenter_api::validation::{Findings, WellKnown};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Admission;

/// Reads an example and asserts that the API server admits it, and that the type keeps all of its defaulted fields.
#[track_caller]
fn example<T: DeserializeOwned + Serialize>(name: &str, admission: &Admission) -> T {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/examples")
        .join(name);
    let object: Value = serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    admission.accepts(&object);
    let stored = admission.defaulted(&object);
    let read: T = serde_json::from_value(stored.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), stored, "{name}");
    read
}

#[test]
fn the_node_pools_are_valid() {
    for name in ["nodepool.yaml", "static-nodepool.yaml"] {
        let pool: NodePool = example(name, &Admission::node_pool());
        assert_eq!(
            validation::node_pool(&pool, &WellKnown::default()),
            Findings::default(),
            "{name}"
        );
    }
}

#[test]
fn the_node_overlay_is_valid() {
    let overlay: NodeOverlay = example("nodeoverlay.yaml", &Admission::node_overlay());
    assert_eq!(
        validation::node_overlay(&overlay, &WellKnown::default()),
        Findings::default()
    );
}

#[test]
fn the_capacity_buffer_is_valid() {
    let buffer: CapacityBuffer = example("capacitybuffer.yaml", &Admission::capacity_buffer());
    assert_eq!(buffer.spec.percentage, Some(20));
}
