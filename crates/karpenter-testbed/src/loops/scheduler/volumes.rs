//! The nodes on which a pod's claims allow it to run, and the volumes for its claims.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use rustc_hash::{FxHashMap, FxHashSet};

use super::node::NodeInfo;
use super::reason::Reason;
use super::shape::Shape;
use crate::loops::cache::Key;
use crate::quantity;
use crate::selector::{Labels, NodeTerm, Selector};

const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// Namespace and name of a claim.
pub(crate) type ClaimKey = (String, String);

#[derive(Debug, Clone, Default)]
struct Claim {
    uid: String,
    volume: Option<String>,
    class: String,
    bytes: i64,
    modes: Vec<String>,
    selector: Selector,
    deleting: bool,
}

#[derive(Debug, Clone)]
struct Volume {
    terms: Option<Vec<NodeTerm>>,
    labels: Labels,
    claim: Option<ClaimKey>,
    class: String,
    bytes: i64,
    modes: Vec<String>,
    released: bool,
}

#[derive(Debug, Clone)]
struct Class {
    provisioner: String,
    waits: bool,
    /// Alternatives; in each, all keys must have one of the values.
    topologies: Vec<Vec<(String, Vec<String>)>>,
}

/// How a claim that waited for its first consumer gets a volume on the selected node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ClaimBinding {
    /// An existing volume is bound.
    Existing { claim: ClaimKey, volume: String },
    /// A new volume is created, accessible from nodes with these labels.
    Provision {
        claim: ClaimKey,
        volume: String,
        topology: Vec<(String, String)>,
    },
}

/// The requirement of a claim on the node.
#[derive(Debug, Clone)]
pub(crate) enum Need {
    /// Bound to a volume that exists, with its name.
    Volume(String),
    /// Bound to a volume that does not exist.
    Missing,
    /// Waiting for its first consumer.
    Waiting(ClaimKey),
}

/// All claims, volumes and storage classes.
#[derive(Debug, Default)]
pub(crate) struct VolumeCatalog {
    claims: FxHashMap<ClaimKey, Claim>,
    volumes: BTreeMap<String, Volume>,
    classes: FxHashMap<String, Class>,
}

impl VolumeCatalog {
    pub(crate) fn set_claim(&mut self, key: &Key, claim: Option<&PersistentVolumeClaim>) {
        let key = (key.namespace.to_string(), key.name.to_string());
        let Some(claim) = claim else {
            self.claims.remove(&key);
            return;
        };
        let spec = claim.spec.clone().unwrap_or_default();
        let request = spec.resources.as_ref().and_then(|r| r.requests.as_ref());
        let read = Claim {
            uid: claim.metadata.uid.clone().unwrap_or_default(),
            volume: spec.volume_name.filter(|v| !v.is_empty()),
            class: spec.storage_class_name.unwrap_or_default(),
            bytes: request
                .and_then(|r| r.get("storage"))
                .map_or(0, quantity::whole),
            modes: spec.access_modes.unwrap_or_default(),
            selector: spec
                .selector
                .as_ref()
                .map_or_else(Selector::default, |s| Selector::new(Some(s))),
            deleting: claim.metadata.deletion_timestamp.is_some(),
        };
        self.claims.insert(key, read);
    }

    pub(crate) fn set_volume(&mut self, name: &str, volume: Option<&PersistentVolume>) {
        let Some(volume) = volume else {
            self.volumes.remove(name);
            return;
        };
        let spec = volume.spec.clone().unwrap_or_default();
        let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
        let read = Volume {
            terms: spec
                .node_affinity
                .and_then(|a| a.required)
                .map(|r| r.node_selector_terms.iter().map(NodeTerm::new).collect()),
            labels: volume.metadata.labels.clone().unwrap_or_default(),
            claim: spec.claim_ref.and_then(|r| Some((r.namespace?, r.name?))),
            class: spec.storage_class_name.unwrap_or_default(),
            bytes: spec
                .capacity
                .as_ref()
                .and_then(|c| c.get("storage"))
                .map_or(0, quantity::whole),
            modes: spec.access_modes.unwrap_or_default(),
            released: matches!(phase, Some("Released" | "Failed"))
                || volume.metadata.deletion_timestamp.is_some(),
        };
        self.volumes.insert(name.to_owned(), read);
    }

    pub(crate) fn set_class(&mut self, name: &str, class: Option<&StorageClass>) {
        let Some(class) = class else {
            self.classes.remove(name);
            return;
        };
        let topologies = class
            .allowed_topologies
            .iter()
            .flatten()
            .map(|t| {
                t.match_label_expressions
                    .iter()
                    .flatten()
                    .map(|e| (e.key.clone(), e.values.clone()))
                    .collect()
            })
            .collect();
        let read = Class {
            provisioner: class.provisioner.clone(),
            waits: class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"),
            topologies,
        };
        self.classes.insert(name.to_owned(), read);
    }

    /// Returns the requirements of the pod's claims on the node, or the reason to reject the pod.
    pub(crate) fn needs(&self, shape: &Shape) -> Result<Vec<Need>, String> {
        let mut needs = Vec::new();
        for name in &shape.claims {
            let claim_key = (shape.namespace.clone(), name.clone());
            let Some(claim) = self.claims.get(&claim_key) else {
                return Err(format!("persistentvolumeclaim \"{name}\" not found"));
            };
            if claim.deleting {
                return Err(format!("persistentvolumeclaim \"{name}\" is being deleted"));
            }
            needs.push(match &claim.volume {
                Some(volume) if self.volumes.contains_key(volume) => Need::Volume(volume.clone()),
                Some(_) => Need::Missing,
                None => match self.classes.get(&claim.class) {
                    Some(class) if class.waits => Need::Waiting(claim_key),
                    _ => return Err("pod has unbound immediate PersistentVolumeClaims".to_owned()),
                },
            });
        }
        Ok(needs)
    }

    /// Returns the names of the volumes that a pod with these needs mounts.
    pub(crate) fn mounts(&self, needs: &[Need]) -> Vec<String> {
        let mount = |need: &Need| match need {
            Need::Volume(name) => Some(name.clone()),
            Need::Waiting(claim) => Some(self.new_volume_name(claim)),
            Need::Missing => None,
        };
        needs.iter().filter_map(mount).collect()
    }

    fn new_volume_name(&self, claim: &ClaimKey) -> String {
        match self.claims.get(claim) {
            Some(found) if !found.uid.is_empty() => format!("pvc-{}", found.uid),
            _ => format!("pvc-{}-{}", claim.0, claim.1),
        }
    }

    /// Whether a claim of the pod is ReadWriteOncePod and in use on `node`.
    pub(crate) fn exclusive_in_use(&self, shape: &Shape, needs: &[Need], node: &NodeInfo) -> bool {
        let exclusive = shape.claims.iter().any(|name| {
            self.claims
                .get(&(shape.namespace.clone(), name.clone()))
                .is_some_and(|c| c.modes.iter().any(|m| m == "ReadWriteOncePod"))
        });
        exclusive && self.mounts(needs).iter().any(|v| node.mounts(v))
    }

    /// Returns why the claims exclude the pod from `node`, if they do.
    pub(crate) fn refuses(&self, needs: &[Need], node: &NodeInfo) -> Option<Reason> {
        for need in needs {
            match need {
                Need::Missing => return Some(Reason::VolumeMissing),
                Need::Volume(name) => {
                    let volume = self.volumes.get(name)?;
                    if !reachable(volume, node) {
                        return Some(Reason::VolumeNodeAffinity);
                    }
                    if !same_zone(volume, node) {
                        return Some(Reason::VolumeZone);
                    }
                }
                Need::Waiting(_) => {}
            }
        }
        self.bindings(needs, node)
            .is_none()
            .then_some(Reason::VolumeNoneToBind)
    }

    /// Returns the bindings of the waiting claims on `node`; `None` if there are none possible.
    pub(crate) fn bindings(&self, needs: &[Need], node: &NodeInfo) -> Option<Vec<ClaimBinding>> {
        let mut taken: FxHashSet<&str> = FxHashSet::default();
        let mut bindings = Vec::new();
        for need in needs {
            let Need::Waiting(claim_key) = need else {
                continue;
            };
            let claim = self.claims.get(claim_key)?;
            let existing = self
                .volumes
                .iter()
                .filter(|(name, v)| {
                    !taken.contains(name.as_str())
                        && satisfies(v, claim, claim_key)
                        && reachable(v, node)
                })
                .min_by_key(|(_, v)| v.bytes);
            if let Some((name, _)) = existing {
                taken.insert(name);
                bindings.push(ClaimBinding::Existing {
                    claim: claim_key.clone(),
                    volume: name.clone(),
                });
                continue;
            }
            let class = self.classes.get(&claim.class)?;
            bindings.push(ClaimBinding::Provision {
                claim: claim_key.clone(),
                volume: self.new_volume_name(claim_key),
                topology: provision_topology(class, node)?,
            });
        }
        Some(bindings)
    }

    /// Assumes the bindings, until the API server confirms them.
    pub(crate) fn assume(&mut self, bindings: &[ClaimBinding]) {
        for binding in bindings {
            let (claim_key, name) = match binding {
                ClaimBinding::Existing { claim, volume }
                | ClaimBinding::Provision { claim, volume, .. } => (claim, volume),
            };
            let Some(claim) = self.claims.get_mut(claim_key) else {
                continue;
            };
            claim.volume = Some(name.clone());
            if let ClaimBinding::Provision { topology, .. } = binding {
                let volume = Volume {
                    terms: (!topology.is_empty()).then(|| vec![topology_term(topology)]),
                    labels: Labels::new(),
                    claim: None,
                    class: claim.class.clone(),
                    bytes: claim.bytes,
                    modes: claim.modes.clone(),
                    released: false,
                };
                self.volumes.insert(name.clone(), volume);
            }
            if let Some(volume) = self.volumes.get_mut(name) {
                volume.claim = Some(claim_key.clone());
            }
        }
    }

    /// Reverts [`VolumeCatalog::assume`].
    pub(crate) fn forget(&mut self, bindings: &[ClaimBinding]) {
        for binding in bindings {
            match binding {
                ClaimBinding::Existing { claim, volume } => {
                    if let Some(c) = self.claims.get_mut(claim) {
                        c.volume = None;
                    }
                    if let Some(v) = self.volumes.get_mut(volume) {
                        v.claim = None;
                    }
                }
                ClaimBinding::Provision { claim, volume, .. } => {
                    if let Some(c) = self.claims.get_mut(claim) {
                        c.volume = None;
                    }
                    self.volumes.remove(volume);
                }
            }
        }
    }
}

/// Returns the node's labels that a new volume requires, by the class or else the zone; `None` if there can be none.
fn provision_topology(class: &Class, node: &NodeInfo) -> Option<Vec<(String, String)>> {
    if class.provisioner == NO_PROVISIONER {
        return None;
    }
    let labels = &node.facts.labels;
    let label = |key: &str| Some((key.to_owned(), labels.get(key)?.clone()));
    if class.topologies.is_empty() {
        return Some(label(ZONE).into_iter().collect());
    }
    let allows = |(key, values): &(String, Vec<String>)| {
        labels.get(key).is_some_and(|value| values.contains(value))
    };
    let term = class
        .topologies
        .iter()
        .find(|term| term.iter().all(allows))?;
    term.iter().map(|(key, _)| label(key)).collect()
}

fn topology_term(topology: &[(String, String)]) -> NodeTerm {
    use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm};
    let expressions = topology
        .iter()
        .map(|(key, value)| NodeSelectorRequirement {
            key: key.clone(),
            operator: "In".to_owned(),
            values: Some(vec![value.clone()]),
        })
        .collect();
    NodeTerm::new(&NodeSelectorTerm {
        match_expressions: Some(expressions),
        match_fields: None,
    })
}

fn reachable(volume: &Volume, node: &NodeInfo) -> bool {
    volume.terms.as_ref().is_none_or(|terms| {
        terms
            .iter()
            .any(|t| t.matches(&node.name, &node.facts.labels))
    })
}

/// Zone labels on the volume itself also restrict it; several zones are joined by `__`.
fn same_zone(volume: &Volume, node: &NodeInfo) -> bool {
    [ZONE, REGION].iter().all(|key| {
        volume.labels.get(*key).is_none_or(|allowed| {
            node.facts
                .labels
                .get(*key)
                .is_some_and(|have| allowed.split("__").any(|zone| zone == have))
        })
    })
}

fn satisfies(volume: &Volume, claim: &Claim, claim_key: &ClaimKey) -> bool {
    if volume.released {
        return false;
    }
    match &volume.claim {
        Some(reserved) => reserved == claim_key,
        None => {
            volume.class == claim.class
                && volume.bytes >= claim.bytes
                && claim.modes.iter().all(|m| volume.modes.contains(m))
                && claim.selector.matches(&volume.labels)
        }
    }
}
