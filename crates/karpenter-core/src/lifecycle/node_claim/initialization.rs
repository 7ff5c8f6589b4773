//! Whether a node is ready for the pods it was launched for.
//!
//! The first check that fails is reported: the Node is ready, has no startup taints, no known ephemeral taints, has every requested
//! resource allocatable, and the devices of every requested DRA driver are published.

use std::collections::BTreeMap;
use std::sync::Arc;

use karpenter_api::conditions::reasons;
use karpenter_api::k8s_openapi::api::core::v1::{Node, Taint};
use karpenter_api::k8s_openapi::api::resource::v1::ResourceSlice;
use karpenter_api::k8s_openapi::apimachinery::pkg::api::resource;
use karpenter_api::labels::annotations;
use karpenter_api::v1::NodeClaim;

use super::registration::{has_taint, node_taints};
use crate::cluster::ClusterConfig;
use crate::quantity::Quantity;

/// Checks whether the node can run the pods of the NodeClaim; else returns reason and message of the condition.
pub(super) fn is_initialized(
    node: &Node,
    claim: &NodeClaim,
    config: &ClusterConfig,
) -> Result<(), (&'static str, String)> {
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
        .find(|startup| has_taint(node, startup))
    {
        return Err((
            reasons::STARTUP_TAINTS_EXIST,
            format!("StartupTaint \"{}\" still exists", taint_text(taint)),
        ));
    }
    if let Some(taint) = present.iter().find(|t| config.is_ephemeral(t)) {
        return Err((
            reasons::KNOWN_EPHEMERAL_TAINTS_EXIST,
            format!("KnownEphemeralTaint \"{}\" still exists", taint_text(taint)),
        ));
    }
    let allocatable = status.and_then(|s| s.allocatable.as_ref());
    let amount = |q: Option<&resource::Quantity>| {
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
pub(super) fn devices_published<'a>(
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
    use karpenter_fixtures::{Object, bare_node, node_claim};
    use serde_json::json;

    use super::*;

    /// Returns a ready Node with what the NodeClaim requests.
    fn ready() -> Object<Node> {
        let node = bare_node("n").uid("u").ready();
        node.cpu("2").resource("example.com/gpu", "1")
    }

    fn claim() -> NodeClaim {
        let claim = node_claim("c").startup_taint("s", "NoExecute");
        let claim = claim.request("cpu", "1").request("example.com/gpu", "1");
        claim.request("example.com/none", "0").build()
    }

    /// Returns why a Node is not initialized, and the message.
    fn refusal(node: Object<Node>) -> (&'static str, String) {
        let refusal = is_initialized(&node.build(), &claim(), &ClusterConfig::default());
        refusal.err().unwrap_or_default()
    }

    /// Conformance: DIS-040, DIS-041, DIS-205
    #[test]
    fn the_first_failing_check_is_reported() {
        let not_ready = ready().condition("Ready", "False", "R", karpenter_fixtures::EPOCH);
        let tainted = |key: &str, effect: &str| ready().taint(key, "", effect);
        for (node, reason) in [
            (ready(), ""),
            (not_ready, reasons::NODE_NOT_READY),
            (tainted("s", "NoExecute"), reasons::STARTUP_TAINTS_EXIST),
            (tainted("s", "NoSchedule"), ""),
            (
                tainted("readiness.k8s.io/x", "NoSchedule"),
                reasons::KNOWN_EPHEMERAL_TAINTS_EXIST,
            ),
            (
                tainted("node.kubernetes.io/not-ready", "NoExecute"),
                reasons::KNOWN_EPHEMERAL_TAINTS_EXIST,
            ),
            (
                ready().resource("example.com/gpu", "0"),
                reasons::RESOURCE_NOT_REGISTERED,
            ),
        ] {
            let text = format!("{node:?}");
            assert_eq!(refusal(node).0, reason, "{text}");
        }
    }

    /// Conformance: DIS-041
    #[test]
    fn the_message_says_what_the_node_lacks_and_names_taints_with_their_value() {
        let with = |status| ready().condition("Ready", status, "R", karpenter_fixtures::EPOCH);
        let waits = |value| ready().taint("readiness.k8s.io/x", value, "NoSchedule");
        for (node, message) in [
            (with("False"), "Node status is NotReady"),
            (with("Unknown"), "Node status is Unknown"),
            // The NodeClaim's taint has no value.
            (
                ready().taint("s", "v", "NoExecute"),
                "StartupTaint \"s:NoExecute\" still exists",
            ),
            (
                waits("v"),
                "KnownEphemeralTaint \"readiness.k8s.io/x=v:NoSchedule\" still exists",
            ),
            (
                waits(""),
                "KnownEphemeralTaint \"readiness.k8s.io/x:NoSchedule\" still exists",
            ),
            (
                ready().remove("/status/allocatable/example.com~1gpu"),
                "Resource \"example.com/gpu\" was requested but not registered",
            ),
        ] {
            assert_eq!(refusal(node).1, message);
        }
    }

    /// Returns a slice of a pool, published by the driver on a node or owned by a Node.
    fn slice(
        driver: &str,
        generation: i64,
        count: i64,
        node: serde_json::Value,
    ) -> Arc<ResourceSlice> {
        let mut value = json!({"metadata": {"name": "s"}, "spec": {
            "driver": driver, "pool": {"name": "p", "generation": generation, "resourceSliceCount": count}}});
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
        let node = ready().build();
        let missing = |claim: &NodeClaim, slices: &[&Arc<ResourceSlice>]| {
            let published = devices_published(&node, claim, slices.iter().copied());
            published.err().map(|(reason, message)| {
                assert_eq!(reason, reasons::DRA_DRIVER_POOLS_NOT_PUBLISHED);
                message.rsplit(": ").next().unwrap().to_owned()
            })
        };
        assert_eq!(missing(&claim(), &[]), None, "no devices are requested");
        let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"});
        let gpu = slice("gpu.x", 2, 1, json!("n"));
        let nic = slice("nic.x", 1, 1, owner);
        let elsewhere = slice("nic.x", 1, 1, json!("m"));
        let half = slice("nic.x", 1, 2, json!("n"));
        let newer = slice("nic.x", 2, 2, json!("n"));
        let mut claim = claim();
        let drivers = (annotations::REQUESTED_DRA_DRIVERS, "gpu.x,nic.x");
        claim.metadata.annotations = Some([(drivers.0.to_owned(), drivers.1.to_owned())].into());
        for (slices, expected, why) in [
            (&[][..], Some("gpu.x, nic.x"), "both drivers"),
            (&[&gpu], Some("nic.x"), "any missing driver"),
            (&[&gpu, &nic], None, "both pools"),
            (&[&gpu, &elsewhere], Some("nic.x"), "of another node"),
            (&[&gpu, &half], Some("nic.x"), "incomplete"),
            (&[&gpu, &half, &half], None, "both slices"),
            (
                &[&gpu, &nic, &newer],
                Some("nic.x"),
                "complete only in an older generation",
            ),
        ] {
            assert_eq!(missing(&claim, slices).as_deref(), expected, "{why}");
        }
    }
}
