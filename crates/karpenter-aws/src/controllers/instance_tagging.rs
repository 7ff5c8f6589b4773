//! Controller that adds the tags known only after the launch: the node's name, the NodeClaim, the cluster.
//!
//! UPSTREAM: pkg/controllers/nodeclaim/tagging/controller.go
//! DIFFERS: five instances per second instead of one; EC2 allows ten.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use karpenter_api::v1::NodeClaim;
use karpenter_core::provider::CloudProviderError;
use karpenter_kube::context::Context;
use karpenter_kube::controller::{Controller, Doing, Next, ObjectKey, Queue, ReconcileError};
use karpenter_kube::logging;
use karpenter_kube::model::{Change, View};
use karpenter_kube::options::Options;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::api::labels::{annotations, tags};
use crate::providers::instance::{Freshness, Instances, instance_id};

/// Number of instances that are tagged concurrently…
const WORKERS: usize = 5;
/// …and the pause after each, to leave room in EC2's rate limit.
const PAUSE: Duration = Duration::from_secs(1);

/// Tags the instances of NodeClaims.
#[derive(Debug)]
pub struct Tagging {
    cx: Arc<Context>,
    instances: Arc<Instances>,
    cluster: String,
}

impl Tagging {
    #[must_use]
    pub fn new(cx: Arc<Context>, instances: Arc<Instances>, cluster: &str) -> Self {
        Self {
            cx,
            instances,
            cluster: cluster.to_owned(),
        }
    }
}

/// Returns whether tags are missing: the node's name is known, and the NodeClaim's annotations do not confirm the tags.
fn is_due(claim: &NodeClaim) -> bool {
    let done = [annotations::TAGGED, annotations::CLUSTER_NAME_TAGGED];
    let node = claim.status.node_name.as_deref().unwrap_or_default();
    !claim.is_deleting()
        && !node.is_empty()
        && done.iter().any(|key| claim.annotation(key) != Some("true"))
}

impl Controller for Tagging {
    type Key = ObjectKey;
    const NAME: &'static str = "nodeclaim.tagging";
    const KIND: &'static str = NodeClaim::KIND;

    fn concurrency(&self, _: &Options) -> usize {
        WORKERS
    }

    fn triggered_by(&self, change: &Change, _: &View, queue: &Queue<ObjectKey>) {
        if let Change::NodeClaim {
            name,
            before,
            after: Some(after),
        } = change
            && is_due(after)
            && before.as_deref().is_none_or(|before| !is_due(before))
        {
            queue.add(ObjectKey::cluster(name));
        }
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, ReconcileError> {
        let view = self.cx.view();
        let Some(claim) = view
            .node_claim(&key.name)
            .filter(|c| self.cx.is_managed(&c.spec.node_class_ref) && is_due(c))
        else {
            return Ok(Next::Wait);
        };
        let provider_id = claim.status.provider_id.as_deref().unwrap_or_default();
        let Some(id) = instance_id(provider_id) else {
            tracing::error!(
                NodeClaim = logging::object(None, claim.name()),
                "provider-id" = provider_id,
                "failed parsing instance id"
            );
            return Ok(Next::Wait);
        };
        let instance = match self.instances.get(id, Freshness::Fresh).await {
            Ok(instance) => instance,
            Err(error) if error.is_not_found() => return Ok(Next::Wait),
            Err(error) => return Err(CloudProviderError::other(error)).doing("getting instance"),
        };
        let node = claim.status.node_name.as_deref().unwrap_or_default();
        let missing: BTreeMap<String, String> = [
            (tags::NAME, node),
            (tags::NODE_CLAIM, claim.name()),
            (tags::EKS_CLUSTER_NAME, &self.cluster),
        ]
        .into_iter()
        // Existing tags are kept, because users name their instances, too.
        .filter(|(tag, _)| !instance.tags.contains_key(*tag))
        .map(|(tag, value)| (tag.to_owned(), value.to_owned()))
        .collect();
        if !missing.is_empty() {
            let tagged = self.instances.create_tags(id, &missing).await;
            self.cx.clock.sleep(PAUSE).await;
            match tagged {
                Ok(()) => {}
                Err(error) if error.is_not_found() => return Ok(Next::Wait),
                Err(error) => {
                    return Err(CloudProviderError::other(error)).doing("tagging nodeclaim");
                }
            }
        }
        let done = json!({ "metadata": { "annotations": {
            annotations::TAGGED: "true",
            annotations::CLUSTER_NAME_TAGGED: "true",
        } } });
        let (api, writes) = (self.cx.node_claims(), &self.cx.claim_writes);
        let _turn = writes.turn(claim).await;
        let written = api
            .patch(claim.name(), &PatchParams::default(), &Patch::Merge(done))
            .await
            .doing("annotating nodeclaim")?;
        writes.remember(&written);
        Ok(Next::Wait)
    }
}
