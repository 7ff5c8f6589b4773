//! What users read: events, with their type, their object and their text, and the milestones in the log.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Event;
use karpenter_api::v1::NodeClaim;
use karpenter_api::v1::NodePool;
use karpenter_fixtures::{ARCH, CAPACITY_TYPE, INSTANCE_TYPE, Object};
use karpenter_kwok::CapacityPool;
use serde_json::json;

use crate::lines::Lines;
use crate::world::{World, deployment, node_pool};

/// Not kube-scheduler's.
pub(crate) fn is_ours(event: &Event) -> bool {
    let source = event.source.as_ref();
    source.is_some_and(|source| source.component.as_deref() == Some("karpenter"))
}

async fn ours(world: &World, reason: &str) -> Vec<Event> {
    let mut events = world.events_of(reason).await;
    events.retain(is_ours);
    events
}

/// Type, object and message of the events of a reason.
async fn said(world: &World, reason: &str) -> Vec<[String; 3]> {
    let parts = |event: Event| [event.type_, event.involved_object.kind, event.message];
    let ours = ours(world, reason).await.into_iter();
    ours.map(|event| parts(event).map(Option::unwrap_or_default))
        .collect()
}

/// Every event of the reason has this type, and on each of these kinds one has the text: `*` stands for anything.
async fn assert_said(world: &World, reason: &str, type_: &str, kinds: &[&str], text: &str) {
    let said = said(world, reason).await;
    assert!(!said.is_empty(), "{reason}: {}", world.describe().await);
    assert!(said.iter().all(|[of, _, _]| of == type_), "{said:#?}");
    let (start, end) = text.split_once('*').unwrap_or((text, ""));
    let has = |message: &str| match text.contains('*') {
        true => message.starts_with(start) && message.ends_with(end),
        false => message == text,
    };
    for kind in kinds {
        let own = said.iter().filter(|[_, of, _]| of == kind);
        let text = text.replace("<kind>", kind);
        let mut texts = own.map(|[_, _, message]| message);
        assert!(
            texts.any(|message| has(message) || *message == text),
            "{reason} on {kind}: {said:#?}"
        );
    }
}

async fn on_demand(pool: Object<NodePool>) -> World {
    World::with(pool.requires(CAPACITY_TYPE, "In", &["on-demand"])).await
}

/// A NodePool that no instance type meets.
fn of_no_type() -> Object<NodePool> {
    node_pool("none")
        .without_requirements()
        .requires(INSTANCE_TYPE, "In", &["nothing"])
}

const BOTH: &[&str] = &["Node", "NodeClaim"];

/// Conformance: API-190
#[tokio::test(start_paused = true)]
async fn events_of_scheduling_and_consolidation_have_their_type_object_and_text() {
    let world = on_demand(node_pool("default")).await;
    world.add(of_no_type()).await;
    world
        .add(deployment("nowhere", 1).select(ARCH, "s390x"))
        .await;
    world.run("app", 12).await;
    world.pass(5).await;
    let filtered = "NodePool requirements filtered out all compatible available instance types";
    let nominated = "Pod should schedule on: nodeclaim/*";
    let failed = "Failed to schedule pod, *";
    for (reason, type_, kind, text) in [
        ("Nominated", "Normal", "Pod", nominated),
        ("FailedScheduling", "Warning", "Pod", failed),
        ("NoCompatibleInstanceTypes", "Warning", "NodePool", filtered),
    ] {
        assert_said(&world, reason, type_, &[kind], text).await;
    }

    world.scale("app", 2).await;
    until!(world, 300, "one small node is left", |w| {
        let claims = w.claims().await;
        claims.len() == 1 && w.has_event("DisruptionTerminating").await
    });
    world.until_running(2, 60).await;
    // A node that consolidation has launched is left alone for ten minutes.
    world.pass(900).await;
    let (of_claim, of_pod): (&[_], &[_]) = (&["NodeClaim"], &["Pod"]);
    let registered = "Status condition transitioned, Type: Registered, Status: Unknown -> True, Reason: Registered";
    for (reason, kinds, text) in [
        ("ConsolidationCandidate", BOTH, "terminating 1 candidates *"),
        (
            "DisruptionLaunching",
            of_claim,
            "Launching NodeClaim: Underutilized",
        ),
        (
            "DisruptionWaitingReadiness",
            of_claim,
            "Waiting on readiness to continue disruption",
        ),
        (
            "DisruptionTerminating",
            BOTH,
            "Disrupting <kind>: Underutilized",
        ),
        ("Evicted", of_pod, "Evicted pod: Underutilized"),
        (
            "Unconsolidatable",
            BOTH,
            "Can't replace with a cheaper node",
        ),
        ("Registered", of_claim, registered),
        (
            "Ready",
            &["NodeClaim", "NodePool"],
            "Status condition transitioned, Type: Ready, *",
        ),
        ("Finalized", BOTH, "Finalized karpenter.sh/termination"),
    ] {
        assert_said(&world, reason, "Normal", kinds, text).await;
    }
    let all = said(&world, "ConsolidationCandidate").await;
    assert!(
        all.iter().all(|[_, _, text]| text.contains(" (savings: $")),
        "{all:?}"
    );

    let everything = CapacityPool::default();
    world.cluster.cloud.exhaust(everything);
    world.scale("app", 100).await;
    world.until_event("InsufficientCapacityError", 60).await;
    let all = said(&world, "InsufficientCapacityError").await;
    for [type_, kind, text] in all {
        assert_eq!((&*type_, &*kind), ("Warning", "NodeClaim"));
        let (name, rest) = text.split_once(" event: ").unwrap();
        assert!(name.starts_with("NodeClaim default-"), "{text}");
        assert!(rest.starts_with("insufficient capacity, "), "{text}");
    }
}

/// Conformance: API-191
#[tokio::test(start_paused = true)]
async fn events_of_a_termination_have_their_type_object_and_text() {
    let quiet = node_pool("default")
        .consolidate_after("Never")
        .termination_grace_period("300s");
    let world = on_demand(quiet).await;
    world.add(deployment("app", 1).grace_period(30)).await;
    world.until_running(1, 60).await;
    let refuses = json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}});
    world.patch_pods(refuses).await;
    world.pass(20).await;
    let claim = world.claim().await;
    world.delete::<NodeClaim>(claim.name()).await;
    world.pass(30).await;
    let expiring = "All pods will be deleted by 2026-01-01T00:*Z";
    let draining = "Failed to drain node, 1 pods are waiting to be evicted";
    let blocked = "Node is deleting or marked for deletion";
    for (reason, type_, kinds, text) in [
        ("TerminationGracePeriodExpiring", "Warning", BOTH, expiring),
        ("FailedDraining", "Warning", &["Node"], draining),
        ("DisruptionBlocked", "Normal", BOTH, blocked),
    ] {
        assert_said(&world, reason, type_, kinds, text).await;
    }
    world.until_gone::<NodeClaim>(claim.name(), 400).await;
    let early = "Deleted the pod to accommodate the terminationTime *This bypasses the PDB of the pod and the do-not-disrupt annotation.";
    assert_said(&world, "Disrupted", "Normal", &["Pod"], early).await;
    let all = said(&world, "Disrupted").await;
    assert!(
        all[0][2].contains("30 terminationGracePeriodSeconds"),
        "{all:?}"
    );
}

/// Conformance: API-168
#[tokio::test(start_paused = true)]
async fn the_milestones_of_a_node_are_lines_of_the_log() {
    let lines = Lines::taken();
    let world = World::new().await;
    world.run("app", 1).await;
    world.scale("app", 0).await;
    world.until_empty(300).await;
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let all = lines.of("INFO");
    for line in &all {
        *counts
            .entry(line["message"].as_str().unwrap().to_owned())
            .or_default() += 1;
    }
    for (message, kind) in [
        ("created nodeclaim", "NodeClaim"),
        ("launched nodeclaim", "NodeClaim"),
        ("registered nodeclaim", "NodeClaim"),
        ("initialized nodeclaim", "NodeClaim"),
        ("tainted node", "Node"),
        ("deleted node", "Node"),
        ("deleted nodeclaim", "NodeClaim"),
    ] {
        assert_eq!(counts.get(message), Some(&1), "{message}: {counts:#?}");
        let line = all.iter().find(|line| line["message"] == message).unwrap();
        assert!(line[kind]["name"].is_string(), "{line}");
    }
    let line = |message: &str| all.iter().find(|line| line["message"] == message).unwrap();
    let launched = line("launched nodeclaim");
    for key in ["provider-id", "instance-type", "zone", "capacity-type"] {
        let value = launched[key].as_str().unwrap_or_default();
        assert!(!value.is_empty(), "{key}: {launched}");
    }
    assert!(launched["allocatable"].is_object(), "{launched}");
    let tainted = line("tainted node");
    assert_eq!(tainted["taint.Key"], "karpenter.sh/disrupted");
    assert_eq!(tainted["taint.Effect"], "NoSchedule");
}

/// Returns how often events of a reason were published.
async fn count(world: &World, reason: &str) -> i32 {
    let ours = ours(world, reason).await.into_iter();
    ours.map(|event| event.count.unwrap_or(1)).sum()
}

/// Conformance: API-188
#[tokio::test(start_paused = true)]
async fn an_event_is_published_again_after_its_time() {
    let world = World::new().await;
    world.add(of_no_type()).await;
    world
        .add(deployment("nowhere", 1).select(ARCH, "s390x"))
        .await;
    world.until_event("FailedScheduling", 30).await;
    world.pass(285).await;
    assert_eq!(
        count(&world, "FailedScheduling").await,
        1,
        "within five minutes"
    );
    let filtered = count(&world, "NoCompatibleInstanceTypes").await;
    assert!((4..=6).contains(&filtered), "each minute: {filtered}");
    world.pass(30).await;
    assert_eq!(count(&world, "FailedScheduling").await, 2);

    // A spot node that stays as it is; consolidation looks at it every five minutes at least.
    let world = World::new().await;
    world.run("app", 12).await;
    world.scale("app", 2).await;
    world.until_event("Unconsolidatable", 120).await;
    let published = count(&world, "Unconsolidatable").await;
    world.pass(14 * 60).await;
    assert_eq!(
        count(&world, "Unconsolidatable").await,
        published,
        "within a quarter of an hour"
    );
    world.pass(7 * 60).await;
    assert!(count(&world, "Unconsolidatable").await > published);
}
