//! Controller that observes the cluster's zonal shifts in Application Recovery Controller.
//!
//! UPSTREAM: pkg/controllers/zonalshift, pkg/providers/arczonalshift
//! DIFFERS: every pass replaces the known shifts, so that a cancelled shift ends with the next pass.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_arczonalshift::types as arc;
use jiff::Timestamp;
use karpenter_api::labels as core_labels;
use karpenter_api::v1::NodePool;
use karpenter_api::validation::WellKnown;
use karpenter_core::provider::CloudProviderError;
use karpenter_core::requirements::Requirements;
use karpenter_kube::context::Context;
use karpenter_kube::controller::{Doing, Periodic, ReconcileError};
use karpenter_kube::events::{Event, reference};

use crate::api::{EC2NodeClass, events, labels};
use crate::cloud_provider::stores::Stores;
use crate::providers::instance_type::shifted_zones::ShiftedZones;
use crate::providers::version::control_plane;
use crate::sdk::{Aws, AwsError};

const INTERVAL: Duration = Duration::from_secs(30);

/// The cluster's registration for zonal shifts.
#[derive(Clone, Debug)]
pub struct Managed {
    aws: Aws,
    arn: String,
    first: BTreeMap<String, Timestamp>,
}

/// Zonal shifts of the cluster cannot be observed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotManaged {
    /// EKS does not return the cluster's ARN.
    #[error("{0}; --enable-zonal-shift needs `eks:DescribeCluster`")]
    Unknown(#[source] AwsError),
    /// The cluster is not registered for zonal shifts.
    #[error(
        "cluster `{arn}` is not registered for zonal shifts: {source}; enable zonal shift for it in EKS, allow `arc-zonal-shift:GetManagedResource`, or leave out --enable-zonal-shift"
    )]
    Unregistered {
        arn: String,
        #[source]
        source: AwsError,
    },
}

impl Managed {
    /// Reads the cluster's registration.
    ///
    /// # Errors
    /// If zonal shifts cannot be observed, with what to change.
    pub async fn find(aws: &Aws, cluster: &str) -> Result<Self, NotManaged> {
        let described = control_plane(aws, cluster).await;
        let arn = described.map_err(NotManaged::Unknown)?.arn;
        let managed = Self {
            aws: aws.clone(),
            arn: arn.unwrap_or_default(),
            first: BTreeMap::new(),
        };
        match managed.ask().await {
            Ok(first) => Ok(Self { first, ..managed }),
            Err(source) => Err(NotManaged::Unregistered {
                arn: managed.arn,
                source,
            }),
        }
    }

    /// Returns the shifts that were active at the start and have not expired: zone IDs, and their expiry.
    #[must_use]
    pub fn at_first(&self, now: Timestamp) -> BTreeMap<String, Timestamp> {
        let mut shifts = self.first.clone();
        shifts.retain(|_, end| *end > now);
        shifts
    }

    /// Returns the active shifts: zone IDs, and their expiry.
    async fn ask(&self) -> Result<BTreeMap<String, Timestamp>, AwsError> {
        let answer = self
            .aws
            .zonal_shift("GetManagedResource", |client| {
                client
                    .get_managed_resource()
                    .resource_identifier(&self.arn)
                    .send()
            })
            .await?;
        let applied = |shift: &&arc::ZonalShiftInResource| {
            shift.applied_status() == &arc::AppliedStatus::Applied
        };
        let mut shifts = BTreeMap::new();
        for shift in answer.zonal_shifts().iter().filter(applied) {
            let end = Timestamp::from_second(shift.expiry_time().secs()).unwrap_or(Timestamp::MAX);
            let known = shifts.entry(shift.away_from().to_owned()).or_insert(end);
            *known = end.max(*known);
        }
        Ok(shifts)
    }
}

/// Observes the zonal shifts of the cluster.
#[derive(Debug)]
pub struct ZonalShift {
    cx: Arc<Context>,
    managed: Managed,
    stores: Stores,
    zones: ShiftedZones,
    well_known: WellKnown,
    shifts: BTreeMap<String, Timestamp>,
    /// Zones whose shifts have been published as events.
    published: BTreeSet<String>,
}

impl ZonalShift {
    /// Creates the controller, which keeps `zones` up to date.
    #[must_use]
    pub fn new(cx: Arc<Context>, managed: Managed, stores: Stores, zones: ShiftedZones) -> Self {
        Self {
            shifts: managed.first.clone(),
            cx,
            managed,
            stores,
            zones,
            well_known: crate::api::well_known(),
            published: BTreeSet::new(),
        }
    }

    /// Publishes events on NodePools about the shifts that changed since the last call.
    fn publish_changes(&mut self, shifted: &BTreeSet<String>) {
        let changed: Vec<&String> = shifted.symmetric_difference(&self.published).collect();
        if changed.is_empty() {
            return;
        }
        for pool in self.stores.pools() {
            let Some(class) = self.stores.class_of_pool(&pool) else {
                continue;
            };
            for zone_id in &changed {
                let Some(zone) = usable_zone(&pool, &class, zone_id, &self.well_known) else {
                    continue;
                };
                let event = if shifted.contains(*zone_id) {
                    let message = format!(
                        "Zonal shift detected: offerings in zone {zone} ({zone_id}) are unavailable for this NodePool"
                    );
                    Event::warning(reference(&*pool), events::ZONAL_SHIFT_ACTIVE, message)
                } else {
                    let message = format!(
                        "Zonal shift cleared: offerings in zone {zone} ({zone_id}) are restored for this NodePool"
                    );
                    Event::normal(reference(&*pool), events::ZONAL_SHIFT_CLEARED, message)
                };
                self.cx.recorder.publish(event.dedupe_by_message());
            }
        }
        self.published.clone_from(shifted);
    }
}

/// Returns the name of a zone, if instances of the NodePool may be launched there.
fn usable_zone(
    pool: &NodePool,
    class: &EC2NodeClass,
    zone_id: &str,
    well_known: &WellKnown,
) -> Option<String> {
    let mut subnets = class.status.subnets.iter();
    let subnet = subnets.find(|s| s.zone_id.as_deref() == Some(zone_id))?;
    let template = &pool.spec.template;
    let mut wanted = Requirements::from_api(&template.spec.requirements, well_known).ok()?;
    let fixed = template.metadata.labels.iter().flatten();
    wanted.add_all(&Requirements::from_labels(fixed, well_known));
    let admits = |key: &str, value: &str| wanted.get(key).is_none_or(|r| r.has(value));
    (admits(core_labels::ZONE, &subnet.zone) && admits(labels::ZONE_ID, zone_id))
        .then(|| subnet.zone.clone())
}

impl Periodic for ZonalShift {
    const NAME: &'static str = "zonalshift";

    async fn pass(&mut self) -> Result<Duration, ReconcileError> {
        let asked = self.managed.ask().await;
        if let Ok(shifts) = &asked {
            self.shifts.clone_from(shifts);
        }
        // After a failed call, the known shifts last until their expiry.
        let now = self.cx.clock.now();
        self.shifts.retain(|_, end| *end > now);
        let shifted: BTreeSet<String> = self.shifts.keys().cloned().collect();
        if self.zones.set(shifted.clone()) {
            tracing::info!(
                logger = "zonalshift",
                zones = shifted
                    .iter()
                    .map(String::as_str)
                    .collect::<Vec<_>>()
                    .join(","),
                "zonal shifts changed"
            );
        }
        // The NodePools to publish on are known only after the stores have been filled.
        if self.stores.filled().await {
            self.publish_changes(&shifted);
        }
        asked
            .map_err(CloudProviderError::other)
            .doing("getting zonal shifts")?;
        Ok(INTERVAL)
    }
}
