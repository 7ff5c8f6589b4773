//! How fast questions are answered: `cargo xtask bench why`.
//!
//! 5,000 nodes with 100,000 pods in 20 NodePools of 700 instance types; a tenth of the nodes has a pod that a PodDisruptionBudget
//! protects. `pod-…` asks what blocks a pending pod, each time another pod, and compiles the cluster for each; `prepared-…` asks the
//! same of one compiled cluster. `node` asks what blocks a node; `nodes` what all blocked nodes would save; `records` is the memory
//! of a day of decisions.

#![expect(clippy::unwrap_used, reason = "what fails here fails the benchmark")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use karpenter_bench::{Run, Suite, cpu_time};
use karpenter_core::cluster::{Cluster, ClusterConfig, Snapshot};
use karpenter_core::disruption::{DisruptionRequest, plan};
use karpenter_core::fake;
use karpenter_core::schedule::{PodSet, Policy, Query};
use karpenter_decisions::blocking::{Blocking, Prepared, blocking};
use karpenter_decisions::history::{History, Input};
use karpenter_decisions::what_if::WhatIf;
use serde_json::{Value, json};

const ZONE: &str = "topology.kubernetes.io/zone";
const HOSTNAME: &str = "kubernetes.io/hostname";
const NODES: usize = 5000;
const POOLS: usize = 20;
const DEPLOYMENTS: usize = 200;
const ASKED: usize = 100;

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn pod(name: &str, deployment: usize, spec: Value) -> Value {
    let mut value = json!({
        "metadata": {
            "name": name, "namespace": "default", "uid": name, "labels": { "app": format!("app-{deployment:03}") },
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": true }],
        },
        "spec": { "containers": [{ "name": "c", "resources": { "requests": {
            "cpu": format!("{}m", 160 + deployment % 32 * 10), "memory": format!("{}Mi", 512 + deployment * 7),
        } } }] },
    });
    for (key, value_of) in spec.as_object().unwrap() {
        value["spec"][key.as_str()] = value_of.clone();
    }
    value
}

fn cluster() -> Cluster {
    let types = fake::families(700);
    let mut cluster = Cluster::new(ClusterConfig {
        well_known: fake::well_known(),
        ..ClusterConfig::default()
    });
    let class = json!({ "group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "default" });
    let condition = |kind: &str| json!({ "type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": "2025-12-31T00:00:00Z" });
    for index in 0..POOLS {
        let name = format!("pool-{index:02}");
        cluster.set_instance_types(&name, Ok(types.clone()));
        cluster.apply_node_pool(&read(json!({
            "metadata": { "name": name, "uid": name },
            "spec": {
                "weight": POOLS - index, "limits": { "cpu": "100000" },
                "disruption": { "budgets": [{ "nodes": "100%" }], "consolidateAfter": "0s" },
                "template": { "spec": { "nodeClassRef": class, "requirements": [
                    { "key": ZONE, "operator": "In", "values": ["test-zone-1", "test-zone-2"] },
                    { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot", "on-demand"] },
                ] } },
            },
            "status": { "conditions": [condition("Ready")] },
        })));
    }
    for index in 0..NODES {
        let name = format!("node-{index:05}");
        let mut labels = json!({
            "karpenter.sh/nodepool": format!("pool-{:02}", index % POOLS), "karpenter.sh/capacity-type": "spot",
            "node.kubernetes.io/instance-type": "g0-4-16x", ZONE: format!("test-zone-{}", index % 2 + 1),
            "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
        });
        let amounts = json!({ "cpu": "15900m", "memory": "63Gi", "pods": "110" });
        let id = format!("fake://{name}");
        cluster.apply_node_claim(&read(json!({
            "metadata": { "name": format!("{name}-claim"), "uid": name, "labels": labels },
            "spec": { "nodeClassRef": class, "requirements": [] },
            "status": { "providerID": id, "capacity": amounts, "allocatable": amounts,
                "conditions": (["Launched", "Registered", "Initialized", "Consolidatable"].map(condition)) },
        })));
        for (key, value) in [
            (HOSTNAME, name.as_str()),
            ("karpenter.sh/registered", "true"),
            ("karpenter.sh/initialized", "true"),
        ] {
            labels[key] = json!(value);
        }
        cluster.apply_node(&read(json!({
            "metadata": { "name": name, "uid": name, "labels": labels },
            "spec": { "providerID": id },
            "status": { "capacity": amounts, "allocatable": amounts, "conditions": [{ "type": "Ready", "status": "True" }] },
        })));
        for place in 0..20 {
            let deployment = (index * 19 + place) % DEPLOYMENTS;
            let name_of = format!("running-{:06}", index * 20 + place);
            let mut value = pod(&name_of, deployment, json!({ "nodeName": name }));
            value["status"] = json!({ "phase": "Running" });
            if place == 0 && index % 10 == 0 {
                value["metadata"]["labels"]["guarded"] = json!("true");
            }
            cluster.apply_pod(&read(value));
        }
    }
    cluster.apply_pdb(&read(json!({
        "metadata": { "name": "guard", "namespace": "default" },
        "spec": { "maxUnavailable": 0, "selector": { "matchLabels": { "guarded": "true" } } },
        "status": { "disruptionsAllowed": 0, "currentHealthy": 500, "desiredHealthy": 500, "expectedPods": 500 },
    })));
    cluster
}

/// Returns pending pods, each of its own class, that the change keeps from being scheduled.
fn pending(cluster: &mut Cluster, spec: impl Fn(usize) -> Value) -> Snapshot {
    for index in 0..ASKED {
        let mut value = pod(&format!("pending-{index}"), index, spec(index));
        value["metadata"]["labels"]["rank"] = json!(index.to_string());
        value["status"] = json!({ "phase": "Pending", "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }] });
        cluster.apply_pod(&read(value));
    }
    cluster.snapshot()
}

/// Measures single questions, and records the percentiles of their time and of their processor time in milliseconds.
fn percentiles(run: &mut Run, asked: usize, mut ask: impl FnMut(usize)) {
    let (mut took, mut busy) = (Vec::new(), Vec::new());
    for index in 0..asked {
        let (began, cpu) = (Instant::now(), cpu_time());
        ask(index);
        let elapsed = began.elapsed();
        busy.push(match cpu_time().zip(cpu) {
            Some((after, before)) => after.saturating_sub(before),
            None => elapsed,
        });
        run.sample(1, elapsed);
        took.push(elapsed);
    }
    for (name, mut times) in [("", took), ("cpu_", busy)] {
        times.sort_unstable();
        for share in [50, 99] {
            let at = times[(times.len() * share / 100).min(times.len() - 1)];
            run.record(&format!("{name}p{share}_ms"), at.as_secs_f64() * 1e3);
        }
    }
}

/// Asks about pods that the change keeps from being scheduled; `prepared` compiles the cluster once for all of them.
fn pods(run: &mut Run, prepared: bool, spec: impl Fn(usize) -> Value) {
    let snapshot = pending(&mut cluster(), spec);
    let policy = Policy::at(now());
    let mut truncated = 0;
    let pod = |index: usize| {
        snapshot
            .pod("default", &format!("pending-{index}"))
            .unwrap()
    };
    let mut check = |answer: Blocking| {
        truncated += usize::from(answer.truncated);
        assert!(!answer.fits_alone && !answer.blocking.atoms.is_empty());
        assert!(!answer.relaxations.is_empty());
    };
    if prepared {
        let mut compiled = None;
        let memory = allocation_counter::measure(|| {
            let (began, cpu) = (Instant::now(), cpu_time());
            compiled = Some(Prepared::new(&snapshot, &policy));
            let busy = cpu_time().zip(cpu).map(|(after, before)| after - before);
            let busy = busy.unwrap_or_else(|| began.elapsed());
            run.record("prepare_cpu_ms", busy.as_secs_f64() * 1e3);
        });
        run.record("kept_mib", memory.bytes_current as f64 / f64::from(1 << 20));
        let compiled = compiled.unwrap();
        run.record(
            "estimated_mib",
            compiled.memory() as f64 / f64::from(1 << 20),
        );
        let after = allocation_counter::measure(|| {
            percentiles(run, ASKED, |index| {
                check(compiled.blocking(None, pod(index)));
            });
        });
        run.record("grown_mib", after.bytes_current as f64 / f64::from(1 << 20));
    } else {
        percentiles(run, ASKED, |index| {
            check(blocking(&snapshot, &policy, None, pod(index)));
        });
    }
    run.record("truncated", truncated);
}

fn selector(_: usize) -> Value {
    json!({ "nodeSelector": { ZONE: "test-zone-9" } })
}

fn large(index: usize) -> Value {
    let requests = json!({ "cpu": format!("{}", 200 + index) });
    json!({ "containers": [{ "name": "c", "resources": { "requests": requests } }] })
}

fn main() {
    let mut suite = Suite::from_args("why");
    suite.case("pod-selector", |run| pods(run, false, selector));
    suite.case("pod-large", |run| pods(run, false, large));
    suite.case("prepared-selector", |run| pods(run, true, selector));
    suite.case("prepared-large", |run| pods(run, true, large));
    suite.case("node", |run| {
        let snapshot = cluster().snapshot();
        let began = Instant::now();
        let what_if = WhatIf::new(&snapshot, DisruptionRequest::at(now()));
        run.record("prepare_ms", began.elapsed().as_secs_f64() * 1e3);
        percentiles(run, ASKED, |index| {
            let answer = what_if.node(&format!("node-{:05}", index * 10)).unwrap();
            assert_eq!(answer.blockers.len(), 1);
        });
    });
    suite.case("nodes", |run| {
        let snapshot = cluster().snapshot();
        let names: Vec<String> = (0..NODES / 10)
            .map(|index| format!("node-{:05}", index * 10))
            .collect();
        let mut saves = 0;
        percentiles(run, 5, |_| {
            let what_if = WhatIf::new(&snapshot, DisruptionRequest::at(now()));
            saves = what_if.releasable(names.iter().map(String::as_str)).0.len();
        });
        run.record("nodes", names.len());
        run.record("releasable", saves);
    });
    suite.case("records", |run| {
        let mut cluster = cluster();
        let snapshot = pending(
            &mut cluster,
            |_| json!({ "nodeSelector": { ZONE: "test-zone-9" } }),
        );
        let (policy, disruption) = (Policy::at(now()), DisruptionRequest::at(now()));
        let mut closed = disruption.clone();
        closed.single_node_cancel = Some(Arc::new(|| true));
        closed.multi_node.cancel = Some(Arc::new(|| true));
        let scheduled =
            karpenter_core::schedule::schedule(&snapshot, &policy, &Query::new(PodSet::Waiting));
        let disrupted = plan(&snapshot, &closed);
        let mut history = History::new(now());
        let mut took = Duration::ZERO;
        for step in 0..64_i64 {
            let input = Input {
                snapshot: &snapshot,
                policy: &policy,
                took: Duration::ZERO,
                now: now() + jiff::SignedDuration::from_secs(step),
            };
            let began = Instant::now();
            // Alternating passes are never the same as the one before.
            match step % 2 {
                0 => history.provisioned(input, &scheduled, &[]),
                _ => history.disrupted(input, &disrupted),
            };
            took += began.elapsed();
        }
        run.sample(64, took);
        run.record("memory_mib", history.memory() as f64 / (1 << 20) as f64);
    });
}
