//! The state of the cluster: numbers to print, and whether it is idle.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::conditions::{Condition, HasConditions, types};
use karpenter_api::labels;
use karpenter_api::v1::{NodeClaim, NodePool};
use kube::api::ListParams;
use kube::{Api, Client};

use crate::local_cluster::LocalCluster;

/// The state of the cluster in numbers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Progress {
    pub running: usize,
    /// Pods that are pending or starting.
    pub pending: usize,
    pub terminating: usize,
    /// Ready nodes without disruption taints.
    pub ready_nodes: usize,
    pub claims: usize,
    /// NodeClaims that are launching or terminating.
    pub moving: usize,
    /// Deployments that do not have the desired number of replicas.
    pub updating_deployments: usize,
    /// Whether every NodePool has a `Ready` condition.
    pub pools_judged: bool,
    /// Nodes by instance type.
    pub types: BTreeMap<String, usize>,
    /// Price of all nodes in dollars per hour.
    pub hourly_price: f64,
}

impl Progress {
    /// Reads the state of the cluster.
    ///
    /// # Errors
    /// If the API server does not answer.
    pub async fn of(cluster: &LocalCluster) -> kube::Result<Self> {
        let client = cluster.client();
        let all = ListParams::default();
        let pods = list::<Pod>(&client, &all).await?;
        let nodes = list::<Node>(&client, &all).await?;
        let claims = list::<NodeClaim>(&client, &all).await?;
        let deployments = list::<Deployment>(&client, &all).await?;
        let pools = list::<NodePool>(&client, &all).await?;
        let mut progress = Self {
            hourly_price: cluster.cloud.hourly_price(),
            claims: claims.len(),
            ..Self::default()
        };
        for pod in &pods {
            let phase = pod
                .status
                .as_ref()
                .and_then(|s| s.phase.as_deref())
                .unwrap_or("Pending");
            match phase {
                _ if pod.metadata.deletion_timestamp.is_some() => progress.terminating += 1,
                "Running" => progress.running += 1,
                "Succeeded" | "Failed" => {}
                _ => progress.pending += 1,
            }
        }
        progress.ready_nodes = nodes.iter().filter(|n| is_ready(n)).count();
        for node in &nodes {
            let name = node
                .metadata
                .labels
                .as_ref()
                .and_then(|l| l.get(labels::INSTANCE_TYPE));
            *progress
                .types
                .entry(name.cloned().unwrap_or_default())
                .or_default() += 1;
        }
        progress.moving = claims
            .iter()
            .filter(|c| c.is_deleting() || !c.is_true(types::INITIALIZED))
            .count();
        progress.updating_deployments = deployments
            .iter()
            .filter(|d| !has_desired_replicas(d))
            .count();
        progress.pools_judged = pools.iter().all(|p| {
            p.condition(types::READY)
                .is_some_and(|c| c.status != "Unknown")
        });
        Ok(progress)
    }

    /// Whether no object is changing. Permanently pending pods count as idle only after a while; see the caller.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.pending == 0 && self.is_still()
    }

    /// Whether at most pending pods are left.
    #[must_use]
    pub fn is_still(&self) -> bool {
        self.terminating == 0 && self.moving == 0 && self.pools_judged
    }

    /// One line for the terminal.
    #[must_use]
    pub fn line(&self) -> String {
        format!(
            "pods {} running, {} pending, {} leaving | nodes {} of {} ready | ${:.4}/h",
            self.running,
            self.pending,
            self.terminating,
            self.ready_nodes,
            self.claims,
            self.hourly_price
        )
    }
}

async fn list<K>(client: &Client, params: &ListParams) -> kube::Result<Vec<K>>
where
    K: kube::Resource<DynamicType = ()> + serde::de::DeserializeOwned + Clone + std::fmt::Debug,
{
    Ok(Api::<K>::all(client.clone()).list(params).await?.items)
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

fn has_desired_replicas(deployment: &Deployment) -> bool {
    let wanted = deployment
        .spec
        .as_ref()
        .and_then(|s| s.replicas)
        .unwrap_or(1);
    let status = deployment.status.as_ref();
    let seen = status.and_then(|s| s.observed_generation) >= deployment.metadata.generation;
    seen && status.and_then(|s| s.ready_replicas).unwrap_or(0) == wanted
}

fn conditions(all: &[Condition]) -> String {
    let all: Vec<String> = all
        .iter()
        .map(|c| format!("{}={} ({} {})", c.type_, c.status, c.reason, c.message))
        .collect();
    all.join(", ")
}

/// Describes the NodePools, NodeClaims, Nodes and pods of a cluster, a line each, for debugging a failure.
///
/// # Errors
/// If the API server does not answer.
pub async fn describe(client: &Client) -> kube::Result<Vec<String>> {
    let (mut lines, all) = (Vec::new(), ListParams::default());
    for pool in list::<NodePool>(client, &all).await? {
        let spec = serde_json::to_string(&pool.spec).unwrap_or_default();
        let status = conditions(&pool.status.conditions);
        lines.push(format!("nodepool {} {spec} {status}", pool.name()));
    }
    for claim in list::<NodeClaim>(client, &all).await? {
        lines.push(format!(
            "nodeclaim {} of {} {:?} deleted {:?} {}",
            claim.name(),
            claim.node_pool().unwrap_or_default(),
            claim.status.provider_id,
            claim.metadata.deletion_timestamp.as_ref().map(|t| t.0),
            conditions(&claim.status.conditions)
        ));
    }
    for node in list::<Node>(client, &all).await? {
        let spec = node.spec.unwrap_or_default();
        let taints: Vec<String> = spec
            .taints
            .iter()
            .flatten()
            .map(|t| format!("{}:{}", t.key, t.effect))
            .collect();
        let ready = node
            .status
            .and_then(|s| s.conditions)
            .into_iter()
            .flatten()
            .find(|c| c.type_ == "Ready");
        lines.push(format!(
            "node {} deleted {:?} finalizers {:?} taints {taints:?} ready {:?}",
            node.metadata.name.unwrap_or_default(),
            node.metadata.deletion_timestamp.map(|t| t.0),
            node.metadata.finalizers.unwrap_or_default(),
            ready.map(|c| c.status)
        ));
    }
    for pod in list::<Pod>(client, &all).await? {
        let status = pod.status.unwrap_or_default();
        let why = status.conditions.into_iter().flatten().find_map(|c| {
            (c.type_ == "PodScheduled" && c.status == "False")
                .then_some(c.message)
                .flatten()
        });
        lines.push(format!(
            "pod {} {} on {:?} deleted {:?} {}",
            pod.metadata.name.unwrap_or_default(),
            status.phase.unwrap_or_default(),
            pod.spec.and_then(|s| s.node_name),
            pod.metadata.deletion_timestamp.map(|t| t.0),
            why.unwrap_or_default()
        ));
    }
    Ok(lines)
}
