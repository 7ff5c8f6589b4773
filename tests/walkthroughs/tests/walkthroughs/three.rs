//! v0.33: a NodePool and an EC2NodeClass of v1beta1, pods with stricter constraints, and an upgrade of the control plane under a
//! PodDisruptionBudget.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Start};

const SEED: &str = "3-layered-constraints-and-upgrade-v0.33";
const VALUES: &str = "
settings:
  clusterName: ${CLUSTER_NAME}
  interruptionQueue: ${CLUSTER_NAME}
controller:
  resources:
    requests: {cpu: 1, memory: 1Gi}
    limits: {cpu: 1, memory: 1Gi}
webhook: {enabled: true}
";
const MINUTE: Duration = Duration::from_secs(60);

/// Records the minimum number of ready replicas from now on.
fn fewest_ready(cluster: &Cluster) -> Arc<AtomicUsize> {
    let fewest = Arc::new(AtomicUsize::new(usize::MAX));
    let pods: Api<Pod> = Api::namespaced(cluster.testbed.admin_client(), "default");
    let seen = Arc::clone(&fewest);
    tokio::spawn(async move {
        let inflate = ListParams::default().labels("app=inflate");
        while let Ok(pods) = pods.list(&inflate).await {
            let ready = pods.items.iter().filter(|pod| {
                let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
                conditions
                    .is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
            });
            seen.fetch_min(ready.count(), Ordering::Relaxed);
            if Arc::strong_count(&seen) == 1 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    fewest
}

fn names_of_pods(cluster: &Cluster) -> BTreeSet<String> {
    let pods = cluster.items(&["pods", "-l", "app=inflate"]);
    let names = pods.iter().map(|pod| pod["metadata"]["name"].as_str());
    names.map(|name| name.unwrap().to_owned()).collect()
}

fn running_on(cluster: &Cluster, node: &str) -> bool {
    let pods = cluster.items(&["pods", "-l", "app=inflate"]);
    let running = pods
        .iter()
        .filter(|pod| pod["status"]["phase"] == "Running" && pod["spec"]["nodeName"] == node);
    running.count() == 3 && pods.len() == 3
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn walkthrough_3() {
    let start = Start {
        title: "Walkthrough 3",
        cluster: "karpenter-blueprints",
        kubernetes: "1.27",
        published: &["1.28"],
        generation: 7,
        values: VALUES,
    };
    let Some(mut cluster) = Cluster::start(start).await else {
        return;
    };
    cluster.until_versions_are_converted().await;
    cluster.step("Applying a NodePool and an EC2NodeClass of v1beta1.");
    cluster.apply(&format!("{SEED}/nodepool.yaml"));
    cluster
        .until("the NodePool is ready", MINUTE, |cluster| {
            let pool = cluster.get(&["nodepool", "default"]);
            let conditions = pool["status"]["conditions"].as_array()?;
            let ready = conditions.iter().find(|c| c["type"] == "Ready")?;
            (ready["status"] == "True").then_some(())
        })
        .await;
    let old = cluster.get(&["nodepools.v1beta1.karpenter.sh", "default"]);
    assert_eq!(
        old["spec"]["disruption"]["consolidationPolicy"],
        "WhenUnderutilized"
    );
    assert_eq!(old["spec"]["disruption"]["expireAfter"], "720h");

    cluster.step("Scaling inflate from 0 to 3.");
    cluster.apply(&format!("{SEED}/inflate.yaml"));
    let before = cluster.log_end();
    cluster.kubectl(&["scale", "deployment", "inflate", "--replicas", "3"]);
    let found = cluster
        .logs(before, "found provisionable pod(s)", MINUTE, |_| true)
        .await;
    let computed = cluster
        .logs(
            found.at,
            "computed new nodeclaim(s) to fit pod(s)",
            MINUTE,
            |_| true,
        )
        .await;
    computed.has_keys(&["nodeclaims", "pods"]);
    let created = cluster
        .logs(computed.at, "created nodeclaim", MINUTE, |_| true)
        .await;
    created.has_keys(&["nodepool", "nodeclaim", "requests", "instance-types"]);
    assert_eq!(created.json["requests"]["cpu"], "3150m");
    assert_eq!(created.json["requests"]["pods"], "6");
    let launched = cluster
        .logs(created.at, "launched nodeclaim", MINUTE, |_| true)
        .await;
    launched.has_keys(&[
        "nodeclaim",
        "provider-id",
        "instance-type",
        "zone",
        "capacity-type",
        "allocatable",
    ]);
    assert_eq!(launched.json["instance-type"], "r6gd.xlarge");
    for (resource, amount) in [
        ("cpu", "3920m"),
        ("memory", "29258Mi"),
        ("ephemeral-storage", "17Gi"),
        ("pods", "58"),
        ("vpc.amazonaws.com/pod-eni", "18"),
    ] {
        assert_eq!(launched.json["allocatable"][resource], amount, "{resource}");
    }
    let initialized = cluster
        .logs(launched.at, "initialized nodeclaim", MINUTE, |_| true)
        .await;
    initialized.has_keys(&["nodeclaim", "provider-id"]);
    for line in [&found, &computed, &created, &launched, &initialized] {
        line.has_keys(&["level", "time", "logger", "message", "commit"]);
        assert_eq!(line.text("level"), "INFO");
    }
    assert_eq!(found.text("logger"), "controller.provisioner");
    assert_eq!(launched.text("logger"), "controller.nodeclaim.lifecycle");

    let nodes = cluster.nodes();
    assert_eq!(nodes.len(), 1, "exactly one node");
    let first = nodes[0]["metadata"]["name"].as_str().unwrap().to_owned();
    cluster
        .until("three replicas run on it", MINUTE, |cluster| {
            running_on(cluster, &first).then_some(())
        })
        .await;
    let labels = &nodes[0]["metadata"]["labels"];
    for (key, value) in [
        ("node.kubernetes.io/instance-type", "r6gd.xlarge"),
        ("topology.kubernetes.io/zone", "us-west-2a"),
        ("karpenter.sh/capacity-type", "on-demand"),
        ("kubernetes.io/arch", "arm64"),
    ] {
        assert_eq!(labels[key], value, "{key}");
    }
    // Every version has its printer columns.
    let output = cluster.kubectl(&["get", "nodeclaims.v1beta1.karpenter.sh"]);
    let columns: Vec<&str> = output.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(columns, ["NAME", "TYPE", "ZONE", "NODE", "READY", "AGE"]);
    let output = cluster.kubectl(&["get", "nodeclaims"]);
    let columns: Vec<&str> = output.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(
        columns,
        ["NAME", "TYPE", "CAPACITY", "ZONE", "NODE", "READY", "AGE"]
    );
    assert!(output.contains("r6gd.xlarge") && output.contains(&first) && output.contains("True"));

    cluster.apply(&format!("{SEED}/pdb.yaml"));
    // The AMI is the provider's: another drift of the same node is rehearsed, by a label of the template.
    cluster.step("Rehearsing that the node drifts.");
    let mut drifting = cluster.get(&["nodepools.v1.karpenter.sh", "default"]);
    drifting["spec"]["template"]["metadata"]["labels"]["rehearsed"] = "true".into();
    let planned = cluster.plan(&json!([{ "apply": drifting }]));
    let steps = planned["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 1, "{planned}");
    assert_eq!(steps[0]["reason"], "Drifted", "{planned}");
    assert_eq!(steps[0]["nodes"], json!([first]), "{planned}");
    let launch = &steps[0]["launches"][0];
    assert_eq!(launch["count"], 1, "{planned}");
    let planned_type = launch["instanceType"].as_str().unwrap().to_owned();
    assert_eq!(planned["evictions"]["total"], 3, "{planned}");
    assert_eq!(planned["after"], planned["before"], "{planned}");
    let evicted = names_of_pods(&cluster);
    let fewest = fewest_ready(&cluster);
    cluster.step("Upgrading the control plane from 1.27 to 1.28, and restarting Karpenter to detect it at once.");
    cluster.testbed.upgrade("1.28");
    cluster.aws.add_cluster(karpenter_aws_fake::Cluster::new(
        "karpenter-blueprints",
        "1.28",
    ));
    let mut cluster = cluster.restart();
    let drifted = cluster
        .logs(0, "disrupting node(s)", 6 * MINUTE, |line| {
            line.text("reason").eq_ignore_ascii_case("drifted")
        })
        .await;
    let command = drifted.text("command").to_owned();
    assert!(command.contains("r6gd.xlarge"), "{command}");
    let created = cluster
        .logs(
            drifted.at.saturating_sub(5),
            "created nodeclaim",
            MINUTE,
            |_| true,
        )
        .await;
    let replacement = created.json["NodeClaim"]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    let of_replacement =
        |line: &crate::controller::Line| line.json["NodeClaim"]["name"] == replacement.as_str();
    cluster
        .logs(0, "launched nodeclaim", MINUTE, of_replacement)
        .await;
    let initialized = cluster
        .logs(0, "initialized nodeclaim", MINUTE, of_replacement)
        .await;
    let of_first = |line: &crate::controller::Line| line.json["Node"]["name"] == first.as_str();
    let tainted = cluster.logs(0, "tainted node", 2 * MINUTE, of_first).await;
    assert!(
        initialized.at < tainted.at,
        "the replacement is initialized before the old node is tainted"
    );
    let deleted = cluster
        .logs(tainted.at, "deleted node", 2 * MINUTE, of_first)
        .await;
    cluster
        .logs(deleted.at, "deleted nodeclaim", MINUTE, of_first)
        .await;
    let second = cluster
        .until("one node is left", MINUTE, |cluster| {
            let nodes = cluster.nodes();
            (nodes.len() == 1).then(|| nodes[0].clone())
        })
        .await;
    let name = second["metadata"]["name"].as_str().unwrap().to_owned();
    assert_ne!(name, first);
    cluster
        .until("three replicas run on the new node", MINUTE, |cluster| {
            running_on(cluster, &name).then_some(())
        })
        .await;
    let version = second["status"]["nodeInfo"]["kubeletVersion"]
        .as_str()
        .unwrap();
    assert!(version.starts_with("v1.28"), "{version}");
    let output = cluster.kubectl(&["get", "pdb"]);
    assert!(output.contains("inflate-pdb") && output.lines().count() == 2);
    assert!(
        fewest.load(Ordering::Relaxed) >= 2,
        "the budget was violated"
    );
    assert_eq!(cluster.items(&["nodeclaims"]).len(), 1);
    // As it was rehearsed: this node, one replacement of that instance type, and each pod once.
    let label = &second["metadata"]["labels"]["node.kubernetes.io/instance-type"];
    assert_eq!(*label, planned_type.as_str());
    assert!(names_of_pods(&cluster).is_disjoint(&evicted));
    let disrupting = cluster.controller.lines();
    let disrupting = disrupting.iter();
    let commands = disrupting.filter(|line| line.text("message") == "disrupting node(s)");
    assert_eq!(commands.count(), 1);

    cluster.step("Deleting the NodePool.");
    cluster.kubectl(&["delete", "deployment", "inflate"]);
    cluster.kubectl(&["delete", "nodepool", "default", "--wait=false"]);
    cluster
        .until("all of its nodes are deleted", 2 * MINUTE, |cluster| {
            let left: Vec<Value> = cluster.nodes();
            (left.is_empty() && cluster.instances().is_empty()).then_some(())
        })
        .await;
    cluster.end().await;
}
