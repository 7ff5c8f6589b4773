//! Reconciliation of a node class: ensure its metadata, call AWS, validate it, write the status once.
//!
//! UPSTREAM: pkg/controllers/nodeclass/controller.go

use std::sync::Arc;
use std::time::Duration;

use karpenter_api::conditions::HasConditions;
use karpenter_kube::client::patch::{Lock, patch_status};
use karpenter_kube::context::Context;
use karpenter_kube::controller::{
    Backoff, Controller, Doing, Next, ObjectKey, Queue, ReconcileError,
};
use karpenter_kube::model::{Change, View};
use karpenter_kube::options::Options;
use kube::Api;

use super::outcome::Outcome;
use super::status::{Lookups, StatusUpdate};
use super::validation::Validation;
use crate::api::EC2NodeClass;
use crate::api::labels::GROUP;
use crate::context::AwsContext;

/// Keeps the status of EC2NodeClasses, and deletes the AWS resources of those that are being deleted.
#[derive(Debug)]
pub struct NodeClasses {
    pub(super) cx: Arc<Context>,
    pub(super) aws: AwsContext,
    pub(super) validation: Validation,
}

impl NodeClasses {
    #[must_use]
    pub fn new(cx: Arc<Context>, aws: AwsContext) -> Self {
        let validation = Validation::new(aws.clone());
        Self {
            cx,
            aws,
            validation,
        }
    }

    pub(super) fn api(&self) -> Api<EC2NodeClass> {
        Api::all(self.cx.clients.api.clone())
    }

    async fn update_status(&self, stored: &EC2NodeClass) -> Result<Next, ReconcileError> {
        let mut outcome = Outcome::default();
        let before = self.ensure_metadata(stored, &mut outcome).await?;
        let now = self.cx.clock.now();
        let lookups = Box::pin(Lookups::request(&self.aws, &before, now)).await;
        let mut after = before.clone();
        after.initialize_conditions(now);
        lookups.write(
            &mut StatusUpdate {
                class: &mut after,
                now,
            },
            &mut outcome,
        );
        let validating = self.validation.validate(&mut after, now, &mut outcome);
        Box::pin(validating).await;
        let written = patch_status(&self.api(), &before, &after, Lock::Optimistic).await;
        outcome.record(written.map(|_| ()).doing("updating ec2nodeclass status"));
        outcome.finish()
    }
}

impl Controller for NodeClasses {
    type Key = ObjectKey;
    const NAME: &'static str = "nodeclass";
    const KIND: &'static str = EC2NodeClass::KIND;

    fn concurrency(&self, _: &Options) -> usize {
        10
    }

    fn backoff(&self) -> Backoff {
        // The parts that did not fail are still refreshed every minute.
        Backoff {
            max: Duration::from_secs(60),
            ..Backoff::DEFAULT
        }
    }

    fn triggered_by(&self, change: &Change, _: &View, queue: &Queue<ObjectKey>) {
        // A class that is being deleted waits for its last NodeClaim. Changes of the classes themselves come from their
        // store.
        if let Change::NodeClaim {
            before: Some(claim),
            after: None,
            ..
        } = change
            && claim.spec.node_class_ref.group == GROUP
        {
            queue.add(ObjectKey::cluster(&claim.spec.node_class_ref.name));
        }
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, ReconcileError> {
        let Some(class) = self.aws.stores.class(&key.name) else {
            self.validation.forget(&key.name);
            return Ok(Next::Wait);
        };
        if class.is_deleting() {
            return self.finalize(&class).await;
        }
        self.update_status(&class).await
    }
}
