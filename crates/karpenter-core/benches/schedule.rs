//! How fast pods are placed: `cargo xtask bench schedule`.
//!
//! Every round prepares a new solver. `diverse` and `preferences` are upstream's benchmark (scheduling_benchmark_test.go),
//! `burst` and `wide` are clusters its users report, `growth` doubles one dimension at a time.

#![expect(clippy::unwrap_used, reason = "what fails here fails the benchmark")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use karpenter_bench::{Random, Suite};
use karpenter_core::cluster::{Cluster, Snapshot};
use karpenter_core::fake;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::schedule::{Plan, PodSet, Policy, PreferencePolicy, Query, Solver};
use karpenter_fixtures::{
    CAPACITY_TYPE, HOSTNAME, INITIALIZED, Object, Pod, REGISTERED, Z1, Z2, Z3, ZONE, bare_node,
    node_pool, pod,
};

fn cluster(pools: usize, types: &Arc<[InstanceType]>) -> Cluster {
    let mut cluster = Cluster::new(fake::cluster_config());
    for index in 0..pools {
        let name = format!("pool-{index:02}");
        let weight = i32::try_from(pools - index).unwrap();
        cluster.apply_node_pool(&node_pool(&name).weight(weight).build());
        cluster.set_instance_types(&name, Ok(types.clone()));
    }
    cluster
}

const CPU: [&str; 5] = ["100m", "250m", "500m", "1000m", "1500m"];
const MEMORY: [&str; 6] = ["100Mi", "256Mi", "512Mi", "1024Mi", "2048Mi", "4096Mi"];
const LETTERS: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];

/// Returns upstream's diverse pods: a fifth each generic, spread by zone, spread by host, with affinity to their own zone, and
/// with anti-affinity by host.
fn diverse(count: usize) -> Vec<Object<Pod>> {
    let mut random = Random(42);
    let mut pods = Vec::with_capacity(count);
    let fifth = count / 5;
    for index in 0..count {
        let (cpu, memory) = (*random.of(&CPU), *random.of(&MEMORY));
        let label = *random.of(&LETTERS);
        let pod = pod(&format!("pod-{index:06}")).cpu(cpu).memory(memory);
        pods.push(match index.checked_div(fifth).unwrap_or(0).min(5) {
            1 => pod
                .label("my-label", label)
                .spread(ZONE, 1, ("my-label", *random.of(&LETTERS))),
            2 => {
                pod.label("my-label", label)
                    .spread(HOSTNAME, 1, ("my-label", *random.of(&LETTERS)))
            }
            3 => {
                let label = *random.of(&LETTERS);
                pod.label("my-affinity", label)
                    .affinity(ZONE, ("my-affinity", label))
            }
            4 => pod
                .label("app", "nginx")
                .anti_affinity(HOSTNAME, ("app", "nginx")),
            _ => pod.label("my-label", label),
        });
    }
    pods
}

/// Returns upstream's preference pods: one node preference, preferred anti-affinity by zone and by host.
fn preferences(count: usize) -> Vec<Object<Pod>> {
    (0..count)
        .map(|index| {
            pod(&format!("pod-{index:06}"))
                .label("app", "nginx")
                .cpu("100m")
                .memory("4096Mi")
                .prefer(1, ZONE, "In", &[Z1])
                .prefer_anti_affinity(10, ZONE, ("app", "nginx"))
                .prefer_anti_affinity(1, HOSTNAME, ("app", "nginx"))
        })
        .collect()
}

/// Pods of `deployments` workloads, of which 30 % are spread by host, spread by zone, or alone on their host.
fn workloads(
    prefix: &str,
    count: usize,
    deployments: usize,
    constrained: bool,
) -> Vec<Object<Pod>> {
    let mut random = Random(7);
    let sizes: Vec<(&str, &str)> = (0..deployments)
        .map(|_| (*random.of(&CPU), *random.of(&MEMORY)))
        .collect();
    (0..count)
        .map(|index| {
            let deployment = index % deployments;
            let app = format!("app-{deployment:03}");
            let (cpu, memory) = sizes[deployment];
            let pod = pod(&format!("{prefix}-{index:06}"))
                .label("app", &app)
                .cpu(cpu)
                .memory(memory);
            match deployment % 10 {
                0 if constrained => pod.spread(HOSTNAME, 1, ("app", &app)),
                1 if constrained => pod.spread(ZONE, 1, ("app", &app)),
                2 if constrained => pod.anti_affinity(HOSTNAME, ("app", &app)),
                _ => pod,
            }
        })
        .collect()
}

fn with_pods(mut cluster: Cluster, pods: Vec<Object<Pod>>) -> Snapshot {
    for pod in pods {
        cluster.apply_pod(&pod.build());
    }
    cluster.snapshot()
}

/// Nodes with 16 cores and 64 GiB, each with `pods_each` pods of the workloads.
fn with_nodes(cluster: &mut Cluster, nodes: usize, pods_each: usize) {
    let mut running = workloads("running", nodes * pods_each, 200, true).into_iter();
    for index in 0..nodes {
        let name = format!("node-{index:05}");
        let node = bare_node(&name)
            .zone([Z1, Z2, Z3][index % 3])
            .pool("pool-00")
            .label(CAPACITY_TYPE, "spot")
            .label(REGISTERED, "true")
            .label(INITIALIZED, "true")
            .label("karpenter.test.sh/testnodeclass", "default")
            .cpu("16")
            .memory("64Gi")
            .pods("60");
        cluster.apply_node(&node.build());
        for pod in running.by_ref().take(pods_each) {
            cluster.apply_pod(&pod.on(&name).build());
        }
    }
}

fn policy() -> Policy {
    Policy::at(Timestamp::UNIX_EPOCH)
}

fn schedule(snapshot: &Snapshot, policy: &Policy) -> Plan {
    karpenter_core::schedule::schedule(snapshot, policy, &Query::default())
}

fn seconds(work: impl Fn()) -> f64 {
    let mut times: Vec<f64> = (0..3)
        .map(|_| {
            let (start, busy) = (Instant::now(), karpenter_bench::cpu_time());
            work();
            match (busy, karpenter_bench::cpu_time()) {
                (Some(before), Some(after)) => (after - before).as_secs_f64(),
                _ => start.elapsed().as_secs_f64(),
            }
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[1]
}

/// Returns one workload of the growth table: pods, nodes, types, pools.
fn growth_seconds([pods, nodes, kinds, pools]: [usize; 4]) -> f64 {
    let mut cluster = cluster(pools, &fake::families(kinds));
    with_nodes(&mut cluster, nodes, 20);
    let snapshot = with_pods(cluster, workloads("pending", pods, 200, true));
    seconds(|| {
        schedule(&snapshot, &policy());
    })
}

fn main() {
    let mut suite = Suite::from_args("schedule");
    // The first case, so that nothing is warm if all cases run: the duration of the first pass after a start.
    suite.case("cold-diverse-20000", |run| {
        let snapshot = with_pods(cluster(1, &fake::instance_types(400)), diverse(20_000));
        let (start, busy) = (Instant::now(), karpenter_bench::cpu_time());
        let plan = schedule(&snapshot, &policy());
        let (took, after) = (start.elapsed(), karpenter_bench::cpu_time());
        if let (Some(before), Some(after)) = (busy, after) {
            run.record("first_run_cpu_seconds", (after - before).as_secs_f64());
        }
        run.parameter("pods", 20_000);
        run.record("claims", plan.new_node_claims.len());
        run.sample(20_000, took);
    });
    for count in [1, 50, 100, 500, 1000, 1500, 2000, 5000, 10_000, 20_000] {
        suite.case(&format!("diverse-{count}"), |run| {
            let snapshot = with_pods(cluster(1, &fake::instance_types(400)), diverse(count));
            let plan = schedule(&snapshot, &policy());
            run.parameter("pods", count);
            run.record("claims", plan.new_node_claims.len());
            run.record("unplaced", plan.unplaced.len());
            run.measure(count, || schedule(&snapshot, &policy()));
        });
    }
    for preferred in [PreferencePolicy::Respect, PreferencePolicy::Ignore] {
        let name = if preferred == PreferencePolicy::Respect {
            "preferences-4000"
        } else {
            "preferences-ignored-4000"
        };
        suite.case(name, |run| {
            let snapshot = with_pods(cluster(1, &fake::instance_types(400)), preferences(4000));
            let policy = policy().with_preference_policy(preferred);
            run.record("claims", schedule(&snapshot, &policy).new_node_claims.len());
            run.measure(4000, || schedule(&snapshot, &policy));
        });
    }
    suite.case("burst-33k", |run| {
        let mut cluster = cluster(20, &fake::families(700));
        with_nodes(&mut cluster, 2000, 20);
        let snapshot = with_pods(cluster, workloads("pending", 33_000, 300, true));
        let plan = schedule(&snapshot, &policy());
        run.record("claims", plan.new_node_claims.len());
        run.record("existing", plan.existing.len());
        run.record("unplaced", plan.unplaced.len());
        run.measure(33_000, || schedule(&snapshot, &policy()));
    });
    suite.case("wide-100k", |run| {
        let snapshot = with_pods(
            cluster(1, &fake::families(800)),
            workloads("pending", 100_000, 200, false),
        );
        let plan = schedule(&snapshot, &policy());
        run.record("claims", plan.new_node_claims.len());
        run.record("unplaced", plan.unplaced.len());
        run.measure(100_000, || schedule(&snapshot, &policy()));
    });
    suite.case("what-if-1000", |run| {
        let mut cluster = cluster(1, &fake::families(700));
        with_nodes(&mut cluster, 1000, 20);
        let snapshot = cluster.snapshot();
        let solver = Solver::prepare(&snapshot, &policy());
        let pods = snapshot.pods_on("node-00500").to_vec();
        let query = Query::new(PodSet::Given(pods)).with_removed_nodes(["node-00500".to_owned()]);
        run.record("unplaced", solver.solve(&query).unplaced.len());
        run.measure(1, || solver.solve(&query));
    });
    suite.case("growth", |run| {
        let base = [5000, 500, 200, 5];
        let names = ["pods", "nodes", "types", "pools"];
        let reference = growth_seconds(base);
        run.record("base_seconds", reference);
        for (index, name) in names.iter().enumerate() {
            run.parameter(name, base[index]);
            let mut before = reference;
            for factor in [2, 4] {
                let mut grown = base;
                grown[index] *= factor;
                let time = growth_seconds(grown);
                run.record(
                    &format!("{name}_x{}_to_x{factor}", factor / 2),
                    time / before,
                );
                eprintln!(
                    "growth: {name} {:>6} -> {:>6}: {:.2} times, {:.1} ms",
                    grown[index] / 2,
                    grown[index],
                    time / before,
                    time * 1e3
                );
                before = time;
            }
        }
        run.sample(base[0], std::time::Duration::from_secs_f64(reference));
    });
}
