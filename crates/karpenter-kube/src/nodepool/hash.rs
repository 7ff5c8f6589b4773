//! The static hash of a NodePool, written to its annotations, and re-stamped on its NodeClaims when the algorithm changes.
//!
//! UPSTREAM: pkg/controllers/nodepool/hash/controller.go

use std::sync::Arc;

use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::hash::{NODE_POOL_HASH_VERSION, node_pool, stamp};
use karpenter_api::labels::annotations::{NODE_POOL_HASH, NODE_POOL_HASH_VERSION as VERSION};
use karpenter_api::v1::{NodeClaim, NodePool};
use kube::Api;

use crate::client::patch::Lock;
use crate::context::Context;
use crate::controller::{Controller, Doing, Next, ObjectKey, Queue, ReconcileError};
use crate::model::{Change, View};

/// Maintains the hash annotations of NodePools.
#[derive(Debug)]
pub struct Hash {
    /// What all controllers share.
    pub cx: Arc<Context>,
}

impl Hash {
    /// Sets the current hash version on NodeClaims of another version, and the current hash unless they are known to have
    /// drifted.
    async fn restamp(&self, view: &View, pool: &str, hash: &str) -> Result<(), ReconcileError> {
        let mut errors = Vec::new();
        for claim in view.node_claims_of_pool(pool) {
            let claim = self.cx.claim_writes.latest(&claim);
            let wanted = restamped(&claim, hash);
            let api = self.cx.node_claims();
            let writes = &self.cx.claim_writes;
            let patched = writes.patch_object(api.clone(), &claim, &wanted, Lock::Optimistic);
            if let Err(error) = patched.await.doing("updating nodeclaim") {
                errors.push(error);
            }
        }
        ReconcileError::collect(errors)
    }
}

fn restamped(claim: &NodeClaim, hash: &str) -> NodeClaim {
    let mut wanted = claim.clone();
    if claim.annotation(VERSION) == Some(NODE_POOL_HASH_VERSION) {
        return wanted;
    }
    let annotations = wanted.metadata.annotations.get_or_insert_default();
    annotations.insert(VERSION.into(), NODE_POOL_HASH_VERSION.into());
    if claim.condition(types::DRIFTED).is_none() {
        annotations.insert(NODE_POOL_HASH.into(), hash.to_owned());
    }
    wanted
}

impl Controller for Hash {
    type Key = ObjectKey;
    const NAME: &'static str = "nodepool.hash";
    const KIND: &'static str = NodePool::KIND;

    fn triggered_by(&self, change: &Change, view: &View, queue: &Queue<ObjectKey>) {
        match change {
            Change::NodePool {
                name,
                after: Some(_),
                ..
            } if view.is_synced() => queue.add(ObjectKey::cluster(name)),
            Change::Synced => view
                .snapshot
                .node_pools()
                .for_each(|pool| queue.add(ObjectKey::cluster(pool.name()))),
            _ => {}
        }
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, ReconcileError> {
        let view = self.cx.view();
        let known = view.node_pool(&key.name);
        let Some(before) = known
            .map(|pool| self.cx.pool_writes.latest(pool))
            .filter(|p| self.cx.is_managed(&p.spec.template.spec.node_class_ref))
        else {
            return Ok(Next::Wait);
        };
        let hash = node_pool(&before);
        let annotation = |key: &str| {
            before
                .metadata
                .annotations
                .as_ref()
                .and_then(|a| a.get(key))
        };
        if annotation(VERSION).is_none_or(|v| v != NODE_POOL_HASH_VERSION) {
            self.restamp(&view, &key.name, &hash).await?;
        }
        let mut after = NodePool::clone(&before);
        stamp(&mut after);
        let api: Api<NodePool> = Api::all(self.cx.clients.api.clone());
        // No other controller writes these two annotations.
        self.cx
            .pool_writes
            .patch_object(api.clone(), &before, &after, Lock::None)
            .await
            .doing("updating nodepool")?;
        Ok(Next::Wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: DIS-063, API-068
    #[test]
    fn a_new_version_rewrites_the_hash_unless_the_claim_has_drifted() {
        let mut claim = NodeClaim::new("a", Default::default());
        claim.metadata.annotations = Some(
            [
                (NODE_POOL_HASH.to_owned(), "1".to_owned()),
                (VERSION.to_owned(), "v2".to_owned()),
            ]
            .into(),
        );
        let stamped = restamped(&claim, "2");
        assert_eq!(
            (
                stamped.annotation(NODE_POOL_HASH),
                stamped.annotation(VERSION)
            ),
            (Some("2"), Some("v3"))
        );
        claim.set_true(types::DRIFTED, jiff::Timestamp::UNIX_EPOCH);
        let stamped = restamped(&claim, "2");
        assert_eq!(
            (
                stamped.annotation(NODE_POOL_HASH),
                stamped.annotation(VERSION)
            ),
            (Some("1"), Some("v3"))
        );
        assert_eq!(restamped(&stamped, "3"), stamped);
    }
}
