//! EC2 instances: get, list, terminate, tag.
//!
//! Requests for single instances are batched, so that a thousand NodeClaims do not make a thousand calls.
//!
//! UPSTREAM: pkg/providers/instance/instance.go, types.go, pkg/batcher/describeinstances.go, terminateinstances.go

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use aws_sdk_ec2::types as ec2;
use futures::future::{BoxFuture, join_all};
use jiff::Timestamp;
use karpenter_api::labels as core_labels;

use crate::api::labels;
use crate::api::labels::tags;
use crate::providers::instance_type::shifted_zones::ShiftedZones;
use crate::sdk::batcher::{Batcher, Window};
use crate::sdk::pages::each_page;
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
/// States of instances that have not been terminated.
const STATES: [&str; 5] = ["pending", "running", "stopping", "stopped", "shutting-down"];

/// The capacity reservation an instance runs in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InReservation {
    /// ID of the capacity reservation.
    pub id: String,
    /// Type of the reservation: `default` or `capacity-block`.
    pub type_: &'static str,
    /// Whether instances of the reservation may be interrupted.
    pub interruptible: bool,
}

/// An EC2 instance, reduced to the fields that are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// ID of the instance.
    pub id: String,
    /// Name of the instance type.
    pub type_: String,
    /// ID of the AMI.
    pub image_id: String,
    /// Name of the zone.
    pub zone: String,
    /// ID of the zone, if EC2 reports it.
    pub zone_id: Option<String>,
    /// ID of the primary interface's subnet.
    pub subnet_id: String,
    /// IDs of the security groups.
    pub security_groups: BTreeSet<String>,
    /// Capacity type: `spot`, `on-demand` or `reserved`.
    pub capacity_type: &'static str,
    /// The capacity reservation it runs in; set only if `capacity_type` is `reserved`.
    pub reservation: Option<InReservation>,
    /// Launch time.
    pub launched: Timestamp,
    /// State: `pending`, `running`, …
    pub state: String,
    /// Tenancy: `default` or `dedicated`.
    pub tenancy: String,
    /// ID of the placement group.
    pub placement_group: Option<String>,
    /// Number of the partition within the placement group.
    pub partition: Option<i32>,
    /// Number of attached Elastic Fabric Adapters.
    pub efa: usize,
    /// Tags of the instance.
    pub tags: BTreeMap<String, String>,
}

impl Instance {
    /// Converts the SDK's instance. `reserved_capacity` is the feature gate ReservedCapacity.
    ///
    /// # Errors
    /// If a field that every instance has is missing.
    pub fn read(raw: &ec2::Instance, reserved_capacity: bool) -> Result<Self, AwsError> {
        let missing = |what: &str| {
            AwsError::unreadable("DescribeInstances", format!("an instance lacks {what}"))
        };
        let id = raw.instance_id().ok_or_else(|| missing("its id"))?;
        let placement = raw.placement();
        let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
        let launched = raw
            .launch_time()
            .and_then(|t| Timestamp::new(t.secs(), t.subsec_nanos().cast_signed()).ok())
            .unwrap_or(Timestamp::UNIX_EPOCH);
        let reservation = reserved_capacity.then(|| in_reservation(raw)).flatten();
        let capacity_type = if raw
            .spot_instance_request_id()
            .is_some_and(|id| !id.is_empty())
        {
            core_labels::CAPACITY_TYPE_SPOT
        } else if reservation.is_some() {
            core_labels::CAPACITY_TYPE_RESERVED
        } else {
            core_labels::CAPACITY_TYPE_ON_DEMAND
        };
        let is_efa = |interface: &&ec2::InstanceNetworkInterface| {
            interface
                .interface_type()
                .is_some_and(|t| t.starts_with("efa"))
        };
        Ok(Self {
            type_: raw
                .instance_type()
                .ok_or_else(|| missing("its type"))?
                .as_str()
                .to_owned(),
            image_id: text(raw.image_id()),
            zone: text(placement.and_then(|p| p.availability_zone())),
            zone_id: placement
                .and_then(|p| p.availability_zone_id())
                .filter(|id| !id.is_empty())
                .map(str::to_owned),
            subnet_id: text(raw.subnet_id()),
            security_groups: raw
                .security_groups()
                .iter()
                .filter_map(|g| g.group_id().map(str::to_owned))
                .collect(),
            capacity_type,
            reservation: reservation
                .filter(|_| capacity_type == core_labels::CAPACITY_TYPE_RESERVED),
            launched,
            state: raw
                .state()
                .and_then(|s| s.name())
                .map(|n| n.as_str().to_owned())
                .unwrap_or_default(),
            tenancy: placement
                .and_then(|p| p.tenancy())
                .map_or(labels::TENANCY_DEFAULT, ec2::Tenancy::as_str)
                .to_owned(),
            placement_group: placement
                .and_then(|p| p.group_id())
                .filter(|id| !id.is_empty())
                .map(str::to_owned),
            partition: placement
                .and_then(|p| p.partition_number())
                .filter(|n| *n > 0),
            efa: raw.network_interfaces().iter().filter(is_efa).count(),
            tags: raw
                .tags()
                .iter()
                .filter_map(|t| {
                    Some((
                        t.key()?.to_owned(),
                        t.value().unwrap_or_default().to_owned(),
                    ))
                })
                .collect(),
            id: id.to_owned(),
        })
    }

    /// Returns the provider ID, `aws:///<zone>/<id>`.
    #[must_use]
    pub fn provider_id(&self) -> String {
        format!("aws:///{}/{}", self.zone, self.id)
    }

    /// Returns whether the instance is shutting down or terminated.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        matches!(self.state.as_str(), "shutting-down" | "terminated")
    }
}

/// Returns the reservation of an instance that was launched with it as a target. An instance in an open reservation
/// that it happens to match counts as on demand.
fn in_reservation(raw: &ec2::Instance) -> Option<InReservation> {
    let id = raw.capacity_reservation_id().filter(|id| !id.is_empty())?;
    let asked = raw.capacity_reservation_specification()?;
    let only = ec2::CapacityReservationPreference::CapacityReservationsOnly;
    let targeted = asked.capacity_reservation_preference() == Some(&only);
    let lifecycle = raw.instance_lifecycle().map(|l| l.as_str());
    targeted.then(|| InReservation {
        id: id.to_owned(),
        type_: if lifecycle == Some("capacity-block") {
            "capacity-block"
        } else {
            "default"
        },
        interruptible: lifecycle == Some("interruptible-capacity-reservation"),
    })
}

/// Returns the instance ID in a provider ID.
#[must_use]
pub fn instance_id(provider_id: &str) -> Option<&str> {
    let (zone, id) = provider_id.strip_prefix("aws:///")?.split_once('/')?;
    let tail = id.strip_prefix("i-")?;
    let well_formed = !tail.is_empty() && tail.bytes().all(|b| b.is_ascii_alphanumeric());
    (!zone.is_empty() && well_formed).then_some(id)
}

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
    Shifted {
        /// ID of the instance.
        id: String,
        /// Name of its zone.
        zone: String,
    },
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
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.get(id).cloned()
    }

    /// Caches an instance.
    pub fn remember(&self, instance: Arc<Instance>) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.insert(instance.id.clone(), instance);
    }

    fn forget(&self, id: &str) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
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
        let mut found = Vec::new();
        each_page(ask, |page| {
            for raw in page.reservations().iter().flat_map(|r| r.instances()) {
                match Instance::read(raw, self.reserved_capacity) {
                    Ok(instance) => found.push(Arc::new(instance)),
                    Err(error) => {
                        tracing::error!(logger = "instance", error = %error, "skipped an instance")
                    }
                }
            }
        })
        .await?;
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        // Instances that are missing in a zone with a zonal shift are kept.
        known.retain(|_, instance| self.is_shifted(instance));
        known.extend(found.iter().map(|i| (i.id.clone(), Arc::clone(i))));
        Ok(found)
    }

    /// Terminates an instance. `Ok` means that EC2 has accepted the termination, now or before.
    ///
    /// # Errors
    /// [`InstanceError::NotFound`] once it is terminated; [`InstanceError::Shifted`] without a call.
    pub async fn delete(&self, id: &str) -> Result<(), InstanceError> {
        self.check_zone(id)?;
        let instance = self.get(id, Freshness::Fresh).await?;
        if instance.is_ending() {
            return Ok(());
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

/// Returns the ids among `ids` that an error names.
fn named(error: &AwsError, ids: &BTreeSet<String>) -> BTreeSet<String> {
    let words = error
        .message
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    words.filter_map(|word| ids.get(word).cloned()).collect()
}

/// The result for each ID; an ID without an entry is unknown to EC2.
type Each<T> = HashMap<String, Result<T, AwsError>>;

/// Up to this many IDs are tried one by one instead of by halves.
const FEW: usize = 8;

/// IDs that were refused together, and how they are retried.
#[derive(Clone, Debug)]
struct IdBatch {
    ids: BTreeSet<String>,
    /// Whether the IDs are the rest of a request whose error named one of them. Such a rest is halved: if each error
    /// named another ID, the number of calls would grow with the number of IDs.
    rest: bool,
}

impl IdBatch {
    fn new(ids: BTreeSet<String>) -> Self {
        Self { ids, rest: false }
    }

    /// Splits the IDs so that those that AWS refuses do not fail the others: the IDs that the error names are tried
    /// apart, else halves, and finally each ID alone.
    fn split(self, error: &AwsError) -> Vec<Self> {
        let bad = named(error, &self.ids);
        let several = !bad.is_empty() && bad.len() < self.ids.len();
        if several && (error.is_not_found() || !self.rest) {
            let (bad, good) = self.ids.into_iter().partition(|id| bad.contains(id));
            let rest = Self {
                ids: good,
                rest: true,
            };
            return vec![rest, Self::new(bad)];
        }
        let size = if self.ids.len() <= FEW {
            1
        } else {
            self.ids.len().div_ceil(2)
        };
        let ids: Vec<String> = self.ids.into_iter().collect();
        ids.chunks(size)
            .map(|ids| Self::new(ids.iter().cloned().collect()))
            .collect()
    }

    /// Returns the error for all of the IDs.
    fn all<T>(&self, error: &AwsError) -> Each<T> {
        let each = self.ids.iter().cloned();
        each.map(|id| (id, Err(error.clone()))).collect()
    }
}

/// Describes instances; those that EC2 does not know are missing in the result.
fn describe_some(
    aws: Aws,
    asked: IdBatch,
    reserved_capacity: bool,
) -> BoxFuture<'static, Each<Arc<Instance>>> {
    Box::pin(async move {
        let mut pages = Vec::new();
        let answer = {
            let (aws, ids) = (&aws, &asked.ids);
            let ask = |token: Option<String>| {
                aws.ec2("DescribeInstances", move |client| {
                    client
                        .describe_instances()
                        .set_instance_ids(Some(ids.iter().cloned().collect()))
                        .filters(filter("instance-state-name", STATES))
                        .set_next_token(token.clone())
                        .send()
                })
            };
            each_page(ask, |page| pages.push(page)).await
        };
        match answer {
            Ok(()) => {}
            // Permission to describe instances is granted for all instances or none.
            Err(error) if asked.ids.len() > 1 && error.is_refusal() && !error.is_forbidden() => {
                let parts = asked.split(&error).into_iter();
                let parts = parts.map(|part| describe_some(aws.clone(), part, reserved_capacity));
                return join_all(parts).await.into_iter().flatten().collect();
            }
            Err(error) if error.is_not_found() => return Each::new(),
            Err(error) => return asked.all(&error),
        }
        let all = pages.iter().flat_map(|page| page.reservations());
        let read = all.flat_map(|r| r.instances()).filter_map(|raw| {
            let id = raw.instance_id()?.to_owned();
            Some((id, Instance::read(raw, reserved_capacity).map(Arc::new)))
        });
        read.collect()
    })
}

async fn describe(
    aws: Aws,
    ids: Vec<String>,
    reserved_capacity: bool,
) -> Vec<Result<Option<Arc<Instance>>, AwsError>> {
    let unique: BTreeSet<String> = ids.iter().cloned().collect();
    let asked = IdBatch::new(unique.clone());
    let mut found = describe_some(aws.clone(), asked, reserved_capacity).await;
    // EC2 is eventually consistent: instances missing in the response are described once more.
    let absent: BTreeSet<String> = unique
        .into_iter()
        .filter(|id| !found.contains_key(id))
        .collect();
    let alone = ids.len() == absent.len() && absent.len() == 1;
    if !absent.is_empty() && !alone {
        found.extend(describe_some(aws, IdBatch::new(absent), reserved_capacity).await);
    }
    ids.iter()
        .map(|id| found.get(id).cloned().transpose())
        .collect()
}

/// Terminates instances. Returns the IDs whose termination EC2 confirms, and the errors of the others.
///
/// UPSTREAM: pkg/batcher/terminateinstances.go, which retries each ID alone after any failure.
fn terminate_some(aws: Aws, asked: IdBatch) -> BoxFuture<'static, Each<()>> {
    Box::pin(async move {
        let answer = aws
            .ec2("TerminateInstances", |client| {
                client
                    .terminate_instances()
                    .set_instance_ids(Some(asked.ids.iter().cloned().collect()))
                    .send()
            })
            .await;
        match answer {
            Ok(answer) => answer
                .terminating_instances()
                .iter()
                .filter(|change| {
                    let state = change.current_state().and_then(|s| s.name());
                    state.is_some_and(|s| matches!(s.as_str(), "shutting-down" | "terminated"))
                })
                .filter_map(|change| Some((change.instance_id()?.to_owned(), Ok(()))))
                .collect(),
            // An instance with termination protection, or one that a policy excludes, must not keep the others from
            // being terminated.
            Err(error) if asked.ids.len() > 1 && error.is_refusal() => {
                let parts = asked.split(&error).into_iter();
                let parts = parts.map(|part| terminate_some(aws.clone(), part));
                join_all(parts).await.into_iter().flatten().collect()
            }
            Err(error) if error.is_not_found() => Each::new(),
            Err(error) => asked.all(&error),
        }
    })
}

async fn terminate(aws: Aws, ids: Vec<String>) -> Vec<Result<bool, AwsError>> {
    let unique: BTreeSet<String> = ids.iter().cloned().collect();
    let several = unique.len() > 1;
    let asked = IdBatch::new(unique.clone());
    let mut ended = terminate_some(aws.clone(), asked).await;
    let left: BTreeSet<String> = unique
        .into_iter()
        .filter(|id| !ended.contains_key(id))
        .collect();
    if several && !left.is_empty() {
        ended.extend(terminate_some(aws, IdBatch::new(left)).await);
    }
    ids.iter()
        .map(|id| match ended.get(id) {
            Some(Ok(())) => Ok(true),
            Some(Err(error)) => Err(error.clone()),
            None => Ok(false),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: AWS-labels-07
    #[test]
    fn provider_ids_are_read_strictly() {
        assert_eq!(instance_id("aws:///us-west-2a/i-0abc"), Some("i-0abc"));
        for bad in [
            "aws:///us-west-2a/",
            "aws:////i-0abc",
            "gce:///z/i-1",
            "aws:///z/i-1/x",
            "i-1",
            "",
        ] {
            assert_eq!(instance_id(bad), None, "{bad}");
        }
    }

    fn raw() -> aws_sdk_ec2::types::builders::InstanceBuilder {
        ec2::Instance::builder()
            .instance_id("i-1")
            .instance_type(ec2::InstanceType::from("m5.large"))
    }

    fn reserved(preference: ec2::CapacityReservationPreference) -> ec2::Instance {
        let asked = ec2::CapacityReservationSpecificationResponse::builder()
            .capacity_reservation_preference(preference)
            .build();
        raw()
            .capacity_reservation_id("cr-1")
            .capacity_reservation_specification(asked)
            .build()
    }

    /// Conformance: AWS-instance-04
    #[test]
    fn an_instance_is_reserved_only_if_it_was_launched_into_its_reservation_and_the_gate_is_on() {
        use ec2::CapacityReservationPreference as P;
        let type_of = |raw: &ec2::Instance, gate| Instance::read(raw, gate).unwrap().capacity_type;
        assert_eq!(
            type_of(&reserved(P::CapacityReservationsOnly), true),
            "reserved"
        );
        assert_eq!(
            type_of(&reserved(P::CapacityReservationsOnly), false),
            "on-demand"
        );
        assert_eq!(type_of(&reserved(P::Open), true), "on-demand");
        assert_eq!(type_of(&reserved(P::Open), false), "on-demand");
        let spot = raw().spot_instance_request_id("sir-1").build();
        assert_eq!(type_of(&spot, true), "spot");
    }

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

    #[test]
    fn ids_that_ec2_names_are_split_off_and_others_are_tried_by_halves_and_then_alone() {
        let ids = |ids: &[&str]| IdBatch::new(ids.iter().map(|id| (*id).to_owned()).collect());
        let split = |together: IdBatch, code: &str, message: &str| -> Vec<Vec<String>> {
            let error = AwsError::refused("TerminateInstances", code, message);
            let parts = together.split(&error).into_iter();
            parts.map(|part| part.ids.into_iter().collect()).collect()
        };
        let few = || ids(&["i-1", "i-2", "i-3", "i-4"]);
        let (unknown, protected) = ("InvalidInstanceID.NotFound", "OperationNotPermitted");
        assert_eq!(
            split(few(), unknown, "The instance IDs 'i-2, i-4' do not exist"),
            [["i-1", "i-3"], ["i-2", "i-4"]]
        );
        assert_eq!(
            split(few(), unknown, "some do not exist"),
            [["i-1"], ["i-2"], ["i-3"], ["i-4"]]
        );
        let rest = IdBatch {
            rest: true,
            ..few()
        };
        assert_eq!(
            split(rest, protected, "'i-2' may not be terminated").len(),
            4,
            "no chain of names"
        );
        let many: BTreeSet<String> = (0..20).map(|n| format!("i-{n}")).collect();
        let halves = split(IdBatch::new(many), protected, "no name");
        assert_eq!((halves[0].len(), halves[1].len()), (10, 10));
    }
}
