//! Result of a reconciliation of a node class, which several steps contribute to.

use std::time::Duration;

use karpenter_core::provider::CloudProviderError;
use karpenter_kube::controller::{Next, ReconcileError};

/// Result of a reconciliation: when to requeue, and the errors.
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
    pub(super) fn requeue(&mut self, after: Duration) {
        self.next = self.next.sooner(Next::After(after));
    }

    pub(super) fn failed(
        &mut self,
        action: &'static str,
        error: impl std::error::Error + Send + Sync + 'static,
    ) {
        let source = CloudProviderError::other(error);
        self.errors
            .push(ReconcileError::Provider { action, source });
    }

    pub(super) fn record(&mut self, result: Result<(), ReconcileError>) {
        self.errors.extend(result.err());
    }

    pub(super) fn finish(self) -> Result<Next, ReconcileError> {
        ReconcileError::collect(self.errors)?;
        Ok(self.next)
    }
}
