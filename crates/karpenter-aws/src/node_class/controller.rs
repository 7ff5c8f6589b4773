//! One look at a node class: mark it, ask AWS, judge it, write the status once.
//!
//! UPSTREAM: pkg/controllers/nodeclass/controller.go

use std::sync::Arc;
use std::time::Duration;

use karpenter_api::conditions::HasConditions;
use karpenter_core::provider::CloudProviderError;
use karpenter_kube::context::Context;
use karpenter_kube::controller::{
    Backoff, Controller, Doing, Next, ObjectKey, Queue, ReconcileError,
};
use karpenter_kube::model::{Change, View};
use karpenter_kube::options::Options;
use karpenter_kube::patch::{Lock, patch_status};
use kube::Api;

use super::status::{Found, Seen};
use super::validation::Validation;
use crate::api::EC2NodeClass;
use crate::api::labels::GROUP;
use crate::operator::Parts;

/// Keeps the status of EC2NodeClasses, and takes away what was made for those that are deleted.
#[derive(Debug)]
pub struct NodeClasses {
    pub(super) cx: Arc<Context>,
    pub(super) parts: Parts,
    pub(super) validation: Validation,
}

/// What is to be told of a look: when to look again, and what went wrong.
#[derive(Debug)]
pub(super) struct Outcome {
    next: Next,
    errors: Vec<ReconcileError>,
}

impl Default for Outcome {
    fn default() -> Self {
        Self {
            next: Next::Wait,
            errors: Vec::new(),
        }
    }
}

impl Outcome {
    pub(super) fn again(&mut self, after: Duration) {
        self.next = self.next.sooner(Next::After(after));
    }

    pub(super) fn failed(
        &mut self,
        action: &'static str,
        error: impl std::error::Error + Send + Sync + 'static,
    ) {
        let source = CloudProviderError::Other(Box::new(error));
        self.errors
            .push(ReconcileError::Provider { action, source });
    }

    pub(super) fn note(&mut self, result: Result<(), ReconcileError>) {
        self.errors.extend(result.err());
    }

    fn finish(self) -> Result<Next, ReconcileError> {
        ReconcileError::collect(self.errors)?;
        Ok(self.next)
    }
}

impl NodeClasses {
    /// The controller.
    #[must_use]
    pub fn new(cx: Arc<Context>, parts: Parts) -> Self {
        let validation = Validation::new(parts.clone(), &cx);
        Self {
            cx,
            parts,
            validation,
        }
    }

    pub(super) fn api(&self) -> Api<EC2NodeClass> {
        Api::all(self.cx.clients.api.clone())
    }

    async fn keep(&self, stored: &EC2NodeClass) -> Result<Next, ReconcileError> {
        let mut outcome = Outcome::default();
        let before = self.mark(stored, &mut outcome).await?;
        let now = self.cx.clock.now();
        let found = Box::pin(Found::ask(&self.parts, &before, now)).await;
        let mut after = before.clone();
        after.initialise_conditions(now);
        found.tell(
            &mut Seen {
                class: &mut after,
                now,
            },
            &mut outcome,
        );
        let judging = self.validation.judge(&mut after, now, &mut outcome);
        Box::pin(judging).await;
        let written = patch_status(&self.api(), &before, &after, Lock::Optimistic).await;
        outcome.note(written.map(|_| ()).doing("updating ec2nodeclass status"));
        outcome.finish()
    }
}

impl Controller for NodeClasses {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "nodeclass"
    }

    fn kind(&self) -> &'static str {
        EC2NodeClass::KIND
    }

    fn concurrency(&self, _: &Options) -> usize {
        10
    }

    fn backoff(&self) -> Backoff {
        // What did not fail wants to be looked at every minute all the same.
        Backoff {
            max: Duration::from_secs(60),
            ..Backoff::DEFAULT
        }
    }

    fn triggered_by(&self, change: &Change, _: &View, queue: &Queue<ObjectKey>) {
        // A class that is deleted waits for its last claim. The classes themselves are told by their store.
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
        let Some(class) = self.parts.stores.class(&key.name) else {
            self.validation.forget(&key.name);
            return Ok(Next::Wait);
        };
        if class.is_deleting() {
            return self.finalize(&class).await;
        }
        self.keep(&class).await
    }
}
