//! Registration hook: an instance in a partition placement group is registered once its partition is known.
//!
//! UPSTREAM: pkg/cloudprovider/registrationhooks

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::SignedDuration;
use karpenter_api::v1::NodeClaim;
use karpenter_core::provider::{CloudProviderError, HookOutcome, RegistrationHook};

use crate::api::labels::PLACEMENT_GROUP_PARTITION;
use crate::providers::instance::{Freshness, Instances, instance_id};

/// Delay before the instance is described again.
const DESCRIBE_RETRY: SignedDuration = SignedDuration::from_secs(1);

/// Labels a NodeClaim with the partition of its instance.
pub struct PartitionHook {
    instances: Arc<Instances>,
}

impl PartitionHook {
    /// Creates a hook that gets partitions from `instances`.
    #[must_use]
    pub fn new(instances: Arc<Instances>) -> Self {
        Self { instances }
    }
}

impl std::fmt::Debug for PartitionHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PartitionHook")
    }
}

#[async_trait]
impl RegistrationHook for PartitionHook {
    fn name(&self) -> &str {
        "PlacementGroupRegistrationHook"
    }

    async fn registered(&self, claim: &NodeClaim) -> Result<HookOutcome, CloudProviderError> {
        if claim.label(PLACEMENT_GROUP_PARTITION) != Some("") {
            return Ok(HookOutcome::Ready);
        }
        let provider_id = claim.status.provider_id.as_deref().unwrap_or_default();
        let Some(id) = instance_id(provider_id) else {
            return Err(CloudProviderError::other(format!(
                "parsing instance id of `{provider_id}`"
            )));
        };
        let instance = self
            .instances
            .get(id, Freshness::Fresh)
            .await
            .map_err(super::instance_error)?;
        let Some(partition) = instance.partition else {
            return Ok(HookOutcome::Wait(DESCRIBE_RETRY));
        };
        Ok(HookOutcome::ReadyWith(BTreeMap::from([(
            PLACEMENT_GROUP_PARTITION.to_owned(),
            partition.to_string(),
        )])))
    }
}
