//! How fast and how small the overview is: `cargo xtask bench overview`.
//!
//! `overview-5000` is a cluster of 5,000 nodes with NodeClaims' names of 50 NodePools, 100,000 pods and 90 instance types. It measures
//! the overview and its JSON, which are made once for a state of the cluster and all clients; `bytes` and `gzip_bytes` are its size.
//! `overview-change` is the event of a stream after 50 pod events, which is half a second at 100 a second: with two events a second
//! `stream_bytes` is the size of a second.
//!
//! The goals are 30 ms, 400 KiB, 90 KiB compressed and 20 KB a second (DASH-14).

#![expect(clippy::unwrap_used, reason = "what fails here fails the benchmark")]

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::v1::NodeClaim;
use karpenter_bench::Suite;
use karpenter_core::cluster::{Cluster, ClusterConfig, Snapshot};
use karpenter_decisions::explain::Question;
use karpenter_decisions::history::History;
use karpenter_decisions::overview::{Curve, Overview, POINTS, Point};
use serde_json::{Value, json};

const NODES: usize = 5_000;
const PODS: usize = 20;

fn now() -> Timestamp {
    "2026-01-10T00:00:00Z".parse().unwrap()
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// Returns five characters, as generated names end.
fn random(number: usize) -> String {
    let letters = b"bcdfghjklmnpqrstvwxz2456789";
    let mut state = (number as u64).wrapping_mul(6_364_136_223_846_793_005) >> 5;
    let mut text = String::new();
    for _ in 0..5 {
        text.push(char::from(letters[(state % 27) as usize]));
        state /= 27;
    }
    text
}

fn node_name(number: usize) -> String {
    let (a, b) = (number * 7919 % 251, number * 104_729 % 241);
    format!("ip-10-{}-{a}-{b}.eu-west-1.compute.internal", number % 16)
}

fn pod(number: usize, node: &str) -> Pod {
    let requests = json!({ "cpu": format!("{}m", 50 + number * 31 % 700), "memory": format!("{}Mi", 64 + number % 900) });
    read(json!({
        "metadata": { "name": format!("web-{number}"), "namespace": "shop", "uid": format!("uid-{number}") },
        "spec": { "nodeName": node, "containers": [{ "name": "app", "resources": { "requests": requests } }] },
        "status": { "phase": "Running" },
    }))
}

fn fleet() -> Cluster {
    let mut cluster = Cluster::new(ClusterConfig::default());
    for number in 0..NODES {
        let zone = ["eu-west-1a", "eu-west-1b", "eu-west-1c"][number % 3];
        let pool = format!("pool-{:02}", number * 13 % 50);
        let size = 1 << (number % 6);
        let room = [58, 110, 234][number % 3].to_string();
        let capacity = ["spot", "on-demand"][number % 2];
        let amounts = json!({
            "cpu": format!("{}m", size * 3920), "memory": format!("{}Mi", size * 14_162), "pods": room,
        });
        let labels = json!({
            "karpenter.sh/nodepool": pool,
            "karpenter.sh/capacity-type": capacity,
            "node.kubernetes.io/instance-type": format!("m{}i.{size}xlarge", number % 15),
            "topology.kubernetes.io/zone": zone,
        });
        let created = Timestamp::from_second(now().as_second() - (number as i64) * 709 % 2_000_000);
        let created = created.unwrap().to_string();
        let provider = format!("aws:///{zone}/i-{number:017x}");
        let (name, claim) = (node_name(number), format!("{pool}-{}", random(number)));
        let is_true = |kind: &str| json!({ "type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": created });
        let mut node_labels = labels.clone();
        node_labels["karpenter.sh/registered"] = json!("true");
        node_labels["karpenter.sh/initialized"] = json!("true");
        let node: Node = read(json!({
            "metadata": { "name": name, "creationTimestamp": created, "labels": node_labels },
            "spec": { "providerID": provider },
            "status": { "allocatable": amounts, "capacity": amounts },
        }));
        let claim: NodeClaim = read(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": { "name": claim, "creationTimestamp": created, "labels": labels },
            "spec": {
                "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" }, "requirements": [],
            },
            "status": {
                "providerID": provider, "nodeName": name, "allocatable": amounts, "capacity": amounts,
                "conditions": [is_true("Launched"), is_true("Registered"), is_true("Initialized")],
            },
        }));
        cluster.apply_node(&node);
        cluster.apply_node_claim(&claim);
        for at in 0..PODS {
            cluster.apply_pod(&pod(number * PODS + at, &name));
        }
    }
    cluster
}

fn curve() -> Curve {
    let mut curve = Curve::default();
    for point in 0..POINTS as i64 {
        curve.add(Point {
            at: now().as_second() + 5 * point,
            nodes: NODES,
            pods: NODES * PODS,
            pending: 100,
            price: 1_234_567_890 + point,
        });
    }
    curve
}

fn overview(snapshot: &Snapshot, history: &History) -> Overview {
    Overview::of(&Question {
        snapshot,
        history,
        messages: &|_| None,
        now: now(),
        engine: "1.2.3",
    })
}

fn main() {
    let mut suite = Suite::from_args("overview");
    suite.case("overview-5000", |run| {
        let (cluster, curve, history) = (fleet(), curve(), History::new(now()));
        let snapshot = cluster.snapshot();
        run.parameter("nodes", NODES);
        run.parameter("pods", NODES * PODS);
        let json = overview(&snapshot, &history).to_json(&curve);
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(json.as_bytes()).unwrap();
        run.parameter("bytes", json.len());
        run.parameter("gzip_bytes", gzip.finish().unwrap().len());
        run.measure(1, || overview(&snapshot, &history).to_json(&curve).len());
    });
    suite.case("overview-change", |run| {
        let (mut cluster, history) = (fleet(), History::new(now()));
        let before = overview(&cluster.snapshot(), &history);
        for number in 0..50 {
            cluster.apply_pod(&pod(NODES * PODS + number, &node_name(number * 90)));
        }
        let after = overview(&cluster.snapshot(), &history);
        let event = after.since(&before).unwrap().to_json();
        run.parameter("stream_bytes", 2 * event.len());
        run.measure(1, || after.since(&before).unwrap().to_json().len());
    });
}
