//! Volumes that tie pods to a zone or a node.

use std::collections::{BTreeMap, BTreeSet};

use karpenter_api::labels;
use karpenter_core::cluster::Volume;
use karpenter_core::pod::{Pod, VolumeRef};
use karpenter_core::taints::untolerated;
use serde_json::json;

use super::check::Check;
use super::finding::{Draft, Release, Subject};
use super::scan::Scan;
use crate::workload::Workload;

/// The volumes of a workload on nodes of Karpenter.
#[derive(Default)]
struct Volumes {
    /// Zones in which no NodePool launches nodes.
    gone: BTreeSet<String>,
    /// Zones of the NodePools that the pods tolerate.
    offered: BTreeSet<String>,
    nodes: BTreeSet<String>,
    local: BTreeSet<String>,
}

pub(super) fn check(scan: &Scan<'_>, found: &mut Vec<Draft>) {
    let mut workloads: BTreeMap<Workload, Volumes> = BTreeMap::new();
    let mut locked: BTreeMap<String, BTreeSet<Workload>> = BTreeMap::new();
    for (node, pods) in scan.nodes() {
        for pod in pods.iter().filter(|pod| pod.is_active()) {
            if pod.shape.volumes.is_empty() {
                continue;
            }
            for volume in volumes(scan, pod) {
                if volume.local {
                    let of = workloads.entry(Workload::of(pod)).or_default();
                    of.local.insert(volume.name.clone());
                }
                let Some(zones) = zones(scan, volume) else {
                    continue;
                };
                for zone in &zones {
                    let of = locked.entry(zone.clone()).or_default();
                    of.insert(Workload::of(pod));
                }
                let offered = offered(scan, pod);
                if zones.is_disjoint(&offered) {
                    let of = workloads.entry(Workload::of(pod)).or_default();
                    of.gone.extend(zones);
                    of.offered.extend(offered);
                    of.nodes.insert(node.name().to_owned());
                }
            }
        }
    }
    for (workload, of) in workloads {
        if !of.gone.is_empty() {
            found.push(zone_gone(&workload, of.gone, &of.offered, of.nodes));
        }
        if !of.local.is_empty() {
            found.push(local(&workload, of.local));
        }
    }
    one_zone(scan, &locked, found);
}

fn zone_gone(
    workload: &Workload,
    zones: BTreeSet<String>,
    offered: &BTreeSet<String>,
    nodes: BTreeSet<String>,
) -> Draft {
    let zones: Vec<String> = zones.into_iter().collect();
    let offered: Vec<&str> = offered.iter().map(String::as_str).collect();
    let (name, in_zones) = (workload.to_string(), zones.join(", "));
    let elsewhere = match offered.is_empty() {
        true => "no zone".to_owned(),
        false => offered.join(", "),
    };
    let draft = Draft {
        what: format!("volumes of {name} are in {in_zones}, where no NodePool launches nodes"),
        why: format!(
            "A volume can be attached in its zone only. The NodePools launch nodes in {elsewhere}: once the pods leave their nodes, they cannot run anywhere else."
        ),
        fix: format!(
            "Add zone {} to the requirements of a NodePool, or move the data.",
            zones.first().map_or("", String::as_str)
        ),
        subjects: [Subject::workload(workload)].into(),
        ..Draft::of(
            Check::ZoneLockedVolume,
            json!({ "workload": name, "zones": zones, "offered": offered }),
        )
    };
    // The node is not released by a fix alone: its pods need room in that zone first.
    draft.blocks(nodes, Release::Unknown)
}

fn local(workload: &Workload, volumes: BTreeSet<String>) -> Draft {
    let name = workload.to_string();
    let volumes: Vec<String> = volumes.into_iter().collect();
    let exist = match volumes.len() {
        1 => format!("Volume {} exists", volumes.join(", ")),
        _ => format!("Volumes {} exist", volumes.join(", ")),
    };
    Draft {
        what: format!("{name} keeps data on the disk of a node"),
        why: format!("{exist} on one node. When that node is removed the data is lost, and the pod waits until its claim is deleted."),
        fix: "Use a network volume, or protect the pods while they need the data (karpenter.sh/do-not-disrupt).".into(),
        subjects: [Subject::workload(workload)].into(),
        owner: name.clone(),
        ..Draft::of(Check::LocalVolume, json!({ "workload": name, "volumes": volumes }))
    }
}

/// Finds the only zone of all NodePools, if volumes are there.
fn one_zone(
    scan: &Scan<'_>,
    locked: &BTreeMap<String, BTreeSet<Workload>>,
    found: &mut Vec<Draft>,
) {
    let all: BTreeSet<&String> = scan.pools().flat_map(|pool| &pool.zones).collect();
    let (1, Some(zone)) = (all.len(), all.first()) else {
        return;
    };
    let Some(workloads) = locked.get(*zone) else {
        return;
    };
    let have = match workloads.len() {
        1 => "1 workload has volumes".to_owned(),
        several => format!("{several} workloads have volumes"),
    };
    let pools = scan.pools().filter(|pool| !pool.zones.is_empty());
    found.push(Draft {
        what: format!("all NodePools together launch nodes in {zone} only, and {have} there"),
        why: "A volume can be attached in its zone only. If capacity in this zone runs out, these workloads wait.".into(),
        fix: "Add a zone to a NodePool.".into(),
        subjects: pools.map(Subject::pool).collect(),
        ..Draft::of(Check::ZoneLockedVolume, json!({ "zone": zone, "workloads": workloads.len() }))
    });
}

/// Returns the bound volumes of a pod.
fn volumes<'s>(scan: &Scan<'s>, pod: &Pod) -> Vec<&'s Volume> {
    let snapshot = scan.snapshot;
    let of = |volume: &VolumeRef| {
        let claim = match volume {
            VolumeRef::Claim(name) => name.clone(),
            VolumeRef::Ephemeral { volume, .. } => format!("{}-{volume}", pod.key.name),
        };
        let claim = snapshot.volume_claim(&pod.key.namespace, &claim)?;
        snapshot.volume(claim.volume_name.as_deref()?)
    };
    pod.shape.volumes.iter().filter_map(of).collect()
}

/// Returns the zones of a volume; `None` if it can be attached in any.
fn zones(scan: &Scan<'_>, volume: &Volume) -> Option<BTreeSet<String>> {
    let names = &scan.snapshot.config().well_known;
    let mut zones = BTreeSet::new();
    for term in &volume.alternatives {
        let expression = term
            .iter()
            .find(|it| names.normalize_key(&it.key) == labels::ZONE && it.operator == "In")?;
        zones.extend(expression.values.iter().cloned());
    }
    (!zones.is_empty()).then_some(zones)
}

/// Returns the zones in which NodePools launch nodes whose taints the pod tolerates.
fn offered(scan: &Scan<'_>, pod: &Pod) -> BTreeSet<String> {
    let pools = scan.pools().filter(|pool| {
        !pool.pool.is_static() && untolerated(&pool.taints, &pod.shape.tolerations).is_none()
    });
    pools.flat_map(|pool| pool.zones.iter().cloned()).collect()
}
