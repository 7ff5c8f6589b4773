//! A cluster of the imaginary cloud, in the embedded control plane and virtual time.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_api::{crd, labels};
use karpenter_kube::clock::Clock;
use karpenter_kube::options::Options;
use karpenter_testbed::loops::Loops;
use karpenter_testbed::{Testbed, loops};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, CustomResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use third_party_provider::lagoon::{Lagoon, SIZES};
use third_party_provider::{LagoonClass, kubelets, operator};
use tokio_util::sync::{CancellationToken, DropGuard};

/// A testbed cluster with Karpenter on the imaginary cloud, in virtual time.
struct World {
    client: Client,
    cloud: Lagoon,
    clock: Clock,
    _loops: Loops,
    _stop: DropGuard,
}

impl World {
    async fn start(image: &str) -> Self {
        let start = "2026-01-01T00:00:00Z".parse().unwrap();
        let (clock, testbed_clock) = (
            Clock::new(start, 1.0),
            karpenter_testbed::Clock::new(start, 1.0),
        );
        let testbed = Testbed::builder()
            .clock(testbed_clock)
            .garbage_collection()
            .start()
            .await;
        let class = serde_json::to_value(LagoonClass::crd()).unwrap();
        let definitions = crd::all(&[], &[])
            .into_iter()
            .map(|(_, definition)| definition);
        testbed
            .apply_crds(definitions.chain([class]))
            .await
            .unwrap();
        let loops = Loops::start(testbed.client(), testbed_clock, loops::Options::default());
        let (cloud, stop) = (Lagoon::default(), CancellationToken::new());
        let karpenter = operator(
            testbed.client(),
            cloud.clone(),
            "test",
            Options::for_tests(),
        )
        .clock(clock);
        tokio::spawn(karpenter.run(stop.clone()));
        let (client, name) = (testbed.client(), "test".to_owned());
        let instances = kubelets::join(client, cloud.clone(), name, clock, stop.clone());
        tokio::spawn(instances);
        let client = testbed.client();
        let world = Self {
            client,
            cloud,
            clock,
            _loops: loops,
            _stop: stop.drop_guard(),
        };
        let class = json!({ "apiVersion": "lagoon.example.com/v1", "kind": "LagoonClass", "metadata": { "name": "default" },
            "spec": { "image": image } });
        world.create::<LagoonClass>(class).await;
        world.create::<NodePool>(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "default" },
            "spec": {
                "template": { "spec": {
                    "nodeClassRef": { "group": "lagoon.example.com", "kind": "LagoonClass", "name": "default" },
                    "requirements": [],
                } },
                "disruption": { "consolidateAfter": "0s", "budgets": [{ "nodes": "100%" }] },
            },
        }))
        .await;
        world
    }

    fn api<K: kube::Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    async fn create<K>(&self, object: Value)
    where
        K: kube::Resource<DynamicType = ()>
            + DeserializeOwned
            + serde::Serialize
            + Clone
            + std::fmt::Debug,
    {
        let object: K = serde_json::from_value(object).unwrap();
        self.api::<K>()
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
    }

    async fn list<K>(&self) -> Vec<K>
    where
        K: kube::Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
    {
        self.api::<K>()
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
    }

    /// Creates a Deployment whose pods request one core each.
    async fn deploy(&self, replicas: usize) {
        let deployment: Deployment = serde_json::from_value(json!({
            "metadata": { "name": "web", "namespace": "default" },
            "spec": {
                "replicas": replicas, "selector": { "matchLabels": { "app": "web" } },
                "template": { "metadata": { "labels": { "app": "web" } }, "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{ "name": "web", "image": "web", "resources": { "requests": { "cpu": "1" } } }],
                } },
            },
        }))
        .unwrap();
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), "default");
        let force = PatchParams::apply("test").force();
        api.patch("web", &force, &Patch::Apply(&deployment))
            .await
            .unwrap();
    }

    async fn running(&self) -> usize {
        let pods: Vec<Pod> = self.list().await;
        let runs = |pod: &&Pod| {
            pod.status
                .as_ref()
                .is_some_and(|s| s.phase.as_deref() == Some("Running"))
        };
        pods.iter().filter(runs).count()
    }

    /// Advances time until `holds` returns true, for a quarter of an hour at most.
    async fn until(&self, what: &str, holds: impl AsyncFn(&Self) -> bool) {
        for _ in 0..900 {
            if holds(self).await {
                return;
            }
            self.clock.sleep(Duration::from_secs(1)).await;
        }
        let claims: Vec<NodeClaim> = self.list().await;
        assert!(
            holds(self).await,
            "still not: {what}; {:?}",
            claims
                .iter()
                .map(|c| &c.status.conditions)
                .collect::<Vec<_>>()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn instances_are_launched_and_terminated_with_the_pods() {
    let world = World::start("os-1").await;
    world.deploy(20).await;
    world
        .until("20 pods run", async |w| w.running().await == 20)
        .await;
    let instances = world.cloud.instances("test");
    let cores = |size: &str| SIZES.iter().find(|s| s.0 == size).unwrap().1;
    let total: i64 = instances.iter().map(|m| cores(&m.size)).sum();
    assert!((20..=34).contains(&total), "{instances:?}");
    let nodes: Vec<Node> = world.list().await;
    assert_eq!(nodes.len(), instances.len());
    for node in nodes {
        let labels = node.metadata.labels.unwrap();
        assert_eq!(labels[labels::NODE_POOL], "default");
        assert!(cores(&labels[labels::INSTANCE_TYPE]) > 0);
    }
    world.deploy(0).await;
    world
        .until("nothing is left", async |w| {
            w.cloud.instances("test").is_empty()
        })
        .await;
    world
        .until("no nodes are left", async |w| {
            w.list::<Node>().await.is_empty()
        })
        .await;
    assert!(world.list::<NodeClaim>().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_size_without_capacity_on_one_island_is_launched_on_the_other() {
    let world = World::start("os-1").await;
    for (size, ..) in SIZES {
        world.cloud.exhaust(size, "island-1");
    }
    world.deploy(3).await;
    world
        .until("3 pods run", async |w| w.running().await == 3)
        .await;
    assert!(
        world
            .cloud
            .instances("test")
            .iter()
            .all(|m| m.island == "island-2")
    );
}

#[tokio::test(start_paused = true)]
async fn another_image_drifts_the_instances() {
    let world = World::start("os-1").await;
    world.deploy(5).await;
    world
        .until("5 pods run", async |w| w.running().await == 5)
        .await;
    let change = json!({ "spec": { "image": "os-2" } });
    let classes = world.api::<LagoonClass>();
    classes
        .patch("default", &PatchParams::default(), &Patch::Merge(change))
        .await
        .unwrap();
    let renewed = async |w: &World| {
        let instances = w.cloud.instances("test");
        !instances.is_empty()
            && instances.iter().all(|m| m.image == "os-2")
            && w.running().await == 5
    };
    world
        .until("every instance has the new image", renewed)
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_class_without_an_image_is_not_ready_and_launches_nothing() {
    let world = World::start("").await;
    world.deploy(1).await;
    let reported = async |w: &World| {
        let class = w.api::<LagoonClass>().get("default").await.unwrap();
        let conditions = class.status.unwrap_or_default().conditions;
        conditions
            .iter()
            .any(|c| c.status == "False" && c.message.contains("spec.image"))
    };
    world
        .until("the class reports why it is not ready", reported)
        .await;
    world.clock.sleep(Duration::from_secs(60)).await;
    assert_eq!(world.cloud.instances("test"), []);
    assert!(world.list::<NodeClaim>().await.is_empty());
}
