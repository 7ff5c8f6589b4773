//! How fast disruption passes are: `cargo xtask bench consolidate`.
//!
//! `single-…` is the worst case of a pass: every node is evaluated, small pods would fit elsewhere, and no command saves money.
//! `multi-1000` is the same cluster with 40 % of its resources requested; `whatif` evaluates one node.

#![expect(clippy::unwrap_used, reason = "what fails here fails the benchmark")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use karpenter_bench::{Random, Suite};
use karpenter_core::cluster::{Cluster, Snapshot};
use karpenter_core::disruption::consolidation::{Rules, evaluate};
use karpenter_core::disruption::simulation::Simulator;
use karpenter_core::disruption::{
    Candidates, DisruptionPlan, DisruptionRequest, Method, VerdictKind, plan,
};
use karpenter_core::fake;
use karpenter_fixtures::{
    CAPACITY_TYPE, HOSTNAME, INSTANCE_TYPE, NodePool, Pod, Z1, Z2, Z3, ZONE, claim_of, node,
    node_pool, pod,
};

const POOLS: usize = 20;
const DEPLOYMENTS: usize = 200;

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn pool(index: usize) -> NodePool {
    node_pool(&format!("pool-{index:02}"))
        .weight(i32::try_from(POOLS - index).unwrap())
        .budget("100%")
        .consolidate_after("0s")
        .build()
}

/// Returns a pod of one of 200 workloads, of which 30 % are spread by host, spread by zone, or alone on their host.
fn running(index: usize, deployment: usize, cpu: usize, mib: usize, node: &str) -> Pod {
    let app = format!("app-{deployment:03}");
    let pod = pod(&format!("running-{index:06}"))
        .label("app", &app)
        .controlled_by("ReplicaSet", "rs")
        .cpu(&format!("{cpu}m"))
        .memory(&format!("{mib}Mi"))
        .on(node);
    let pod = match deployment % 10 {
        _ if deployment >= DEPLOYMENTS => pod,
        0 => pod.spread(HOSTNAME, 2, ("app", &app)),
        1 => pod.spread(ZONE, 5, ("app", &app)),
        2 => pod.anti_affinity(HOSTNAME, ("app", &app)),
        _ => pod,
    };
    pod.build()
}

/// The pods of each node.
#[derive(Clone, Copy)]
enum Load {
    /// A pod that requests more than half of the node, and 19 small ones that would fit elsewhere.
    Full,
    /// 20 pods that together request about 40 % of the node.
    FourTenths,
}

/// Returns spot nodes of 16 cores and 64 GiB, of the cheapest type of that size, with 20 pods each.
fn fleet(nodes: usize, load: Load) -> Snapshot {
    let types = fake::families(700);
    let mut cluster = Cluster::new(fake::cluster_config());
    for index in 0..POOLS {
        let pool = pool(index);
        cluster.set_instance_types(pool.metadata.name.as_deref().unwrap(), Ok(types.clone()));
        cluster.apply_node_pool(&pool);
    }
    let mut random = Random(11);
    // The last 20 workloads are the large ones.
    let sizes: Vec<(usize, usize)> = (0..DEPLOYMENTS + 20)
        .map(|deployment| match load {
            Load::Full if deployment >= DEPLOYMENTS => (8500, 40 * 1024),
            Load::Full => (200 + 10 * random.below(26), 256 + random.below(768)),
            Load::FourTenths => (160 + 10 * random.below(33), 512 + random.below(1536)),
        })
        .collect();
    for index in 0..nodes {
        let name = format!("node-{index:05}");
        add_node(&mut cluster, index, &name);
        // Every node has pods of consecutive workloads.
        let first = index * 19 % DEPLOYMENTS;
        for place in 0..20 {
            let deployment = match load {
                Load::Full if place == 19 => DEPLOYMENTS + index % 20,
                _ => (first + place) % DEPLOYMENTS,
            };
            let (cpu, mib) = sizes[deployment];
            cluster.apply_pod(&running(index * 20 + place, deployment, cpu, mib, &name));
        }
    }
    cluster.snapshot()
}

fn add_node(cluster: &mut Cluster, index: usize, name: &str) {
    let node = node(name)
        .pool(&format!("pool-{:02}", index % POOLS))
        .zone([Z1, Z2, Z3][index % 3])
        .label(CAPACITY_TYPE, "spot")
        .label(INSTANCE_TYPE, "g0-4-16x")
        .without_label("karpenter.test.sh/testnodeclass")
        .cpu("15900m")
        .memory("63Gi")
        .pods("110")
        .ready();
    let created = "2025-12-31T00:00:00Z";
    let claim = claim_of(&node)
        .created(created)
        .is_since("Consolidatable", created);
    cluster.apply_node_claim(&claim.build());
    cluster.apply_node(&node.build());
}

fn request() -> DisruptionRequest {
    let mut request = DisruptionRequest::at(now());
    request.spot_to_spot = true;
    request.threads = std::thread::available_parallelism().map_or(1, usize::from);
    request
}

/// Returns a pass whose multi-node search ends after `limit`.
fn pass(snapshot: &Snapshot, limit: Duration) -> DisruptionPlan {
    let mut request = request();
    let started = Instant::now();
    request.stopwatch = Some(Arc::new(move || started.elapsed()));
    let end = started + limit;
    request.multi_node.cancel = Some(Arc::new(move || Instant::now() >= end));
    plan(snapshot, &request)
}

fn not_evaluated(plan: &DisruptionPlan) -> usize {
    let unseen = karpenter_core::disruption::NotConsolidatable::NotEvaluated;
    plan.verdicts
        .iter()
        .filter(|verdict| verdict.kind == VerdictKind::Kept(unseen.clone()))
        .count()
}

fn savings(plan: &DisruptionPlan) -> f64 {
    plan.commands.iter().map(|command| command.savings).sum()
}

fn main() {
    let mut suite = Suite::from_args("consolidate");
    for nodes in [1000, 5000, 10_000, 20_000, 50_000, 100_000] {
        suite.case(&format!("single-{nodes}"), |run| {
            let snapshot = fleet(nodes, Load::Full);
            let found = pass(&snapshot, Duration::ZERO);
            run.parameter("nodes", nodes);
            run.parameter("pods", nodes * 20);
            run.parameter("pools", POOLS);
            run.parameter("types", 700);
            run.record("candidates", found.eligible[&Method::SingleNode]);
            run.record("not_evaluated", not_evaluated(&found));
            run.record("commands", found.commands.len());
            run.record(
                "single_node_seconds",
                found.took[&Method::SingleNode].as_secs_f64(),
            );
            for verdict in found.verdicts.iter().take(1) {
                run.record(
                    "first_verdict",
                    format!("{:?}", verdict.kind)
                        .chars()
                        .take(120)
                        .collect::<String>(),
                );
            }
            run.measure(nodes, || pass(&snapshot, Duration::ZERO));
        });
    }
    suite.case("multi-1000", |run| {
        let snapshot = fleet(1000, Load::FourTenths);
        run.parameter("nodes", 1000);
        run.parameter("pods", 20_000);
        let reference = pass(&snapshot, Duration::from_secs(60));
        let quick = pass(&snapshot, Duration::from_secs(1));
        run.record("reference_savings", savings(&reference));
        run.record(
            "reference_seconds",
            reference.took[&Method::MultiNode].as_secs_f64(),
        );
        run.record("savings", savings(&quick));
        run.record("of_reference", savings(&quick) / savings(&reference));
        run.record(
            "candidates",
            quick
                .commands
                .iter()
                .map(|command| command.candidates.len())
                .sum::<usize>(),
        );
        run.record(
            "replacements",
            quick
                .commands
                .iter()
                .map(|command| command.replacements.len())
                .sum::<usize>(),
        );
        run.measure(1000, || pass(&snapshot, Duration::from_secs(1)));
    });
    suite.case("whatif", |run| {
        let snapshot = fleet(1000, Load::Full);
        run.parameter("nodes", 1000);
        run.parameter("pods", 20_000);
        let request = request();
        let all = Candidates::new(&snapshot, &request.surroundings, now());
        let simulator = Simulator::new(&snapshot, &request.policy, &request.query, &all.prices);
        let rules = Rules {
            spot_to_spot: true,
            max_replacements: 1,
            node_overhead_price: request.policy.node_overhead_price,
        };
        let mut next = all.candidates.iter().cycle();
        run.measure(1, || {
            evaluate(&simulator, &[next.next().unwrap()], rules).is_ok()
        });
    });
}
