//! Stands for Cluster API's controllers and an infrastructure provider, on the two API servers.
//!
//! It knows what the contracts say and nothing of Karpenter: a Machine whose infrastructure machine it owns gets a provider id after a
//! while; its kubelet registers a Node; a Machine that is deleted takes its infrastructure machine and its Node with it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Taint};
use karpenter_kube::clock::Clock;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};

pub const NAMESPACE: &str = "default";
const FINALIZER: &str = "machine.cluster.x-k8s.io";
pub const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";

/// What can be set while it runs, and what it has seen.
#[derive(Debug, Default)]
pub struct State {
    /// How long a Machine needs for its provider id.
    pub boots_in: SignedDuration,
    /// MachineDeployments' infrastructure templates that fail, with the message.
    pub failing: BTreeMap<String, String>,
    /// Whether Machines that are deleted stay.
    pub holds_deletions: bool,
    /// Whether Nodes keep the taint that says that their labels are not copied yet.
    pub keeps_taint: bool,
    /// Uids of NodeClaims that ever had a Machine, with the uids of these Machines.
    pub machines: BTreeMap<String, BTreeSet<String>>,
}

#[derive(Clone)]
pub struct Capi {
    pub hub: Client,
    workload: Client,
    version: &'static str,
    clock: Clock,
    pub state: Arc<Mutex<State>>,
}

/// Returns the schemaless definition of a kind.
pub fn definition(group: &str, version: &str, kind: &str) -> Value {
    let plural = format!("{}s", kind.to_lowercase());
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}") },
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List") },
            "versions": [{
                "name": version, "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
            }],
        },
    })
}

impl Capi {
    pub fn start(hub: Client, workload: Client, version: &'static str, clock: Clock) -> Self {
        let state = State {
            boots_in: SignedDuration::from_secs(20),
            ..State::default()
        };
        let capi = Self {
            hub,
            workload,
            version,
            clock,
            state: Arc::new(Mutex::new(state)),
        };
        let running = capi.clone();
        tokio::spawn(async move {
            loop {
                running.clock.sleep(Duration::from_secs(1)).await;
                // A failed request is repeated a second later.
                let _ = running.reconcile().await;
            }
        });
        capi
    }

    /// Returns the API of a kind of the management cluster.
    pub fn api(&self, group: &str, kind: &str) -> Api<DynamicObject> {
        let version = if group == "cluster.x-k8s.io" {
            self.version
        } else {
            "v1beta2"
        };
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::namespaced_with(self.hub.clone(), NAMESPACE, &resource)
    }

    pub fn machines(&self) -> Api<DynamicObject> {
        self.api("cluster.x-k8s.io", "Machine")
    }

    pub fn version(&self) -> &'static str {
        self.version
    }

    pub async fn all(&self, group: &str, kind: &str) -> Vec<DynamicObject> {
        self.api(group, kind)
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
    }

    async fn reconcile(&self) -> kube::Result<()> {
        for machine in self.machines().list(&ListParams::default()).await?.items {
            if let Some(uid) = machine
                .labels()
                .get("karpenter.cluster.x-k8s.io/nodeclaim-uid")
            {
                let mut state = self.state.lock();
                let of = state.machines.entry(uid.clone()).or_default();
                of.insert(machine.uid().unwrap_or_default());
            }
            if machine.metadata.deletion_timestamp.is_some() {
                self.delete(&machine).await?;
            } else {
                self.advance(&machine).await?;
            }
        }
        let nodes: Api<Node> = Api::all(self.workload.clone());
        for node in nodes.list(&ListParams::default()).await?.items {
            self.initialize(&nodes, &node).await?;
        }
        Ok(())
    }

    async fn advance(&self, machine: &DynamicObject) -> kube::Result<()> {
        let (name, machines) = (machine.name_any(), self.machines());
        if machine.finalizers().is_empty() {
            let patch = json!({ "metadata": { "finalizers": [FINALIZER] } });
            machines
                .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
                .await?;
        }
        let reference = &machine.data["spec"]["infrastructureRef"];
        let (kind, of) = (
            reference["kind"].as_str().unwrap(),
            reference["name"].as_str().unwrap(),
        );
        let Some(infrastructure) = self.api(INFRASTRUCTURE, kind).get_opt(of).await? else {
            return Ok(());
        };
        let owners = infrastructure.owner_references();
        if !owners
            .iter()
            .any(|owner| owner.uid == machine.uid().unwrap() && owner.controller == Some(true))
        {
            return Ok(());
        }
        let from = &infrastructure.annotations()["cluster.x-k8s.io/cloned-from-name"];
        let (boots_in, failure) = {
            let state = self.state.lock();
            (state.boots_in, state.failing.get(from).cloned())
        };
        if let Some(failure) = failure {
            let patch = json!({ "status": { "failureMessage": failure } });
            machines
                .patch_status(&name, &PatchParams::default(), &Patch::Merge(patch))
                .await?;
            return Ok(());
        }
        let created: Timestamp = infrastructure.creation_timestamp().unwrap().0;
        if self.clock.now().duration_since(created) < boots_in {
            return Ok(());
        }
        if machine.data["spec"]["providerID"].is_null() {
            let patch = json!({ "spec": { "providerID": format!("test://{name}") } });
            machines
                .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
                .await?;
        }
        let zone = machine.data["spec"]["failureDomain"]
            .as_str()
            .unwrap_or("a");
        let node: Node = serde_json::from_value(json!({
            "metadata": {
                "name": name, "annotations": { "kwok.x-k8s.io/node": "fake", "cluster.x-k8s.io/machine": name },
                "labels": { "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                    "topology.kubernetes.io/zone": zone },
            },
            "spec": { "providerID": format!("test://{name}"), "taints": [
                { "key": "karpenter.sh/unregistered", "effect": "NoExecute" },
                { "key": "node.cluster.x-k8s.io/uninitialized", "effect": "NoSchedule" },
            ] },
            "status": { "capacity": infrastructure.data["spec"]["capacity"], "allocatable": infrastructure.data["spec"]["capacity"] },
        }))
        .unwrap();
        match Api::<Node>::all(self.workload.clone())
            .create(&PostParams::default(), &node)
            .await
        {
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// Removes the taint of a Node once Karpenter has registered it: later than that is allowed, too.
    async fn initialize(&self, nodes: &Api<Node>, node: &Node) -> kube::Result<()> {
        let mut taints = node
            .spec
            .clone()
            .unwrap_or_default()
            .taints
            .unwrap_or_default();
        let before = taints.len();
        let is_new = |taint: &Taint| taint.key == "karpenter.sh/unregistered";
        if self.state.lock().keeps_taint || taints.iter().any(is_new) {
            return Ok(());
        }
        taints.retain(|taint| taint.key != "node.cluster.x-k8s.io/uninitialized");
        if taints.len() < before {
            let patch = json!({ "metadata": { "resourceVersion": node.resource_version() }, "spec": { "taints": taints } });
            nodes
                .patch(
                    &node.name_any(),
                    &PatchParams::default(),
                    &Patch::Merge(patch),
                )
                .await?;
        }
        Ok(())
    }

    async fn delete(&self, machine: &DynamicObject) -> kube::Result<()> {
        if self.state.lock().holds_deletions {
            return Ok(());
        }
        let name = machine.name_any();
        let gone = |error: kube::Error| match error {
            kube::Error::Api(status) if status.is_not_found() => Ok(()),
            error => Err(error),
        };
        let kind = machine.data["spec"]["infrastructureRef"]["kind"]
            .as_str()
            .unwrap();
        let deleted = self
            .api(INFRASTRUCTURE, kind)
            .delete(&name, &DeleteParams::default())
            .await;
        deleted.map(|_| ()).or_else(gone)?;
        let nodes: Api<Node> = Api::all(self.workload.clone());
        nodes
            .delete(&name, &DeleteParams::default())
            .await
            .map(|_| ())
            .or_else(gone)?;
        let patch = json!({ "metadata": { "finalizers": null } });
        let released = self
            .machines()
            .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        released.map(|_| ()).or_else(gone)
    }
}
