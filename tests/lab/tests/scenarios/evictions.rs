//! Evictions: what is reported about them, and pods that are deleted or replaced meanwhile.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use karpenter_core::pod::Pod as ModelPod;
use karpenter_fixtures::{Object, pod};
use karpenter_kube::controller::{Controller, Next, Queue};
use karpenter_kube::node::eviction::EvictionQueue;
use karpenter_testbed::faults::{Fault, Rule};
use kube::Api;
use kube::api::{DeleteParams, PostParams};

use crate::world::{World, node_pool, settings};

/// A cluster with one pod on one node that is not consolidated.
async fn running() -> World {
    let pool = node_pool("default").consolidate_after("Never");
    let world = World::with(pool).await;
    world.run("app", 1).await;
    world
}

fn pods(world: &World) -> Api<Pod> {
    Api::namespaced(world.client.clone(), "default")
}

async fn create(world: &World, pod: Object<Pod>) -> Pod {
    let pod = pod.as_written().build();
    let created = pods(world).create(&PostParams::default(), &pod).await;
    created.unwrap()
}

/// Creates a pod `name` on the only node, and waits until the controllers know it.
async fn bound(world: &World, name: &str) -> Pod {
    let on = world.node_name().await;
    let created = create(world, pod(name).set("/spec/nodeName", on.as_str())).await;
    world.pass(5).await;
    created
}

async fn events(world: &World, reason: &str) -> Vec<Event> {
    let all = world.events().await.into_iter();
    all.filter(|e| e.reason.as_deref() == Some(reason))
        .collect()
}

fn ago(world: &World, seconds: i64) -> Option<Timestamp> {
    let now = world.cluster.clock.now();
    let past = now.saturating_sub(SignedDuration::from_secs(seconds));
    Some(past.unwrap())
}

/// Conformance: DIS-072
#[tokio::test(start_paused = true)]
async fn a_pod_deleted_or_replaced_before_its_deadline_counts_as_deleted() {
    let mut world = running().await;
    let gone = bound(&world, "gone").await;
    let replaced = bound(&world, "replaced").await;
    let cx = Arc::clone(world.cluster.context().unwrap());
    let deadline = ago(&world, 1);
    // From now on the model of these controllers lags behind.
    world.cluster.stop_controllers().await;
    for name in ["gone", "replaced"] {
        let at_once = DeleteParams::default().grace_period(0);
        pods(&world).delete(name, &at_once).await.unwrap();
    }
    let later = create(&world, pod("replaced")).await;
    let queue = Queue::new();
    let evictions = EvictionQueue::new(Arc::clone(&cx), queue.clone());
    for known in [gone, replaced] {
        evictions.add(&[Arc::new(ModelPod::parse(&known))], deadline);
        let outcome = evictions.reconcile(queue.next().unwrap()).await;
        assert_eq!(outcome.unwrap(), Next::Wait, "{:?}", known.metadata.name);
    }
    let alive = pods(&world).get("replaced").await.unwrap();
    assert_eq!(alive.metadata.uid, later.metadata.uid);
    assert_eq!(alive.metadata.deletion_timestamp, None);
}

/// Conformance: DIS-072
#[tokio::test(start_paused = true)]
async fn a_pod_that_replaced_an_unprotected_one_is_not_evicted_for_it() {
    let mut world = running().await;
    let known = bound(&world, "replaced").await;
    let cx = Arc::clone(world.cluster.context().unwrap());
    // From now on the model of these controllers lags behind.
    world.cluster.stop_controllers().await;
    let at_once = DeleteParams::default().grace_period(0);
    pods(&world).delete("replaced", &at_once).await.unwrap();
    let later = create(&world, pod("replaced")).await;
    let queue = Queue::new();
    let evictions = EvictionQueue::new(Arc::clone(&cx), queue.clone());
    evictions.add(&[Arc::new(ModelPod::parse(&known))], None);
    let outcome = evictions.reconcile(queue.next().unwrap()).await;
    assert_eq!(outcome.unwrap(), Next::After(Duration::from_secs(30)));
    let alive = pods(&world).get("replaced").await.unwrap();
    assert_eq!(alive.metadata.uid, later.metadata.uid);
    assert_eq!(alive.metadata.deletion_timestamp, None);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_the_api_server_refuses_is_tried_again() {
    let world = running().await;
    let known = bound(&world, "p").await;
    let refused = Fault::Error(403);
    let rule = Rule::new(refused).verb("delete").resource("pods");
    world.cluster.testbed.faults().add(rule.times(1));
    let cx = Arc::clone(world.cluster.context().unwrap());
    let queue = Queue::new();
    let evictions = EvictionQueue::new(Arc::clone(&cx), queue.clone());
    evictions.add(&[Arc::new(ModelPod::parse(&known))], ago(&world, 1));
    let key = queue.next().unwrap();
    let deleting = async || {
        let pod = pods(&world).get_opt("p").await.unwrap();
        pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some())
    };
    assert!(evictions.reconcile(key.clone()).await.is_err());
    assert!(!deleting().await);
    assert_eq!(evictions.reconcile(key).await.unwrap(), Next::Wait);
    assert!(deleting().await);
}

/// Conformance: API-092
#[tokio::test(start_paused = true)]
async fn the_end_of_a_pod_s_protection_is_published_while_it_blocks_a_drain() {
    let world = running().await;
    let on = world.node_name().await;
    let protected = pod("p").annotation("karpenter.sh/do-not-disrupt", "1h");
    create(&world, protected.set("/spec/nodeName", on.as_str())).await;
    world.pass(30).await;
    world.delete::<Node>(&on).await;
    world.pass(10).await;
    let reported = events(&world, "DoNotDisruptUntil").await;
    let about: Vec<_> = reported.iter().map(|e| &e.involved_object.name).collect();
    assert_eq!(about, [&Some("p".to_owned())]);
    let claims = world.claims().await.into_iter();
    let mut own = claims.filter(|claim| claim.status.node_name.as_deref() == Some(&on));
    assert!(own.next().unwrap().is_deleting(), "with its Node");
}

/// Conformance: API-092
#[tokio::test(start_paused = true)]
async fn an_invalid_do_not_disrupt_annotation_is_reported_at_once_about_its_pod() {
    // No other controller changes the pods.
    let mut settings = settings();
    settings.loops.scheduler = false;
    let world = World::bare(settings).await;
    let protected = |name: &str, value: &str| {
        let pod = pod(name);
        pod.annotation("karpenter.sh/do-not-disrupt", value)
    };
    create(&world, protected("valid", "1h")).await;
    let created = create(&world, protected("p", "soon")).await;
    world.pass(3).await;
    let reported = events(&world, "InvalidDoNotDisruptAnnotation").await;
    let about: Vec<_> = reported.iter().map(|e| &e.involved_object).collect();
    assert_eq!(about.len(), 1);
    assert_eq!(about[0].kind.as_deref(), Some("Pod"));
    assert_eq!(about[0].name.as_deref(), Some("p"));
    assert_eq!(about[0].namespace.as_deref(), Some("default"));
    assert_eq!(about[0].api_version.as_deref(), Some("v1"));
    assert_eq!(about[0].uid, created.metadata.uid);
}
