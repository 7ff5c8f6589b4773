//! v0.16: a Provisioner and an AWSNodeTemplate, `inflate` from 0 to 1 and back.

use std::time::{Duration, SystemTime};

use karpenter_aws_fake::Lifecycle;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Start, is_true};
use crate::plans::{deletes_only, launched};

const SEED: &str = "1-just-in-time-v0.16";
const VALUES: &str = "
serviceAccount:
  annotations:
    eks.amazonaws.com/role-arn: arn:aws:iam::123456789012:role/${CLUSTER_NAME}-karpenter
clusterName: ${CLUSTER_NAME}
clusterEndpoint: https://${CLUSTER_NAME}.eks.example
defaultProvisioner: {create: false}
aws:
  defaultInstanceProfile: KarpenterNodeInstanceProfile-${CLUSTER_NAME}
legacy: {enabled: true}
";
const MINUTE: Duration = Duration::from_secs(60);

/// Asserts that the running instances never exceed the limits of the Provisioner: 1000 CPU, 1000 Gi. 7.5 % of the memory that EC2
/// advertises do not count: the hypervisor uses them (`vmMemoryOverheadPercent`).
fn stays_within_limits(cluster: &Cluster) {
    let (mut cpus, mut mebibytes) = (0, 0);
    for instance in cluster.instances() {
        let record = cluster.aws.instance_type(&instance.instance_type).unwrap();
        cpus += instance.vcpus;
        mebibytes += record["memoryInfo"]["sizeInMiB"].as_u64().unwrap();
    }
    assert!(cpus <= 1000, "{cpus} CPUs");
    let counted = mebibytes * 925 / 1000;
    assert!(counted <= 1000 * 1024, "{counted} Mi");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn walkthrough_1() {
    let start = Start {
        title: "Walkthrough 1",
        cluster: "eksspotworkshop",
        kubernetes: "1.30",
        published: &[],
        generation: 6,
        values: VALUES,
    };
    let Some(mut cluster) = Cluster::start(start).await else {
        return;
    };
    cluster.step("Applying a Provisioner and its AWSNodeTemplate.");
    cluster.apply(&format!("{SEED}/provisioner.yaml"));
    cluster
        .until("the Provisioner is ready", MINUTE, |cluster| {
            is_true(&cluster.get(&["provisioner", "default"]), "Ready")
        })
        .await;
    let output = cluster.kubectl(&["get", "provisioners,awsnodetemplates"]);
    for column in [
        "TEMPLATE",
        "NODEPOOL",
        "NODECLASS",
        "READY",
        "AGE",
        "FAMILY",
    ] {
        assert!(output.contains(column), "{column}");
    }
    let pool = cluster.get(&["nodepool", "default"]);
    let spec = &pool["spec"];
    assert_eq!(spec["limits"], json!({ "cpu": "1000", "memory": "1000Gi" }));
    assert_eq!(spec["disruption"]["consolidationPolicy"], "WhenEmpty");
    assert_eq!(spec["disruption"]["consolidateAfter"], "30s");
    assert_eq!(spec["template"]["spec"]["expireAfter"], "2592000s");

    cluster.step("Scaling inflate to 1.");
    cluster.apply(&format!("{SEED}/inflate.yaml"));
    assert_eq!(cluster.nodes(), Vec::<Value>::new());
    let planned = launched(&cluster.plan_of_replicas("inflate", 1));
    cluster.kubectl(&["scale", "deployment", "inflate", "--replicas", "1"]);
    cluster
        .until("inflate runs", MINUTE, |cluster| {
            let deployment = cluster.get(&["deployment", "inflate"]);
            (deployment["status"]["readyReplicas"] == 1).then_some(())
        })
        .await;
    cluster.kubectl(&[
        "get",
        "nodes",
        "-L",
        "node.kubernetes.io/instance-type,karpenter.sh/capacity-type,intent",
    ]);
    let nodes = cluster.nodes();
    assert_eq!(nodes.len(), 1, "one node");
    let labels = &nodes[0]["metadata"]["labels"];
    for (key, value) in [
        ("intent", "apps"),
        ("karpenter.sh/capacity-type", "on-demand"),
        ("karpenter.sh/provisioner-name", "default"),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", "amd64"),
        ("node.kubernetes.io/instance-type", &planned),
    ] {
        assert_eq!(labels[key], value, "{key}");
    }
    let size = labels["karpenter.k8s.aws/instance-size"].as_str().unwrap();
    assert!(
        size.ends_with("xlarge") || size == "metal",
        "at least xlarge: {size}"
    );
    let instance = cluster.instance_of(&nodes[0]);
    assert_eq!(instance.lifecycle, Lifecycle::OnDemand);
    for (key, value) in [
        ("KarpenerProvisionerName", "default"),
        ("NodeType", "karpenter-workshop"),
        ("IntentLabel", "apps"),
    ] {
        assert_eq!(
            instance.tags.get(key).map(String::as_str),
            Some(value),
            "tag {key}"
        );
    }
    assert_eq!(
        instance.profile.unwrap().0,
        "KarpenterNodeInstanceProfile-eksspotworkshop"
    );
    let image = cluster.aws.image(&instance.image).unwrap().name;
    assert!(image.starts_with("amazon-eks-node-1.30-"), "AL2: {image}");
    let claims = cluster.items(&["nodeclaims"]);
    assert_eq!(claims[0]["spec"]["expireAfter"], "2592000s", "it expires");

    cluster.step("Deleting inflate.");
    let delete = json!([{ "delete": { "kind": "Deployment", "name": "inflate" } }]);
    deletes_only(&cluster.plan(&delete), &nodes[0]);
    let before = cluster.log_end();
    cluster.kubectl(&["delete", "deployment", "inflate"]);
    cluster
        .until("its pod is deleted", MINUTE, |cluster| {
            let pods = cluster.items(&["pods", "-l", "app=inflate"]);
            pods.is_empty().then_some(())
        })
        .await;
    let empty = SystemTime::now();
    cluster
        .logs(before, "disrupting node(s)", MINUTE, |_| true)
        .await;
    let waited = empty.elapsed().unwrap_or_default().as_secs_f64();
    assert!(
        (28.0..75.0).contains(&waited),
        "30 s after it is empty, not {waited}"
    );
    let tainted = cluster.logs(before, "tainted node", MINUTE, |_| true).await;
    let deleted = cluster
        .logs(tainted.at, "deleted node", MINUTE, |_| true)
        .await;
    cluster
        .logs(deleted.at, "deleted nodeclaim", MINUTE, |_| true)
        .await;
    cluster
        .until("the instance is terminated", MINUTE, |cluster| {
            cluster.instances().is_empty().then_some(())
        })
        .await;

    cluster.step("Scaling inflate to 700, beyond the limits of the Provisioner.");
    cluster.apply(&format!("{SEED}/inflate.yaml"));
    cluster.kubectl(&["scale", "deployment", "inflate", "--replicas", "700"]);
    cluster
        .until("the limits are used up", 3 * MINUTE, |cluster| {
            stays_within_limits(cluster);
            let claims = cluster.items(&["nodeclaims"]);
            let all_serve = claims
                .iter()
                .all(|claim| is_true(claim, "Initialized").is_some());
            let ready = cluster.get(&["deployment", "inflate"])["status"]["readyReplicas"].as_u64();
            let exceeded = cluster
                .items(&["events", "--field-selector", "reason=FailedScheduling"])
                .iter()
                .any(|event| event["message"].as_str().unwrap().contains("exceed limits"));
            (all_serve && exceeded && ready >= Some(400)).then_some(())
        })
        .await;
    stays_within_limits(&cluster);
    let ready = cluster.get(&["deployment", "inflate"])["status"]["readyReplicas"].as_u64();
    assert!(
        ready < Some(700),
        "700 pods of 1.5 Gi are more than 1000 Gi"
    );
    cluster.kubectl(&["get", "nodepools", "-o", "wide"]);

    cluster.step("Deleting all resources.");
    cluster.kubectl(&["delete", "deployment", "inflate"]);
    cluster.kubectl(&["delete", "provisioner", "default", "--wait=false"]);
    cluster.until_nothing_is_left().await;
    cluster.end().await;
}
