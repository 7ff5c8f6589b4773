//! A machine in a partition placement group is registered once it is known in which partition it is.
//!
//! UPSTREAM: pkg/cloudprovider/registrationhooks

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::SignedDuration;
use karpenter_api::v1::NodeClaim;
use karpenter_core::provider::{CloudProviderError, HookOutcome, RegistrationHook};

use crate::api::labels::PLACEMENT_GROUP_PARTITION;
use crate::instances::{Freshness, Instances, instance_id};

/// How soon the claim is looked at again: EC2 tells the partition with the instance.
const AGAIN: SignedDuration = SignedDuration::from_secs(1);

/// Finds the partition out.
pub struct Partition {
    instances: Arc<Instances>,
}

impl Partition {
    /// A hook that asks for instances.
    #[must_use]
    pub fn new(instances: Arc<Instances>) -> Self {
        Self { instances }
    }
}

impl std::fmt::Debug for Partition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Partition")
    }
}

#[async_trait]
impl RegistrationHook for Partition {
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
            .get(id, Freshness::Asked)
            .await
            .map_err(super::instance_error)?;
        let Some(partition) = instance.partition else {
            return Ok(HookOutcome::Wait(AGAIN));
        };
        Ok(HookOutcome::ReadyWith(BTreeMap::from([(
            PLACEMENT_GROUP_PARTITION.to_owned(),
            partition.to_string(),
        )])))
    }
}
