//! Pods on EC2 instances: the real controllers on the embedded API server, the AWS provider, and the AWS fake over HTTP.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what fails here fails the test"
)]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodeClaim;
use karpenter_aws::api::EC2NodeClass;
use karpenter_aws_fake::{Instance, Lifecycle, Policy};
use karpenter_kube::logging::JsonLines;
use karpenter_lab::aws::{AwsClusterSettings, CLUSTER, LocalCluster};
use karpenter_lab::manifests;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::prelude::*;

const IMAGES: &str = "/aws/service/eks/optimized-ami/1.36/amazon-linux-2023";
const POLICY: &str = include_str!("../../../docs/iam-policy.json");

/// A local cluster on the AWS fake, in real time.
struct World {
    cluster: LocalCluster,
    client: Client,
}

impl World {
    async fn start() -> Self {
        Self::at(20.0).await
    }

    /// Speed of time relative to real time.
    async fn at(speed: f64) -> Self {
        if std::env::var_os("TEST_LOG").is_some() {
            let lines = JsonLines::new(std::io::stderr, "test").with_filter(LevelFilter::INFO);
            // The first test of the process sets it up.
            let _ = tracing_subscriber::registry().with(lines).try_init();
        }
        let settings = AwsClusterSettings {
            speed,
            pending_s: 2.0,
            pause: Duration::from_millis(5),
            ..AwsClusterSettings::default()
        };
        let cluster = LocalCluster::start(settings).await.unwrap();
        // Denies calls that upstream's policy does not allow.
        let policy = Policy::parse(&Policy::fill(POLICY, CLUSTER)).unwrap();
        cluster.aws.fake.set_policy(Some(policy));
        let client = cluster.aws.client();
        let world = Self { cluster, client };
        world.apply(&class()).await;
        world.ready().await;
        world.apply(&pool()).await;
        world
    }

    async fn apply(&self, manifest: &Value) {
        let text = serde_json::to_string(manifest).unwrap();
        let objects = manifests::parse(&text).unwrap();
        manifests::apply(&self.client, &objects).await.unwrap();
    }

    fn image(&self, arch: &str) -> String {
        let name = format!("{IMAGES}/{arch}/standard/recommended/image_id");
        self.cluster.aws.fake.parameter(&name).unwrap()
    }

    /// Waits until the node class is ready; only its controller makes it ready.
    async fn ready(&self) -> EC2NodeClass {
        let classes: Api<EC2NodeClass> = Api::all(self.client.clone());
        self.until("a node class that is ready", async || {
            let class = classes.get("default").await.ok()?;
            let ready = class.condition(types::READY)?;
            let current = ready.observed_generation == class.metadata.generation;
            (current && class.is_true(types::READY)).then_some(class)
        })
        .await
    }

    async fn pod(&self, name: &str, selector: Value) {
        self.apply(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": "default" },
            "spec": {
                "nodeSelector": selector,
                "containers": [{ "name": "c", "image": "pause", "resources": { "requests": { "cpu": "1", "memory": "1Gi" } } }],
            },
        }))
        .await;
    }

    /// Waits until a condition holds; in real time, because sockets are involved.
    async fn until<T>(&self, what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(found) = check().await {
                return found;
            }
            if Instant::now() > deadline {
                let claims: Api<NodeClaim> = Api::all(self.client.clone());
                let claims = claims.list(&ListParams::default()).await.unwrap();
                let states: Vec<_> = claims
                    .items
                    .iter()
                    .map(|c| (&c.metadata.labels, &c.status.conditions))
                    .collect();
                panic!(
                    "timed out waiting for {what}; claims {states:#?}; calls {:?}",
                    self.cluster.aws.fake.call_counts()
                );
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn running(&self, name: &str) -> Node {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "default");
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = self
            .until("a running pod", async || {
                let pod = pods.get(name).await.ok()?;
                let running = pod.status?.phase? == "Running";
                running.then_some(pod.spec?.node_name?)
            })
            .await;
        nodes.get(&node).await.unwrap()
    }

    fn instance_of(&self, node: &Node) -> Instance {
        let id = node.spec.as_ref().unwrap().provider_id.as_deref().unwrap();
        let id = karpenter_aws::providers::instance::instance_id(id).unwrap();
        self.cluster.aws.fake.instance(id).unwrap()
    }

    async fn claims(&self) -> Vec<NodeClaim> {
        let claims: Api<NodeClaim> = Api::all(self.client.clone());
        claims.list(&ListParams::default()).await.unwrap().items
    }

    /// Asserts that no call was denied for lack of permission.
    fn nothing_beyond_the_policy(&self) {
        assert_eq!(self.cluster.aws.fake.forbidden(), BTreeSet::new());
    }
}

fn class() -> Value {
    let discovery = json!([{ "tags": { "karpenter.sh/discovery": CLUSTER } }]);
    json!({
        "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass",
        "metadata": { "name": "default" },
        "spec": {
            "role": "KarpenterNodeRole-playground",
            "amiSelectorTerms": [{ "alias": "al2023@latest" }],
            "subnetSelectorTerms": discovery, "securityGroupSelectorTerms": discovery,
            "tags": { "team": "x" },
        },
    })
}

fn pool() -> Value {
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool",
        "metadata": { "name": "default" },
        "spec": {
            "template": { "spec": {
                "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
                "requirements": [
                    { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"] },
                    { "key": "karpenter.k8s.aws/instance-category", "operator": "In", "values": ["m", "c"] },
                    { "key": "karpenter.k8s.aws/instance-generation", "operator": "In", "values": ["5"] },
                    { "key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"] },
                ],
            } },
            "disruption": { "consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "0s" },
        },
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_runs_on_a_matching_instance_that_is_terminated_after_the_pod() {
    let world = World::start().await;
    world
        .pod(
            "web",
            json!({ "topology.kubernetes.io/zone": "us-west-2b" }),
        )
        .await;
    let node = world.running("web").await;
    let instance = world.instance_of(&node);
    let labels = node.metadata.labels.clone().unwrap();
    assert_eq!(instance.zone, "us-west-2b");
    assert_eq!(instance.subnet, "subnet-00000000000000002");
    assert_eq!(instance.lifecycle, Lifecycle::OnDemand);
    assert_eq!(instance.image, world.image("x86_64"));
    assert_eq!(
        instance.groups,
        [(
            "sg-00000000000000001".to_owned(),
            instance.groups[0].1.clone()
        )]
    );
    let class = world.ready().await;
    assert_eq!(
        Some(&instance.profile.as_ref().unwrap().0),
        class.status.instance_profile.as_ref()
    );
    for (key, value) in [
        ("team", "x"),
        ("karpenter.sh/nodepool", "default"),
        ("karpenter.k8s.aws/ec2nodeclass", "default"),
        ("eks:eks-cluster-name", CLUSTER),
        ("kubernetes.io/cluster/playground", "owned"),
    ] {
        assert_eq!(
            instance.tags.get(key).map(String::as_str),
            Some(value),
            "{key}"
        );
    }
    for (key, value) in [
        (
            "node.kubernetes.io/instance-type",
            instance.instance_type.as_str(),
        ),
        ("karpenter.sh/capacity-type", "on-demand"),
        ("karpenter.sh/nodepool", "default"),
        ("karpenter.sh/registered", "true"),
        (
            "karpenter.k8s.aws/instance-category",
            &instance.instance_type[..1],
        ),
        ("topology.k8s.aws/zone-id", "usw2-az1"),
    ] {
        assert_eq!(labels.get(key).map(String::as_str), Some(value), "{key}");
    }
    let data = STANDARD
        .decode(instance.data["UserData"].as_str().unwrap())
        .unwrap();
    let data = String::from_utf8(data).unwrap();
    assert!(
        data.contains(CLUSTER) && data.contains("karpenter.sh/unregistered"),
        "{data}"
    );

    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "default");
    pods.delete("web", &DeleteParams::default()).await.unwrap();
    world
        .until("the instance to be terminated", async || {
            let instance = world.cluster.aws.fake.instance(&instance.id)?;
            (!instance.state.is_alive() && world.claims().await.is_empty()).then_some(())
        })
        .await;
    world.nothing_beyond_the_policy();
    let metrics = world.cluster.registry.render();
    for series in [
        "operator_ec2nodeclass_status_condition_count{namespace=\"\",name=\"default\",type=\"Ready\",status=\"True\",reason=\"Ready\"} 1",
        "operator_status_condition_count{namespace=\"\",name=\"default\",group=\"karpenter.k8s.aws\",kind=\"EC2NodeClass\",type=\"Ready\",status=\"True\",reason=\"Ready\"} 1",
        "operator_ec2nodeclass_status_condition_transitions_total{type=\"Ready\",status=\"True\",reason=\"Ready\"} 1",
    ] {
        assert!(metrics.contains(series), "{series}");
    }
    world.cluster.shutdown().await;
}

/// A NodePool of spot nodes, and a workload on one of them.
async fn workload_on_spot(world: &World) {
    let mut pool = pool();
    pool["metadata"]["name"] = json!("spot");
    let requirements = &mut pool["spec"]["template"]["spec"]["requirements"];
    requirements[0]["values"] = json!(["spot"]);
    world.apply(&pool).await;
    let labels = json!({ "app": "web" });
    world
        .apply(&json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "web", "namespace": "default" },
            "spec": {
                "replicas": 1,
                "selector": { "matchLabels": labels },
                "template": {
                    "metadata": { "labels": labels },
                    "spec": {
                        "nodeSelector": { "karpenter.sh/capacity-type": "spot" },
                        "containers": [{ "name": "c", "image": "pause", "resources": { "requests": { "cpu": "1", "memory": "1Gi" } } }],
                    },
                },
            },
        }))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spot_node_is_replaced_before_it_is_interrupted() {
    let world = World::at(8.0).await;
    workload_on_spot(&world).await;
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "default");
    let nodes: Api<Node> = Api::all(world.client.clone());
    let running = async |not_on: &str| {
        let all = pods.list(&ListParams::default()).await.ok()?.items;
        let node = all.into_iter().find_map(|pod| {
            let node = pod.spec?.node_name?;
            let running =
                pod.status?.phase? == "Running" && pod.metadata.deletion_timestamp.is_none();
            (running && node != not_on).then_some(node)
        })?;
        nodes.get(&node).await.ok()
    };
    let first = world
        .until("the workload to run", async || running("").await)
        .await;
    let lost = world.instance_of(&first);
    assert_eq!(lost.lifecycle, Lifecycle::Spot);

    let warned = world.cluster.aws.fake.clock().now();
    assert!(world.cluster.aws.fake.interrupt_spot(&lost.id));
    let name = first.metadata.name.unwrap();
    let second = world
        .until("the workload to run elsewhere", async || {
            running(&name).await
        })
        .await;
    let took = world.cluster.aws.fake.clock().now().duration_since(warned);
    assert!(took.as_secs() < 120, "it took {took}");
    let found = world.instance_of(&second);
    assert_ne!(found.id, lost.id);
    assert_ne!(
        (&found.instance_type, &found.zone),
        (&lost.instance_type, &lost.zone),
        "the capacity pool of the interrupted instance is avoided"
    );
    world
        .until("the instance to be terminated", async || {
            let instance = world.cluster.aws.fake.instance(&lost.id)?;
            (!instance.state.is_alive()).then_some(())
        })
        .await;
    world.nothing_beyond_the_policy();
    world.cluster.shutdown().await;
}

/// The manifests of v0.16 and v0.33, as users wrote them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_generations_are_served_and_the_control_plane_is_upgraded_by_hand() {
    let settings = AwsClusterSettings {
        speed: 20.0,
        pending_s: 2.0,
        pause: Duration::from_millis(5),
        kubernetes: vec!["1.30".into(), "1.31".into()],
        older_generations: true,
        ..AwsClusterSettings::default()
    };
    let cluster = LocalCluster::start(settings).await.unwrap();
    let client = cluster.aws.client();
    let world = World { cluster, client };
    for document in ["provisioner.yaml", "inflate.yaml"] {
        let seed = format!("../../tests/seeds/1-just-in-time-v0.16/{document}");
        let text = std::fs::read_to_string(seed).unwrap();
        let text = text
            .replace("${CLUSTER_NAME}", CLUSTER)
            .replace("replicas: 0", "replicas: 1");
        let objects = manifests::parse(&text).unwrap();
        manifests::apply(&world.client, &objects).await.unwrap();
    }
    let nodes: Api<Node> = Api::all(world.client.clone());
    let of_pool = ListParams::default().labels("karpenter.sh/provisioner-name=default");
    let node = world
        .until("a node of the Provisioner", async || {
            nodes.list(&of_pool).await.ok()?.items.pop()
        })
        .await;
    let kubelet = |node: &Node| {
        let status = node.status.as_ref()?;
        Some(status.node_info.as_ref()?.kubelet_version.clone())
    };
    assert_eq!(kubelet(&node).unwrap(), "v1.30.4-eks");

    // As `curl $AWS_ENDPOINT_URL/_admin -d '{"versions": {"playground": "1.31"}}'` does.
    world.cluster.aws.fake.upgrade(CLUSTER, "1.31");
    world
        .until("the API server's upgrade", async || {
            let version = world.client.apiserver_version().await.ok()?;
            (version.minor == "31").then_some(())
        })
        .await;
    world.cluster.shutdown().await;
}
