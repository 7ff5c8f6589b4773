//! Volume claims.

use serde_json::{Value, json};

use super::{World, ZONE, merge};
use crate::loops::scheduler::engine::{ClaimBinding, Decision};

fn claim(world: &mut World, name: &str, class: &str, volume: Option<&str>) {
    let claim = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"storageClassName": class, "volumeName": volume, "accessModes": ["ReadWriteOnce"],
                 "resources": {"requests": {"storage": "1Gi"}}}
    });
    world
        .engine
        .volumes()
        .apply_claim(&serde_json::from_value(claim).unwrap());
}

fn class(world: &mut World, name: &str, zones: &[&str]) {
    let mut class = json!({"metadata": {"name": name}, "provisioner": "ebs", "volumeBindingMode": "WaitForFirstConsumer"});
    if !zones.is_empty() {
        merge(
            &mut class,
            &json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": ZONE, "values": zones}]}]}),
        );
    }
    world
        .engine
        .volumes()
        .apply_class(&serde_json::from_value(class).unwrap());
}

fn mounting(claim: &str) -> Value {
    json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]})
}

#[test]
fn claims_reject_pods_before_and_at_nodes() {
    let mut world = World::new();
    world.zone("a", "a");
    world.pod("missing", mounting("none"));
    claim(&mut world, "now", "immediate", None);
    world.pod("unbound", mounting("now"));
    claim(&mut world, "lost", "", Some("gone"));
    world.pod("lost", mounting("lost"));
    class(&mut world, "zonal", &["b"]);
    claim(&mut world, "elsewhere", "zonal", None);
    world.pod("elsewhere", mounting("elsewhere"));
    let volume = json!({"metadata": {"name": "pv"}, "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["b"]}]}]}}}});
    world
        .engine
        .volumes()
        .apply_volume(&serde_json::from_value(volume).unwrap());
    claim(&mut world, "far", "", Some("pv"));
    world.pod("far", mounting("far"));
    assert_eq!(
        world.run(),
        [
            "missing: 0/1 nodes are available: persistentvolumeclaim \"none\" not found.",
            "unbound: 0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
            "lost: 0/1 nodes are available: 1 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s).",
            "elsewhere: 0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind.",
            "far: 0/1 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity.",
        ]
    );
}

#[test]
fn a_waiting_claim_gets_a_volume_on_the_node_of_the_pod() {
    let mut world = World::new();
    world.zone("a", "a");
    class(&mut world, "any", &[]);
    claim(&mut world, "data", "any", None);
    world.pod("p", mounting("data"));
    let Some(Decision::Bind { claims, .. }) = world.engine.next(world.now) else {
        panic!("not bound");
    };
    assert_eq!(
        claims,
        [ClaimBinding::Provision {
            claim: ("default".to_owned(), "data".to_owned()),
            volume: "pvc-data".to_owned(),
            topology: vec![(ZONE.to_owned(), "a".to_owned())],
        }]
    );
    // A second pod of the claim must be placed where the volume will be.
    world.zone("b", "b");
    world.engine.apply_node(
        &serde_json::from_value(json!({"metadata": {"name": "a", "labels": {ZONE: "a"}},
        "spec": {"unschedulable": true}, "status": {"allocatable": {"cpu": "4", "pods": "10"}}}))
        .unwrap(),
    );
    world.pod("q", mounting("data"));
    assert_eq!(
        world.run(),
        [
            "q: 0/2 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity, 1 node(s) were unschedulable."
        ]
    );
}

#[test]
fn attach_limits_hold() {
    let mut world = World::new();
    world.zone("a", "a");
    world
        .engine
        .set_driver("a", "ebs", Some(1), vec![ZONE.to_owned()]);
    class(&mut world, "any", &[]);
    claim(&mut world, "one", "any", None);
    claim(&mut world, "two", "any", None);
    world.pod("p1", mounting("one"));
    world.pod("p2", mounting("two"));
    assert_eq!(
        world.run(),
        [
            "p1 -> a",
            "p2: 0/1 nodes are available: 1 node(s) exceed max volume count."
        ]
    );
}
