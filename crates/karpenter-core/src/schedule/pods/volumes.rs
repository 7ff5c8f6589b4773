//! The node requirements of a pod's volumes, and the volume attachments they need on a node.
//!
//! UPSTREAM: pkg/scheduling/volumeusage.go, pkg/controllers/provisioning/scheduling/volumetopology.go

use std::collections::BTreeSet;

use crate::cluster::{Snapshot, StorageClass, VolumeClaim, translate_in_tree};
use crate::pod::{LabelExpr, Pod, VolumeProblem, VolumeRef};
use crate::requirements::Requirements;
use crate::schedule::compile::node_affinity::with_term;

/// The resolved volumes of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Volumes {
    /// Alternative node requirements; empty means any node.
    pub(crate) alternatives: Vec<Requirements>,
    /// CSI driver and volume claim of each attached volume.
    pub(crate) attached: BTreeSet<(String, String)>,
}

impl Volumes {
    pub(crate) fn resolve(snapshot: &Snapshot, pod: &Pod) -> Result<Self, VolumeProblem> {
        let mut volumes = Self::default();
        for volume in &pod.shape.volumes {
            let found = Found::look_up(snapshot, pod, volume)?;
            if let Some(driver) = found.driver {
                volumes.attached.insert((driver, found.claim));
            }
            volumes.restrict(&found.alternatives, snapshot);
        }
        Ok(volumes)
    }

    /// Returns the attachments of a bound pod's volumes, whatever state they are in.
    pub(crate) fn attached_by(snapshot: &Snapshot, pod: &Pod) -> BTreeSet<(String, String)> {
        let looked_up = pod
            .shape
            .volumes
            .iter()
            .filter_map(|volume| Found::look_up(snapshot, pod, volume).ok());
        looked_up
            .filter_map(|found| Some((found.driver?, found.claim)))
            .collect()
    }

    fn restrict(&mut self, alternatives: &[Vec<LabelExpr>], snapshot: &Snapshot) {
        if alternatives.is_empty() {
            return;
        }
        let names = &snapshot.config().well_known;
        if self.alternatives.is_empty() {
            self.alternatives.push(Requirements::new());
        }
        let with = |base| (alternatives.iter()).map(move |term| with_term(base, term, names));
        let product: Vec<Requirements> = self.alternatives.iter().flat_map(with).collect();
        let is_possible =
            |all: &&Requirements| !all.iter().any(|requirement| requirement.is_never());
        let possible: Vec<Requirements> = product.iter().filter(is_possible).cloned().collect();
        self.alternatives = if possible.is_empty() {
            product
        } else {
            possible
        };
    }
}

struct Found {
    claim: String,
    driver: Option<String>,
    alternatives: Vec<Vec<LabelExpr>>,
}

impl Found {
    fn look_up(snapshot: &Snapshot, pod: &Pod, volume: &VolumeRef) -> Result<Self, VolumeProblem> {
        let namespace = &pod.key.namespace;
        let name = match volume {
            VolumeRef::Claim(name) => name.clone(),
            VolumeRef::Ephemeral { volume, .. } => format!("{}-{volume}", pod.key.name),
        };
        let key = format!("{namespace}/{name}");
        let Some(claim) = snapshot.volume_claim(namespace, &name) else {
            return match volume {
                VolumeRef::Claim(_) => Err(VolumeProblem::ClaimNotFound(name)),
                VolumeRef::Ephemeral {
                    storage_class,
                    volume_name,
                    ..
                } => {
                    let default = || {
                        snapshot
                            .default_storage_class()
                            .map(|class| class.name.clone())
                    };
                    let claim = VolumeClaim {
                        namespace: namespace.clone(),
                        name,
                        deleting: false,
                        lost: false,
                        volume_name: volume_name.clone(),
                        bind_completed: false,
                        storage_class: storage_class.clone().or_else(default),
                    };
                    Self::of_claim(snapshot, &claim, key)
                }
            };
        };
        Self::of_claim(snapshot, claim, key)
    }

    fn of_claim(
        snapshot: &Snapshot,
        claim: &VolumeClaim,
        key: String,
    ) -> Result<Self, VolumeProblem> {
        let name = || claim.name.clone();
        if claim.deleting {
            return Err(VolumeProblem::ClaimDeleting(name()));
        }
        if claim.lost {
            return Err(VolumeProblem::ClaimLost(name()));
        }
        if let Some(volume) = &claim.volume_name {
            if !claim.bind_completed {
                return Err(VolumeProblem::NotBound(name()));
            }
            let volume = snapshot
                .volume(volume)
                .ok_or_else(|| VolumeProblem::VolumeNotFound(volume.clone()))?;
            if volume.deleting {
                return Err(VolumeProblem::VolumeDeleting(volume.name.clone()));
            }
            if let Some(provisioner) = &volume.provisioner {
                supported(snapshot, provisioner)?;
            }
            return Ok(Self {
                claim: key,
                driver: volume.driver.clone(),
                alternatives: volume.alternatives.clone(),
            });
        }
        let class_name = claim
            .storage_class
            .as_ref()
            .filter(|class| !class.is_empty());
        let class_name = class_name.ok_or_else(|| VolumeProblem::NoStorageClass(name()))?;
        let class = snapshot
            .storage_class(class_name)
            .ok_or_else(|| VolumeProblem::StorageClassNotFound(class_name.clone()))?;
        if class.immediate {
            return Err(VolumeProblem::UnboundImmediate(name()));
        }
        supported(snapshot, &class.provisioner)?;
        supported_keys(snapshot, class)?;
        Ok(Self {
            claim: key,
            driver: Some(translate_in_tree(&class.provisioner).to_owned()),
            alternatives: class.alternatives.clone(),
        })
    }
}

fn supported(snapshot: &Snapshot, provisioner: &str) -> Result<(), VolumeProblem> {
    let unsupported = &snapshot.config().unsupported_provisioners;
    let names = [provisioner, translate_in_tree(provisioner)];
    match unsupported
        .iter()
        .any(|name| names.contains(&name.as_str()))
    {
        true => Err(VolumeProblem::UnsupportedProvisioner(
            provisioner.to_owned(),
        )),
        false => Ok(()),
    }
}

fn supported_keys(snapshot: &Snapshot, class: &StorageClass) -> Result<(), VolumeProblem> {
    let unsupported = &snapshot.config().unsupported_topology_keys;
    match class
        .alternatives
        .iter()
        .flatten()
        .find(|expression| unsupported.contains(&expression.key))
    {
        Some(expression) => Err(VolumeProblem::UnsupportedTopologyKey(
            expression.key.clone(),
        )),
        None => Ok(()),
    }
}
