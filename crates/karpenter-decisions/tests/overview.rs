//! The overview of a large cluster: its size, and what its changes leave out.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_core::cluster::{Cluster, ClusterConfig};
use karpenter_decisions::explain::Question;
use karpenter_decisions::history::History;
use karpenter_decisions::overview::{Curve, Overview, POINTS, Point};
use karpenter_fixtures::{CAPACITY_TYPE, INSTANCE_TYPE, bare_node};
use serde_json::{Value, json};

fn now() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

fn node(number: usize) -> Node {
    let zone = ["eu-west-1a", "eu-west-1b", "eu-west-1c"][number % 3];
    let (part, last) = (number / 250, number % 250);
    bare_node(&format!("ip-10-{part}-{last}.eu-west-1.compute.internal"))
        .created("2023-11-01T00:00:00Z")
        .pool(&format!("pool-{}", number % 7))
        .label(CAPACITY_TYPE, "spot")
        .label(INSTANCE_TYPE, &format!("m7i.{}xlarge", number % 90))
        .zone(zone)
        .set("/spec/providerID", format!("aws:///{zone}/i-{number:017x}"))
        .cpu("15890m")
        .memory("60000Mi")
        .pods("110")
        .build()
}

fn pod(number: usize, node: &str) -> Pod {
    karpenter_fixtures::pod(&format!("web-{number}"))
        .namespace("shop")
        .cpu(&format!("{}m", 100 + number % 900))
        .memory("512Mi")
        .on(node)
        .build()
}

fn overview(cluster: &Cluster) -> Overview {
    let (snapshot, history) = (cluster.snapshot(), History::new(now()));
    Overview::of(&Question {
        snapshot: &snapshot,
        history: &history,
        messages: &|_| None,
        now: now(),
        engine: "1.2.3",
    })
}

/// Conformance: DASH-14
#[test]
fn five_thousand_nodes_need_400_kib_and_fifty_changed_ones_ten_kib() {
    let mut cluster = Cluster::new(ClusterConfig::default());
    let mut names = Vec::new();
    for number in 0..5_000 {
        let node = node(number);
        names.push(node.metadata.name.clone().unwrap());
        cluster.apply_node(&node);
    }
    for number in 0..10_000 {
        cluster.apply_pod(&pod(number, &names[number % names.len()]));
    }
    let mut curve = Curve::default();
    for point in 0..=POINTS {
        curve.add(Point {
            at: now().as_second() + 5 * i64::try_from(point).unwrap(),
            nodes: 5_000,
            pods: 100_000,
            pending: 100,
            price: 1_234_567_890,
        });
    }
    let before = overview(&cluster);
    let json = before.to_json(&curve);
    assert_eq!((before.totals.nodes, before.totals.pods), (5_000, 10_000));
    println!("{} bytes", json.len());
    assert!(json.len() <= 400 << 10, "{}", json.len());

    let unchanged = overview(&cluster);
    assert!(unchanged.since(&before).is_none(), "nothing changed");
    for number in 0..50 {
        cluster.apply_pod(&pod(200_000 + number, &names[number * 90]));
    }
    let after = overview(&cluster);
    let delta = after.since(&before).unwrap().to_json();
    println!("{} bytes", delta.len());
    assert!(delta.len() <= 10 << 10, "{}", delta.len());
    let delta: Value = serde_json::from_str(&delta).unwrap();
    let columns: Vec<&String> = delta["change"].as_object().unwrap().keys().collect();
    let changed = ["cpu", "id", "memory", "pods"];
    assert_eq!(columns, changed, "only what changed");
    let ids = &delta["change"]["id"]["rows"];
    assert_eq!(ids.as_array().unwrap().len(), 50);
    assert!(delta.get("add").is_none() && delta.get("remove").is_none());

    cluster.remove_node(&names[17]);
    let last = overview(&cluster);
    let delta: Value = serde_json::from_str(&last.since(&after).unwrap().to_json()).unwrap();
    assert_eq!(delta["remove"], json!([names[17]]));
    assert!(delta.get("change").is_none());
}
