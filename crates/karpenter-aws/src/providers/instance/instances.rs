//! EC2 instances: get, list, terminate, tag.
//!
//! Requests for single instances are batched, so that a thousand NodeClaims do not make a thousand calls.
//!
//! UPSTREAM: pkg/providers/instance/instance.go

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;

use super::by_id::{describe, terminate};
use super::types::{Instance, STATES};
use crate::api::labels;
use crate::api::labels::tags;
use crate::providers::instance_type::shifted_zones::ShiftedZones;
use crate::sdk::batcher::{Batcher, Window};
use crate::sdk::pages::list_all;
use crate::sdk::terms::{filter, sdk_tags};
use crate::sdk::{Aws, AwsError};

/// Batching window of requests for single instances.
const WINDOW: Window = Window {
    idle: Duration::from_millis(100),
    longest: Duration::from_secs(1),
    items: 500,
};
/// Largest page of DescribeInstances.
const PAGE: i32 = 1000;

/// Whether a cached instance is sufficient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// A cached instance is sufficient.
    Cached,
    /// EC2 is called, unless the instance's zone has a zonal shift.
    Fresh,
}

/// An operation on an instance failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum InstanceError {
    /// The instance does not exist.
    #[error("instance `{0}` not found")]
    NotFound(String),
    /// The instance's zone has a zonal shift, so it is not changed.
    #[error("zone `{zone}` of instance `{id}` is shifted away")]
    Shifted { id: String, zone: String },
    /// The instance is not the cluster's, so it is not terminated.
    #[error("instance `{id}` lacks the tag `{tag}` of this cluster, it is not terminated")]
    Foreign { id: String, tag: String },
    /// The call to EC2 failed.
    #[error(transparent)]
    Aws(#[from] AwsError),
}

impl InstanceError {
    /// Returns whether the instance does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound(_))
    }
}

/// Reads, terminates and tags the instances of a cluster.
pub struct Instances {
    aws: Aws,
    cluster: String,
    reserved_capacity: bool,
    shifted: ShiftedZones,
    known: RwLock<HashMap<String, Arc<Instance>>>,
    describe: Batcher<(), String, Option<Arc<Instance>>>,
    terminate: Batcher<(), String, bool>,
}

impl std::fmt::Debug for Instances {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instances")
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}

impl Instances {
    /// Creates the provider of instances for `cluster`. `reserved_capacity` is the feature gate ReservedCapacity.
    #[must_use]
    pub fn new(aws: Aws, cluster: &str, reserved_capacity: bool, shifted: ShiftedZones) -> Self {
        let telemetry = aws.telemetry().clone();
        let asked = aws.clone();
        let describe = Batcher::new(
            "describe_instances",
            "DescribeInstances",
            WINDOW,
            telemetry.clone(),
            Arc::new(move |(), ids: Vec<String>| {
                let aws = asked.clone();
                Box::pin(async move { describe(aws, ids, reserved_capacity).await })
            }),
        );
        let ended = aws.clone();
        let terminate = Batcher::new(
            "terminate_instances",
            "TerminateInstances",
            WINDOW,
            telemetry,
            Arc::new(move |(), ids: Vec<String>| {
                let aws = ended.clone();
                Box::pin(async move { terminate(aws, ids).await })
            }),
        );
        Self {
            aws,
            cluster: cluster.to_owned(),
            reserved_capacity,
            shifted,
            known: RwLock::default(),
            describe,
            terminate,
        }
    }

    fn remembered(&self, id: &str) -> Option<Arc<Instance>> {
        let known = self.known.read();
        known.get(id).cloned()
    }

    /// Caches an instance.
    pub fn remember(&self, instance: Arc<Instance>) {
        let mut known = self.known.write();
        known.insert(instance.id.clone(), instance);
    }

    fn forget(&self, id: &str) {
        let mut known = self.known.write();
        known.remove(id);
    }

    fn is_shifted(&self, instance: &Instance) -> bool {
        self.shifted
            .contains(&instance.zone, instance.zone_id.as_deref())
    }

    /// Returns the instance with this ID.
    ///
    /// # Errors
    /// [`InstanceError::NotFound`] if it does not exist or has been terminated.
    pub async fn get(&self, id: &str, fresh: Freshness) -> Result<Arc<Instance>, InstanceError> {
        if let Some(instance) = self.remembered(id)
            && (fresh == Freshness::Cached || self.is_shifted(&instance))
        {
            return Ok(instance);
        }
        match self.describe.run((), id.to_owned()).await? {
            Some(instance) => {
                self.remember(Arc::clone(&instance));
                Ok(instance)
            }
            None => {
                self.forget(id);
                Err(InstanceError::NotFound(id.to_owned()))
            }
        }
    }

    /// Returns all instances of the cluster that Karpenter launched.
    ///
    /// # Errors
    /// If the call to EC2 fails; the cached instances stay.
    pub async fn list(&self) -> Result<Vec<Arc<Instance>>, AwsError> {
        let filters = vec![
            filter("tag-key", [tags::NODE_POOL]),
            filter("tag-key", [labels::NODE_CLASS]),
            filter(
                &format!("tag:{}", tags::EKS_CLUSTER_NAME),
                [self.cluster.as_str()],
            ),
            filter("instance-state-name", STATES),
        ];
        let filters = &filters;
        let ask = |token: Option<String>| {
            self.aws.ec2("DescribeInstances", move |client| {
                client
                    .describe_instances()
                    .set_filters(Some(filters.clone()))
                    .max_results(PAGE)
                    .set_next_token(token.clone())
                    .send()
            })
        };
        let read = |raw| {
            Instance::read(&raw, self.reserved_capacity)
                .map(Arc::new)
                .inspect_err(|error| {
                    tracing::error!(logger = "instance", error = %error, "skipped an instance");
                })
                .ok()
        };
        let found = list_all(ask, |page| {
            let reservations = page.reservations.unwrap_or_default().into_iter();
            let instances = reservations.flat_map(|r| r.instances.unwrap_or_default());
            instances.filter_map(read)
        })
        .await?;
        let mut known = self.known.write();
        // Instances that are missing in a zone with a zonal shift are kept.
        known.retain(|_, instance| self.is_shifted(instance));
        known.extend(found.iter().map(|i| (i.id.clone(), Arc::clone(i))));
        Ok(found)
    }

    /// Terminates an instance. `Ok` means that EC2 has accepted the termination, now or before.
    ///
    /// # Errors
    /// [`InstanceError::NotFound`] once it is terminated; [`InstanceError::Shifted`] without a call;
    /// [`InstanceError::Foreign`] if it is not the cluster's.
    pub async fn delete(&self, id: &str) -> Result<(), InstanceError> {
        self.check_zone(id)?;
        let instance = self.get(id, Freshness::Fresh).await?;
        if instance.is_ending() {
            return Ok(());
        }
        // The ID is from the status of a NodeClaim, which others may write.
        let tag = tags::cluster(&self.cluster);
        if !instance.tags.contains_key(&tag) {
            let id = id.to_owned();
            return Err(InstanceError::Foreign { id, tag });
        }
        // TerminateInstances does not know an instance that DescribeInstances returned: the next attempt calls EC2
        // again.
        if let Err(error) = self.terminate.run((), id.to_owned()).await {
            let zone_id = instance.zone_id.as_deref().unwrap_or_default();
            let failures = &self.aws.telemetry().termination_failures;
            failures.inc(&[&instance.zone, zone_id]);
            return Err(error.into());
        }
        Ok(())
    }

    fn check_zone(&self, id: &str) -> Result<(), InstanceError> {
        match self.remembered(id) {
            Some(instance) if self.is_shifted(&instance) => Err(InstanceError::Shifted {
                id: id.to_owned(),
                zone: instance.zone.clone(),
            }),
            _ => Ok(()),
        }
    }

    /// Adds tags to an instance.
    ///
    /// # Errors
    /// [`InstanceError::NotFound`] if it does not exist; [`InstanceError::Shifted`] without a call.
    pub async fn create_tags(
        &self,
        id: &str,
        new: &BTreeMap<String, String>,
    ) -> Result<(), InstanceError> {
        self.check_zone(id)?;
        let list = sdk_tags(new);
        let tagged = self
            .aws
            .ec2("CreateTags", |client| {
                client
                    .create_tags()
                    .resources(id)
                    .set_tags(Some(list.clone()))
                    .send()
            })
            .await;
        match tagged {
            Ok(_) => {
                if let Some(instance) = self.remembered(id) {
                    let mut instance = Instance::clone(&instance);
                    instance.tags.extend(new.clone());
                    self.remember(Arc::new(instance));
                }
                Ok(())
            }
            Err(error) if error.is_not_found() => Err(InstanceError::NotFound(id.to_owned())),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: AWS-batcher-03
    #[test]
    fn requests_for_instances_are_collected_as_long_as_by_upstream() {
        let expected = Window {
            idle: Duration::from_millis(100),
            longest: Duration::from_secs(1),
            items: 500,
        };
        assert_eq!(WINDOW, expected);
    }
}
