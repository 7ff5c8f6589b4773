//! v0.29: Windows Server 2019 and 2022, ten replicas for each Windows build, and their termination.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::cluster::{Cluster, Start, is_true};
use crate::plans::{deletes_only, launched};

const SEED: &str = "2-windows-v0.29";
const VALUES: &str = "
serviceAccount:
  annotations:
    eks.amazonaws.com/role-arn: arn:aws:iam::123456789012:role/${CLUSTER_NAME}-karpenter
settings:
  aws:
    clusterName: ${CLUSTER_NAME}
    defaultInstanceProfile: KarpenterNodeInstanceProfile-${CLUSTER_NAME}
    interruptionQueueName: ${CLUSTER_NAME}
controller:
  resources:
    requests: {cpu: 1, memory: 1Gi}
    limits: {cpu: 1, memory: 1Gi}
logLevel: debug
legacy: {enabled: true}
";
const MINUTE: Duration = Duration::from_secs(60);

const BUILDS: [(&str, &str); 2] = [("2019", "10.0.17763"), ("2022", "10.0.20348")];

fn node_of(cluster: &Cluster, build: &str) -> Vec<Value> {
    cluster.items(&[
        "nodes",
        "-l",
        &format!("node.kubernetes.io/windows-build={build},karpenter.sh/nodepool"),
    ])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn walkthrough_2() {
    let start = Start {
        title: "Walkthrough 2",
        cluster: "windows-karpenter-demo",
        kubernetes: "1.30",
        published: &[],
        generation: 7,
        values: VALUES,
    };
    let Some(mut cluster) = Cluster::start(start).await else {
        return;
    };
    let discovered = cluster
        .logs(0, "discovered instance types", MINUTE, |_| true)
        .await;
    assert!(discovered.json["count"].as_u64().unwrap() > 600);

    cluster.step("Enabling Windows in the cluster, and applying Provisioners.");
    cluster.apply_text(
        &json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "amazon-vpc-cni", "namespace": "kube-system" },
            "data": { "enable-windows-ipam": "true" },
        })
        .to_string(),
    );
    cluster.apply(&format!("{SEED}/provisioners.yaml"));
    cluster
        .until(
            "NodePools are ready, and Karpenter's pods run",
            MINUTE,
            |cluster| {
                for (year, _) in BUILDS {
                    let pool = cluster.find(&["nodepool", &format!("windows{year}")])?;
                    is_true(&pool, "Ready")?;
                }
                let pods = cluster.items(&["pods", "--all-namespaces"]);
                let run = |pod: &Value| pod["status"]["phase"] == "Running";
                pods.iter().all(run).then_some(())
            },
        )
        .await;
    for (year, build) in BUILDS {
        let deployment = format!("windows-server-iis-simple-{year}");
        cluster.apply(&format!("{SEED}/deployment-{year}.yaml"));
        // A plan knows no admission webhooks: what they add is written into the manifest.
        let mut ten = cluster.get(&["deployment", &deployment]);
        ten["spec"]["replicas"] = 10.into();
        karpenter_aws_fake::nodes::admit(&mut ten["spec"]["template"]);
        let planned = launched(&cluster.plan(&json!([{ "apply": ten }])));

        cluster.step(&format!("Scaling {deployment} to 10."));
        let before = cluster.log_end();
        cluster.kubectl(&["scale", "deployment", &deployment, "--replicas", "10"]);
        cluster
            .until("ten replicas run", 2 * MINUTE, |cluster| {
                let deployment = cluster.get(&["deployment", &deployment]);
                (deployment["status"]["readyReplicas"] == 10).then_some(())
            })
            .await;
        let output = cluster.kubectl(&[
            "rollout",
            "status",
            "deployment",
            &deployment,
            "--timeout=60s",
        ]);
        assert!(output.contains("successfully rolled out"));
        let nodes = node_of(&cluster, build);
        assert_eq!(nodes.len(), 1, "ten replicas fit one node of {build}");
        let line = cluster
            .logs(before, "launched nodeclaim", MINUTE, |_| true)
            .await;
        assert_eq!(line.text("level"), "INFO");
        line.has_keys(&[
            "nodeclaim",
            "provider-id",
            "instance-type",
            "zone",
            "capacity-type",
            "allocatable",
        ]);
        assert_eq!(line.json["instance-type"], "c6a.xlarge");
        assert_eq!(line.json["instance-type"], planned.as_str());
        let allocatable = &line.json["allocatable"];
        for (resource, amount) in [
            ("vpc.amazonaws.com/PrivateIPv4Address", "14"),
            ("cpu", "3920m"),
            ("memory", "6012Mi"),
            ("pods", "110"),
            ("ephemeral-storage", "44Gi"),
        ] {
            assert_eq!(allocatable[resource], amount, "{resource}");
        }
        let labels = &nodes[0]["metadata"]["labels"];
        assert_eq!(labels["kubernetes.io/os"], "windows");
        assert_eq!(labels["karpenter.sh/nodepool"], format!("windows{year}"));
        let instance = cluster.instance_of(&nodes[0]);
        let image = cluster.aws.image(&instance.image).unwrap().name;
        assert!(
            image.starts_with(&format!("Windows_Server-{year}-")),
            "{image}"
        );
        let options = &instance.data["MetadataOptions"];
        for (option, value) in [
            ("HttpEndpoint", "enabled"),
            ("HttpProtocolIpv6", "disabled"),
            ("HttpPutResponseHopLimit", "2"),
            ("HttpTokens", "required"),
        ] {
            let set = options[option]
                .as_str()
                .map_or(options[option].to_string(), str::to_owned);
            assert_eq!(set, value, "{option}");
        }
    }
    cluster.kubectl(&[
        "get",
        "nodes",
        "-L",
        "node.kubernetes.io/windows-build,node.kubernetes.io/instance-type",
    ]);
    assert_eq!(cluster.nodes().len(), 2);

    for (year, build) in BUILDS {
        let deployment = format!("windows-server-iis-simple-{year}");
        let node = node_of(&cluster, build).remove(0);
        let gone = json!({ "kind": "Deployment", "namespace": "default", "name": deployment });
        deletes_only(&cluster.plan(&json!([{ "delete": gone }])), &node);
        let node = node["metadata"]["name"].as_str().unwrap().to_owned();
        cluster.step(&format!("Deleting {deployment}."));
        let before = cluster.log_end();
        cluster.kubectl(&["delete", "deployment", &deployment]);
        cluster
            .until("its pods are deleted", MINUTE, |cluster| {
                let label = format!("app={deployment}");
                cluster
                    .items(&["pods", "-l", &label])
                    .is_empty()
                    .then_some(())
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
        let of_node = |line: &crate::controller::Line| line.json["Node"]["name"] == node.as_str();
        let tainted = cluster.logs(before, "tainted node", MINUTE, of_node).await;
        let deleted = cluster
            .logs(tainted.at, "deleted node", MINUTE, of_node)
            .await;
        cluster
            .logs(deleted.at, "deleted nodeclaim", MINUTE, of_node)
            .await;
        assert_eq!(node_of(&cluster, build), Vec::<Value>::new());
    }
    cluster
        .until("no instance is left", MINUTE, |cluster| {
            cluster.instances().is_empty().then_some(())
        })
        .await;
    cluster.end().await;
}
