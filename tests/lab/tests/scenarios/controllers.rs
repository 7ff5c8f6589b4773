//! Which controllers run, how many of their reconciliations at a time, and how often the periodic ones do.

use std::collections::BTreeMap;

use karpenter_fixtures::ARCH;
use karpenter_kube::options::FeatureGates;

use crate::cloud::Scripted;
use crate::world::{World, deployment, settings};

/// Controllers of the reference, with the reconciliations that run at a time on one core.
const CONTROLLERS: [(&str, f64); 22] = [
    ("capacitybuffer", 10.0),
    ("disruption", 1.0),
    ("eviction-queue", 100.0),
    ("node.health", 10.0),
    ("node.hydration", 1000.0),
    ("node.termination", 100.0),
    ("nodeclaim.consistency", 10.0),
    ("nodeclaim.disruption", 10.0),
    ("nodeclaim.expiration", 10.0),
    ("nodeclaim.garbagecollection", 1.0),
    ("nodeclaim.hydration", 1000.0),
    ("nodeclaim.lifecycle", 1000.0),
    ("nodeclaim.podevents", 10.0),
    ("nodeoverlay.controller", 1.0),
    ("nodepool.hash", 10.0),
    ("nodepool.status", 10.0),
    ("provisioner", 1.0),
    ("state.nodeclaimgc", 10.0),
    ("static.deprovisioning", 10.0),
    ("static.provisioning", 10.0),
    // The provider's own.
    ("kwok.instances", 10.0),
    ("kwoknodeclass.status", 10.0),
];

async fn running(cpu_requests: i64, gates: FeatureGates) -> BTreeMap<String, f64> {
    let mut settings = settings();
    settings.options.cpu_requests = cpu_requests;
    settings.options.feature_gates = gates;
    let world = World::bare(settings).await;
    world.pass(5).await;
    let text = world.cluster.registry.render();
    let start = "controller_runtime_max_concurrent_reconciles{controller=\"";
    let lines = text.lines().filter_map(|line| line.strip_prefix(start));
    let one = |line: &str| {
        let (name, value) = line.split_once("\"} ").unwrap();
        (name.to_owned(), value.parse().unwrap())
    };
    lines.map(one).collect()
}

fn all_gates() -> FeatureGates {
    FeatureGates {
        node_repair: true,
        node_overlay: true,
        static_capacity: true,
        capacity_buffer: true,
        ..FeatureGates::default()
    }
}

/// Conformance: API-164, DIS-132
#[tokio::test(start_paused = true)]
async fn controllers_have_their_names_and_as_many_workers_as_cores_allow() {
    let expected = CONTROLLERS.map(|(name, most)| (name.to_owned(), most));
    assert_eq!(running(1000, all_gates()).await, expected.into());
    let sixty = running(60_000, all_gates()).await;
    for (name, most) in [
        ("nodeclaim.lifecycle", 5000.0),
        ("nodeclaim.hydration", 5000.0),
        ("node.termination", 5000.0),
        ("nodeclaim.disruption", 1000.0),
        ("nodepool.hash", 1000.0),
        ("static.provisioning", 10.0),
        ("provisioner", 1.0),
    ] {
        assert_eq!(sixty[name], most, "{name}");
    }
}

/// Conformance: DIS-133
#[tokio::test(start_paused = true)]
async fn what_a_gate_closes_does_not_run() {
    let closed = running(1000, FeatureGates::default()).await;
    for name in [
        "node.health",
        "nodeoverlay.controller",
        "static.provisioning",
        "static.deprovisioning",
        "capacitybuffer",
    ] {
        assert!(!closed.contains_key(name), "{name}");
    }
    assert_eq!(closed.len(), CONTROLLERS.len() - 5);
}

/// Conformance: DIS-135
#[tokio::test(start_paused = true)]
async fn instances_are_listed_every_ten_seconds_then_every_two_minutes() {
    let mut world = World::new().await;
    let cloud = Scripted::in_world(&mut world, Vec::new()).await;
    world.pass(20 * 10 + 5 * 120).await;
    let gaps = cloud.gaps("list").into_iter().map(f64::round);
    let gaps: Vec<f64> = gaps.collect();
    let quick = gaps.iter().take_while(|gap| **gap == 10.0).count();
    assert!((18..=20).contains(&quick), "{gaps:?}");
    let then = &gaps[quick..];
    assert!(
        then.len() >= 4 && then.iter().all(|gap| *gap == 120.0),
        "{gaps:?}"
    );
}

/// Conformance: SCH-179
#[tokio::test(start_paused = true)]
async fn pods_that_wait_are_planned_again_every_ten_seconds() {
    let world = World::new().await;
    world.add(deployment("app", 1).select(ARCH, "s390x")).await;
    world.pass(30).await;
    let passes = || {
        let count =
            "karpenter_scheduler_scheduling_duration_seconds_count{controller=\"provisioner\"}";
        world.metric(count).unwrap()
    };
    let before = passes();
    world.pass(110).await;
    // Each ten seconds a batch opens, and closes a second later.
    assert!(
        (9.0..=11.0).contains(&(passes() - before)),
        "{}",
        passes() - before
    );
}
