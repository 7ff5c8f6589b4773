//! Instances: what they are, finding them, giving them back, tagging them.
//!
//! Requests for single instances go out together, so that a thousand NodeClaims do not make a thousand calls.
//!
//! UPSTREAM: pkg/providers/instance/instance.go, types.go, pkg/batcher/describeinstances.go, terminateinstances.go

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use aws_sdk_ec2::types as ec2;
use futures::future::{BoxFuture, join_all};
use jiff::Timestamp;
use karpenter_api::labels as core_labels;

use crate::api::labels::{self, tags};
use crate::sdk::batcher::{Batcher, Window};
use crate::sdk::pages::each_page;
use crate::sdk::{Aws, AwsError};
use crate::shifted_zones::ShiftedZones;

/// How long requests for single instances are collected.
const WINDOW: Window = Window {
    idle: Duration::from_millis(100),
    longest: Duration::from_secs(1),
    items: 500,
};
/// Largest page of DescribeInstances.
const PAGE: i32 = 1000;
/// States of instances that are there.
const STATES: [&str; 5] = ["pending", "running", "stopping", "stopped", "shutting-down"];

/// The reservation an instance runs in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InReservation {
    /// Id of the reservation.
    pub id: String,
    /// `default` or `capacity-block`.
    pub type_: &'static str,
    /// Whether it may be interrupted.
    pub interruptible: bool,
}

/// An instance, as far as Karpenter cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Id.
    pub id: String,
    /// Instance type.
    pub type_: String,
    /// Image it was launched from.
    pub image_id: String,
    /// Zone.
    pub zone: String,
    /// Id of the zone, if EC2 tells.
    pub zone_id: Option<String>,
    /// Subnet of its primary interface.
    pub subnet_id: String,
    /// Security groups, ordered.
    pub security_groups: BTreeSet<String>,
    /// `spot`, `on-demand` or `reserved`.
    pub capacity_type: &'static str,
    /// The reservation it runs in; only if `capacity_type` is `reserved`.
    pub reservation: Option<InReservation>,
    /// When it was launched.
    pub launched: Timestamp,
    /// `pending`, `running`, …
    pub state: String,
    /// `default` or `dedicated`.
    pub tenancy: String,
    /// Placement group.
    pub placement_group: Option<String>,
    /// Partition within the placement group.
    pub partition: Option<i32>,
    /// Elastic Fabric Adapters attached.
    pub efa: usize,
    /// Tags.
    pub tags: BTreeMap<String, String>,
}

impl Instance {
    /// What EC2 says about an instance. `reserved_capacity` is the feature gate of that name.
    ///
    /// # Errors
    /// When what every instance has is missing.
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

    /// `aws:///<zone>/<id>`.
    #[must_use]
    pub fn provider_id(&self) -> String {
        format!("aws:///{}/{}", self.zone, self.id)
    }

    /// Whether it is on its way out.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        matches!(self.state.as_str(), "shutting-down" | "terminated")
    }
}

/// The reservation of an instance that was launched into one on purpose; what landed in an open one by chance is on demand.
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

/// The instance id in a provider id.
#[must_use]
pub fn instance_id(provider_id: &str) -> Option<&str> {
    let (zone, id) = provider_id.strip_prefix("aws:///")?.split_once('/')?;
    let tail = id.strip_prefix("i-")?;
    let well_formed = !tail.is_empty() && tail.bytes().all(|b| b.is_ascii_alphanumeric());
    (!zone.is_empty() && well_formed).then_some(id)
}

/// How fresh an answer must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// What is remembered will do.
    Remembered,
    /// EC2 is asked, unless its zone is shifted away.
    Asked,
}

/// Why an instance could not be had.
#[derive(Clone, Debug, thiserror::Error)]
pub enum InstanceError {
    /// There is none.
    #[error("instance `{0}` not found")]
    NotFound(String),
    /// Nothing is changed in a zone that traffic is shifted away from.
    #[error("zone `{zone}` of instance `{id}` is shifted away")]
    Shifted {
        /// The instance.
        id: String,
        /// Its zone.
        zone: String,
    },
    /// EC2 could not be asked.
    #[error(transparent)]
    Aws(#[from] AwsError),
}

impl InstanceError {
    /// There is no such instance.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound(_))
    }
}

/// The cluster's instances.
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
    /// The instances of `cluster`. `reserved_capacity` is the feature gate of that name.
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

    /// Takes note of an instance.
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

    /// The instance with this id.
    ///
    /// # Errors
    /// [`InstanceError::NotFound`] if there is none any more.
    pub async fn get(&self, id: &str, fresh: Freshness) -> Result<Arc<Instance>, InstanceError> {
        if let Some(instance) = self.remembered(id)
            && (fresh == Freshness::Remembered || self.is_shifted(&instance))
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

    /// All instances of the cluster that Karpenter launched.
    ///
    /// # Errors
    /// When EC2 cannot be asked; what is remembered stays.
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
        // What vanished from a zone that cannot be trusted is kept.
        known.retain(|_, instance| self.is_shifted(instance));
        known.extend(found.iter().map(|i| (i.id.clone(), Arc::clone(i))));
        Ok(found)
    }

    /// Gives an instance back. `Ok` means EC2 has been told, now or before.
    ///
    /// # Errors
    /// [`InstanceError::NotFound`] once it is gone; [`InstanceError::Shifted`] without asking.
    pub async fn delete(&self, id: &str) -> Result<(), InstanceError> {
        self.check_zone(id)?;
        let instance = self.get(id, Freshness::Asked).await?;
        if instance.is_ending() {
            return Ok(());
        }
        // Not found right after it was found: EC2 contradicts itself, and is asked again by the next attempt.
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
    /// [`InstanceError::NotFound`] if there is none; [`InstanceError::Shifted`] without asking.
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

/// A filter of EC2's.
pub(crate) fn filter<'a>(name: &str, values: impl IntoIterator<Item = &'a str>) -> ec2::Filter {
    ec2::Filter::builder()
        .name(name)
        .set_values(Some(values.into_iter().map(str::to_owned).collect()))
        .build()
}

/// Tags as EC2 takes them.
pub(crate) fn sdk_tags(tags: &BTreeMap<String, String>) -> Vec<ec2::Tag> {
    tags.iter()
        .map(|(key, value)| ec2::Tag::builder().key(key).value(value).build())
        .collect()
}

/// The ids among `ids` that an error names.
fn named(error: &AwsError, ids: &BTreeSet<String>) -> BTreeSet<String> {
    let words = error
        .message
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    words.filter_map(|word| ids.get(word).cloned()).collect()
}

/// What became of each id; an id without an entry is one EC2 does not know.
type Each<T> = HashMap<String, Result<T, AwsError>>;

/// So few ids are asked for one by one instead of by halves.
const FEW: usize = 8;

/// Ids that were refused together, and how they are tried again.
#[derive(Clone, Debug)]
struct Together {
    ids: BTreeSet<String>,
    /// They are the rest of a request whose error named one of them, and are now halved: an error that names another one each
    /// time would otherwise make a chain as long as the list.
    rest: bool,
}

impl Together {
    fn new(ids: BTreeSet<String>) -> Self {
        Self { ids, rest: false }
    }

    /// Splits the ids so that those AWS refuses do not spoil the answer for the others: what it names apart, else halves, and
    /// in the end each alone.
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

    /// The same for all of them.
    fn all<T>(&self, error: &AwsError) -> Each<T> {
        let each = self.ids.iter().cloned();
        each.map(|id| (id, Err(error.clone()))).collect()
    }
}

/// What EC2 says about instances; those it does not know are missing.
fn describe_some(
    aws: Aws,
    asked: Together,
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
            // Permission to describe is given for all instances or none.
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
    let asked = Together::new(unique.clone());
    let mut found = describe_some(aws.clone(), asked, reserved_capacity).await;
    // What an answer leaves out may be on its way to all of EC2's replicas: the absent are asked for once more.
    let absent: BTreeSet<String> = unique
        .into_iter()
        .filter(|id| !found.contains_key(id))
        .collect();
    let alone = ids.len() == absent.len() && absent.len() == 1;
    if !absent.is_empty() && !alone {
        found.extend(describe_some(aws, Together::new(absent), reserved_capacity).await);
    }
    ids.iter()
        .map(|id| found.get(id).cloned().transpose())
        .collect()
}

/// Terminates, and answers for which ids EC2 now reports that they end, or why it does not end them.
///
/// UPSTREAM: pkg/batcher/terminateinstances.go, which tries each id alone after any failure.
fn terminate_some(aws: Aws, asked: Together) -> BoxFuture<'static, Each<()>> {
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
            // One that is protected, or that a policy's conditions leave out, is not to keep the others running.
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
    let asked = Together::new(unique.clone());
    let mut ended = terminate_some(aws.clone(), asked).await;
    let left: BTreeSet<String> = unique
        .into_iter()
        .filter(|id| !ended.contains_key(id))
        .collect();
    if several && !left.is_empty() {
        ended.extend(terminate_some(aws, Together::new(left)).await);
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

    #[test]
    fn what_ec2_names_is_split_off_and_otherwise_halves_are_tried_and_a_few_alone() {
        let ids = |ids: &[&str]| Together::new(ids.iter().map(|id| (*id).to_owned()).collect());
        let split = |together: Together, code: &str, message: &str| -> Vec<Vec<String>> {
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
        let rest = Together {
            rest: true,
            ..few()
        };
        assert_eq!(
            split(rest, protected, "'i-2' may not be terminated").len(),
            4,
            "no chain of names"
        );
        let many: BTreeSet<String> = (0..20).map(|n| format!("i-{n}")).collect();
        let halves = split(Together::new(many), protected, "no name");
        assert_eq!((halves[0].len(), halves[1].len()), (10, 10));
    }
}
