//! Registration: an instance has joined the cluster as a Node, which Karpenter manages from then on.
//!
//! 1. Exactly one Node has the claim's provider id; several fail the registration.
//! 2. The Node gets the finalizer, the owner reference, and the NodeClaim's annotations, labels and taints.
//! 3. The provider's registration hooks run in parallel; until all agree the unregistered taint stays. Labels that they
//!    return are added to the NodeClaim and the Node.
//! 4. The taint is removed and the `registered` label added, in the same write.
//!
//! UPSTREAM: pkg/controllers/nodeclaim/lifecycle/registration.go

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use karpenter_api::conditions::{HasConditions, Status, reasons, types};
use karpenter_api::labels::{finalizers, taints};
use karpenter_api::v1::NodeClaim;
use karpenter_api::{events, labels};
use karpenter_core::provider::HookOutcome;

use crate::client::patch::Lock;
use crate::controller::{Doing, ReconcileError};
use crate::events::{Event, reference};
use crate::logging;
use crate::nodeclaim::lifecycle::{Lifecycle, Step};

impl Lifecycle {
    pub(super) async fn register(&self, claim: &mut NodeClaim) -> Step {
        if claim.condition_status(types::REGISTERED) != Status::Unknown {
            return Step::Continue;
        }
        let now = self.cx.clock.now();
        if !claim.is_true(types::LAUNCHED) {
            claim.set_unknown(types::REGISTERED, now);
            return Step::Continue;
        }
        let nodes = claim
            .status
            .provider_id
            .as_deref()
            .map(|id| self.cx.nodes_of(&self.cx.view(), id))
            .unwrap_or_default();
        let node = match nodes.as_slice() {
            [] => {
                claim.set_unknown_with_reason(
                    types::REGISTERED,
                    reasons::NODE_NOT_FOUND,
                    "Node not registered with cluster",
                    now,
                );
                return Step::Continue;
            }
            [node] => Arc::clone(node),
            _ => {
                claim.set_false(
                    types::REGISTERED,
                    reasons::MULTIPLE_NODES_FOUND,
                    "Invariant violated, matched multiple nodes",
                    now,
                );
                return Step::Continue;
            }
        };
        let name = node.metadata.name.clone().unwrap_or_default();
        let registered = has_label(&node, labels::REGISTERED, "true");
        if !registered
            && !node_taints(&node)
                .iter()
                .any(|t| taints::same(t, &taints::unregistered()))
        {
            let message = "Missing karpenter.sh/unregistered taint which prevents registration race conditions on Karpenter-managed nodes";
            tracing::error!(
                NodeClaim = logging::object(None, claim.name()),
                nodeclaim = claim.name(),
                Node = logging::object(None, &name),
                error = message,
                "node claim registration error"
            );
            self.cx.recorder.publish(Event::warning(
                reference(claim),
                events::UNREGISTERED_TAINT_MISSING,
                message,
            ));
        }

        let answers = self.ask_hooks(claim).await;
        if !answers.labels.is_empty() {
            let labels = claim.metadata.labels.get_or_insert_default();
            labels.extend(answers.labels);
        }
        let mut wanted = (*node).clone();
        sync(&mut wanted, claim);
        if answers.pending.is_empty() {
            admit(&mut wanted);
        }
        let writes = &self.cx.node_writes;
        let patched = writes.patch_object(self.cx.nodes(), &node, &wanted, Lock::Optimistic);
        if let Err(error) = patched.await.doing("registering node") {
            return Step::Failed(error);
        }
        if !answers.pending.is_empty() {
            let message = format!(
                "waiting for registration hooks: {}",
                answers.pending.join(", ")
            );
            claim.set_unknown_with_reason(
                types::REGISTERED,
                reasons::REGISTRATION_HOOK_PENDING,
                &message,
                now,
            );
            return match (ReconcileError::collect(answers.errors), answers.again) {
                (Err(error), _) => Step::Failed(error),
                (Ok(()), Some(wait)) => Step::ContinueAfter(wait),
                (Ok(()), None) => Step::Continue,
            };
        }
        claim.set_true(types::REGISTERED, now);
        claim.status.node_name = Some(name);
        Step::Continue
    }

    /// Reports a registration that has been written.
    pub(super) fn announce_registration(&self, claim: &NodeClaim) {
        let name = claim.status.node_name.as_deref().unwrap_or_default();
        tracing::info!(
            NodeClaim = logging::object(None, claim.name()),
            nodeclaim = claim.name(),
            "provider-id" = claim.status.provider_id.as_deref().unwrap_or_default(),
            Node = logging::object(None, name),
            "registered nodeclaim"
        );
        let pool = claim.node_pool().unwrap_or_default();
        let zone = claim.label(labels::ZONE).unwrap_or_default();
        self.cx.metrics.nodes_created_total.inc(&[pool, zone]);
        self.record_registration(claim, true);
    }

    /// Runs every hook in parallel.
    async fn ask_hooks(&self, claim: &NodeClaim) -> Answers {
        let hooks = self.cx.provider.registration_hooks();
        let outcomes = join_all(hooks.iter().map(|hook| hook.registered(claim))).await;
        let mut answers = Answers::default();
        for (hook, outcome) in hooks.iter().zip(outcomes) {
            match outcome.doing("running registration hook") {
                Ok(HookOutcome::Ready) => {}
                Ok(HookOutcome::ReadyWith(labels)) => answers.labels.extend(labels),
                Ok(HookOutcome::Wait(wait)) => {
                    answers.pending.push(hook.name().to_owned());
                    let wait = Duration::try_from(wait).unwrap_or_default();
                    answers.again = Some(answers.again.map_or(wait, |a| a.min(wait)));
                }
                Err(error) => {
                    answers.pending.push(hook.name().to_owned());
                    answers.errors.push(error);
                }
            }
        }
        answers
    }
}

/// The combined results of the registration hooks.
#[derive(Debug, Default)]
struct Answers {
    /// Names of the hooks that have not agreed yet.
    pending: Vec<String>,
    /// Delay until the first of them is to run again.
    again: Option<Duration>,
    /// Labels for the NodeClaim and its Node.
    labels: BTreeMap<String, String>,
    /// Errors of hooks; they make the reconciliation fail, so that the hooks run again.
    errors: Vec<ReconcileError>,
}

/// Copies the metadata and taints of the NodeClaim to the Node.
fn sync(node: &mut Node, claim: &NodeClaim) {
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
fn admit(node: &mut Node) {
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
pub(crate) fn has_label(node: &Node, key: &str, value: &str) -> bool {
    node.metadata
        .labels
        .as_ref()
        .and_then(|l| l.get(key))
        .is_some_and(|v| v == value)
}

/// Returns the taints of a Node.
pub(crate) fn node_taints(node: &Node) -> &[Taint] {
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
