//! Launch of one instance: subnets, launch templates, a fleet, and the evaluation of its errors.
//!
//! UPSTREAM: pkg/providers/instance/instance.go

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use karpenter_api::labels as core_labels;
use karpenter_api::labels::annotations;
use karpenter_api::v1::NodeClaim;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::provider::CloudProviderError;
use karpenter_core::requirements::{Requirement, Requirements};
use karpenter_kube::events::{Event, Recorder, reference};
use karpenter_kube::metrics::{Counter, Registry};
use parking_lot::Mutex;

use crate::api::labels::{resources, tags};
use crate::api::{EC2NodeClass, Subnet, events, labels};
use crate::providers::capacity_reservation::ReservationCounts;
use crate::providers::instance::filter::{tenancy, usable};
use crate::providers::instance::fleet::{
    Answer, Config, Fleet, Fleets, Launched, Override, PoolError, Purchase,
};
use crate::providers::instance::{InReservation, Instance, Instances};
use crate::providers::instance_type::unavailable::{CapacityType, Placement, Pool, Unavailable};
use crate::providers::launch_template::{
    Launch, LaunchTemplates, Reserved, Resolved, SharedSettings, Target, TemplateError,
};
use crate::providers::placement_group::PlacementGroup;
use crate::providers::subnet::Subnets;
use crate::sdk::AwsError;
use crate::sdk::errors::{SPOT_ROLE_MISSING, reason_and_message};

/// With fewer instance types than this, a launch that falls back from spot to on-demand is likely to run out of
/// capacity.
const MIN_FLEXIBLE_TYPES: usize = 5;

#[derive(Clone, Copy, Debug)]
pub struct LaunchRequest<'a> {
    /// The NodeClaim to launch an instance for.
    pub claim: &'a NodeClaim,
    pub class: &'a EC2NodeClass,
    /// Requirements of the NodeClaim.
    pub requirements: &'a Requirements,
    /// Instance types to launch one of, with the offerings to launch them through.
    pub types: &'a [InstanceType],
    /// Capacity type: `spot`, `on-demand` or `reserved`.
    pub capacity_type: &'static str,
    /// The node class's placement group.
    pub placement_group: Option<&'a PlacementGroup>,
}

#[derive(Debug)]
enum Failed {
    /// A template was deleted by another actor; the next attempt creates it again.
    TemplateGone(AwsError),
    /// Any other error.
    Other(CloudProviderError),
}

impl From<CloudProviderError> for Failed {
    fn from(error: CloudProviderError) -> Self {
        Self::Other(error)
    }
}

/// Launches instances.
#[derive(Debug)]
pub struct Launcher {
    pub subnets: Subnets,
    pub templates: LaunchTemplates,
    /// Sends CreateFleet.
    pub fleets: Fleets,
    /// Cache of instances.
    pub instances: Arc<Instances>,
    /// Number of instances left in capacity reservations.
    pub counts: ReservationCounts,
    /// Unavailable offerings, which failed launches add to.
    pub unavailable: Arc<Mutex<Unavailable>>,
    /// Settings that all launch templates share.
    pub settings: SharedSettings,
    /// Counter of failed launches by pool.
    pub failures: Counter,
    /// Recorder of events; set when the controllers start.
    pub recorder: Arc<OnceLock<Recorder>>,
}

/// Registers the counter of failed launches.
#[must_use]
pub fn failures(registry: &Registry) -> Counter {
    registry.counter(
        "karpenter_cloudprovider_instance_launch_failures_total",
        "Number of launch failures by zone, capacity type and reason",
        &["zone", "zone_id", "capacity_type", "reason"],
    )
}

fn create_error(reason: &str, message: impl Into<String>) -> CloudProviderError {
    CloudProviderError::Create {
        reason: reason.to_owned(),
        message: message.into(),
        source: None,
    }
}

/// The error of a call that a launch cannot do without.
fn call_error(action: &str, error: AwsError) -> CloudProviderError {
    let (reason, message) = reason_and_message([&error]);
    CloudProviderError::Create {
        reason: reason.to_owned(),
        message: format!("{action}, {message}: {error}"),
        source: Some(Box::new(error)),
    }
}

impl Launcher {
    /// Launches an instance. `reserved_of` returns the user's reserved resources for an instance type.
    ///
    /// # Errors
    /// [`CloudProviderError::InsufficientCapacity`] if only capacity is missing, otherwise
    /// [`CloudProviderError::Create`] with the reason.
    pub async fn launch(
        &self,
        request: LaunchRequest<'_>,
        now: Timestamp,
        reserved_of: impl Fn(&InstanceType) -> Reserved + Send + Sync,
    ) -> Result<Arc<Instance>, CloudProviderError> {
        match self.attempt(request, now, &reserved_of).await {
            Ok(instance) => Ok(instance),
            Err(Failed::Other(error)) => Err(error),
            Err(Failed::TemplateGone(_)) => match self.attempt(request, now, &reserved_of).await {
                Ok(instance) => Ok(instance),
                Err(Failed::Other(error)) => Err(error),
                Err(Failed::TemplateGone(error)) => Err(fleet_refused_error(error)),
            },
        }
    }

    async fn attempt(
        &self,
        request: LaunchRequest<'_>,
        now: Timestamp,
        reserved_of: &(impl Fn(&InstanceType) -> Reserved + Send + Sync),
    ) -> Result<Arc<Instance>, Failed> {
        let (class, claim) = (request.class, request.claim);
        let announced = self.fleets.announce();
        let subnets = self
            .subnets
            .for_launch(&class.status.subnets, request.types, request.capacity_type)
            .map_err(|error| {
                create_error(
                    "SubnetResolutionFailed",
                    format!("getting subnets, {error}"),
                )
            })?;
        let tags = self.tags(request);
        let partition = requested_partition(&request);
        let tenancy = tenancy(request.requirements);
        let launch = Launch {
            class,
            claim,
            requirements: request.requirements,
            capacity_type: request.capacity_type,
            tenancy,
            placement_group: request.placement_group,
            partition,
            tags: &tags,
        };
        let resolved = self
            .templates
            .resolve(&launch, &self.settings.get(), request.types, reserved_of)
            .map_err(|error| template_error(&error))?;
        drop(announced);
        let ensured = resolved.iter().map(|r| self.templates.ensure(&r.template));
        for ensured in futures::future::join_all(ensured).await {
            ensured.map_err(|error| call_error("getting launch template configs", error))?;
        }
        let zones = |zone: &str| subnets.of(zone).cloned();
        let configs = configs(&request, &resolved, zones);
        if configs.is_empty() {
            let message = "no capacity offerings are currently available given the constraints";
            return Err(create_error("LaunchFailed", message).into());
        }
        warn_of_fallback(&request);
        // Every planned NodeClaim has this annotation, mostly with the value `false`.
        let relaxed = claim.annotation(annotations::MIN_VALUES_RELAXED) == Some("true");
        let fleet = Fleet {
            purchase: purchase(request.capacity_type, &resolved),
            configs,
            prioritized: claim
                .annotation(annotations::PRICE_OVERLAY_APPLIED)
                .is_some(),
            tags,
            context: class.spec.context.clone().filter(|_| !relaxed),
        };
        let answer = self.fleets.launch(fleet.clone(), claim.uid()).await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) if error.is_launch_template_not_found() => {
                for config in &fleet.configs {
                    self.templates.invalidate(&config.template);
                }
                return Err(Failed::TemplateGone(error));
            }
            Err(error) => return Err(fleet_refused_error(error).into()),
        };
        let used = answer.launched.iter().map(|l| l.subnet.clone()).collect();
        subnets.commit(&used);
        if answer.handles_errors {
            self.record_failures(&request, &answer, partition, now);
        }
        match &answer.launched {
            Some(launched) => {
                let instance =
                    self.launched(&request, launched, &resolved, partition, fleet.tags, now);
                if let Some(id) = &launched.reservation {
                    self.counts.launched(id);
                }
                let instance = Arc::new(instance);
                self.instances.remember(Arc::clone(&instance));
                Ok(instance)
            }
            None => Err(empty_fleet_error(&answer).into()),
        }
    }

    /// Returns the tags of all resources created for a NodeClaim.
    fn tags(&self, request: LaunchRequest<'_>) -> BTreeMap<String, String> {
        launch_tags(
            request.class,
            &self.settings.get().cluster.name,
            request.claim.node_pool().unwrap_or_default(),
        )
    }

    /// Publishes an event, if the recorder is set.
    pub fn publish(&self, event: Event) {
        if let Some(recorder) = self.recorder.get() {
            recorder.publish(event);
        }
    }

    /// Marks the pools of a fleet's errors as unavailable, and counts the failures.
    fn record_failures(
        &self,
        request: &LaunchRequest<'_>,
        answer: &Answer,
        partition: Option<u32>,
        now: Timestamp,
    ) {
        let zone_id = |zone: &str| {
            let subnets = request.class.status.subnets.iter();
            subnets
                .filter(|s| s.zone == zone)
                .find_map(|s| s.zone_id.clone())
                .unwrap_or_default()
        };
        let mut unavailable = self.unavailable.lock();
        let capacity_type =
            CapacityType::from_label(request.capacity_type).unwrap_or(CapacityType::OnDemand);
        let pool = |instance_type: &str, zone: &str| Pool {
            capacity_type,
            instance_type: instance_type.to_owned(),
            zone: zone.to_owned(),
            placement: request.placement_group.map(|group| Placement {
                group: group.id.clone(),
                partition,
            }),
        };
        if answer.errors.iter().any(|e| e.error.is_spot_role_missing()) {
            self.publish(Event::warning(
                reference(request.claim),
                events::SPOT_SERVICE_LINKED_ROLE_CREATION_FAILURE,
                format!(
                    "Attempted to launch a spot instance but failed due to \"{SPOT_ROLE_MISSING}\""
                ),
            ));
        }
        for e in answer.errors.iter() {
            let code = e.error.code.as_deref().unwrap_or_default();
            let reason = reason_and_message([&e.error]).0;
            self.failures
                .inc(&[&e.zone, &zone_id(&e.zone), request.capacity_type, reason]);
            if e.error.is_out_of_addresses() {
                unavailable.mark_subnet(&e.subnet, now);
                self.subnets.exhausted(&e.subnet);
                // DIFFERS: the pool is not marked, as the zone may have another subnet.
                continue;
            }
            if let Some(reservation) = &e.reservation {
                if e.error.is_unfulfillable() && !e.error.is_spread_limit() {
                    tracing::debug!(
                        logger = "instance",
                        reason = code,
                        "instance-type" = e.type_,
                        zone = e.zone,
                        "capacity-reservation-id" = reservation,
                        "marking capacity reservation unavailable"
                    );
                    self.counts.exhausted(reservation);
                }
                continue;
            }
            if e.error.is_spread_limit() {
                for t in request.types {
                    unavailable.report(pool(&t.name, &e.zone), code, answer.fleet.as_deref(), now);
                }
            } else if e.error.is_unfulfillable() {
                unavailable.report(pool(&e.type_, &e.zone), code, answer.fleet.as_deref(), now);
            } else if e.error.is_spot_role_missing() {
                unavailable.mark_capacity_type(CapacityType::Spot, now);
            }
        }
    }

    fn launched(
        &self,
        request: &LaunchRequest<'_>,
        launched: &Launched,
        resolved: &[Resolved],
        partition: Option<u32>,
        tags: BTreeMap<String, String>,
        now: Timestamp,
    ) -> Instance {
        let status = &request.class.status;
        let target = resolved.iter().find_map(|r| {
            let target = r.template.reservation.as_ref()?.as_ref()?;
            (Some(&target.id) == launched.reservation.as_ref()).then_some(target)
        });
        let listed = request.class.network_interfaces();
        let adapters = if !listed.is_empty() {
            listed.iter().filter(|i| i.is_efa_only()).count()
        } else if request
            .claim
            .spec
            .resources
            .requests
            .contains_key(resources::EFA)
        {
            let found = request.types.iter().find(|t| t.name == launched.type_);
            found.map_or(0, |t| {
                usize::try_from(t.capacity.get(resources::EFA)).unwrap_or(0)
            })
        } else {
            0
        };
        Instance {
            id: launched.id.clone(),
            type_: launched.type_.clone(),
            image_id: launched.image.clone(),
            zone: launched.zone.clone(),
            zone_id: status
                .subnets
                .iter()
                .find(|s| s.id == launched.subnet)
                .and_then(|s| s.zone_id.clone()),
            subnet_id: launched.subnet.clone(),
            security_groups: status
                .security_groups
                .iter()
                .map(|g| g.id.clone())
                .collect(),
            capacity_type: request.capacity_type,
            reservation: target.map(|t| InReservation {
                id: t.id.clone(),
                type_: if t.block { "capacity-block" } else { "default" },
                interruptible: t.interruptible,
            }),
            launched: now,
            state: "pending".into(),
            tenancy: tenancy(request.requirements).to_owned(),
            placement_group: request.placement_group.map(|g| g.id.clone()),
            partition: partition.and_then(|n| i32::try_from(n).ok()),
            efa: adapters,
            tags,
        }
    }
}

/// Returns the tags of all resources created for a node class: the user's, and those that identify the cluster's
/// resources.
#[must_use]
pub fn launch_tags(class: &EC2NodeClass, cluster: &str, pool: &str) -> BTreeMap<String, String> {
    let mut all = class.spec.tags.clone().unwrap_or_default();
    let name = class.metadata.name.clone().unwrap_or_default();
    for (key, value) in [
        (tags::cluster(cluster), tags::OWNED.to_owned()),
        (tags::NODE_POOL.to_owned(), pool.to_owned()),
        (tags::EKS_CLUSTER_NAME.to_owned(), cluster.to_owned()),
        (labels::NODE_CLASS.to_owned(), name),
    ] {
        all.insert(key, value);
    }
    all
}

/// Returns the error for a fleet that EC2 refused as a whole.
fn fleet_refused_error(error: AwsError) -> CloudProviderError {
    call_error("creating fleet request", error)
}

/// Returns the error for a fleet that launched nothing.
fn empty_fleet_error(answer: &Answer) -> CloudProviderError {
    let errors: Vec<&AwsError> = answer.errors.iter().map(|e| &e.error).collect();
    let unique: BTreeSet<String> = answer.errors.iter().map(describe).collect();
    let text = unique.into_iter().collect::<Vec<_>>().join("; ");
    let shortage = |e: &&AwsError| e.is_unfulfillable() || e.is_spot_role_missing();
    if !errors.is_empty() && errors.iter().all(shortage) {
        return CloudProviderError::InsufficientCapacity(format!("with fleet error(s), {text}"));
    }
    let (reason, message) = reason_and_message(errors);
    create_error(reason, format!("creating fleet, {message}: {text}"))
}

fn describe(e: &PoolError) -> String {
    let code = e.error.code.as_deref().unwrap_or_default();
    format!("{code}: {}", e.error.message)
}

fn template_error(error: &TemplateError) -> CloudProviderError {
    match error {
        TemplateError::UserData(data) if data.is_transient() => {
            CloudProviderError::NodeClassNotReady(data.to_string())
        }
        TemplateError::UserData(crate::user_data::UserDataError::TooLarge { .. }) => {
            create_error("UserDataSizeLimitExceeded", error.to_string())
        }
        other => create_error(
            "LaunchFailed",
            format!("getting launch template configs, {other}"),
        ),
    }
}

/// Returns the lowest required partition that is not out of capacity.
fn requested_partition(request: &LaunchRequest<'_>) -> Option<u32> {
    request.placement_group.filter(|g| g.partitions > 0)?;
    let asked = request
        .requirements
        .get(labels::PLACEMENT_GROUP_PARTITION)?;
    if asked.is_complement() {
        return None;
    }
    let offered: BTreeSet<u32> = request
        .types
        .iter()
        .flat_map(|t| t.offerings.iter())
        .filter(|o| o.available)
        .filter_map(|o| o.single(labels::PLACEMENT_GROUP_PARTITION)?.parse().ok())
        .collect();
    let mut partitions: Vec<u32> = asked.values().filter_map(|v| v.parse().ok()).collect();
    partitions.sort_unstable();
    let there = |n: &&u32| offered.is_empty() || offered.contains(n);
    partitions
        .iter()
        .find(there)
        .or(partitions.first())
        .copied()
}

fn purchase(capacity_type: &str, resolved: &[Resolved]) -> Purchase {
    let target = resolved
        .iter()
        .find_map(|r| r.template.reservation.as_ref()?.as_ref());
    match (capacity_type, target) {
        (core_labels::CAPACITY_TYPE_SPOT, _) => Purchase::Spot,
        (_, Some(target)) if target.block => Purchase::CapacityBlock,
        (_, Some(target)) if target.interruptible => Purchase::Interruptible,
        _ => Purchase::OnDemand,
    }
}

/// Returns the fleet's overrides for each template: its instance types in the subnets of the zones where they have an
/// offering.
fn configs(
    request: &LaunchRequest<'_>,
    resolved: &[Resolved],
    subnet: impl Fn(&str) -> Option<Subnet>,
) -> Vec<Config> {
    let mut wanted = request.requirements.clone();
    wanted.replace(Requirement::equal(
        core_labels::CAPACITY_TYPE,
        request.capacity_type,
    ));
    let mut configs = Vec::new();
    for r in resolved {
        let target: Option<&Target> = r.template.reservation.as_ref().and_then(Option::as_ref);
        let mut seen: BTreeSet<(&str, String)> = BTreeSet::new();
        let mut overrides = Vec::new();
        for t in request.types.iter().filter(|t| r.types.contains(&t.name)) {
            for o in usable(t, &wanted) {
                if Target::of(o).as_ref() != target {
                    continue;
                }
                let Some(subnet) = o.zone().and_then(&subnet) else {
                    continue;
                };
                // Partitions of a placement group are separate offerings of Karpenter, but not of EC2.
                if !seen.insert((&t.name, subnet.id.clone())) {
                    continue;
                }
                overrides.push(Override {
                    type_: t.name.clone(),
                    zone: subnet.zone.clone(),
                    subnet: subnet.id,
                    image: r.template.image_id.clone(),
                    price: o.price.into(),
                });
            }
        }
        if !overrides.is_empty() {
            configs.push(Config {
                template: r.template.name(),
                reservation: target.map(|t| t.id.clone()),
                overrides,
            });
        }
    }
    configs
}

fn warn_of_fallback(request: &LaunchRequest<'_>) {
    let spot = request
        .requirements
        .get(core_labels::CAPACITY_TYPE)
        .is_some_and(|r| r.has(core_labels::CAPACITY_TYPE_SPOT));
    if request.capacity_type == core_labels::CAPACITY_TYPE_ON_DEMAND
        && spot
        && request.types.len() < MIN_FLEXIBLE_TYPES
    {
        tracing::info!(
            logger = "instance",
            "instance-types" = request.types.len(),
            "at least {MIN_FLEXIBLE_TYPES} instance types are recommended when flexible to spot but requesting on-demand"
        );
    }
}
