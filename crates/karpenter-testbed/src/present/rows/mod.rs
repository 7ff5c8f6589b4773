//! Columns and cells of the built-in kinds that the documentation and the walkthroughs show; other kinds show name and age.
//!
//! UPSTREAM: pkg/printers/internalversion/printers.go

mod column;
mod event;
mod node;
mod pod;

use serde_json::{Value, json};

use self::column::{AGE, NAME, computed, field, whole};
pub(super) use self::column::{Column, View};
use crate::present::age::human_duration;

/// Returns the columns of a built-in kind.
pub(super) fn columns(group: &str, kind: &str) -> &'static [Column] {
    match (group, kind) {
        ("", "Pod") => pod::POD,
        ("", "Node") => node::NODE,
        ("", "Event") => event::EVENT,
        ("", "Namespace") => NAMESPACE,
        ("", "Service") => SERVICE,
        ("", "PersistentVolumeClaim") => CLAIM,
        ("apps", "Deployment") => DEPLOYMENT,
        ("apps", "ReplicaSet") => REPLICA_SET,
        ("apps", "StatefulSet") => STATEFUL_SET,
        ("apps", "DaemonSet") => DAEMON_SET,
        ("batch", "Job") => JOB,
        ("policy", "PodDisruptionBudget") => BUDGET,
        ("coordination.k8s.io", "Lease") => LEASE,
        ("storage.k8s.io", "VolumeAttachment") => ATTACHMENT,
        _ => &[NAME, AGE],
    }
}

/// `READY 1/3`.
const READY: Column = computed("Ready", |view| {
    let ready = view.int("/status/readyReplicas");
    json!(format!("{ready}/{}", view.int("/spec/replicas")))
});

const NAMESPACE: &[Column] = &[NAME, field("Status", "status.phase"), AGE];

const SERVICE: &[Column] = &[
    NAME,
    field("Type", "spec.type"),
    field("Cluster-IP", "spec.clusterIP").or("<none>"),
    AGE,
];

const CLAIM: &[Column] = &[
    NAME,
    field("Status", "status.phase"),
    field("Volume", "spec.volumeName"),
    field("Capacity", "status.capacity.storage"),
    field("StorageClass", "spec.storageClassName"),
    AGE,
];

const DEPLOYMENT: &[Column] = &[
    NAME,
    READY,
    whole("Up-to-date", "status.updatedReplicas"),
    whole("Available", "status.availableReplicas"),
    AGE,
];

const REPLICA_SET: &[Column] = &[
    NAME,
    whole("Desired", "spec.replicas"),
    whole("Current", "status.replicas"),
    whole("Ready", "status.readyReplicas"),
    AGE,
];

const STATEFUL_SET: &[Column] = &[NAME, READY, AGE];

const DAEMON_SET: &[Column] = &[
    NAME,
    whole("Desired", "status.desiredNumberScheduled"),
    whole("Current", "status.currentNumberScheduled"),
    whole("Ready", "status.numberReady"),
    whole("Up-to-date", "status.updatedNumberScheduled"),
    whole("Available", "status.numberAvailable"),
    AGE,
];

const JOB: &[Column] = &[
    NAME,
    computed("Status", |view| {
        let is_complete = view.holds("Complete");
        json!(if is_complete { "Complete" } else { "Running" })
    }),
    computed("Completions", |view| {
        let wanted = view.at("/spec/completions").and_then(Value::as_i64);
        let succeeded = view.int("/status/succeeded");
        json!(format!("{succeeded}/{}", wanted.unwrap_or(1)))
    }),
    computed("Duration", |view| json!(duration(view))),
    AGE,
];

fn duration(view: &View<'_>) -> String {
    let instant = |pointer| view.str(pointer).parse::<jiff::Timestamp>().ok();
    let Some(start) = instant("/status/startTime") else {
        return String::new();
    };
    let end = instant("/status/completionTime").unwrap_or(view.now);
    human_duration(end.as_second() - start.as_second())
}

const BUDGET: &[Column] = &[
    NAME,
    field("Min Available", "spec.minAvailable").or("N/A"),
    field("Max Unavailable", "spec.maxUnavailable").or("N/A"),
    whole("Allowed Disruptions", "status.disruptionsAllowed"),
    AGE,
];

const LEASE: &[Column] = &[NAME, field("Holder", "spec.holderIdentity"), AGE];

const ATTACHMENT: &[Column] = &[
    NAME,
    field("Attacher", "spec.attacher"),
    field("PV", "spec.source.persistentVolumeName"),
    field("Node", "spec.nodeName"),
    field("Attached", "status.attached").kind("boolean"),
    AGE,
];
