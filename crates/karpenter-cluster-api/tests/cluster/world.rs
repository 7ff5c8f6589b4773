//! A workload cluster with Karpenter and a management cluster, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::crd;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_cluster_api::node_class::{self, ClusterAPINodeClass};
use karpenter_cluster_api::{ClusterApiProvider, GROUP, Hub, controllers};
use karpenter_kube::client::Clients;
use karpenter_kube::clock::Clock;
use karpenter_kube::operator::Operator;
use karpenter_kube::options::Options;
use karpenter_testbed::loops::Loops;
use karpenter_testbed::{Testbed, loops};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::capi::{Capi, INFRASTRUCTURE, NAMESPACE, definition};

pub struct World {
    pub client: Client,
    pub hub: Testbed,
    pub capi: Capi,
    pub clock: Clock,
    running: Option<AbortHandle>,
    provider: Option<Arc<ClusterApiProvider>>,
    _loops: Loops,
    _workload: Testbed,
}

/// Returns a MachineDeployment that offers `cores` in a zone.
pub fn deployment(name: &str, cores: u32, zone: &str) -> Value {
    json!({
        "kind": "MachineDeployment",
        "metadata": {
            "name": name, "namespace": NAMESPACE, "labels": { "node.cluster.x-k8s.io/karpenter-member": "" },
            "annotations": {
                "capacity.cluster-autoscaler.kubernetes.io/cpu": cores.to_string(),
                "capacity.cluster-autoscaler.kubernetes.io/memory": format!("{}Gi", cores * 4),
                "capacity.cluster-autoscaler.kubernetes.io/labels": format!("node.kubernetes.io/instance-type=t{cores}"),
            },
        },
        "spec": {
            "clusterName": "c1", "replicas": 0,
            "template": {
                "metadata": { "labels": { "cluster.x-k8s.io/deployment-name": name, "example.com/a": "1" } },
                "spec": {
                    "clusterName": "c1", "version": "v1.36.0", "failureDomain": zone,
                    "bootstrap": { "dataSecretName": "boot" },
                    "infrastructureRef": { "apiGroup": INFRASTRUCTURE, "kind": "TestMachineTemplate", "name": format!("{cores}-cores") },
                },
            },
        },
    })
}

impl World {
    /// Starts the clusters, with MachineDeployments, and Karpenter.
    pub async fn start(deployments: impl IntoIterator<Item = Value>) -> Self {
        Self::start_on("v1beta2", deployments).await
    }

    pub async fn start_on(
        version: &'static str,
        deployments: impl IntoIterator<Item = Value>,
    ) -> Self {
        let start = "2026-01-01T00:00:00Z".parse().unwrap();
        let (clock, testbed_clock) = (
            Clock::new(start, 1.0),
            karpenter_testbed::Clock::new(start, 1.0),
        );
        let testbed = || {
            Testbed::builder()
                .clock(testbed_clock)
                .garbage_collection()
                .start()
        };
        let (workload, hub) = (testbed().await, testbed().await);
        let definitions = crd::all(&[], &[])
            .into_iter()
            .map(|(_, definition)| definition);
        workload
            .apply_crds(definitions.chain([node_class::crd()]))
            .await
            .unwrap();
        let kinds = ["Cluster", "MachineDeployment", "Machine"]
            .map(|kind| definition("cluster.x-k8s.io", version, kind));
        let others = [
            definition(INFRASTRUCTURE, "v1beta2", "TestMachineTemplate"),
            definition(INFRASTRUCTURE, "v1beta2", "TestMachine"),
            definition(
                "bootstrap.cluster.x-k8s.io",
                "v1beta2",
                "KubeadmConfigTemplate",
            ),
            definition("bootstrap.cluster.x-k8s.io", "v1beta2", "KubeadmConfig"),
        ];
        hub.apply_crds(kinds.into_iter().chain(others))
            .await
            .unwrap();
        let loops = Loops::start(workload.client(), testbed_clock, loops::Options::default());
        let capi = Capi::start(hub.admin_client(), workload.admin_client(), version, clock);
        let mut world = Self {
            client: workload.client(),
            hub,
            capi,
            clock,
            running: None,
            provider: None,
            _loops: loops,
            _workload: workload,
        };
        world
            .add(
                "cluster.x-k8s.io",
                "Cluster",
                json!({ "metadata": { "name": "c1", "namespace": NAMESPACE }, "spec": {} }),
            )
            .await;
        for cores in [2, 4, 8] {
            let template = json!({
                "metadata": { "name": format!("{cores}-cores"), "namespace": NAMESPACE },
                "spec": { "template": { "spec": { "capacity": {
                    "cpu": cores.to_string(), "memory": format!("{}Gi", cores * 4), "pods": "110" } } } },
            });
            world
                .add(INFRASTRUCTURE, "TestMachineTemplate", template)
                .await;
        }
        for deployment in deployments {
            world
                .add("cluster.x-k8s.io", "MachineDeployment", deployment)
                .await;
        }
        let class = json!({ "apiVersion": format!("{GROUP}/v1alpha1"), "kind": "ClusterAPINodeClass", "metadata": { "name": "default" }, "spec": {} });
        world.create::<ClusterAPINodeClass>(class).await;
        world.create::<NodePool>(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "default" },
            "spec": {
                "template": { "spec": {
                    "nodeClassRef": { "group": GROUP, "kind": "ClusterAPINodeClass", "name": "default" }, "requirements": [] } },
                "disruption": { "consolidateAfter": "0s", "budgets": [{ "nodes": "100%" }] },
            },
        }))
        .await;
        world.run().await;
        world
    }

    pub async fn provider(&self) -> Arc<ClusterApiProvider> {
        let hub = Hub::new(self.hub.client(), None).unwrap();
        Arc::new(ClusterApiProvider::new(hub, self.clock))
    }

    /// Starts Karpenter.
    pub async fn run(&mut self) {
        let provider = self.provider().await;
        self.provider = Some(Arc::clone(&provider));
        let (clients, own) = (Clients::from(self.client.clone()), Arc::clone(&provider));
        let karpenter = Operator::builder(provider, clients, Options::for_tests())
            .clock(self.clock)
            .with(move |registry| controllers::add(registry, &own));
        let running = tokio::spawn(karpenter.run(CancellationToken::new()));
        self.running = Some(running.abort_handle());
    }

    /// Ends Karpenter as `kill -9` does: nothing of it runs any further.
    pub fn kill(&mut self) {
        self.running.take().unwrap().abort();
    }

    pub async fn add(&self, group: &str, kind: &str, mut object: Value) -> DynamicObject {
        object["apiVersion"] = json!(format!(
            "{group}/{}",
            if group == "cluster.x-k8s.io" {
                self.version()
            } else {
                "v1beta2"
            }
        ));
        object["kind"] = json!(kind);
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        self.capi
            .api(group, kind)
            .create(&PostParams::default(), &object)
            .await
            .unwrap()
    }

    fn version(&self) -> &'static str {
        self.capi.version()
    }

    pub async fn change_deployment(&self, name: &str, change: Value) {
        let api = self.capi.api("cluster.x-k8s.io", "MachineDeployment");
        api.patch(name, &PatchParams::default(), &Patch::Merge(change))
            .await
            .unwrap();
    }

    pub fn boots_in(&self, seconds: i64) {
        self.capi.state.lock().boots_in = SignedDuration::from_secs(seconds);
    }

    pub fn api<K: kube::Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    pub async fn create<K>(&self, object: Value)
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

    pub async fn list<K>(&self) -> Vec<K>
    where
        K: kube::Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
    {
        self.api::<K>()
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
    }

    pub async fn machines(&self) -> Vec<DynamicObject> {
        self.capi.all("cluster.x-k8s.io", "Machine").await
    }

    /// Creates or scales a Deployment whose pods request a core and a half each.
    pub async fn deploy(&self, replicas: usize) {
        let deployment: Deployment = serde_json::from_value(json!({
            "metadata": { "name": "web", "namespace": "default" },
            "spec": {
                "replicas": replicas, "selector": { "matchLabels": { "app": "web" } },
                "template": { "metadata": { "labels": { "app": "web" } }, "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{ "name": "web", "image": "web", "resources": { "requests": { "cpu": "1500m" } } }],
                } },
            },
        }))
        .unwrap();
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), "default");
        api.patch(
            "web",
            &PatchParams::apply("test").force(),
            &Patch::Apply(&deployment),
        )
        .await
        .unwrap();
    }

    pub async fn running(&self) -> usize {
        let pods: Vec<Pod> = self.list().await;
        let runs = |pod: &&Pod| {
            pod.status
                .as_ref()
                .is_some_and(|s| s.phase.as_deref() == Some("Running"))
        };
        pods.iter().filter(runs).count()
    }

    pub async fn until_running(&self, pods: usize) {
        self.until("the pods run", async |w| w.running().await == pods)
            .await;
    }

    /// Creates or scales the Deployment, and waits until its pods run.
    pub async fn run_pods(&self, pods: usize) {
        self.deploy(pods).await;
        self.until_running(pods).await;
    }

    pub async fn until_machine(&self) {
        self.until("a Machine is there", async |w| {
            !w.machines().await.is_empty()
        })
        .await;
    }

    pub async fn delete_claim(&self, claim: &NodeClaim) {
        let claims = self.api::<NodeClaim>();
        let name = claim.metadata.name.as_deref().unwrap();
        let now = DeleteParams::default();
        claims.delete(name, &now).await.unwrap();
    }

    /// Advances time until `holds`, for an hour at most.
    pub async fn until(&self, what: &str, holds: impl AsyncFn(&Self) -> bool) {
        for _ in 0..3600 {
            if holds(self).await {
                return;
            }
            self.clock.sleep(Duration::from_secs(1)).await;
        }
        let claims: Vec<NodeClaim> = self.list().await;
        let claims: Vec<_> = claims.iter().map(|c| &c.status.conditions).collect();
        let classes = self.list::<ClusterAPINodeClass>().await;
        let class = &classes[0].status;
        assert!(
            holds(self).await,
            "still not: {what}; {claims:?}; {class:?}"
        );
    }

    /// Checks that nothing is left of Karpenter's Machines, and that no NodeClaim ever had two.
    pub async fn nothing_lost_or_doubled(&self) {
        self.until("nothing is left", async |w| {
            w.machines().await.is_empty()
                && w.capi.all(INFRASTRUCTURE, "TestMachine").await.is_empty()
                && w.list::<Node>().await.is_empty()
                && w.list::<NodeClaim>().await.is_empty()
        })
        .await;
        for (claim, machines) in &self.capi.state.lock().machines {
            assert_eq!(machines.len(), 1, "NodeClaim {claim} had {machines:?}");
        }
    }

    /// Returns the provider of the running Karpenter.
    pub fn running_provider(&self) -> Arc<ClusterApiProvider> {
        self.provider.clone().unwrap()
    }

    pub async fn class(&self) -> ClusterAPINodeClass {
        self.api().get("default").await.unwrap()
    }
}
