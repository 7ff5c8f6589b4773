//! Capacity buffers: their room is kept in a rehearsal, and a change of a buffer is rehearsed.

use std::sync::Arc;

use karpenter_core::capacity_buffer::{Source, pods};
use karpenter_core::pod::Pod;
use karpenter_decisions::bundle::{self, Bundle};
use karpenter_decisions::rehearse::plan::Plan;
use karpenter_decisions::rehearse::{Settings, rehearse};
use serde_json::{Value, json};

use crate::rehearse::world::{World, described, now};

/// The pods of a buffer in namespace `shop`, which request a core each.
fn room(name: &str, count: u32) -> Vec<Arc<Pod>> {
    let buffer =
        json!({ "metadata": { "name": name, "namespace": "shop", "uid": name }, "spec": {} });
    let spec =
        json!({ "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }] });
    let source = Source {
        metadata: None,
        spec: serde_json::from_value(spec).unwrap(),
        scale: None,
    };
    pods(
        &source.chunk(&serde_json::from_value(buffer).unwrap()),
        count,
    )
}

/// Settings with the feature gate, and with two buffer pods on node `a`.
fn with_room() -> Settings {
    let mut settings = with_gate();
    settings.disruption.query.buffer_pods = room("spare", 2);
    let placed = &mut settings.disruption.surroundings.buffer_pods;
    placed.insert("a".to_owned(), 2);
    settings
}

fn with_gate() -> Settings {
    let mut settings = Settings::at(now());
    settings.gates.capacity_buffers = true;
    settings
}

/// A node of four cores with two pods of a core each.
fn half_full() -> World {
    World::new(json!({})).node("a", 4).pods("web", "a", 2)
}

fn plan(world: &World, settings: &Settings, changes: Value) -> Plan {
    let plan = world.ask_with(settings, json!({ "changes": changes }));
    let plan = plan.unwrap();
    assert!(!plan.observed.truncated);
    plan
}

fn refused(world: &World, changes: Value) -> String {
    let asked = json!({ "changes": changes });
    world.ask_with(&with_gate(), asked).unwrap_err().to_string()
}

fn scaled(replicas: u32) -> Value {
    json!({ "scale": { "kind": "Deployment", "namespace": "shop", "name": "web", "replicas": replicas } })
}

fn buffer(spec: Value) -> Value {
    json!({ "apply": { "apiVersion": "autoscaling.x-k8s.io/v1beta1", "kind": "CapacityBuffer", "metadata": { "name": "spare", "namespace": "shop" }, "spec": spec } })
}

fn of_web(more: Value) -> Value {
    let mut spec =
        json!({ "scalableRef": { "apiGroup": "apps", "kind": "Deployment", "name": "web" } });
    for (field, value) in more.as_object().unwrap() {
        spec[field] = value.clone();
    }
    buffer(spec)
}

#[test]
fn pods_that_use_the_room_of_a_buffer_make_room_for_it_elsewhere() {
    let plan = plan(&half_full(), &with_room(), json!([scaled(4)]));
    assert_eq!(described(&plan.steps), ["launch CapacityBuffer 1xm-4"]);
    assert_eq!((plan.after.nodes, plan.after.pending), (2, 0));
    let notes = plan.approximate.join(" ");
    let note = "a percentage of a workload is not followed";
    assert!(notes.contains(note), "{notes}");
}

#[test]
fn a_node_with_buffer_pods_is_empty_only_once_they_are_elsewhere() {
    // The pods end; the buffer has room on `b`, beside the other workload, and on the node of its own.
    let world = half_full();
    let alone = plan(&world, &with_room(), json!([scaled(0)]));
    assert_eq!((alone.after.nodes, alone.evictions.total), (1, 0));
    let steps = described(&alone.steps).join(", ");
    assert!(!steps.contains("Empty"), "{steps}");
    let none = plan(&world, &with_gate(), json!([scaled(0)]));
    assert_eq!(described(&none.steps), ["delete Empty a"]);
}

#[test]
fn the_room_on_a_deleted_node_is_made_again() {
    let plan = plan(&half_full(), &with_room(), json!([{ "removeNode": "a" }]));
    // Of four cores a node has 3.9 for pods: both pods and one of the buffer.
    assert_eq!(
        described(&plan.steps),
        [
            "delete Deleted a",
            "launch Pending 1xm-4",
            "launch CapacityBuffer 1xm-2"
        ]
    );
    assert_eq!((plan.after.nodes, plan.after.pending), (2, 0));
}

#[test]
fn a_new_buffer_of_a_workload_launches_what_its_chunks_need() {
    let (world, settings) = (half_full(), with_gate());
    for (spec, chunks, steps) in [
        (json!({ "replicas": 2 }), 2, vec![]),
        (
            json!({ "replicas": 4 }),
            4,
            vec!["launch CapacityBuffer 1xm-4"],
        ),
        (
            json!({ "percentage": 200 }),
            4,
            vec!["launch CapacityBuffer 1xm-4"],
        ),
        (
            json!({ "percentage": 200, "limits": { "cpu": "3" } }),
            3,
            vec!["launch CapacityBuffer 1xm-2"],
        ),
    ] {
        let plan = plan(&world, &settings, json!([of_web(spec.clone())]));
        let says = format!("CapacityBuffer shop/spare: created with {chunks} chunks");
        assert_eq!(plan.changes, [says], "{spec}");
        assert_eq!(described(&plan.steps), steps, "{spec}");
    }
    // After the scaling, it is a percentage of more pods.
    let changes = json!([scaled(4), of_web(json!({ "percentage": 100 }))]);
    let plan = plan(&world, &settings, changes);
    assert_eq!(
        plan.changes[1],
        "CapacityBuffer shop/spare: created with 4 chunks"
    );
    assert_eq!(
        described(&plan.steps),
        ["launch CapacityBuffer 1xm-4+1xm-2"]
    );
}

#[test]
fn a_buffer_of_a_pod_template_needs_the_template_before_it() {
    let world = half_full();
    let cpu = json!({ "requests": { "cpu": "6" } });
    let template = json!({ "apply": {
        "apiVersion": "v1", "kind": "PodTemplate", "metadata": { "name": "large", "namespace": "shop" },
        "template": { "spec": { "containers": [{ "name": "c", "resources": cpu }] } },
    } });
    let of_template = buffer(json!({ "podTemplateRef": { "name": "large" }, "replicas": 1 }));
    let plan = plan(&world, &with_gate(), json!([template, of_template]));
    assert_eq!(described(&plan.steps), ["launch CapacityBuffer 1xm-8"]);
    assert_eq!(
        refused(&world, json!([of_template])),
        "invalid CapacityBuffer shop/spare: spec.podTemplateRef: PodTemplates of the cluster are not known to a rehearsal: add PodTemplate large before the buffer"
    );
}

#[test]
fn a_changed_buffer_replaces_its_pods_and_a_deleted_one_frees_its_node() {
    let world = half_full();
    let mut settings = with_room();
    let others = room("other", 1);
    settings.disruption.query.buffer_pods.extend(others);
    let more = plan(&world, &settings, json!([of_web(json!({ "replicas": 3 }))]));
    assert_eq!(
        more.changes,
        ["CapacityBuffer shop/spare: template changed, chunks 2 -> 3"]
    );
    let delete =
        json!({ "delete": { "kind": "CapacityBuffer", "namespace": "shop", "name": "spare" } });
    let gone = plan(&world, &with_room(), json!([scaled(0), delete]));
    assert_eq!(gone.changes[1], "CapacityBuffer shop/spare: deleted");
    assert_eq!(described(&gone.steps), ["delete Empty a"]);
    let again = refused(&world, json!([delete]));
    assert_eq!(again, "invalid CapacityBuffer shop/spare: does not exist");
}

#[test]
fn a_buffer_that_cannot_be_rehearsed_is_refused_with_its_field() {
    let world = half_full();
    let of = |kind: &str, name: &str| {
        let target = json!({ "apiGroup": "apps", "kind": kind, "name": name });
        buffer(json!({ "scalableRef": target, "replicas": 1 }))
    };
    for (change, says) in [
        (
            of("Deployment", "gone"),
            "spec.scalableRef: Deployment shop/gone has no pod to copy",
        ),
        (
            of("DaemonSet", "web"),
            "spec.scalableRef: unsupported scalableRef \"apps/DaemonSet\"",
        ),
        (
            buffer(json!({ "replicas": 1 })),
            "spec: either podTemplateRef or scalableRef must be set",
        ),
        (
            buffer(json!({ "podTemplateRef": { "name": "x" } })),
            "replicas or limits must also be set",
        ),
        (
            of_web(json!({ "replicas": 2, "limits": { "cpu": "x" } })),
            "spec.limits",
        ),
        (of_web(json!({ "chunks": 2 })), "spec.chunks: unknown field"),
        (
            of_web(json!({ "replicas": 2_000_000 })),
            "spec: must be at most 10000 pods",
        ),
    ] {
        let error = refused(&world, json!([change]));
        assert!(
            error.starts_with("invalid CapacityBuffer shop/spare: ") && error.contains(says),
            "{error}"
        );
    }
}

#[test]
fn without_the_feature_gate_a_buffer_has_no_effect_and_the_plan_says_so() {
    let change = json!([of_web(json!({ "replicas": 40 }))]);
    let plan = plan(&half_full(), &Settings::at(now()), change);
    assert!(!plan.differs() && plan.steps.is_empty());
    let notes = plan.approximate.join(" ");
    assert!(
        notes.contains("the feature gate CapacityBuffer is off"),
        "{notes}"
    );
}

#[test]
fn a_bundle_with_buffers_has_the_plan_of_the_cluster() {
    let (world, settings) = (half_full(), with_room());
    let asked = json!({ "changes": [scaled(4), of_web(json!({ "replicas": 3 }))] });
    let live = world.ask_with(&settings, asked.clone()).unwrap();
    let mut captured =
        bundle::Settings::new(settings.scheduling.clone(), settings.disruption.clone());
    captured.gates.insert("CapacityBuffer".to_owned(), true);
    let mut file = Vec::new();
    let bundle = Bundle::new("fake", "0.1.0", world.snapshot(), captured);
    bundle::write(&bundle, &mut file).unwrap();
    let read = bundle::read(file.as_slice()).unwrap();
    let request = serde_json::from_value(asked).unwrap();
    let offline = rehearse(&read.snapshot, &Settings::of_bundle(&read), &request).unwrap();
    assert!(
        described(&live.steps)
            .iter()
            .any(|step| step.contains("CapacityBuffer")),
        "{:?}",
        described(&live.steps)
    );
    assert_eq!((offline.steps, offline.digest), (live.steps, live.digest));
}
