//! A provider wrapper that measures the duration of every call and counts errors.
//!
//! UPSTREAM: pkg/cloudprovider/metrics/cloudprovider.go

use std::sync::Arc;

use async_trait::async_trait;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::provider::{
    CloudProvider, CloudProviderError, Overlays, ProviderProfile, RegistrationHook, SubnetAddresses,
};
use tokio::time::Instant;

use crate::controller::current_controller;
use crate::metrics::Metrics;

/// A provider whose calls are measured.
pub struct Metered {
    inner: Arc<dyn CloudProvider>,
    metrics: Metrics,
}

impl std::fmt::Debug for Metered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Metered")
            .field(&self.inner.profile().name)
            .finish()
    }
}

impl Metered {
    /// Wraps `inner` and measures its calls.
    #[must_use]
    pub fn new(inner: Arc<dyn CloudProvider>, metrics: Metrics) -> Self {
        Self { inner, metrics }
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
impl CloudProvider for Metered {
    fn profile(&self) -> &ProviderProfile {
        self.inner.profile()
    }
    fn subnet_addresses(&self) -> Option<Vec<SubnetAddresses>> {
        self.inner.subnet_addresses()
    }
    fn registration_hooks(&self) -> Vec<Arc<dyn RegistrationHook>> {
        self.inner.registration_hooks()
    }
    fn use_overlays(&self, overlays: Arc<dyn Overlays>) {
        self.inner.use_overlays(overlays);
    }
    async fn create(&self, claim: &NodeClaim) -> Result<NodeClaim, CloudProviderError> {
        self.measure("Create", self.inner.create(claim)).await
    }
    async fn delete(&self, claim: &NodeClaim) -> Result<(), CloudProviderError> {
        self.measure("Delete", self.inner.delete(claim)).await
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
        self.measure("GetInstanceTypes", self.inner.instance_types(pool))
            .await
    }
    async fn is_drifted(&self, claim: &NodeClaim) -> Result<Option<String>, CloudProviderError> {
        self.measure("IsDrifted", self.inner.is_drifted(claim))
            .await
    }
}
