//! The metadata that the controller writes on a node class: the finalizer, and the static hash with its version.
//!
//! The hash is written before the class is validated, so that a class that is ready for its current spec has its
//! current hash, and so do the NodeClaims launched from it.
//!
//! UPSTREAM: pkg/controllers/nodeclass/hash/controller.go

use futures::StreamExt;
use karpenter_api::v1::NodeClaim;
use karpenter_kube::client::patch::{Lock, patch_object};
use karpenter_kube::controller::{Doing, ReconcileError};

use super::controller::NodeClasses;
use super::outcome::Outcome;
use crate::api::EC2NodeClass;
use crate::api::hash;
use crate::api::labels::{GROUP, annotations, finalizers};

/// Maximum number of concurrent writes.
const PARALLEL: usize = 10;

pub(super) fn is_of(claim: &NodeClaim, class: &EC2NodeClass) -> bool {
    let reference = &claim.spec.node_class_ref;
    reference.group == GROUP
        && reference.kind == EC2NodeClass::KIND
        && Some(&reference.name) == class.metadata.name.as_ref()
}

impl NodeClasses {
    /// Writes the finalizer and the hash where they are missing; returns the updated class. A hash of a new version is
    /// written on the class after its NodeClaims, which would drift otherwise.
    pub(super) async fn ensure_metadata(
        &self,
        class: &EC2NodeClass,
        outcome: &mut Outcome,
    ) -> Result<EC2NodeClass, ReconcileError> {
        let settings = self.aws.cluster.get();
        let authority = settings.cluster.certificate_authority.as_deref();
        let authority = authority.unwrap_or_default();
        let mut updated = class.clone();
        let held = updated.metadata.finalizers.get_or_insert_default();
        if !held.iter().any(|f| f == finalizers::TERMINATION) {
            held.push(finalizers::TERMINATION.to_owned());
        }
        let version = class.annotation(annotations::NODE_CLASS_HASH_VERSION);
        let migrated = match version {
            Some(hash::VERSION) => Ok(()),
            _ => self.migrate_claim_hashes(class, authority).await,
        };
        if migrated.is_ok() {
            let written = updated.metadata.annotations.get_or_insert_default();
            for (key, value) in hash::hash_annotations(class, authority) {
                written.insert(key.to_owned(), value);
            }
        }
        outcome.record(migrated);
        let patched = patch_object(&self.api(), class, &updated, Lock::Optimistic).await;
        let patched = patched.doing("updating ec2nodeclass")?;
        Ok(patched.unwrap_or_else(|| class.clone()))
    }

    async fn migrate_claim_hashes(
        &self,
        class: &EC2NodeClass,
        authority: &str,
    ) -> Result<(), ReconcileError> {
        let view = self.cx.view();
        if !view.is_synced() {
            return Err(ReconcileError::Refused(
                "nodeclaims are not known yet".to_owned(),
            ));
        }
        let api = self.cx.node_claims();
        let claims = view.snapshot.node_claims().filter(|c| is_of(c, class));
        let writes = claims.map(|claim| {
            let writes = &self.cx.claim_writes;
            let (api, claim) = (api.clone(), writes.latest(claim));
            async move {
                let mut updated = NodeClaim::clone(&claim);
                let written = updated.metadata.annotations.get_or_insert_default();
                for (key, value) in hash::updated_annotations(class, authority, &claim) {
                    written.insert(key.to_owned(), value);
                }
                let written = writes.patch_object(api, &claim, &updated, Lock::Optimistic);
                match written.await {
                    Err(error) if karpenter_kube::controller::is_not_found(&error) => Ok(()),
                    written => written.map(|_| ()).doing("updating nodeclaim"),
                }
            }
        });
        let results: Vec<_> = futures::stream::iter(writes.collect::<Vec<_>>())
            .buffer_unordered(PARALLEL)
            .collect()
            .await;
        ReconcileError::collect(results.into_iter().filter_map(Result::err).collect())
    }
}
