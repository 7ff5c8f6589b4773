//! A cluster with Karpenter, installed by Helm; the controller runs as a local process.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::binaries::Binaries;
use crate::controller::Controller;
use crate::objects::{DEFINITIONS, NODE_CLAIMS, NODES, apply, condition, list, name};
use crate::plane::{ControlPlane, Profile};
use crate::wait::until;
use crate::{audit, helm};

/// The zones of the nodes for the system pods, one in each.
pub(crate) const SYSTEM_NODES: [&str; 2] = ["test-zone-a", "test-zone-b"];

/// A control plane, the installed charts, and the controller.
pub(crate) struct Cluster {
    pub(crate) controller: Option<Controller>,
    pub(crate) plane: ControlPlane,
    pub(crate) client: Client,
    pub(crate) started: Timestamp,
    /// Removed on drop, unless a scenario failed.
    folder: Option<TempDir>,
}

impl Cluster {
    /// Starts a control plane with two nodes for the system pods, in a temporary directory.
    pub(crate) async fn start(binaries: &Binaries) -> Result<Self> {
        Self::start_with(binaries, Profile::Default).await
    }

    /// Like `start`, with a profile of kube-scheduler.
    pub(crate) async fn start_with(binaries: &Binaries, profile: Profile) -> Result<Self> {
        let folder = TempDir::with_prefix("real-cluster-")?;
        let mut cluster = Self::start_in(binaries, folder.path(), profile).await?;
        cluster.folder = Some(folder);
        Ok(cluster)
    }

    /// Like `start`, in a directory that is kept.
    pub(crate) async fn start_in(
        binaries: &Binaries,
        folder: &Path,
        profile: Profile,
    ) -> Result<Self> {
        let plane = ControlPlane::start(binaries, folder, profile).await?;
        let client = plane.client().await?;
        for (at, zone) in SYSTEM_NODES.into_iter().enumerate() {
            apply(&client, &system_node(&format!("system-{at}"), zone)).await?;
        }
        Ok(Self {
            controller: None,
            plane,
            client,
            started: Timestamp::now(),
            folder: None,
        })
    }

    /// Installs both charts, and waits until the CRDs are established.
    pub(crate) async fn install(&self, definitions: &Value, values: &Value) -> Result<()> {
        helm::upgrade(&self.plane, helm::CRDS, definitions).await?;
        self.until_definitions_are_established().await?;
        helm::upgrade(&self.plane, helm::KARPENTER, values).await
    }

    /// Waits until every CRD is established.
    pub(crate) async fn until_definitions_are_established(&self) -> Result<()> {
        let definitions = DEFINITIONS.all(&self.client);
        let what = "all CRDs are established";
        until(what, &definitions, "", Duration::from_secs(60), |seen| {
            let served = |d: &Value| condition(d, "Established") == "True";
            Ok(seen.values().all(served).then_some(()))
        })
        .await
    }

    /// Starts the controller, and waits until it holds the lease.
    pub(crate) async fn run(
        &mut self,
        binary: &Path,
        more: &BTreeMap<String, String>,
    ) -> Result<()> {
        let (plane, client) = (&self.plane, &self.client);
        let mut controller =
            Controller::start(plane, client, helm::KARPENTER, binary, more).await?;
        controller.until_leading(client).await?;
        self.controller = Some(controller);
        Ok(())
    }

    pub(crate) fn controller(&mut self) -> Result<&mut Controller> {
        self.controller
            .as_mut()
            .context("the controller is not started")
    }

    /// Checks at the end of every cluster's scenarios: all programs run, no request was forbidden, every line of the log is JSON.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.plane.is_running()?;
        let controller = self.controller()?;
        controller.is_running()?;
        controller.has_logged_json()?;
        let requests = audit::requests(&self.plane.audit_log(), helm::KARPENTER, self.started)?;
        let refused: BTreeSet<String> = requests
            .iter()
            .filter(|request| request.is_forbidden())
            .map(audit::Request::describe)
            .take(10)
            .collect();
        ensure!(requests.len() > 100, "only {} requests", requests.len());
        ensure!(refused.is_empty(), "forbidden: {refused:#?}");
        Ok(())
    }

    /// Keeps the logs, and returns their directory.
    pub(crate) fn keep(&mut self) -> PathBuf {
        match self.folder.take() {
            Some(folder) => folder.keep(),
            None => self.plane.folder().to_owned(),
        }
    }
}

/// Returns a node that Karpenter does not manage: the system pods run on it.
fn system_node(name: &str, zone: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": name, "labels": {
            "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": name,
            "topology.kubernetes.io/zone": zone,
        } },
        "spec": { "taints": [{ "key": "CriticalAddonsOnly", "value": "true", "effect": "NoSchedule" }] },
    })
}

/// Fails unless every NodeClaim with these labels has its own node, and every node a NodeClaim.
pub(crate) async fn claims_and_nodes_belong_together(
    client: &Client,
    labels: &str,
) -> Result<usize> {
    let claims = list(&NODE_CLAIMS.all(client), labels).await?;
    let nodes = list(&NODES.all(client), labels).await?;
    let ids = |objects: &[Value], pointer: &str| -> Vec<String> {
        let id = |object: &Value| {
            object
                .pointer(pointer)
                .and_then(Value::as_str)
                .map(str::to_owned)
        };
        let mut ids: Vec<String> = objects.iter().filter_map(id).collect();
        ids.sort();
        ids
    };
    let (of_claims, of_nodes) = (
        ids(&claims, "/status/providerID"),
        ids(&nodes, "/spec/providerID"),
    );
    let distinct: BTreeSet<&String> = of_nodes.iter().collect();
    ensure!(
        distinct.len() == of_nodes.len(),
        "duplicate nodes: {of_nodes:?}"
    );
    let names = |all: &[Value]| all.iter().map(|o| name(o).to_owned()).collect::<Vec<_>>();
    ensure!(
        of_claims == of_nodes && claims.len() == nodes.len(),
        "NodeClaims {:?} and nodes {:?} do not match",
        names(&claims),
        names(&nodes)
    );
    Ok(nodes.len())
}
