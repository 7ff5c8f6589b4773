//! What a node class carries from us in its metadata: the finalizer, and the static hash with its version.
//!
//! The hash is written before the class is judged, so that a class that is ready for its present spec carries its present
//! hash, and so do the NodeClaims launched from it.
//!
//! UPSTREAM: pkg/controllers/nodeclass/hash/controller.go

use futures::StreamExt;
use karpenter_api::v1::NodeClaim;
use karpenter_kube::controller::{Doing, ReconcileError};
use karpenter_kube::patch::{Lock, patch_object};

use super::controller::{NodeClasses, Outcome};
use crate::api::EC2NodeClass;
use crate::api::labels::{GROUP, annotations, finalizers};
use crate::hash;

/// Writes in flight at a time.
const PARALLEL: usize = 10;

/// Whether a claim was made from this class.
pub(super) fn is_of(claim: &NodeClaim, class: &EC2NodeClass) -> bool {
    let reference = &claim.spec.node_class_ref;
    reference.group == GROUP
        && reference.kind == EC2NodeClass::KIND
        && Some(&reference.name) == class.metadata.name.as_ref()
}

impl NodeClasses {
    /// Writes finalizer and hash where they are missing; the class as it is then. The hash of a new version comes after that
    /// of the claims, which would drift otherwise.
    pub(super) async fn mark(
        &self,
        class: &EC2NodeClass,
        outcome: &mut Outcome,
    ) -> Result<EC2NodeClass, ReconcileError> {
        let settings = self.parts.cluster.get();
        let authority = settings.cluster.certificate_authority.as_deref();
        let authority = authority.unwrap_or_default();
        let mut marked = class.clone();
        let held = marked.metadata.finalizers.get_or_insert_default();
        if !held.iter().any(|f| f == finalizers::TERMINATION) {
            held.push(finalizers::TERMINATION.to_owned());
        }
        let version = class.annotation(annotations::NODE_CLASS_HASH_VERSION);
        let restamped = match version {
            Some(hash::VERSION) => Ok(()),
            _ => self.restamp(class, authority).await,
        };
        if restamped.is_ok() {
            let written = marked.metadata.annotations.get_or_insert_default();
            for (key, value) in hash::stamp(class, authority) {
                written.insert(key.to_owned(), value);
            }
        }
        outcome.note(restamped);
        let patched = patch_object(&self.api(), class, &marked, Lock::Optimistic).await;
        let patched = patched.doing("updating ec2nodeclass")?;
        Ok(patched.unwrap_or_else(|| class.clone()))
    }

    async fn restamp(&self, class: &EC2NodeClass, authority: &str) -> Result<(), ReconcileError> {
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
                let mut stamped = NodeClaim::clone(&claim);
                let written = stamped.metadata.annotations.get_or_insert_default();
                for (key, value) in hash::restamp(class, authority, &claim) {
                    written.insert(key.to_owned(), value);
                }
                let written = writes.patch_object(api, &claim, &stamped, Lock::Optimistic);
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
