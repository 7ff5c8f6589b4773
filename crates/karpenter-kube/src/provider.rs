//! The provider as controllers use it: its calls are measured, NodeOverlays are applied to its instance types, and in a shadow it
//! launches and terminates nothing.
//!
//! UPSTREAM: pkg/cloudprovider/metrics/cloudprovider.go, pkg/cloudprovider/overlay

use std::sync::Arc;

use async_trait::async_trait;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::provider::{
    CloudProvider, CloudProviderError, ProviderProfile, RegistrationHook, SubnetAddresses,
};
use tokio::time::Instant;

use crate::controller::current_controller;
use crate::metrics::{Counter, Metrics};
use crate::overlay::Accepted;

/// A provider whose calls are measured. Cheap to clone.
#[derive(Clone)]
pub struct Provider {
    inner: Arc<dyn CloudProvider>,
    metrics: Metrics,
    overlays: Option<Accepted>,
    /// Counts the calls that are refused; only in a shadow.
    refused: Option<Counter>,
}

impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Provider")
            .field(&self.inner.profile().name)
            .finish()
    }
}

impl Provider {
    /// Wraps `inner` and measures its calls.
    #[must_use]
    pub fn new(inner: Arc<dyn CloudProvider>, metrics: Metrics) -> Self {
        Self {
            inner,
            metrics,
            overlays: None,
            refused: None,
        }
    }

    /// Applies the valid overlays to instance types; the wrapped provider can read them, too.
    #[must_use]
    pub fn with_overlays(mut self, accepted: Accepted) -> Self {
        let names = &self.inner.profile().well_known;
        self.inner.use_overlays(accepted.seen(names));
        self.overlays = Some(accepted);
        self
    }

    /// Refuses to launch and to terminate instances, and counts what it refuses.
    #[cfg(feature = "decisions")]
    #[must_use]
    pub fn read_only(mut self, refusals: &crate::client::refusal::Refusals) -> Self {
        self.refused = Some(refusals.total.clone());
        self
    }

    /// Fails in a shadow, which acts on nothing.
    fn permit(&self, action: &str) -> Result<(), CloudProviderError> {
        let Some(refused) = &self.refused else {
            return Ok(());
        };
        refused.inc(&["provider"]);
        let error = format!("refusing to {action}: a shadow is read-only");
        tracing::error!(logger = "shadow", error, "refused a call of the provider");
        Err(CloudProviderError::other(error))
    }

    async fn measure<T>(
        &self,
        method: &'static str,
        call: impl Future<Output = Result<T, CloudProviderError>>,
    ) -> Result<T, CloudProviderError> {
        let started = Instant::now();
        let answer = call.await;
        let controller = current_controller();
        let name = self.inner.profile().name.as_str();
        let took = started.elapsed().as_secs_f64();
        self.metrics
            .cloudprovider_duration_seconds
            .observe(&[controller, method, name], took);
        if let Err(error) = &answer {
            self.metrics.cloudprovider_errors_total.inc(&[
                controller,
                method,
                name,
                error.metric_label(),
            ]);
        }
        answer
    }
}

#[async_trait]
impl CloudProvider for Provider {
    fn profile(&self) -> &ProviderProfile {
        self.inner.profile()
    }
    fn subnet_addresses(&self) -> Option<Vec<SubnetAddresses>> {
        self.inner.subnet_addresses()
    }
    fn registration_hooks(&self) -> Vec<Arc<dyn RegistrationHook>> {
        if self.refused.is_some() {
            return Vec::new();
        }
        self.inner.registration_hooks()
    }
    async fn create(&self, claim: &NodeClaim) -> Result<NodeClaim, CloudProviderError> {
        let launch = async {
            self.permit("launch an instance")?;
            self.inner.create(claim).await
        };
        self.measure("Create", launch).await
    }
    async fn delete(&self, claim: &NodeClaim) -> Result<(), CloudProviderError> {
        let termination = async {
            self.permit("terminate an instance")?;
            self.inner.delete(claim).await
        };
        self.measure("Delete", termination).await
    }
    async fn get(&self, provider_id: &str) -> Result<NodeClaim, CloudProviderError> {
        self.measure("Get", self.inner.get(provider_id)).await
    }
    async fn list(&self) -> Result<Vec<Arc<NodeClaim>>, CloudProviderError> {
        self.measure("List", self.inner.list()).await
    }
    async fn instance_types(
        &self,
        pool: &NodePool,
    ) -> Result<Arc<[InstanceType]>, CloudProviderError> {
        let base = self.inner.instance_types(pool);
        let base = self.measure("GetInstanceTypes", base).await?;
        match &self.overlays {
            Some(accepted) => accepted.apply(pool, base, &self.inner.profile().well_known),
            None => Ok(base),
        }
    }
    async fn is_drifted(&self, claim: &NodeClaim) -> Result<Option<String>, CloudProviderError> {
        self.measure("IsDrifted", self.inner.is_drifted(claim))
            .await
    }
}
