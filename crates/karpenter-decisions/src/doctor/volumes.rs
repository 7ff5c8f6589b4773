//! Volumes that tie pods to a zone or a node.

use std::collections::{BTreeMap, BTreeSet};

use karpenter_api::labels;
use karpenter_core::cluster::Volume;
use karpenter_core::pod::{Pod, VolumeRef};
use karpenter_core::taints::untolerated;

use super::evidence::Evidence;
use super::savings::Release;
use super::scan::Scan;
use super::{Draft, Subject};
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
        let subject = Subject::namespaced(&workload.kind, &workload.namespace, &workload.name);
        let name = workload.to_string();
        if !of.gone.is_empty() {
            let evidence = Evidence::ZoneGone {
                workload: name.clone(),
                zones: of.gone.into_iter().collect(),
                offered: of.offered.into_iter().collect(),
            };
            // The node is not released by a fix alone: its pods need room in that zone first.
            found.push(
                Draft::new(evidence)
                    .about(subject.clone())
                    .keeps(of.nodes, Release::Unknown),
            );
        }
        if !of.local.is_empty() {
            let evidence = Evidence::LocalVolume {
                workload: name.clone(),
                volumes: of.local.into_iter().collect(),
            };
            found.push(Draft::new(evidence).about(subject).owned_by(name));
        }
    }
    one_zone(scan, &locked, found);
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
    let evidence = Evidence::OneZoneLeft {
        zone: (*zone).clone(),
        workloads: workloads.len(),
    };
    let mut draft = Draft::new(evidence);
    draft.subjects = scan
        .pools()
        .filter(|pool| !pool.zones.is_empty())
        .map(|pool| Subject::cluster("NodePool", pool.name()))
        .collect();
    found.push(draft);
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
