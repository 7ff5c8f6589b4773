//! Several replicas: one acts, the others wait; whoever loses the lease stops at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::Request;
use k8s_openapi::api::coordination::v1::Lease;
use karpenter_kube::context::Context as Equipment;
use karpenter_kube::operator::{Operator, OperatorError};
use karpenter_kwok::{KwokNodeClass, KwokProvider, controllers};
use karpenter_testbed::faults::{Fault, Rule};
use kube::Client;
use kube::client::Body;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower::Service;

use crate::world::{World, pool, settings};

/// A connection that can be cut: then nothing is answered any more.
#[derive(Clone)]
struct Cable<S> {
    inner: S,
    cut: Arc<AtomicBool>,
}

impl<S, R> Service<Request<Body>> for Cable<S>
where
    S: Service<Request<Body>, Response = R>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    R: Send + 'static,
{
    type Response = R;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<R, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if self.cut.load(Ordering::SeqCst) {
            return Box::pin(std::future::pending());
        }
        Box::pin(self.inner.call(request))
    }
}

struct Replica {
    cut: Arc<AtomicBool>,
    stop: CancellationToken,
    cx: Arc<Equipment>,
    running: JoinHandle<Result<(), OperatorError>>,
}

impl Replica {
    fn start(world: &World, name: &str, warm: bool) -> Self {
        let cut = Arc::new(AtomicBool::new(false));
        let cable = Cable {
            inner: world.stack.testbed.server().service(false),
            cut: Arc::clone(&cut),
        };
        let client = Client::new(cable, "default");
        let (clock, cloud) = (world.stack.clock, world.stack.cloud.clone());
        let types = settings().instance_types;
        let provider = KwokProvider::new(client.clone(), clock, types, cloud);
        let provider = Arc::new(provider.machines_through(world.client.clone()));
        let kwok = Arc::clone(&provider);
        let mut options = settings().options;
        options.disable_leader_election = false;
        options.disable_controller_warmup = !warm;
        let operator = Operator::builder(provider, client, options)
            .clock(clock)
            .identity(name)
            .with(move |setup| controllers::add(setup, kwok))
            .build();
        let (cx, stop) = (Arc::clone(operator.context()), CancellationToken::new());
        let running = tokio::spawn(operator.run(stop.clone()));
        Self {
            cut,
            stop,
            cx,
            running,
        }
    }
}

async fn world() -> World {
    let mut world = World::bare(settings()).await;
    world.stack.stop_controllers().await;
    world.create(&KwokNodeClass::new("default")).await;
    world.create(&pool("default", json!({}))).await;
    world
}

async fn holder(world: &World) -> String {
    let leases = world.list::<Lease>().await;
    let own = leases
        .into_iter()
        .find(|lease| lease.metadata.name.as_deref() == Some("karpenter-leader-election"));
    let spec = own.and_then(|lease| lease.spec).unwrap_or_default();
    spec.holder_identity.unwrap_or_default()
}

/// How often a change of a condition was told.
async fn transitions(world: &World) -> i32 {
    let events = world.events().await;
    let told = events.iter().filter(|e| {
        let message = e.message.as_deref().unwrap_or_default();
        message.starts_with("Status condition transitioned")
    });
    told.map(|e| e.count.unwrap_or(1)).sum()
}

#[tokio::test(start_paused = true)]
async fn one_replica_acts_and_another_takes_over_when_it_loses_the_lease() {
    let world = world().await;
    let first = Replica::start(&world, "first", false);
    world.pass(3).await;
    let second = Replica::start(&world, "second", false);
    world.deploy("app", 1).await;
    world.until_running(1, 60).await;
    assert_eq!(holder(&world).await, "first");
    assert!(first.cx.view().is_synced() && !second.cx.view().is_synced());
    let shown = |replica: &Replica| {
        let text = replica.cx.metrics.registry.render();
        let mut lines = text.lines();
        let line = lines.find_map(|l| l.strip_prefix("leader_election_master_status"));
        line.unwrap_or_default().to_owned()
    };
    let name = "{name=\"karpenter-leader-election\"}";
    assert_eq!(shown(&first), format!("{name} 1"));
    assert_eq!(shown(&second), format!("{name} 0"));

    first.cut.store(true, Ordering::SeqCst);
    let cut = world.stack.clock.now();
    let ended = first.running.await.unwrap();
    assert!(matches!(ended, Err(OperatorError::LeaseLost)), "{ended:?}");
    // Requests of the first hang for ever: it does not wait for them.
    let took = world.stack.clock.since(cut).as_secs_f64();
    assert!(took <= 10.5, "it acted on for {took} s");
    assert_eq!(
        holder(&world).await,
        "first",
        "nobody else leads before it has stopped"
    );

    world.deploy("other", 1).await;
    world.until_running(2, 60).await;
    assert_eq!(holder(&world).await, "second");
    second.stop.cancel();
    assert!(second.running.await.unwrap().is_ok());
    assert_eq!(holder(&world).await, "", "the lease is let go");
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_stops_hands_over_at_once_to_one_that_knows_the_cluster_already() {
    let world = world().await;
    let first = Replica::start(&world, "first", true);
    world.pass(3).await;
    let second = Replica::start(&world, "second", true);
    world.deploy("app", 2).await;
    world.until_running(2, 60).await;
    world.pass(30).await;
    assert!(second.cx.view().is_synced(), "its model is warm");
    assert_eq!(
        world.claims().await.len(),
        second.cx.view().snapshot.node_claims().count()
    );
    let before = transitions(&world).await;
    assert!(before > 0);
    first.stop.cancel();
    assert!(first.running.await.unwrap().is_ok());
    world
        .until(5, "the second leads", async |w| holder(w).await == "second")
        .await;
    world.pass(10).await;
    assert_eq!(
        transitions(&world).await,
        before,
        "old news is not told twice"
    );
    world.deploy("other", 1).await;
    world.until_running(3, 60).await;
    second.stop.cancel();
    assert!(second.running.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_write_to_the_lease_that_comes_in_between_costs_no_leadership() {
    let world = world().await;
    let first = Replica::start(&world, "first", false);
    world.pass(5).await;
    assert_eq!(holder(&world).await, "first");
    let raced = Rule::new(Fault::Conflict).verb("update").resource("leases");
    let faults = world.stack.testbed.faults();
    faults.set(vec![raced.clone().times(3)]);
    world.pass(30).await;
    assert!(!first.running.is_finished(), "three races of five");
    assert_eq!(holder(&world).await, "first");
    faults.set(vec![raced]);
    let ended = first.running.await.unwrap();
    assert!(matches!(ended, Err(OperatorError::LeaseLost)), "{ended:?}");
}
