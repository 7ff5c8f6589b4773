//! The controllers are killed at any point and restarted: no instance is lost, none is launched twice (invariant I7).

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{Method, Request};
use k8s_openapi::api::core::v1::Node;
use karpenter_api::v1::NodeClaim;
use karpenter_fixtures::pdb;
use karpenter_lab::local_cluster::LocalCluster;
use karpenter_testbed::faults::{Fault, Rule};
use kube::Client;
use kube::client::Body;
use tower::Service;

use crate::world::{World, node_pool};

/// What happens to the last write before the kill.
#[derive(Debug, Clone, Copy)]
enum LastWrite {
    /// It never reaches the API server.
    Unsent,
    /// The API server executes it, and its response is lost.
    Unanswered,
}

/// A connection that passes this many writes, and then nothing, as when the process is killed.
#[derive(Clone)]
struct Fuse<S> {
    inner: S,
    left: Arc<AtomicI64>,
    last: LastWrite,
}

impl<S, R> Service<Request<Body>> for Fuse<S>
where
    S: Service<Request<Body>, Response = R> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    R: Send + 'static,
{
    type Response = R;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<R, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let writes = request.method() != Method::GET && !request.uri().path().contains("/events");
        let left = if writes {
            self.left.fetch_sub(1, Ordering::SeqCst)
        } else {
            self.left.load(Ordering::SeqCst)
        };
        let blown = left <= 0 || (writes && left == 1 && matches!(self.last, LastWrite::Unsent));
        if blown {
            return Box::pin(std::future::pending());
        }
        let unanswered = writes && left == 1;
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            if unanswered {
                std::future::pending().await
            } else {
                answer
            }
        })
    }
}

fn dying_client(cluster: &LocalCluster, writes: i64, last: LastWrite) -> Client {
    let inner = cluster.testbed.server().service(false);
    Client::new(
        Fuse {
            inner,
            left: Arc::new(AtomicI64::new(writes)),
            last,
        },
        "default",
    )
}

/// Kills the controllers after this many writes, and restarts them some time later.
async fn survive(writes: i64, last: LastWrite) {
    let mut world = World::new().await;
    world.cluster.stop_controllers().await;
    let client = dying_client(&world.cluster, writes, last);
    world.cluster.start_controllers_as(client);
    world.deploy("inflate", 2).await;
    world.pass(25).await;
    world.scale("inflate", 0).await;
    world.pass(25).await;
    world.cluster.abandon_controllers();
    world.cluster.start_controllers();
    world.scale("inflate", 2).await;
    world.until_running(2, 120).await;
    world.assert_no_orphans().await;
    world.scale("inflate", 0).await;
    world.until_empty(1200).await;
    world.cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_kill_before_a_write_loses_no_object() {
    for writes in (1..=24).step_by(4) {
        survive(writes, LastWrite::Unsent).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_kill_after_a_write_loses_no_object() {
    for writes in (2..=24).step_by(4) {
        survive(writes, LastWrite::Unanswered).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_draining_instance_survives_a_restart_in_every_order_of_lists() {
    let mut world = World::new().await;
    world.deploy("app", 2).await;
    world.until_running(2, 60).await;
    world.add(pdb("app").max_unavailable(0)).await;
    world.pass(5).await;
    let claim = world.claims().await.remove(0);
    world.delete::<NodeClaim>(claim.name()).await;
    world.pass(60).await;
    let before = pods(&world).await;
    for late in ["nodes", "pods", "nodeclaims", "poddisruptionbudgets"] {
        world.cluster.stop_controllers().await;
        let slow = Rule::new(Fault::Latency(Duration::from_secs(60)));
        let slow = slow.verb("list").resource(late);
        world.cluster.testbed.faults().set(vec![slow]);
        world.cluster.start_controllers();
        world.pass(120).await;
        assert_eq!(pods(&world).await, before, "{late} are listed last");
        let instances = world.cluster.cloud.instances();
        let there = instances.iter().any(|m| m.claim_uid == claim.uid());
        assert!(there, "{late} are listed last");
    }
}

/// Returns name and node of every pod.
async fn pods(world: &World) -> Vec<(Option<String>, Option<String>)> {
    let all = world.pods().await;
    let of = |pod: k8s_openapi::api::core::v1::Pod| {
        (pod.metadata.name, pod.spec.and_then(|spec| spec.node_name))
    };
    all.into_iter().map(of).collect()
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_pods_that_the_controllers_have_not_observed() {
    let mut world = World::with(node_pool("default").budgets(&["0"])).await;
    world.deploy("first", 1).await;
    world.until_running(1, 60).await;
    world.scale("first", 0).await;
    world.pass(10).await;
    world.cluster.stop_controllers().await;
    let broken = Rule::new(Fault::Error(500));
    let broken = broken.verb("watch").resource("pods");
    world.cluster.testbed.faults().set(vec![broken]);
    world.cluster.start_controllers();
    world.pass(10).await;
    world.deploy("second", 1).await;
    world.until_running(1, 60).await;
    let node = world.node_name().await;
    world.delete::<Node>(&node).await;
    world.pass(60).await;
    assert_eq!(world.progress().await.running, 1, "its instance is running");
    world.cluster.testbed.faults().clear();
    world.until_gone::<Node>(&node, 120).await;
    world.until_running(1, 120).await;
}
