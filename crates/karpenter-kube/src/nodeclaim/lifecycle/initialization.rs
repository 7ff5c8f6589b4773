//! Initialization: the node is ready for the pods it was launched for.
//!
//! The condition reports the first check that fails: the Node exists, is ready, has no startup taints, no known ephemeral
//! taints, has every requested resource allocatable, and the devices of every requested DRA driver are published. Once true
//! it stays true.
//!
//! UPSTREAM: pkg/controllers/nodeclaim/lifecycle/initialization.go

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::api::resource::v1::ResourceSlice;
use karpenter_api::conditions::{HasConditions, Status, reasons, types};
use karpenter_api::labels;
use karpenter_api::labels::{annotations, taints};
use karpenter_api::v1::NodeClaim;
use karpenter_core::quantity::Quantity;

use crate::client::patch::Lock;
use crate::controller::Doing;
use crate::logging;
use crate::nodeclaim::lifecycle::registration::{has_label, node_taints};
use crate::nodeclaim::lifecycle::{Lifecycle, Step};

impl Lifecycle {
    pub(super) async fn initialize(&self, claim: &mut NodeClaim) -> Step {
        if claim.condition_status(types::INITIALIZED) != Status::Unknown {
            return Step::Continue;
        }
        let now = self.cx.clock.now();
        if !claim.is_true(types::REGISTERED) {
            claim.set_unknown(types::INITIALIZED, now);
            return Step::Continue;
        }
        let nodes = claim
            .status
            .provider_id
            .as_deref()
            .map(|id| self.cx.nodes_of(&self.cx.view(), id))
            .unwrap_or_default();
        let [node] = nodes.as_slice() else {
            claim.set_unknown_with_reason(
                types::INITIALIZED,
                reasons::NODE_NOT_FOUND,
                "Node not registered with cluster",
                now,
            );
            return Step::Continue;
        };
        // The model may lack the registration yet; its change triggers another reconciliation.
        if !has_label(node, labels::REGISTERED, "true") {
            return Step::Continue;
        }
        let view = self.cx.view();
        let ready = initialized(node, claim)
            .and_then(|()| devices_published(node, claim, view.snapshot.resource_slices()));
        if let Err((reason, message)) = ready {
            claim.set_unknown_with_reason(types::INITIALIZED, reason, &message, now);
            return Step::Continue;
        }
        let mut wanted = (**node).clone();
        wanted
            .metadata
            .labels
            .get_or_insert_default()
            .insert(labels::INITIALIZED.into(), "true".into());
        // No other controller writes this label: an optimistic lock would only conflict with kubelet's status writes.
        let writes = &self.cx.node_writes;
        let patched = writes.patch_object(self.cx.nodes(), node, &wanted, Lock::None);
        if let Err(error) = patched.await.doing("initializing node") {
            return Step::Failed(error);
        }
        claim.set_true(types::INITIALIZED, now);
        Step::Continue
    }

    /// Reports an initialization that has been written.
    pub(super) fn announce_initialization(&self, claim: &NodeClaim) {
        let id = claim.status.provider_id.as_deref().unwrap_or_default();
        let nodes = self.cx.nodes_of(&self.cx.view(), id);
        let status = nodes.first().and_then(|node| node.status.as_ref());
        let name = claim.status.node_name.as_deref().unwrap_or_default();
        tracing::info!(
            NodeClaim = logging::object(None, claim.name()),
            nodeclaim = claim.name(),
            "provider-id" = id,
            Node = logging::object(None, name),
            allocatable = logging::json(&status.and_then(|s| s.allocatable.as_ref())),
            "initialized nodeclaim"
        );
    }
}

/// Checks whether the node can run the pods of the NodeClaim; else returns reason and message of the condition.
fn initialized(node: &Node, claim: &NodeClaim) -> Result<(), (&'static str, String)> {
    let status = node.status.as_ref();
    let ready = status
        .and_then(|s| s.conditions.as_ref())
        .and_then(|all| all.iter().find(|c| c.type_ == "Ready"))
        .map_or("Unknown", |c| c.status.as_str());
    if ready != "True" {
        return Err((
            reasons::NODE_NOT_READY,
            format!(
                "Node status is {}",
                if ready == "False" {
                    "NotReady"
                } else {
                    "Unknown"
                }
            ),
        ));
    }
    let present = node_taints(node);
    if let Some(taint) = claim
        .spec
        .startup_taints
        .iter()
        .find(|s| present.iter().any(|p| taints::same(p, s)))
    {
        return Err((
            reasons::STARTUP_TAINTS_EXIST,
            format!("StartupTaint \"{}\" still exists", taint_text(taint)),
        ));
    }
    if let Some(taint) = present.iter().find(|t| taints::is_known_ephemeral(t)) {
        return Err((
            reasons::KNOWN_EPHEMERAL_TAINTS_EXIST,
            format!("KnownEphemeralTaint \"{}\" still exists", taint_text(taint)),
        ));
    }
    let allocatable = status.and_then(|s| s.allocatable.as_ref());
    let amount = |q: Option<&k8s_openapi::apimachinery::pkg::api::resource::Quantity>| {
        q.and_then(|q| q.0.parse::<Quantity>().ok())
            .is_some_and(|q| !q.is_zero())
    };
    let missing = claim.spec.resources.requests.iter().find(|(name, wanted)| {
        amount(Some(*wanted)) && !amount(allocatable.and_then(|a| a.get(*name)))
    });
    match missing {
        Some((name, _)) => Err((
            reasons::RESOURCE_NOT_REGISTERED,
            format!("Resource \"{name}\" was requested but not registered"),
        )),
        None => Ok(()),
    }
}

/// Returns an error unless every DRA driver that the NodeClaim's pods request has published a complete pool of devices on
/// the node: as many slices of the pool's latest generation as the slices declare.
fn devices_published<'a>(
    node: &Node,
    claim: &NodeClaim,
    slices: impl Iterator<Item = &'a Arc<ResourceSlice>>,
) -> Result<(), (&'static str, String)> {
    let Some(wanted) = claim.annotation(annotations::REQUESTED_DRA_DRIVERS) else {
        return Ok(());
    };
    let mut drivers: Vec<&str> = wanted.split(',').map(str::trim).collect();
    drivers.retain(|driver| !driver.is_empty());
    if drivers.is_empty() {
        return Ok(());
    }
    // By driver and pool: the latest generation, its declared number of slices, and the number of its slices that exist.
    let mut pools: BTreeMap<(&str, &str), (i64, i64, i64)> = BTreeMap::new();
    for slice in slices.filter(|slice| is_of_node(slice, node)) {
        let pool = &slice.spec.pool;
        let known = pools
            .entry((&slice.spec.driver, &pool.name))
            .or_insert((i64::MIN, 0, 0));
        if pool.generation > known.0 {
            *known = (pool.generation, pool.resource_slice_count, 1);
        } else if pool.generation == known.0 {
            known.2 += 1;
        }
    }
    let published = |driver: &str| {
        let mut own = pools.iter().filter(|((of, _), _)| *of == driver);
        own.any(|(_, (_, wanted, found))| wanted == found)
    };
    drivers.retain(|driver| !published(driver));
    if drivers.is_empty() {
        return Ok(());
    }
    Err((
        reasons::DRA_DRIVER_POOLS_NOT_PUBLISHED,
        format!(
            "DRA driver(s) have not published complete resource pools: {}",
            drivers.join(", ")
        ),
    ))
}

/// Returns whether the devices of a slice are on the node: it names the node, or the Node owns it.
fn is_of_node(slice: &ResourceSlice, node: &Node) -> bool {
    let named = slice.spec.node_name.is_some() && slice.spec.node_name == node.metadata.name;
    let owners = slice.metadata.owner_references.iter().flatten();
    let mut nodes = owners.filter(|owner| owner.kind == "Node");
    named || nodes.any(|owner| Some(&owner.uid) == node.metadata.uid.as_ref())
}

fn taint_text(taint: &Taint) -> String {
    match taint.value.as_deref().filter(|v| !v.is_empty()) {
        Some(value) => format!("{}={value}:{}", taint.key, taint.effect),
        None => format!("{}:{}", taint.key, taint.effect),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(value: serde_json::Value) -> Node {
        serde_json::from_value(value).unwrap()
    }

    fn claim() -> NodeClaim {
        serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": {
            "nodeClassRef": {"group": "g", "kind": "K", "name": "n"}, "requirements": [],
            "startupTaints": [{"key": "s", "effect": "NoExecute"}],
            "resources": {"requests": {"cpu": "1", "example.com/gpu": "1", "example.com/none": "0"}},
        }}))
        .unwrap()
    }

    fn reason(
        spec: serde_json::Value,
        allocatable: serde_json::Value,
        ready: &str,
    ) -> &'static str {
        let node = node(json!({"metadata": {"name": "n"}, "spec": spec, "status": {
            "allocatable": allocatable, "conditions": [{"type": "Ready", "status": ready}]}}));
        initialized(&node, &claim())
            .err()
            .map_or("", |(reason, _)| reason)
    }

    /// Conformance: DIS-040, DIS-041, DIS-205
    #[test]
    fn the_first_failing_check_is_reported() {
        let full = json!({"cpu": "2", "example.com/gpu": "1"});
        let taint = |key: &str, effect: &str| json!({"taints": [{"key": key, "effect": effect}]});
        assert_eq!(reason(json!({}), full.clone(), "True"), "");
        assert_eq!(
            reason(json!({}), full.clone(), "False"),
            reasons::NODE_NOT_READY
        );
        assert_eq!(
            reason(taint("s", "NoExecute"), full.clone(), "True"),
            reasons::STARTUP_TAINTS_EXIST
        );
        assert_eq!(
            reason(
                taint("readiness.k8s.io/x", "NoSchedule"),
                full.clone(),
                "True"
            ),
            reasons::KNOWN_EPHEMERAL_TAINTS_EXIST
        );
        assert_eq!(
            reason(
                taint("node.kubernetes.io/not-ready", "NoExecute"),
                full.clone(),
                "True"
            ),
            reasons::KNOWN_EPHEMERAL_TAINTS_EXIST
        );
        assert_eq!(
            reason(
                json!({}),
                json!({"cpu": "2", "example.com/gpu": "0"}),
                "True"
            ),
            reasons::RESOURCE_NOT_REGISTERED
        );
        assert_eq!(
            reason(taint("s", "NoSchedule"), full, "True"),
            "",
            "same key, other effect"
        );
    }

    /// Conformance: DIS-041
    #[test]
    fn the_message_says_what_the_node_lacks_and_names_taints_with_their_value() {
        let message = |taint: serde_json::Value, allocatable: serde_json::Value, ready: &str| {
            let node = node(
                json!({"metadata": {"name": "n"}, "spec": {"taints": [taint]}, "status": {
                "allocatable": allocatable, "conditions": [{"type": "Ready", "status": ready}]}}),
            );
            initialized(&node, &claim()).unwrap_err().1
        };
        let full = json!({"cpu": "2", "example.com/gpu": "1"});
        let none = json!({"key": "other", "effect": "NoSchedule"});
        let of = |taint, ready| message(taint, full.clone(), ready);
        assert_eq!(of(none.clone(), "False"), "Node status is NotReady");
        assert_eq!(of(none.clone(), "Unknown"), "Node status is Unknown");
        let startup = |value: &str| json!({"key": "s", "value": value, "effect": "NoExecute"});
        assert_eq!(
            of(startup("v"), "True"),
            "StartupTaint \"s:NoExecute\" still exists",
            "the NodeClaim's taint has no value"
        );
        let not_ready = |value: &str| json!({"key": "readiness.k8s.io/x", "value": value, "effect": "NoSchedule"});
        assert_eq!(
            of(not_ready("v"), "True"),
            "KnownEphemeralTaint \"readiness.k8s.io/x=v:NoSchedule\" still exists"
        );
        assert_eq!(
            of(not_ready(""), "True"),
            "KnownEphemeralTaint \"readiness.k8s.io/x:NoSchedule\" still exists"
        );
        assert_eq!(
            message(none, json!({"cpu": "2"}), "True"),
            "Resource \"example.com/gpu\" was requested but not registered"
        );
    }

    fn slice(
        driver: &str,
        pool: &str,
        generation: i64,
        count: i64,
        node: serde_json::Value,
    ) -> Arc<ResourceSlice> {
        let mut value = json!({"metadata": {"name": "s"}, "spec": {
            "driver": driver, "pool": {"name": pool, "generation": generation, "resourceSliceCount": count}}});
        if let Some(name) = node.as_str() {
            value["spec"]["nodeName"] = json!(name);
        } else {
            value["metadata"]["ownerReferences"] = json!([node]);
        }
        Arc::new(serde_json::from_value(value).unwrap())
    }

    /// Conformance: DIS-042
    #[test]
    fn every_requested_driver_must_have_published_a_complete_pool() {
        let node = node(json!({"metadata": {"name": "n", "uid": "u"}}));
        let mut claim = claim();
        let missing = |claim: &NodeClaim, slices: &[Arc<ResourceSlice>]| {
            devices_published(&node, claim, slices.iter())
                .err()
                .map(|(reason, message)| {
                    assert_eq!(reason, reasons::DRA_DRIVER_POOLS_NOT_PUBLISHED);
                    message.rsplit(": ").next().unwrap().to_owned()
                })
        };
        assert_eq!(missing(&claim, &[]), None, "no devices are requested");
        claim.metadata.annotations = Some(
            [(
                annotations::REQUESTED_DRA_DRIVERS.to_owned(),
                "gpu.x,nic.x".to_owned(),
            )]
            .into(),
        );
        let expected = |text: &str| Some(text.to_owned());
        assert_eq!(missing(&claim, &[]), expected("gpu.x, nic.x"));
        let gpu = slice("gpu.x", "p", 2, 1, json!("n"));
        let nic = slice(
            "nic.x",
            "p",
            1,
            1,
            json!({"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}),
        );
        assert_eq!(
            missing(&claim, &[Arc::clone(&gpu)]),
            expected("nic.x"),
            "any missing driver"
        );
        assert_eq!(missing(&claim, &[Arc::clone(&gpu), Arc::clone(&nic)]), None);
        let elsewhere = slice("nic.x", "p", 1, 1, json!("m"));
        assert_eq!(
            missing(&claim, &[Arc::clone(&gpu), elsewhere]),
            expected("nic.x"),
            "of another node"
        );
        let half = slice("nic.x", "p", 1, 2, json!("n"));
        assert_eq!(
            missing(&claim, &[Arc::clone(&gpu), Arc::clone(&half)]),
            expected("nic.x"),
            "incomplete"
        );
        assert_eq!(
            missing(&claim, &[Arc::clone(&gpu), Arc::clone(&half), half]),
            None,
            "both slices"
        );
        let newer = slice("nic.x", "p", 2, 2, json!("n"));
        assert_eq!(
            missing(&claim, &[gpu, nic, newer]),
            expected("nic.x"),
            "complete only in an older generation"
        );
    }
}
