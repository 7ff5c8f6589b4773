//! What only the operator knows about its installation: missing permissions, feature gates whose resources are not installed, and
//! the free addresses of subnets.

use std::collections::BTreeMap;

use karpenter_api::labels::ZONE;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::provider::SubnetAddresses;
use karpenter_core::requirements::Requirements;
use karpenter_core::resources::{CPU, PODS};

use super::check::Check;
use super::evidence::Evidence;
use super::scan::{Pool, Scan};
use super::{Draft, Subject};

/// What is known about the installation; `None` where it was not looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installation {
    /// Permissions that Karpenter lacks.
    pub missing_permissions: Option<Vec<MissingPermission>>,
    /// Resources of enabled feature gates that are not installed.
    pub missing_kinds: Option<Vec<MissingKind>>,
    /// The free addresses of the subnets of NodeClasses.
    pub subnets: Option<Vec<SubnetAddresses>>,
}

/// Nodes of the smallest instance type for which a zone should have free addresses.
const NODES: i64 = 5;

/// A permission that Karpenter lacks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MissingPermission {
    pub verb: String,
    /// The resource, with its group: `pods`, `nodeclaims.karpenter.sh`, `pods/eviction`.
    pub resource: String,
}

/// A resource that is not installed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MissingKind {
    /// The feature gate that needs it.
    pub gate: String,
    /// The name of its CustomResourceDefinition.
    pub crd: String,
}

impl Installation {
    /// Returns the number of checks that can be made.
    pub fn checks(&self) -> usize {
        let known = Check::ALL.into_iter();
        known.filter(|check| self.is_known_for(*check)).count()
    }

    /// Reports whether a check can be made.
    pub(super) fn is_known_for(&self, check: Check) -> bool {
        match check {
            Check::PermissionMissing => self.missing_permissions.is_some(),
            Check::CrdMissing => self.missing_kinds.is_some(),
            Check::SubnetAddressesLow => self.subnets.is_some(),
            _ => true,
        }
    }
}

pub(super) fn check(scan: &Scan<'_>, installation: &Installation, found: &mut Vec<Draft>) {
    for pool in scan.pools() {
        let condition = pool.not_ready_class();
        let Some((message, since)) = condition else {
            continue;
        };
        let class = &pool.pool.spec.template.spec.node_class_ref;
        let evidence = Evidence::NodeClassNotReady {
            node_pool: pool.name().to_owned(),
            node_class: format!("{} {}", class.kind, class.name),
            message,
        };
        found.push(
            Draft::new(evidence)
                .about(Subject::cluster(&class.kind, &class.name))
                .since(since),
        );
    }
    for missing in installation.missing_permissions.iter().flatten() {
        let (verb, resource) = (missing.verb.clone(), missing.resource.clone());
        let evidence = Evidence::PermissionMissing { verb, resource };
        found.push(Draft::new(evidence));
    }
    for missing in installation.missing_kinds.iter().flatten() {
        let (gate, crd) = (missing.gate.clone(), missing.crd.clone());
        let subject = Subject::cluster("CustomResourceDefinition", &crd);
        found.push(Draft::new(Evidence::CrdMissing { gate, crd }).about(subject));
    }
    addresses(scan, installation, found);
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
        let pods = |it: &InstanceType| it.capacity.get(PODS);
        let pools = scan.pools().filter(launches_there);
        let types = pools.flat_map(Pool::launchable).filter(is_offered);
        let Some(smallest) = types.min_by_key(|it| (pods(it), it.capacity.get(CPU))) else {
            continue;
        };
        if i64::from(subnet.free) >= pods(smallest).saturating_mul(NODES) {
            continue;
        }
        let evidence = Evidence::SubnetAddressesLow {
            node_class: node_class.to_owned(),
            zone: zone.to_owned(),
            subnet: subnet.subnet.clone(),
            free: subnet.free,
            instance_type: smallest.name.clone(),
            pods: pods(smallest),
        };
        found.push(Draft::new(evidence).about(Subject::cluster("Subnet", &subnet.subnet)));
    }
}
