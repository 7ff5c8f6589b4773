//! Several replicas: one is the leader, the others wait; a replica that loses the lease stops at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::Request;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use karpenter_api::v1::NodePool;
use karpenter_kube::admin::Probe;
use karpenter_kube::context::Context as Equipment;
use karpenter_kube::operator::{ControllerRegistry, Operator, OperatorError};
use karpenter_kwok::{KWOKNodeClass, KwokProvider, controllers};
use kube::Client;
use kube::client::Body;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower::Service;

use crate::lines::Lines;
use crate::world::{World, node_pool, settings};

/// A connection that can be cut: then requests are not answered any more.
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
    ready: Probe,
    running: JoinHandle<Result<(), OperatorError>>,
}

impl Replica {
    fn start(world: &World, name: &str, warm: bool) -> Self {
        Self::start_with(world, name, warm, |_| {})
    }

    fn start_with(
        world: &World,
        name: &str,
        warm: bool,
        extension: impl FnOnce(&mut ControllerRegistry) + Send + 'static,
    ) -> Self {
        let cut = Arc::new(AtomicBool::new(false));
        let cable = Cable {
            inner: world.cluster.testbed.server().service(false),
            cut: Arc::clone(&cut),
        };
        let client = Client::new(cable, "default");
        let (clock, cloud) = (world.cluster.clock, world.cluster.cloud.clone());
        let types = settings().instance_types;
        let provider = KwokProvider::new(client.clone(), clock, types, cloud);
        let provider = Arc::new(provider.instances_through(world.client.clone()));
        let kwok = Arc::clone(&provider);
        let mut options = settings().options;
        options.disable_leader_election = false;
        options.disable_controller_warmup = !warm;
        let mut operator = Operator::builder(provider, client, options)
            .clock(clock)
            .identity(name)
            .with(move |controllers| controllers::add(controllers, kwok))
            .with(extension)
            .build();
        let (cx, stop) = (Arc::clone(operator.context()), CancellationToken::new());
        let ready = operator.readiness();
        let running = tokio::spawn(operator.run(stop.clone()));
        Self {
            cut,
            stop,
            cx,
            ready,
            running,
        }
    }
}

async fn world() -> World {
    let mut world = World::bare(settings()).await;
    world.cluster.stop_controllers().await;
    world
        .create(&KWOKNodeClass::new("default", Default::default()))
        .await;
    world.add(node_pool("default")).await;
    world
}

async fn holder(world: &World) -> String {
    let mut leases = world.list::<Lease>().await.into_iter();
    let own = leases.find(|it| it.metadata.name.as_deref() == Some("karpenter-leader-election"));
    let spec = own.and_then(|lease| lease.spec).unwrap_or_default();
    spec.holder_identity.unwrap_or_default()
}

/// Returns how often a change of a condition was published.
async fn transitions(world: &World) -> i32 {
    let events = world.events().await;
    let transitions = events.iter().filter(|e| {
        let message = e.message.as_deref().unwrap_or_default();
        message.starts_with("Status condition transitioned")
    });
    transitions.map(|e| e.count.unwrap_or(1)).sum()
}

/// Conformance: API-158, API-161, API-180
#[tokio::test(start_paused = true)]
async fn one_replica_leads_and_another_takes_over_when_it_loses_the_lease() {
    let world = world().await;
    let first = Replica::start(&world, "first", false);
    world.pass(3).await;
    let second = Replica::start(&world, "second", false);
    world.run("app", 1).await;
    assert_eq!(holder(&world).await, "first");
    assert!(first.cx.view().is_synced() && !second.cx.view().is_synced());
    let shown = |replica: &Replica| {
        let text = replica.cx.metrics.registry.render();
        let mut lines = text.lines();
        let line = lines.find_map(|l| l.strip_prefix("leader_election_master_status"));
        line.unwrap_or_default().to_owned()
    };
    let of_cluster = |replica: &Replica| {
        let text = replica.cx.metrics.registry.render();
        text.contains("karpenter_cluster_state") || text.contains("karpenter_nodes_allocatable")
    };
    assert!(of_cluster(&first) && !of_cluster(&second));
    let name = "{name=\"karpenter-leader-election\"}";
    assert_eq!(shown(&first), format!("{name} 1"));
    assert_eq!(shown(&second), format!("{name} 0"));

    first.cut.store(true, Ordering::SeqCst);
    let cut = world.cluster.clock.now();
    let ended = first.running.await.unwrap();
    assert!(matches!(ended, Err(OperatorError::LeaseLost)), "{ended:?}");
    // Requests of the first replica hang forever: it does not wait for them.
    let took = world.cluster.clock.since(cut).as_secs_f64();
    assert!(took <= 12.5, "it kept running for {took} s");
    assert_eq!(
        holder(&world).await,
        "first",
        "no other replica leads before it has stopped"
    );

    world.deploy("other", 1).await;
    world.until_running(2, 60).await;
    assert_eq!(holder(&world).await, "second");
    second.stop.cancel();
    assert!(second.running.await.unwrap().is_ok());
    assert_eq!(holder(&world).await, "", "the lease is released");
}

/// Conformance: API-158
#[tokio::test(start_paused = true)]
async fn a_replica_that_stops_hands_over_at_once_to_a_warm_standby() {
    let world = world().await;
    let first = Replica::start(&world, "first", true);
    world.pass(3).await;
    let second = Replica::start(&world, "second", true);
    world.run("app", 2).await;
    world.pass(30).await;
    assert!(second.cx.view().is_synced(), "its model is warm");
    assert_eq!(
        world.claims().await.len(),
        second.cx.view().snapshot.node_claims().count()
    );
    let text = second.cx.metrics.registry.render();
    for shown in [
        "karpenter_cluster_state",
        "karpenter_pods_",
        "karpenter_nodes_",
        "karpenter_nodepools_",
        "operator_",
    ] {
        assert!(!text.contains(shown), "{shown} would count twice");
    }
    let before = transitions(&world).await;
    assert!(before > 0);
    first.stop.cancel();
    assert!(first.running.await.unwrap().is_ok());
    until!(world, 5, "the second leads", |w| holder(w).await
        == "second");
    world.pass(10).await;
    assert_eq!(
        transitions(&world).await,
        before,
        "old events are not published twice"
    );
    world.deploy("other", 1).await;
    world.until_running(3, 60).await;
    world.pass(5).await;
    let text = second.cx.metrics.registry.render();
    assert!(text.contains("karpenter_cluster_state_synced 1"));
    let counted = "karpenter_pods_startup_duration_seconds_count 1";
    assert!(text.contains(counted), "the one pod it has started");
    second.stop.cancel();
    assert!(second.running.await.unwrap().is_ok());
}

/// Conformance: API-161, API-162
#[tokio::test(start_paused = true)]
async fn a_replica_is_ready_once_synced_or_in_standby_once_it_could_list() {
    let world = world().await;
    let first = Replica::start(&world, "first", false);
    assert!((first.ready)().is_err(), "before it has listed");
    world.pass(5).await;
    assert_eq!((first.ready)(), Ok(()), "it leads");
    let [cold, warm] = [false, true].map(|warm| Replica::start(&world, "second", warm));
    world.pass(5).await;
    assert_eq!(holder(&world).await, "first");
    assert!(!cold.cx.view().is_synced() && warm.cx.view().is_synced());
    assert_eq!(((cold.ready)(), (warm.ready)()), (Ok(()), Ok(())));
}

/// Conformance: API-162
#[tokio::test(start_paused = true)]
async fn replicas_without_the_crds_are_not_ready_and_log_the_reason() {
    let world = world().await;
    let first = Replica::start(&world, "first", false);
    world.pass(5).await;
    world.delete::<NodePool>("default").await;
    let missing = "nodeclaims.karpenter.sh";
    world.delete::<CustomResourceDefinition>(missing).await;
    world.pass(5).await;
    let lines = Lines::taken();
    let cold = Replica::start(&world, "cold", false);
    let warm = Replica::start(&world, "warm", true);
    world.pass(120).await;
    for replica in [&cold, &warm] {
        assert!((replica.ready)().is_err());
    }
    let reason = (cold.ready)().unwrap_err();
    assert!(reason.contains("nodeclaims"), "{reason}");
    // The first replica's watch fails as well.
    let errors = |kind: &str| {
        let errors = lines.of("ERROR").into_iter();
        let own = errors.filter(|line| line["kind"] == kind && line["logger"] != "lease");
        own.filter(|line| line["error"].as_str().unwrap().contains("404"))
            .count()
    };
    assert!(
        (2..=6).contains(&errors("NodeClaim")),
        "{:?}",
        lines.of("ERROR")
    );
    assert!((1..=3).contains(&errors("NodePool, NodeClaim")));
    assert_eq!(errors("Pod"), 0);

    let definitions = karpenter_api::crd::all(&[], &[]).into_iter();
    let definitions = definitions.map(|(_, definition)| definition);
    world.cluster.testbed.apply_crds(definitions).await.unwrap();
    world.pass(120).await;
    assert_eq!(((cold.ready)(), (warm.ready)()), (Ok(()), Ok(())));
    let again = lines.of("INFO").into_iter();
    let again = again.filter(|line| line["message"] == "listing and watching again");
    assert!(again.count() >= 2);
    drop(first);
}

/// The objects it cannot list may need its conversion.
#[tokio::test(start_paused = true)]
async fn a_replica_with_the_conversion_webhook_is_ready_before_it_is_synced() {
    let world = world().await;
    let classes = "kwoknodeclasses.karpenter.kwok.sh";
    world.delete::<CustomResourceDefinition>(classes).await;
    let converts = |name| Replica::start_with(&world, name, false, ControllerRegistry::converts);
    let first = converts("first");
    world.pass(30).await;
    assert_eq!(holder(&world).await, "first");
    assert!(!first.cx.view().is_synced());
    assert_eq!((first.ready)(), Ok(()));
    let other = Replica::start(&world, "other", true);
    world.pass(30).await;
    assert!((other.ready)().is_err(), "one that does not");
    let pools = "nodepools.karpenter.sh";
    world.delete::<CustomResourceDefinition>(pools).await;
    let third = converts("third");
    world.pass(30).await;
    assert!((third.ready)().is_err(), "there is nothing to convert");
}
