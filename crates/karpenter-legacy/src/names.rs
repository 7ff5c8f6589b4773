//! Labels and annotations that were renamed or removed.

use karpenter_api::labels::annotations;

/// The number of pods of an instance type; removed in v1beta1.
pub(crate) const INSTANCE_PODS: &str = "karpenter.k8s.aws/instance-pods";
/// On an EC2NodeClass: the fields changed when the family Ubuntu became AL2.
pub const UBUNTU_COMPATIBILITY: &str = "compatibility.karpenter.k8s.aws/v1beta1-ubuntu";
/// On a NodePool or NodeClaim: the kubelet settings of its v1beta1 version, as JSON.
pub use karpenter_api::labels::annotations::KUBELET_COMPATIBILITY;
/// On a NodePool or NodeClaim: the nodeClassRef of its v1beta1 version, as JSON.
pub const NODE_CLASS_REF_COMPATIBILITY: &str =
    "compatibility.karpenter.sh/v1beta1-nodeclass-reference";
/// On an object stored as v1: the fields of its v1beta1 version that differ from the conversion.
pub const V1BETA1_FIELDS: &str = "compatibility.karpenter.sh/v1beta1-fields";
/// On an object read as v1beta1: the fields of its v1 version that differ from the conversion.
pub const V1_FIELDS: &str = "compatibility.karpenter.sh/v1-fields";
/// The last applied configuration of kubectl, which describes another kind after a conversion.
pub(crate) const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Tags that older releases set.
pub(crate) const OWN_TAGS: [&str; 2] = ["karpenter.sh/provisioner-name", "karpenter.sh/managed-by"];

/// Annotations of controllers of older releases; no component reads them.
pub(crate) const OWN_ANNOTATIONS: [&str; 3] = [
    "karpenter.sh/provisioner-hash",
    "karpenter.k8s.aws/nodetemplate-hash",
    "karpenter.sh/provisioner-hash-version",
];

/// Returns the current key of an annotation, if it was renamed.
#[must_use]
pub fn successor(annotation: &str) -> Option<&'static str> {
    [annotations::DO_NOT_EVICT, annotations::DO_NOT_CONSOLIDATE]
        .contains(&annotation)
        .then_some(annotations::DO_NOT_DISRUPT)
}
