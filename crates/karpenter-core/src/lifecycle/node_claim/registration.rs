//! What a Node gets when it registers.

use karpenter_api::k8s_openapi::api::core::v1::{Node, Taint};
use karpenter_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use karpenter_api::labels;
use karpenter_api::labels::{finalizers, taints};
use karpenter_api::v1::NodeClaim;

/// Copies the metadata and taints of the NodeClaim to the Node.
pub(super) fn sync(node: &mut Node, claim: &NodeClaim) {
    let finalizers = node.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|f| f == finalizers::TERMINATION) {
        finalizers.push(finalizers::TERMINATION.to_owned());
    }
    let owners = node.metadata.owner_references.get_or_insert_default();
    if !owners.iter().any(|o| o.uid == claim.uid()) {
        owners.push(OwnerReference {
            api_version: "karpenter.sh/v1".into(),
            kind: NodeClaim::KIND.into(),
            name: claim.name().to_owned(),
            uid: claim.uid().to_owned(),
            block_owner_deletion: Some(true),
            controller: None,
        });
    }
    node.metadata
        .annotations
        .get_or_insert_default()
        .extend(claim.metadata.annotations.clone().unwrap_or_default());
    node.metadata
        .labels
        .get_or_insert_default()
        .extend(claim.metadata.labels.clone().unwrap_or_default());
    if !has_label(node, labels::DO_NOT_SYNC_TAINTS, "true") {
        let spec = node.spec.get_or_insert_default();
        let present = spec.taints.get_or_insert_default();
        for taint in claim.spec.taints.iter().chain(&claim.spec.startup_taints) {
            if !present.iter().any(|p| taints::same(p, taint)) {
                present.push(taint.clone());
            }
        }
    }
}

/// Removes the unregistered taint and adds the registered label, so that pods can be scheduled.
pub(super) fn admit(node: &mut Node) {
    if let Some(spec) = &mut node.spec
        && let Some(present) = &mut spec.taints
    {
        present.retain(|t| !taints::same(t, &taints::unregistered()));
    }
    node.metadata
        .labels
        .get_or_insert_default()
        .insert(labels::REGISTERED.into(), "true".into());
}

/// Returns whether a Node has a label of this value.
pub(super) fn has_label(node: &Node, key: &str, value: &str) -> bool {
    node.metadata
        .labels
        .as_ref()
        .and_then(|l| l.get(key))
        .is_some_and(|v| v == value)
}

pub(super) fn has_taint(node: &Node, taint: &Taint) -> bool {
    node_taints(node).iter().any(|t| taints::same(t, taint))
}

pub(super) fn node_taints(node: &Node) -> &[Taint] {
    node.spec
        .as_ref()
        .and_then(|s| s.taints.as_deref())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> NodeClaim {
        let mut claim = NodeClaim::new("claim", Default::default());
        claim.metadata.uid = Some("uid".into());
        claim.metadata.labels = Some([("a".to_owned(), "claim".to_owned())].into());
        claim.metadata.annotations = Some([("b".to_owned(), "claim".to_owned())].into());
        let taint = |key: &str| Taint {
            key: key.into(),
            effect: "NoSchedule".into(),
            ..Taint::default()
        };
        claim.spec.taints = vec![taint("t")];
        claim.spec.startup_taints = vec![taint("s")];
        claim
    }

    fn node(labels: &[(&str, &str)]) -> Node {
        let mut node = Node::default();
        node.metadata.labels = Some(
            labels
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
        );
        node.spec.get_or_insert_default().taints = Some(vec![taints::unregistered()]);
        node
    }

    /// Conformance: DIS-034, API-078
    #[test]
    fn the_node_gets_finalizer_owner_labels_annotations_and_taints() {
        let mut node = node(&[("a", "node"), ("c", "node")]);
        sync(&mut node, &claim());
        let before = node.clone();
        sync(&mut node, &claim());
        assert_eq!(node, before, "syncing twice changes nothing");
        assert_eq!(
            node.metadata.finalizers.as_deref(),
            Some(&["karpenter.sh/termination".to_owned()][..])
        );
        assert_eq!(
            node.metadata.owner_references.as_ref().unwrap()[0].block_owner_deletion,
            Some(true)
        );
        assert!(has_label(&node, "a", "claim") && has_label(&node, "c", "node"));
        assert_eq!(node.metadata.annotations.as_ref().unwrap()["b"], "claim");
        assert_eq!(
            node_taints(&node)
                .iter()
                .map(|t| t.key.as_str())
                .collect::<Vec<_>>(),
            ["karpenter.sh/unregistered", "t", "s"]
        );
        admit(&mut node);
        assert_eq!(node_taints(&node).len(), 2);
        assert!(has_label(&node, labels::REGISTERED, "true"));
    }

    /// Conformance: DIS-035
    #[test]
    fn taints_are_not_synced_to_a_node_with_the_do_not_sync_label() {
        let mut opted_out = node(&[(labels::DO_NOT_SYNC_TAINTS, "true")]);
        sync(&mut opted_out, &claim());
        assert_eq!(node_taints(&opted_out).len(), 1);
        let mut other = node(&[(labels::DO_NOT_SYNC_TAINTS, "yes")]);
        sync(&mut other, &claim());
        assert_eq!(node_taints(&other).len(), 3);
    }
}
