//! What only the operator knows about its installation: missing permissions, feature gates whose resources are not installed, and
//! the free addresses of subnets.

use std::collections::BTreeMap;

use karpenter_api::labels::ZONE;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::provider::SubnetAddresses;
use karpenter_core::requirements::Requirements;
use karpenter_core::resources::{CPU, PODS};
use serde_json::json;

use super::check::{Check, Installation, Severity};
use super::finding::{Draft, Subject};
use super::scan::{Pool, Scan};

/// Nodes of the smallest instance type for which a zone should have free addresses.
const NODES: i64 = 5;

pub(super) fn check(scan: &Scan<'_>, installation: &Installation, found: &mut Vec<Draft>) {
    found.extend(scan.pools().filter_map(node_class));
    for missing in installation.missing_permissions.iter().flatten() {
        let (verb, resource) = (&missing.verb, &missing.resource);
        let parameters = json!({ "verb": verb, "resource": resource });
        found.push(Draft {
            severity: Severity::Blocks,
            what: format!("Karpenter may not {verb} {resource}"),
            why: "The API server denies it to Karpenter's ServiceAccount.".into(),
            fix: "Add the rule to Karpenter's ClusterRole; the chart of this release has it."
                .into(),
            ..Draft::of(Check::PermissionMissing, parameters)
        });
    }
    for missing in installation.missing_kinds.iter().flatten() {
        let (gate, crd) = (&missing.gate, &missing.crd);
        found.push(Draft {
            what: format!("feature gate {gate} is on, but {crd} is not installed"),
            why: "The feature has no effect.".into(),
            fix: "Install the chart karpenter-crd, or turn the gate off.".into(),
            subjects: [Subject::cluster("CustomResourceDefinition", crd)].into(),
            ..Draft::of(Check::CrdMissing, json!({ "gate": gate, "crd": crd }))
        });
    }
    addresses(scan, installation, found);
}

fn node_class(pool: &Pool<'_>) -> Option<Draft> {
    let (message, since) = pool.not_ready_class()?;
    let class = &pool.pool.spec.template.spec.node_class_ref;
    let (name, node_class) = (pool.name(), format!("{} {}", class.kind, class.name));
    Some(Draft {
        severity: Severity::Blocks,
        what: format!("NodePool {name} cannot launch nodes: {node_class} is not ready"),
        why: match message.is_empty() {
            true => "Its condition NodeClassReady is not True.".into(),
            false => format!("Its condition NodeClassReady says: {message}"),
        },
        fix:
            "Correct what the message says; kubectl describe shows all conditions of the NodeClass."
                .into(),
        subjects: [Subject::cluster(&class.kind, &class.name)].into(),
        since,
        ..Draft::of(
            Check::NodeClassNotReady,
            json!({ "nodePool": name, "nodeClass": node_class, "message": message }),
        )
    })
}

/// Finds zones of NodeClasses in which the subnet with the most free addresses has too few for the next nodes. A launch uses that
/// subnet only, so that the others of the zone do not matter.
fn addresses(scan: &Scan<'_>, installation: &Installation, found: &mut Vec<Draft>) {
    let mut best: BTreeMap<(&str, &str), &SubnetAddresses> = BTreeMap::new();
    for subnet in installation.subnets.iter().flatten() {
        let key = (subnet.node_class.as_str(), subnet.zone.as_str());
        let known = best.entry(key).or_insert(subnet);
        if subnet.free > known.free {
            *known = subnet;
        }
    }
    for ((node_class, zone), subnet) in best {
        let launches_there = |pool: &&Pool<'_>| {
            let wanted = pool.requirements.iter().flat_map(Requirements::iter);
            let mut zones = wanted.filter(|requirement| requirement.key() == ZONE);
            pool.pool.spec.template.spec.node_class_ref.name == node_class
                && zones.all(|zones| zones.has(zone))
        };
        let is_offered = |it: &&InstanceType| {
            let mut offerings = it.offerings.iter();
            offerings.any(|offering| offering.zone() == Some(zone))
        };
        let pods_of = |it: &InstanceType| it.capacity.get(PODS);
        let pools = scan.pools().filter(launches_there);
        let types = pools.flat_map(Pool::launchable).filter(is_offered);
        let Some(smallest) = types.min_by_key(|it| (pods_of(it), it.capacity.get(CPU))) else {
            continue;
        };
        let (instance_type, pods, free) = (&smallest.name, pods_of(smallest), subnet.free);
        if i64::from(free) >= pods.saturating_mul(NODES) {
            continue;
        }
        let left = match free {
            0 => "no address".to_owned(),
            1 => "1 address".to_owned(),
            several => format!("{several} addresses"),
        };
        let subnet = &subnet.subnet;
        found.push(Draft {
            severity: Severity::blocks_if(free == 0),
            what: format!("NodeClass {node_class} has {left} left in {zone}"),
            why: format!("{subnet} has the most free addresses of the subnets there. A node of {instance_type}, the smallest type, may take {pods}, one for each pod: fewer than five nodes can be launched, or pods on them wait for an address."),
            fix: "Let the NodeClass select a larger subnet of the zone, or add one from another address range to the network.".into(),
            subjects: [Subject::cluster("Subnet", subnet)].into(),
            ..Draft::of(
                Check::SubnetAddressesLow,
                json!({ "nodeClass": node_class, "zone": zone, "subnet": subnet, "free": free, "instanceType": instance_type, "pods": pods }),
            )
        });
    }
}
