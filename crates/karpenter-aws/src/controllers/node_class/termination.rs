//! Termination of a node class: it waits for its NodeClaims, then its AWS resources are deleted, then its finalizer is
//! removed.
//!
//! UPSTREAM: pkg/controllers/nodeclass/controller.go finalize

use std::time::Duration;

use karpenter_core::provider::CloudProviderError;
use karpenter_kube::client::patch::{Lock, patch_object};
use karpenter_kube::controller::{Doing, Next, ReconcileError};
use karpenter_kube::events::{Event, reference};
use karpenter_kube::logging::shortened;
use kube::api::ListParams;

use super::controller::NodeClasses;
use super::metadata::is_of;
use super::profile::legacy_name;
use crate::api::labels::finalizers;
use crate::api::{EC2NodeClass, events};
use crate::sdk::AwsError;

/// How often the event is repeated.
const EVENT_INTERVAL: Duration = Duration::from_secs(10 * 60);
/// Number of NodeClaims that the event names.
const NAMED: usize = 5;

impl NodeClasses {
    pub(super) async fn finalize(&self, class: &EC2NodeClass) -> Result<Next, ReconcileError> {
        let held = class.metadata.finalizers.as_deref().unwrap_or_default();
        if !held.iter().any(|f| f == finalizers::TERMINATION) {
            return Ok(Next::Wait);
        }
        let claims = self.claims_of(class).await?;
        if !claims.is_empty() {
            let message = format!(
                "Waiting on NodeClaim termination for {}",
                shortened(&claims, NAMED)
            );
            let event = Event::normal(
                reference(class),
                events::WAITING_ON_NODE_CLAIM_TERMINATION,
                message,
            );
            self.cx.recorder.publish(event);
            return Ok(Next::After(EVENT_INTERVAL));
        }
        if !self.aws.settings.isolated_vpc {
            let deleted = self.delete_profiles(class).await;
            deleted
                .map_err(CloudProviderError::other)
                .doing("deleting instance profile")?;
        }
        let name = class.metadata.name.as_deref().unwrap_or_default();
        let deleted = self.aws.templates.delete_all(name).await;
        deleted
            .map_err(CloudProviderError::other)
            .doing("deleting launch templates")?;

        let mut free = class.clone();
        if let Some(held) = &mut free.metadata.finalizers {
            held.retain(|f| f != finalizers::TERMINATION);
        }
        patch_object(&self.api(), class, &free, Lock::Optimistic)
            .await
            .doing("removing the finalizer of ec2nodeclass")?;
        self.validation.forget(name);
        let uid = class.metadata.uid.as_deref().unwrap_or_default();
        self.aws
            .offered
            .with_resolver(|resolver| resolver.remove(uid));
        Ok(Next::Wait)
    }

    /// Returns the names of the class's NodeClaims. The API server is called, because the view may be outdated.
    async fn claims_of(&self, class: &EC2NodeClass) -> Result<Vec<String>, ReconcileError> {
        let view = self.cx.view();
        let known: Vec<String> = view
            .snapshot
            .node_claims()
            .filter(|claim| is_of(claim, class))
            .map(|claim| claim.name().to_owned())
            .collect();
        if !known.is_empty() {
            return Ok(known);
        }
        let claims = self.cx.node_claims().list(&ListParams::default()).await;
        let claims = claims.doing("listing nodeclaims that are using nodeclass")?;
        let names = claims.items.iter().filter(|claim| is_of(claim, class));
        Ok(names.map(|claim| claim.name().to_owned()).collect())
    }

    /// Deletes the profiles that were created for a class; user-managed profiles are kept.
    async fn delete_profiles(&self, class: &EC2NodeClass) -> Result<(), AwsError> {
        let profiles = &self.aws.instance_profiles;
        let uid = class.metadata.uid.as_deref().unwrap_or_default();
        let name = class.metadata.name.as_deref().unwrap_or_default();
        let mut ours: Vec<String> = Vec::new();
        if !uid.is_empty() {
            let listed = profiles.list(&profiles.class_path(uid)).await?;
            ours.extend(listed.into_iter().map(|profile| profile.name));
        }
        let (cluster, region) = (&self.aws.settings.cluster, self.aws.clients.region());
        ours.extend(legacy_name(cluster, region, name));
        for profile in &ours {
            if class.spec.instance_profile.as_ref() != Some(profile) {
                profiles.delete(profile).await?;
            }
        }
        Ok(())
    }
}
