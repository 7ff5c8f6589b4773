//! Garbage collection of instance profiles that were created for node classes and are no longer used.
//!
//! UPSTREAM: pkg/controllers/nodeclass/garbagecollection/controller.go

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use karpenter_core::provider::CloudProviderError;
use karpenter_kube::context::Context;
use karpenter_kube::controller::{Doing, Periodic, ReconcileError};

use crate::api::labels::annotations;
use crate::cloud_provider::stores::Stores;
use crate::context::AwsContext;
use crate::providers::instance_profile::InstanceProfiles;

/// How often profiles are collected.
const INTERVAL: Duration = Duration::from_secs(30 * 60);
/// Delay of a pass while the model is not synced.
const SYNC_RETRY: Duration = Duration::from_secs(1);

/// Controller that deletes unused instance profiles.
#[derive(Debug)]
pub struct InstanceProfileGc {
    cx: Arc<Context>,
    profiles: InstanceProfiles,
    stores: Stores,
}

impl InstanceProfileGc {
    #[must_use]
    pub fn new(cx: Arc<Context>, aws: &AwsContext) -> Self {
        Self {
            cx,
            profiles: aws.instance_profiles.clone(),
            stores: aws.stores.clone(),
        }
    }

    /// Returns the profiles that a class has or that an instance was launched with.
    fn used(&self) -> BTreeSet<String> {
        let classes = self.stores.classes();
        let of_classes = classes
            .iter()
            .filter_map(|class| class.status.instance_profile.clone());
        let view = self.cx.view();
        let of_claims = view.snapshot.node_claims().filter_map(|claim| {
            let name = claim.annotation(annotations::INSTANCE_PROFILE_NAME)?;
            Some(name.to_owned())
        });
        of_classes.chain(of_claims).collect()
    }
}

impl Periodic for InstanceProfileGc {
    const NAME: &'static str = "instanceprofile.garbagecollection";

    async fn pass(&mut self) -> Result<Duration, ReconcileError> {
        if !self.cx.view().is_synced() {
            return Ok(SYNC_RETRY);
        }
        if !self.stores.filled().await {
            return Err(ReconcileError::Stopping);
        }
        let path = self.profiles.cluster_path();
        let listed = self.profiles.list(&path).await;
        let listed = listed
            .map_err(CloudProviderError::other)
            .doing("listing instance profiles")?;
        // Used profiles are read after the list: a profile that is created in between is not in the list.
        let used = self.used();
        let mut errors = Vec::new();
        for profile in listed {
            if used.contains(&profile.name) || self.profiles.is_protected(&profile.name) {
                continue;
            }
            match self.profiles.delete(&profile.name).await {
                Ok(()) => tracing::debug!(
                    logger = "instanceprofile.garbagecollection",
                    "instance-profile" = profile.name,
                    "deleted instance profile"
                ),
                Err(error) => errors.push(ReconcileError::Provider {
                    action: "deleting instance profile",
                    source: CloudProviderError::other(error),
                }),
            }
        }
        ReconcileError::collect(errors)?;
        Ok(INTERVAL)
    }
}
