//! A cluster whose controllers serve the page, in real time.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::v1::NodePool;
use karpenter_kwok::KWOKNodeClass;
use karpenter_lab::local_cluster::{LocalCluster, LocalClusterSettings};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::browser::exchange;

/// A cluster whose controllers serve the page.
pub struct World {
    pub cluster: LocalCluster,
    pub client: Client,
    pub port: u16,
    pub url: String,
}

impl World {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let mut settings = LocalClusterSettings {
            speed: 5.0,
            ..LocalClusterSettings::default()
        };
        settings.options.decisions_port = port;
        let cluster = LocalCluster::start(settings).await.unwrap();
        let client = cluster.client();
        let world = Self {
            cluster,
            client,
            port,
            url: format!("http://127.0.0.1:{port}/"),
        };
        world
            .create(
                &Api::all(world.client.clone()),
                &KWOKNodeClass::new("default", Default::default()),
            )
            .await;
        world.pool("default", json!([])).await;
        world
    }

    /// Creates a NodePool of on-demand nodes.
    pub async fn pool(&self, name: &str, taints: Value) {
        let pool = json!({
            "metadata": { "name": name },
            "spec": {
                "template": { "spec": {
                    "nodeClassRef": { "group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default" },
                    "requirements": [
                        { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"] },
                        { "key": "kubernetes.io/os", "operator": "In", "values": ["linux"] },
                        { "key": "karpenter.kwok.sh/instance-cpu", "operator": "In", "values": ["8", "16"] },
                    ],
                    "taints": taints,
                } },
                "disruption": { "consolidateAfter": "0s", "budgets": [{ "nodes": "100%" }] },
                "limits": { "cpu": "1000" },
            },
        });
        let pool: NodePool = serde_json::from_value(pool).unwrap();
        self.create(&Api::all(self.client.clone()), &pool).await;
    }

    /// Ends consolidation: nodes stay as long as the test looks at them.
    pub async fn keep_nodes(&self) {
        let never = json!({ "spec": { "disruption": { "consolidateAfter": "Never" } } });
        let pools: Api<NodePool> = Api::all(self.client.clone());
        pools
            .patch("default", &PatchParams::default(), &Patch::Merge(never))
            .await
            .unwrap();
    }

    pub async fn create<K>(&self, api: &Api<K>, object: &K)
    where
        K: Clone + std::fmt::Debug + serde::de::DeserializeOwned + serde::Serialize,
    {
        api.create(&PostParams::default(), object).await.unwrap();
    }

    pub async fn deploy(&self, name: &str, replicas: i32, more: Value) {
        let mut spec = json!({ "containers": [{
            "name": "app", "image": "app", "resources": { "requests": { "cpu": "1", "memory": "1Gi" } },
        }] });
        for (key, value) in more.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        let deployment = json!({
            "metadata": { "name": name, "namespace": "default" },
            "spec": {
                "replicas": replicas, "selector": { "matchLabels": { "app": name } },
                "template": { "metadata": { "labels": { "app": name } }, "spec": spec },
            },
        });
        let deployment: Deployment = serde_json::from_value(deployment).unwrap();
        self.create(
            &Api::namespaced(self.client.clone(), "default"),
            &deployment,
        )
        .await;
    }

    pub async fn delete(&self, name: &str) {
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), "default");
        api.delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Waits until the nodes are as many as `holds` says, and returns their names.
    pub async fn nodes(&self, holds: impl Fn(usize) -> bool) -> Vec<String> {
        let api: Api<Node> = Api::all(self.client.clone());
        let seen = until(async || {
            let seen = api.list(&ListParams::default()).await.unwrap().items;
            let names: Vec<String> = seen.into_iter().filter_map(|it| it.metadata.name).collect();
            (holds(names.len()), names)
        });
        seen.await
    }

    /// Asks the server until its answer is as `holds` says.
    pub async fn answers(&self, path: &str, holds: impl Fn(&Value) -> bool) {
        let answered = until(async || {
            let answer = tokio::task::block_in_place(|| self.ask(path));
            (holds(&answer), answer)
        });
        answered.await;
    }

    pub fn at(&self, view: &str) -> String {
        format!("{}#{view}", self.url)
    }

    /// Asks the server as `kubectl karpenter` does.
    pub fn ask(&self, path: &str) -> Value {
        let path = format!("/apis/decisions.karpenter.sh/v1alpha1/{path}");
        exchange(self.port, "GET", &path, &Value::Null).unwrap()
    }
}

/// Looks until what is seen is as wanted.
pub async fn until<T: std::fmt::Debug>(look: impl AsyncFn() -> (bool, T)) -> T {
    let began = Instant::now();
    loop {
        let (is_wanted, seen) = look().await;
        if is_wanted {
            return seen;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{seen:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
