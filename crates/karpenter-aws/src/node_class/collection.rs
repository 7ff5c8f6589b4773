//! Instance profiles that were made for node classes and that nobody uses any more are deleted.
//!
//! UPSTREAM: pkg/controllers/nodeclass/garbagecollection/controller.go

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use karpenter_core::provider::CloudProviderError;
use karpenter_kube::context::Context;
use karpenter_kube::controller::{Doing, Periodic, ReconcileError};

use crate::api::labels::annotations;
use crate::instance_profiles::InstanceProfiles;
use crate::operator::Parts;
use crate::stores::Stores;

/// How often to look.
const INTERVAL: Duration = Duration::from_secs(30 * 60);
/// How long to wait for the cluster to be known.
const UNSYNCED: Duration = Duration::from_secs(1);

/// Collects instance profiles.
#[derive(Debug)]
pub struct ProfileCollection {
    cx: Arc<Context>,
    profiles: InstanceProfiles,
    stores: Stores,
}

impl ProfileCollection {
    /// The controller.
    #[must_use]
    pub fn new(cx: Arc<Context>, parts: &Parts) -> Self {
        Self {
            cx,
            profiles: parts.instance_profiles.clone(),
            stores: parts.stores.clone(),
        }
    }

    /// Profiles that a class has or a machine was launched with.
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

impl Periodic for ProfileCollection {
    fn name(&self) -> &'static str {
        "instanceprofile.garbagecollection"
    }

    async fn pass(&mut self) -> Result<Duration, ReconcileError> {
        if !self.cx.view().is_synced() {
            return Ok(UNSYNCED);
        }
        if !self.stores.filled().await {
            return Err(ReconcileError::Stopping);
        }
        let path = self.profiles.cluster_path();
        let listed = self.profiles.list(&path).await;
        let listed = listed
            .map_err(|error| CloudProviderError::Other(Box::new(error)))
            .doing("listing instance profiles")?;
        // What is used is looked at after what there is: a profile that came in between is on no list.
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
                    source: CloudProviderError::Other(Box::new(error)),
                }),
            }
        }
        ReconcileError::collect(errors)?;
        Ok(INTERVAL)
    }
}
