//! Helpers for scenarios of one cluster: each has its own namespace and NodePool; a label selects its pods and nodes.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::objects;
use crate::objects::{
    DEPLOYMENTS, NAMESPACES, NODE_CLAIMS, NODE_POOLS, NODES, PODS, apply, delete, merge,
};
use crate::wait::{FOREVER, Seen, until};

/// The label of a scenario's nodes, which its pods select.
const LABEL: &str = "real-cluster";
/// Default timeout of a wait.
pub(crate) const SOON: Duration = Duration::from_secs(90);

/// The namespace and NodePool of a scenario.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) client: Client,
    pub(crate) name: &'static str,
}

impl Case {
    /// Creates the namespace of a scenario.
    pub(crate) async fn new(client: &Client, name: &'static str) -> Result<Self> {
        let case = Self {
            client: client.clone(),
            name,
        };
        let namespace =
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        apply(client, &namespace).await?;
        Ok(case)
    }

    /// Applies the scenario's NodePool: on-demand amd64 nodes that are not disrupted, with `changes`.
    pub(crate) async fn pool(&self, changes: Value) -> Result<()> {
        let mut pool = json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": self.name },
            "spec": {
                "template": {
                    "metadata": { "labels": { LABEL: self.name } },
                    "spec": {
                        "nodeClassRef": { "group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default" },
                        "requirements": [
                            { "key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"] },
                            { "key": "kubernetes.io/os", "operator": "In", "values": ["linux"] },
                            { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"] },
                        ],
                        "expireAfter": "Never",
                    },
                },
                "disruption": { "consolidationPolicy": "WhenEmpty", "consolidateAfter": "1h", "budgets": [{ "nodes": "100%" }] },
            },
        });
        json_patch::merge(&mut pool, &json!({ "spec": changes }));
        apply(&self.client, &pool).await
    }

    /// Creates a Deployment of pods that request this much CPU, with `changes` to its spec.
    pub(crate) async fn deploy(
        &self,
        named: &str,
        replicas: u32,
        cpu: &str,
        changes: Value,
    ) -> Result<()> {
        let mut deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": named, "namespace": self.name },
            "spec": {
                "replicas": replicas,
                "selector": { "matchLabels": { "app": named } },
                "template": {
                    "metadata": { "labels": { "app": named } },
                    "spec": {
                        "nodeSelector": { LABEL: self.name },
                        "terminationGracePeriodSeconds": 0,
                        "containers": [{ "name": "pause", "image": "pause", "resources": { "requests": { "cpu": cpu } } }],
                    },
                },
            },
        });
        json_patch::merge(&mut deployment, &json!({ "spec": changes }));
        apply(&self.client, &deployment).await
    }

    pub(crate) async fn scale(&self, named: &str, replicas: u32) -> Result<()> {
        let patch = json!({ "spec": { "replicas": replicas } });
        merge(&self.deployments(), named, patch).await
    }

    pub(crate) fn deployments(&self) -> Api<DynamicObject> {
        DEPLOYMENTS.of_namespace(&self.client, self.name)
    }

    pub(crate) fn pods(&self) -> Api<DynamicObject> {
        PODS.of_namespace(&self.client, self.name)
    }

    pub(crate) fn nodes(&self) -> Api<DynamicObject> {
        NODES.all(&self.client)
    }

    /// Returns the label selector of the objects of the scenario's NodePool.
    pub(crate) fn selector(&self) -> String {
        format!("karpenter.sh/nodepool={}", self.name)
    }

    /// Waits until this many pods run.
    pub(crate) async fn until_running(&self, count: usize, within: Duration) -> Result<()> {
        let what = format!("{count} pods of {} run", self.name);
        until(&what, &self.pods(), "", within, |seen| {
            Ok((running(seen) == count).then_some(()))
        })
        .await
    }

    /// Waits until the scenario's nodes are as expected.
    pub(crate) async fn until_nodes<T>(
        &self,
        what: &str,
        within: Duration,
        look: impl FnMut(&Seen) -> Result<Option<T>>,
    ) -> Result<T> {
        until(what, &self.nodes(), &self.selector(), within, look).await
    }

    /// Waits until there are this many nodes, all of them initialized and none terminating.
    pub(crate) async fn until_node_count(
        &self,
        count: usize,
        within: Duration,
    ) -> Result<Vec<Value>> {
        let what = format!("{} has {count} nodes", self.name);
        self.until_nodes(&what, within, |seen| {
            let good = seen.values().all(|node| {
                node["metadata"]["labels"]["karpenter.sh/initialized"] == "true"
                    && !is_leaving(node)
            });
            Ok((good && seen.len() == count).then(|| seen.values().cloned().collect()))
        })
        .await
    }

    /// Fails if within this time a check of the nodes fails. Afterwards all objects must be in the expected state.
    pub(crate) async fn nodes_stay(
        &self,
        during: Duration,
        mut look: impl FnMut(&Seen) -> Result<()>,
    ) -> Result<()> {
        let watching = self.until_nodes::<()>("", FOREVER, |seen| look(seen).map(|()| None));
        match tokio::time::timeout(during, watching).await {
            Ok(Err(error)) => Err(error),
            Ok(Ok(())) => bail!("the watch has ended"),
            Err(_) => Ok(()),
        }
    }

    /// Deletes the objects of the scenario, and waits until its nodes and NodeClaims are deleted.
    pub(crate) async fn end(&self) -> Result<()> {
        let deployments = self.deployments();
        for deployment in deployments.list(&ListParams::default()).await? {
            delete(&deployments, &deployment.metadata.name.unwrap_or_default()).await?;
        }
        delete(&NODE_POOLS.all(&self.client), self.name).await?;
        for (kind, what) in [(NODES, "nodes"), (NODE_CLAIMS, "NodeClaims")] {
            let what = format!("no {what} of {} are left", self.name);
            let gone = |seen: &Seen| Ok(seen.is_empty().then_some(()));
            until(&what, &kind.all(&self.client), &self.selector(), SOON, gone).await?;
        }
        // Last, because no object can be created in a terminating namespace, evictions included.
        delete(&NAMESPACES.all(&self.client), self.name).await
    }

    /// Applies an object in the scenario's namespace.
    pub(crate) async fn apply(&self, mut object: Value) -> Result<()> {
        object["metadata"]["namespace"] = self.name.into();
        apply(&self.client, &object).await
    }

    /// Returns the scenario's only node.
    pub(crate) async fn only_node(&self) -> Result<Value> {
        let nodes = objects::list(&self.nodes(), &self.selector()).await?;
        let [node] = <[Value; 1]>::try_from(nodes)
            .ok()
            .context("expected exactly one node")?;
        Ok(node)
    }
}

/// Returns a pod spec that spreads pods over nodes, one on each.
pub(crate) fn one_on_each_node(app: &str) -> Value {
    json!({ "template": { "spec": { "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [
        { "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "app": app } } },
    ] } } } } })
}

/// Counts the running pods.
pub(crate) fn running(seen: &Seen) -> usize {
    let runs = |pod: &&Value| {
        pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null()
    };
    seen.values().filter(runs).count()
}

/// Whether a node is being disrupted or deleted.
pub(crate) fn is_leaving(node: &Value) -> bool {
    let mut taints = node["spec"]["taints"].as_array().into_iter().flatten();
    taints.any(|taint| taint["key"] == "karpenter.sh/disrupted")
        || !node["metadata"]["deletionTimestamp"].is_null()
}
