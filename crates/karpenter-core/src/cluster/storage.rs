//! PersistentVolumeClaims, PersistentVolumes, StorageClasses, CSINodes and VolumeAttachments, reduced to the fields that scheduling
//! and termination need.

use std::collections::BTreeMap;

use jiff::Timestamp;
use karpenter_api::k8s_openapi::api::core::v1 as corev1;
use karpenter_api::k8s_openapi::api::storage::v1 as storage;
use karpenter_api::labels;
use serde::{Deserialize, Serialize};

use crate::pod::{LabelExpr, NodeTerm};

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VolumeClaim {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether it has phase Lost: its volume does not exist any more.
    pub lost: bool,
    /// The volume it is or will be bound to.
    pub volume_name: Option<String>,
    /// Whether binding has completed.
    pub bind_completed: bool,
    /// The requested storage class; `None` is the default class, empty is no class.
    pub storage_class: Option<String>,
}

impl VolumeClaim {
    /// Parses a Kubernetes PersistentVolumeClaim.
    pub fn parse(claim: &corev1::PersistentVolumeClaim) -> Self {
        let meta = &claim.metadata;
        let spec = claim.spec.as_ref();
        Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            deleting: meta.deletion_timestamp.is_some(),
            lost: claim
                .status
                .as_ref()
                .and_then(|status| status.phase.as_deref())
                == Some("Lost"),
            volume_name: spec
                .and_then(|spec| spec.volume_name.clone())
                .filter(|name| !name.is_empty()),
            bind_completed: meta
                .annotations
                .as_ref()
                .is_some_and(|all| all.contains_key("pv.kubernetes.io/bind-completed")),
            storage_class: spec.and_then(|spec| spec.storage_class_name.clone()),
        }
    }
}

/// A PersistentVolume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Volume {
    /// Name.
    pub name: String,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// The CSI driver that attaches it; that of in-tree EBS volumes is the EBS CSI driver. `None` is not limited.
    pub driver: Option<String>,
    /// The provisioner or in-tree plugin it came from.
    pub provisioner: Option<String>,
    /// Alternative node terms for nodes that can attach it. Empty means all nodes.
    pub alternatives: Vec<Vec<LabelExpr>>,
    /// Whether it is on the disk of a node (`local` or `hostPath`).
    pub local: bool,
}

/// The CSI driver that replaces the in-tree EBS plugin.
const EBS_DRIVER: &str = "ebs.csi.aws.com";

/// Returns the CSI driver that replaces an in-tree plugin, or the name itself.
///
/// UPSTREAM: pkg/scheduling/volumeusage.go; k8s.io/csi-translation-lib
pub fn translate_in_tree(provisioner: &str) -> &str {
    match provisioner {
        "kubernetes.io/aws-ebs" => EBS_DRIVER,
        "kubernetes.io/gce-pd" => "pd.csi.storage.gke.io",
        "kubernetes.io/azure-disk" => "disk.csi.azure.com",
        "kubernetes.io/azure-file" => "file.csi.azure.com",
        "kubernetes.io/cinder" => "cinder.csi.openstack.org",
        "kubernetes.io/vsphere-volume" => "csi.vsphere.vmware.com",
        "kubernetes.io/portworx-volume" => "pxd.portworx.com",
        other => other,
    }
}

impl Volume {
    /// Parses a Kubernetes PersistentVolume.
    pub fn parse(volume: &corev1::PersistentVolume) -> Self {
        let spec = volume.spec.as_ref();
        let csi = spec
            .and_then(|spec| spec.csi.as_ref())
            .map(|csi| csi.driver.clone());
        let ebs = spec.is_some_and(|spec| spec.aws_elastic_block_store.is_some());
        let local = spec.is_some_and(|spec| spec.local.is_some() || spec.host_path.is_some());
        let terms = spec
            .and_then(|spec| spec.node_affinity.as_ref())
            .and_then(|affinity| affinity.required.as_ref())
            .map(|required| required.node_selector_terms.as_slice())
            .unwrap_or_default();
        let mut alternatives = Vec::new();
        for term in terms {
            let mut expressions = NodeTerm::parse(term).expressions;
            let was_empty = expressions.is_empty();
            if local {
                expressions.retain(|expression| expression.key != labels::HOSTNAME);
            }
            if !expressions.is_empty() || (local && !was_empty) {
                alternatives.push(expressions);
            }
        }
        Self {
            name: volume.metadata.name.clone().unwrap_or_default(),
            deleting: volume.metadata.deletion_timestamp.is_some(),
            provisioner: csi
                .clone()
                .or_else(|| ebs.then(|| "kubernetes.io/aws-ebs".to_owned())),
            driver: csi.or_else(|| ebs.then(|| EBS_DRIVER.to_owned())),
            alternatives,
            local,
        }
    }
}

/// A StorageClass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StorageClass {
    /// Name.
    pub name: String,
    /// Provisioner, as written.
    pub provisioner: String,
    /// Whether volumes are created before a pod is scheduled (binding mode Immediate).
    pub immediate: bool,
    /// Alternative topology terms in which volumes can be created. Empty means all.
    pub alternatives: Vec<Vec<LabelExpr>>,
    /// Whether it is a default class.
    pub default: bool,
    /// When it was created; the newest default class applies.
    pub created_at: Option<Timestamp>,
}

impl StorageClass {
    /// Parses a Kubernetes StorageClass.
    pub fn parse(class: &storage::StorageClass) -> Self {
        let default_annotations = [
            "storageclass.kubernetes.io/is-default-class",
            "storageclass.beta.kubernetes.io/is-default-class",
        ];
        Self {
            name: class.metadata.name.clone().unwrap_or_default(),
            provisioner: class.provisioner.clone(),
            immediate: class.volume_binding_mode.as_deref().unwrap_or("Immediate") == "Immediate",
            alternatives: class
                .allowed_topologies
                .iter()
                .flatten()
                .map(|term| {
                    term.match_label_expressions
                        .iter()
                        .flatten()
                        .map(|expression| LabelExpr {
                            key: expression.key.clone(),
                            operator: "In".to_owned(),
                            values: expression.values.clone(),
                        })
                        .collect()
                })
                .collect(),
            default: class.metadata.annotations.as_ref().is_some_and(|all| {
                default_annotations
                    .iter()
                    .any(|key| all.get(*key).is_some_and(|value| value == "true"))
            }),
            created_at: class
                .metadata
                .creation_timestamp
                .as_ref()
                .map(|time| time.0),
        }
    }
}

/// A VolumeAttachment: a node drains until those of its pods' volumes are deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VolumeAttachment {
    /// Name.
    pub name: String,
    /// Name of the node that the volume is attached to.
    pub node: String,
    /// Name of the PersistentVolume, if it names one.
    pub volume: Option<String>,
}

impl VolumeAttachment {
    /// Parses a Kubernetes VolumeAttachment.
    pub fn parse(attachment: &storage::VolumeAttachment) -> Self {
        Self {
            name: attachment.metadata.name.clone().unwrap_or_default(),
            node: attachment.spec.node_name.clone(),
            volume: attachment.spec.source.persistent_volume_name.clone(),
        }
    }
}

/// Returns how many volumes each CSI driver can attach to a node, for drivers that report it.
pub(super) fn attach_limits(node: &storage::CSINode) -> BTreeMap<String, u32> {
    node.spec
        .drivers
        .iter()
        .filter_map(|driver| {
            let count = driver.allocatable.as_ref()?.count?;
            Some((driver.name.clone(), u32::try_from(count).unwrap_or(0)))
        })
        .collect()
}
