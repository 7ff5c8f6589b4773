//! The kubelet's part of a simulated node: boots, reports `Ready`, renews the lease.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::{NodeAgentOptions, NodeFault};
use crate::loops::cache::{Change, Key};
use crate::loops::driver::{Context, Controller, Next, after, until};
use crate::loops::outcome::{ignore_conflict_of_existence, is_not_found};

/// The namespace of node leases.
pub(crate) const LEASES: &str = "kube-node-lease";

/// Returns the node's `Ready` condition: status and last transition.
pub(crate) fn readiness(node: &Node) -> Option<(String, Option<Timestamp>)> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|c| c.type_ == "Ready")?;
    let since = ready.last_transition_time.as_ref().map(|t| t.0);
    Some((ready.status.clone(), since))
}

/// Returns the status of a booted node. Fields that are already set are kept.
fn boot_status(node: &Node, now: Timestamp, address: &str) -> Value {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let condition = |type_: &str, status: &str, reason: &str, message: &str| {
        json!({
            "type": type_, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": Time(now), "lastTransitionTime": Time(now),
        })
    };
    let mut status = json!({
        "conditions": [
            condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
            condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
            condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
        ],
        "phase": "Running",
    });
    let known = node.status.clone().unwrap_or_default();
    if known.addresses.is_none_or(|a| a.is_empty()) {
        status["addresses"] = json!([
            {"type": "InternalIP", "address": address},
            {"type": "Hostname", "address": name},
        ]);
    }
    if known.node_info.is_none_or(|i| i.kubelet_version.is_empty()) {
        let labels = node.metadata.labels.clone().unwrap_or_default();
        let label = |key: &str, default: &str| {
            labels
                .get(key)
                .cloned()
                .unwrap_or_else(|| default.to_owned())
        };
        let uid = node.metadata.uid.clone().unwrap_or_default();
        status["nodeInfo"] = json!({
            "architecture": label("kubernetes.io/arch", "amd64"),
            "operatingSystem": label("kubernetes.io/os", "linux"),
            "kubeletVersion": "v1.36.0",
            "kubeProxyVersion": "",
            "containerRuntimeVersion": "testbed://1",
            "kernelVersion": "testbed",
            "osImage": "Testbed",
            "machineID": uid, "systemUUID": uid, "bootID": uid,
        });
    }
    status
}

/// Returns an address that is derived from the node's name.
pub(crate) fn address_of(name: &str) -> String {
    let hash = name.bytes().fold(0x811c_9dc5_u32, |h, b| {
        (h ^ u32::from(b)).wrapping_mul(0x0100_0193)
    });
    let [_, a, b, c] = hash.to_be_bytes();
    format!("10.{a}.{b}.{c}")
}

/// The loop over simulated nodes.
pub(crate) struct Kubelets {
    context: Context,
    options: NodeAgentOptions,
}

impl Kubelets {
    pub(crate) fn new(context: Context, options: NodeAgentOptions) -> Self {
        Self { context, options }
    }

    async fn become_ready(&self, node: &Node, name: &str) -> Result<(), kube::Error> {
        let nodes: Api<Node> = Api::all(self.context.client());
        let status = boot_status(node, self.context.clock.now(), &address_of(name));
        let patch = Patch::Strategic(json!({"status": status}));
        nodes
            .patch_status(name, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    async fn renew_lease(&self, node: &Node, name: &str) -> Result<(), kube::Error> {
        let leases: Api<Lease> = Api::namespaced(self.context.client(), LEASES);
        let now = MicroTime(self.context.clock.now());
        let known = self.context.cache.leases.get(&Key::new(LEASES, name));
        if known.is_some() {
            let patch = Patch::Merge(json!({"spec": {"renewTime": now}}));
            match leases.patch(name, &PatchParams::default(), &patch).await {
                Ok(_) => return Ok(()),
                Err(error) if is_not_found(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": name,
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node.metadata.uid}
                ],
            },
            "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now},
        });
        let lease: Lease = serde_json::from_value(lease).map_err(kube::Error::SerdeError)?;
        ignore_conflict_of_existence(leases.create(&PostParams::default(), &lease).await)
    }
}

/// Replaces a node's taints, unless the node has changed since.
pub(crate) async fn write_taints(
    context: &Context,
    node: &Node,
    name: &str,
    taints: &[Taint],
) -> Result<(), kube::Error> {
    let nodes: Api<Node> = Api::all(context.client());
    let taints = if taints.is_empty() {
        Value::Null
    } else {
        json!(taints)
    };
    let patch = json!({
        "metadata": {"resourceVersion": node.metadata.resource_version},
        "spec": {"taints": taints},
    });
    nodes
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(())
}

impl Controller for Kubelets {
    const NAME: &'static str = "node-agent";

    fn keys(&self, change: &Change, keys: &mut Vec<Key>) {
        if let Change::Node(diff) = change
            && let Some(node) = &diff.new
            && (self.options.simulates)(node)
        {
            let relevant = |n: &Node| {
                let taints = n.spec.as_ref().and_then(|s| s.taints.clone());
                (readiness(n), taints, n.metadata.uid.clone())
            };
            if diff
                .old
                .as_ref()
                .is_none_or(|old| relevant(old) != relevant(node))
            {
                keys.push(Key::of(&node.metadata));
            }
        }
    }

    async fn reconcile(&self, key: &Key) -> Result<Next, kube::Error> {
        let Some(node) = self.context.cache.nodes.get(key) else {
            return Ok(Next::Wait);
        };
        if !(self.options.simulates)(&node) {
            return Ok(Next::Wait);
        }
        let now = self.context.clock.now();
        let again = Ok(Next::After(self.options.heartbeat));
        let Some(boot) = self.options.slowed(&key.name, self.options.boot_delay) else {
            return again;
        };
        let created = node
            .metadata
            .creation_timestamp
            .as_ref()
            .map_or(now, |t| t.0);
        let boots_at = after(created, boot);
        if boots_at > now {
            return Ok(Next::After(until(now, boots_at)));
        }
        self.renew_lease(&node, &key.name).await?;
        if self.options.faults.of(&key.name) == Some(NodeFault::NeverReady) {
            return again;
        }
        if readiness(&node).is_none_or(|(status, _)| status != "True") {
            self.become_ready(&node, &key.name).await?;
        }
        again
    }
}
