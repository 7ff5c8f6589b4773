//! A shadow beside our own controllers: it decides as they do, tells what it would do otherwise, and writes nothing.

use std::sync::Arc;

use karpenter_api::v1::NodePool;
use karpenter_core::disruption::{Candidate, Command, DisruptionRequest, plan};
use karpenter_decisions::change::{Change, apply};
use karpenter_decisions::shadow::ShadowReport;
use karpenter_kube::metrics::Registry;
use karpenter_kube::options::Options;
use karpenter_lab::local_cluster::{LocalClusterSettings, Replica};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tower::Service as _;

use crate::decisions::{ask, free_port, get, served};
use crate::disruption::drift;
use crate::world::{World, settings};

/// A cluster with controllers, and a shadow beside them with a connection of its own.
struct Beside {
    world: World,
    shadow: Replica,
    registry: Registry,
    /// The requests of the shadow that reached the API server and are not reads.
    writes: Arc<Mutex<Vec<String>>>,
}

impl Beside {
    /// `spec` changes the NodePool `default`, `changes` the shadow's copy of the cluster.
    async fn new(spec: Value, changes: &[&str]) -> Self {
        Self::in_cluster(settings(), spec, changes).await
    }

    async fn in_cluster(settings: LocalClusterSettings, spec: Value, changes: &[&str]) -> Self {
        Self::of(World::with_spec(settings, spec).await, changes).await
    }

    async fn of(world: World, changes: &[&str]) -> Self {
        let changes: Vec<Change> = changes.iter().map(|text| text.parse().unwrap()).collect();
        Self::with(world, |options| options.shadow_if = changes).await
    }

    async fn with(world: World, change: impl FnOnce(&mut Options)) -> Self {
        let writes: Arc<Mutex<Vec<String>>> = Arc::default();
        let (seen, server) = (Arc::clone(&writes), world.cluster.testbed.server());
        let server = server.service(false);
        let recording = tower::service_fn(move |request: http::Request<Body>| {
            if request.method() != http::Method::GET {
                let line = format!("{} {}", request.method(), request.uri().path());
                seen.lock().push(line);
            }
            server.clone().call(request)
        });
        let registry = Registry::new();
        let client = Client::new(recording, "default");
        let shadow = world.cluster.shadow(client, &registry, change);
        world.pass(5).await;
        Self {
            world,
            shadow,
            registry,
            writes,
        }
    }

    fn report(&self) -> ShadowReport {
        let cx = self.shadow.context();
        let shadow = self.shadow.shadow().unwrap();
        shadow.report(None, cx.clock.now())
    }

    /// Asserts that the shadow neither wrote nor tried to.
    fn assert_wrote_nothing(&self) {
        assert_eq!(*self.writes.lock(), [""; 0]);
        assert_eq!(self.report().refused, 0);
        let rendered = self.registry.render();
        for target in ["api", "provider"] {
            let line = format!("karpenter_shadow_refused_total{{target=\"{target}\"}} 0");
            assert!(rendered.lines().any(|it| it == line), "{rendered}");
        }
    }
}

/// Returns the report as JSON for failed assertions.
fn shown(report: &ShadowReport) -> String {
    serde_json::to_string_pretty(report).unwrap()
}

/// Numbers that follow from a seed.
struct Draws(u64);

impl Draws {
    fn below(&mut self, end: u64) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }
}

/// Two seeds; `KARPENTER_SHADOW_SEEDS=N` runs N, and prints each.
///
/// Conformance: PLAN-12
#[tokio::test(start_paused = true)]
async fn a_shadow_agrees_with_controllers_of_equal_options_and_writes_nothing() {
    let (mut ours, mut theirs, mut both) = (0.0, 0.0, 0.0);
    let mut differences = Vec::new();
    let seeds = std::env::var("KARPENTER_SHADOW_SEEDS").ok();
    let measuring = seeds.is_some();
    let seeds: u64 = seeds.map_or(2, |seeds| seeds.parse().unwrap());
    for seed in 2..2 + seeds {
        let mut draws = Draws(seed * 7919);
        let mut settings = settings();
        // Many small nodes: with few, one decision that differs outweighs the others.
        settings.options.node_overhead_price = 0.004;
        let beside = Beside::in_cluster(settings, json!({}), &[]).await;
        let world = &beside.world;
        let names = ["a", "b", "c", "d", "e"];
        for name in names {
            let cpu = ["250m", "500m", "1", "2", "3"][draws.below(5) as usize];
            let containers =
                json!([{"name": name, "image": "pause", "resources": {"requests": {"cpu": cpu}}}]);
            let replicas = 1 + draws.below(12) as i32;
            let spec = json!({ "containers": containers });
            world.deploy_with(name, replicas, spec).await;
            world.pass(draws.below(90)).await;
        }
        for _ in 0..12 {
            let name = names[draws.below(5) as usize];
            world.scale(name, draws.below(16) as i32).await;
            world.pass(30 + draws.below(300)).await;
        }
        drift(world).await;
        world.pass(1200).await;
        let report = beside.report();
        beside.assert_wrote_nothing();
        assert!(
            report.provisioning.nodes.theirs > 0 && report.disruption.nodes.theirs > 0,
            "{}",
            shown(&report)
        );
        differences.extend(report.differences.iter().map(|it| (seed, it.clone())));
        let of_nodes = report.provisioning.nodes;
        let moved = report.disruption.nodes;
        let agreed = report.provisioning.agreement * (of_nodes.ours + of_nodes.theirs) as f64 / 2.0;
        ours += (of_nodes.ours + moved.ours) as f64;
        theirs += (of_nodes.theirs + moved.theirs) as f64;
        both += agreed + report.disruption.both as f64;
        if measuring {
            println!(
                "seed {seed}: provisioning {:.3}, disruption {:.3}, so far {:.4}",
                report.provisioning.agreement,
                report.disruption.agreement,
                2.0 * both / (ours + theirs)
            );
        }
        beside.shadow.stop().await;
        beside.world.cluster.shutdown().await;
    }
    let agreement = 2.0 * both / (ours + theirs);
    assert!(agreement >= 0.98, "{agreement}: {differences:#?}");
}

/// Returns the evictions and the savings in dollars per hour of commands.
fn totals(commands: &[Command]) -> (usize, f64) {
    let candidates = commands.iter().flat_map(|command| &command.candidates);
    let evictions = candidates.map(|it: &Candidate| it.reschedulable().count());
    let savings = commands.iter().map(|command| command.savings);
    (evictions.sum(), savings.sum())
}

/// The spec of a NodePool of on-demand nodes of these instance types.
fn of_types(types: &[&str]) -> Value {
    json!({"template": {"spec": {"requirements": [
        {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]},
        {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]},
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": types},
    ]}}})
}

/// Conformance: PLAN-13
#[tokio::test(start_paused = true)]
async fn a_shadow_with_another_policy_reports_evictions_and_dollars() {
    const CHANGE: &str = "policy.default=Balanced";
    const LARGE: &str = "c-16x-amd64-linux";
    let beside = Beside::new(of_types(&[LARGE]), &[CHANGE]).await;
    let world = &beside.world;
    // Three nodes: one is full, one has many small pods, one has a single pod.
    let pods = |cpu: &str| json!({"containers": [{"name": "c", "image": "pause", "resources": {"requests": {"cpu": cpu}}}]});
    world.deploy_with("full", 1, pods("15")).await;
    world.until_running(1, 120).await;
    world.deploy_with("small", 60, pods("100m")).await;
    world.until_running(61, 120).await;
    let mut apart = pods("2");
    apart["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "small"}}},
    ]}});
    world.deploy_with("single", 1, apart).await;
    world.until_running(62, 120).await;
    assert_eq!(world.claims().await.len(), 3);
    world.pass(60).await;
    // Half of a node's price can be saved for each of two nodes: by 60 evictions, or by one.
    let both = json!({"spec": of_types(&["c-8x-amd64-linux", LARGE])});
    world.patch::<NodePool>("default", both).await;
    world.pass(1).await;
    let cx = beside.shadow.context();
    let state = cx.view().snapshot.fork();
    let request = DisruptionRequest::at(cx.clock.now());
    world.pass(900).await;
    let report = beside.report();
    beside.assert_wrote_nothing();

    let without = totals(&plan(&state, &request).commands);
    let changed = apply(&[CHANGE.parse().unwrap()], &state, &request).unwrap();
    let balanced = totals(&plan(&changed.snapshot, &changed.request).commands);
    assert!(without.0 > 50, "{without:?}");
    assert_eq!(balanced.0, 1);
    let disruption = &report.disruption;
    let evictions = (disruption.evictions.theirs, disruption.evictions.ours);
    assert_eq!(evictions, (without.0, balanced.0), "{}", shown(&report));
    let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
    let savings = &disruption.savings_per_hour;
    assert!(close(savings.theirs, without.1), "{}", shown(&report));
    assert!(close(savings.ours, balanced.1), "{}", shown(&report));
    assert_eq!(report.changes, [CHANGE]);
    // The difference is the node with many pods, and the shadow says why it keeps it.
    let difference = &report.differences[0];
    assert!(difference.text.contains("score"), "{}", shown(&report));
    assert!(close(difference.savings_per_hour, balanced.1 - without.1));
}

#[tokio::test(start_paused = true)]
async fn the_report_is_served_by_a_shadow_alone() {
    let (port, of_shadow) = (free_port(), free_port());
    let world = served(port, json!({})).await;
    let beside = Beside::with(world, |options| options.decisions_port = of_shadow).await;
    beside.world.deploy("app", 3).await;
    beside.world.until_running(3, 120).await;
    beside.world.pass(120).await;
    let report = get(of_shadow, "shadow").await;
    assert_eq!(report["kind"], "ShadowReport");
    let provisioning = &report["provisioning"];
    assert_eq!(provisioning["pods"], 3, "{report}");
    assert_eq!(provisioning["covered"], json!({"ours": 3, "theirs": 3}));
    let nodes = &provisioning["nodes"];
    assert_eq!(nodes["ours"], nodes["theirs"]);
    let seconds = provisioning["latencySeconds"]["ours"]["mean"].as_f64();
    assert!(seconds >= Some(1.0), "the batch: {report}");
    assert_eq!(report["refused"], 0);
    let later = get(of_shadow, "shadow?since=2026-02-01T00:00:00Z").await;
    assert_eq!(later["provisioning"]["pods"], 0, "{later}");
    // Its decisions are recorded as those of the controllers, without NodeClaims.
    let records = get(of_shadow, "decisions?kind=Provisioning").await;
    let items = records["items"][0]["items"].as_array().unwrap();
    let mut items = items.iter();
    let launched = items.find(|item| item["type"] == "Launched").unwrap();
    assert!(launched.get("nodeClaim").is_none(), "{records}");

    let answer = ask(port, "shadow").await;
    assert_eq!(answer.code, 404, "{answer:?}");
    assert!(answer.body.contains("only one with --shadow"), "{answer:?}");
    let answer = ask(of_shadow, "shadow?from=x").await;
    assert_eq!(answer.code, 400, "{answer:?}");
    beside.assert_wrote_nothing();
}
