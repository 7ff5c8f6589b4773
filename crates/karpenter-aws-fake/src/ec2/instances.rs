//! Instances: what they are, which states they pass through, how they are terminated.
//!
//! pending → running after a settable delay; shutting-down → terminated after another; a terminated instance stays visible
//! for an hour. Transitions wait in a queue ordered by time and happen when anybody looks at the clock.

use std::{
    collections::{BTreeMap, HashMap},
    net::Ipv4Addr,
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Ec2, Ec2Call, Pool, filters::Tags, listing::check_ids, status::StatusReport};
use crate::{
    clock::later,
    permissions::Permission,
    wire::{Reply, error::AwsError, params::Params},
};

/// How long a terminated instance stays visible.
const VISIBLE_AFTER_TERMINATION: Duration = Duration::from_secs(3600);

/// Where an instance is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum InstanceState {
    /// Launched, not up yet.
    Pending,
    /// Up.
    Running,
    /// Being terminated.
    ShuttingDown,
    /// Gone; still listed for an hour.
    Terminated,
    /// Being stopped.
    Stopping,
    /// Stopped.
    Stopped,
}

impl InstanceState {
    /// EC2's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::ShuttingDown => "shutting-down",
            Self::Terminated => "terminated",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
        }
    }

    pub(super) fn code(self) -> u8 {
        match self {
            Self::Pending => 0,
            Self::Running => 16,
            Self::ShuttingDown => 32,
            Self::Terminated => 48,
            Self::Stopping => 64,
            Self::Stopped => 80,
        }
    }

    pub(crate) fn wire(self) -> Value {
        json!({"code": self.code(), "name": self.name()})
    }

    /// Whether it still occupies a machine.
    #[must_use]
    pub fn is_alive(self) -> bool {
        matches!(self, Self::Pending | Self::Running | Self::Stopping)
    }
}

/// How an instance is paid for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lifecycle {
    /// On demand, also inside a capacity reservation.
    OnDemand,
    /// Spot.
    Spot,
    /// In a capacity block.
    CapacityBlock,
    /// In an interruptible capacity reservation.
    InterruptibleCapacityReservation,
}

impl Lifecycle {
    /// The name fleets and pools use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OnDemand => "on-demand",
            Self::Spot => "spot",
            Self::CapacityBlock => "capacity-block",
            Self::InterruptibleCapacityReservation => "interruptible-capacity-reservation",
        }
    }
}

/// A network interface of an instance.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Interface {
    /// `eni-…`
    pub id: String,
    /// Network card.
    pub card: u32,
    /// Device index on the card.
    pub device: u32,
    /// `interface`, `efa` or `efa-only`.
    pub kind: String,
    /// Address; `efa-only` interfaces have none.
    pub address: Option<Ipv4Addr>,
    /// Prefixes of sixteen addresses.
    pub prefixes: u32,
    /// IPv6 addresses.
    pub ipv6: Vec<String>,
    /// Security groups, id and name.
    pub groups: Vec<(String, String)>,
    /// Public address.
    pub public: Option<String>,
}

/// An instance.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Instance {
    /// `i-…`
    pub id: String,
    /// `r-…`; instances of one launch share it.
    pub reservation: String,
    /// Its place among the instances of the launch.
    pub launch_index: u32,
    /// Instance type.
    pub instance_type: String,
    /// Image.
    pub image: String,
    /// `x86_64` or `arm64`.
    pub architecture: String,
    /// Zone name.
    pub zone: String,
    /// Zone id.
    pub zone_id: String,
    /// Subnet.
    pub subnet: String,
    /// VPC.
    pub vpc: String,
    /// Private address of the primary interface.
    pub private_ip: Ipv4Addr,
    /// All interfaces.
    pub interfaces: Vec<Interface>,
    /// Security groups of the primary interface, id and name.
    pub groups: Vec<(String, String)>,
    /// Tags.
    pub tags: Tags,
    /// Launch time.
    pub launched: Timestamp,
    /// State.
    pub state: InstanceState,
    /// Whether it is protected from termination by the API (`disableApiTermination`).
    pub protected: bool,
    /// Why it is going or gone: code and message.
    pub reason: Option<(String, String)>,
    /// How it is paid for.
    pub lifecycle: Lifecycle,
    /// The spot request.
    pub spot_request: Option<String>,
    /// The capacity reservation it runs in.
    pub capacity_reservation: Option<String>,
    /// `open`, `none` or `capacity-reservations-only`, and the targeted reservation.
    pub reservation_preference: (String, Option<String>),
    /// Launch template id, name and version.
    pub template: Option<(String, String, u32)>,
    /// The fleet that launched it.
    pub fleet: Option<String>,
    /// Name and ARN of the instance profile, and its id.
    pub profile: Option<(String, String, String)>,
    /// The launch data after merging template and overrides, with the request's parameter names.
    pub data: Value,
    /// Root device.
    pub root_device: String,
    /// Volumes: device, size in GiB, id, whether it goes with the instance.
    pub volumes: Vec<(String, u32, String, bool)>,
    /// Placement group id and name, and partition.
    pub placement: Option<(String, String, Option<u32>)>,
    /// Whether it is Windows.
    pub windows: bool,
    /// vCPUs.
    pub vcpus: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Physical cores.
    pub cores: u64,
    /// Client token of the launch.
    pub client_token: String,
    /// What DescribeInstanceStatus tells, where it differs from "all well".
    #[serde(skip)]
    pub status: StatusReport,
    /// When the last status check failed or it came up; checks need a minute after that.
    pub up_since: Option<Timestamp>,
    #[serde(skip)]
    pub(crate) sequence: u64,
    /// The listing of this instance; dropped when the instance changes.
    #[serde(skip)]
    pub(crate) rendered: Option<Arc<str>>,
}

/// What happens to an instance later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    Running,
    Terminated,
    Gone,
    Reclaim(Reclaim),
}

/// Who takes an instance away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reclaim {
    Spot,
    CapacityReservation,
}

/// All instances of a region, in launch order, and what is going to happen to them.
#[derive(Debug, Default)]
pub(crate) struct Instances {
    by_sequence: BTreeMap<u64, Instance>,
    sequence_of: HashMap<String, u64>,
    due: BTreeMap<(Timestamp, u64), (String, Due)>,
    counter: u64,
}

impl Instances {
    pub(crate) fn add(&mut self, mut instance: Instance) {
        self.counter += 1;
        instance.sequence = self.counter;
        self.sequence_of.insert(instance.id.clone(), self.counter);
        self.by_sequence.insert(self.counter, instance);
    }

    pub(crate) fn get(&self, id: &str) -> Option<&Instance> {
        self.by_sequence.get(self.sequence_of.get(id)?)
    }

    pub(crate) fn get_mut(&mut self, id: &str) -> Option<&mut Instance> {
        self.by_sequence.get_mut(self.sequence_of.get(id)?)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Instance> + Clone {
        self.by_sequence.values()
    }

    /// Those that were launched after one, in launch order.
    pub(super) fn after(&mut self, sequence: u64) -> impl Iterator<Item = &mut Instance> {
        self.by_sequence.range_mut(sequence + 1..).map(|(_, i)| i)
    }

    fn remove(&mut self, id: &str) {
        if let Some(sequence) = self.sequence_of.remove(id) {
            self.by_sequence.remove(&sequence);
        }
    }

    pub(crate) fn schedule(&mut self, at: Timestamp, id: &str, due: Due) {
        self.counter += 1;
        self.due.insert((at, self.counter), (id.to_owned(), due));
    }

    /// Takes the next transition that is due at `now`, with the time it was due.
    pub(crate) fn pop_due(&mut self, now: Timestamp) -> Option<(Timestamp, String, Due)> {
        let entry = self.due.first_entry()?;
        let at = entry.key().0;
        if at > now {
            return None;
        }
        let (id, due) = entry.remove();
        Some((at, id, due))
    }

    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }
}

impl Instance {
    /// Forgets the rendered listing, because something changed.
    pub(crate) fn touch(&mut self) {
        self.rendered = None;
    }
}

impl Ec2Call<'_> {
    pub(crate) fn terminate_instances(&mut self, p: Params<'_>) -> Result<Reply, AwsError> {
        let ids = p.texts("InstanceId");
        check_ids(&ids)?;
        let mut known = Vec::new();
        for id in &ids {
            if let Some(instance) = self.ec2.instances.get(id) {
                known.push((*id, instance.tags.clone()));
            }
        }
        if known.is_empty() {
            let any = self.arn("instance", "*");
            self.auth
                .need(Permission::new("ec2:TerminateInstances", any))?;
        }
        for (id, tags) in known {
            let arn = self.arn("instance", id);
            let permission = Permission::new("ec2:TerminateInstances", arn).resource_tags(&tags);
            self.auth.need(permission)?;
        }
        self.check_instances(&ids)?;
        self.check_dry_run(p)?;
        // AWS documents it so: the request fails, and yet ends what it names in zones without a protected instance.
        let guarded: BTreeMap<String, String> = ids
            .iter()
            .filter_map(|id| self.ec2.instances.get(id))
            .filter(|instance| instance.protected)
            .map(|instance| (instance.id.clone(), instance.zone.clone()))
            .collect();
        let now = self.now;
        let shutting_down = self.settings.shutting_down();
        let mut rows = Vec::new();
        for id in ids {
            let zone = self.ec2.instances.get(id).map(|i| &i.zone);
            if zone.is_some_and(|zone| guarded.values().any(|guarded| guarded == zone)) {
                continue;
            }
            let Some(before) = self.ec2.instances.get(id).map(|i| i.state) else {
                continue;
            };
            self.ec2.terminate(
                id,
                now,
                shutting_down,
                (
                    "Client.UserInitiatedShutdown",
                    "Client.UserInitiatedShutdown: User initiated shutdown",
                ),
            );
            let after = self.ec2.instances.get(id).map_or(before, |i| i.state);
            rows.push(json!({
                "instanceId": id,
                "currentState": after.wire(),
                "previousState": before.wire(),
            }));
        }
        match guarded.keys().next() {
            Some(id) => Err(AwsError::new(
                "OperationNotPermitted",
                format!(
                    "The instance '{id}' may not be terminated. Modify its 'disableApiTermination' instance attribute and try again."
                ),
            )),
            None => Ok(Reply::Tree(json!({"instancesSet": rows}))),
        }
    }
}

impl Ec2 {
    /// Starts shutting an instance down; terminated and dying instances are left alone.
    pub(crate) fn terminate(
        &mut self,
        id: &str,
        now: Timestamp,
        shutting_down: Duration,
        reason: (&str, &str),
    ) {
        let Some(instance) = self.instances.get_mut(id) else {
            return;
        };
        if !instance.state.is_alive() && instance.state != InstanceState::Stopped {
            return;
        }
        instance.state = InstanceState::ShuttingDown;
        instance.reason = Some((reason.0.to_owned(), reason.1.to_owned()));
        instance.touch();
        self.instances
            .schedule(later(now, shutting_down), id, Due::Terminated);
        self.tell_state(id, now);
    }

    /// Lets everything happen that is due at `now`.
    pub(crate) fn settle(&mut self, now: Timestamp, shutting_down: Duration) {
        while let Some((at, id, due)) = self.instances.pop_due(now) {
            match due {
                Due::Running => {
                    let Some(instance) = self.instances.get_mut(&id) else {
                        continue;
                    };
                    if instance.state == InstanceState::Pending {
                        instance.state = InstanceState::Running;
                        instance.up_since = Some(at);
                        instance.touch();
                        self.tell_state(&id, at);
                    }
                }
                Due::Terminated => self.finish(&id, at),
                Due::Gone => self.instances.remove(&id),
                Due::Reclaim(by) => {
                    let reason = match by {
                        Reclaim::Spot => (
                            "Server.SpotInstanceTermination",
                            "Server.SpotInstanceTermination: Instance terminated due to a spot interruption",
                        ),
                        Reclaim::CapacityReservation => (
                            "Server.CapacityReservationInterruption",
                            "Server.CapacityReservationInterruption: Instance terminated because its capacity reservation was reclaimed",
                        ),
                    };
                    self.terminate(&id, at, shutting_down, reason);
                }
            }
        }
        self.settle_reservations(now);
    }

    /// Turns a dying instance into a terminated one and gives back what it held.
    fn finish(&mut self, id: &str, at: Timestamp) {
        let Some(instance) = self.instances.get_mut(id) else {
            return;
        };
        if instance.state != InstanceState::ShuttingDown {
            return;
        }
        instance.state = InstanceState::Terminated;
        instance.touch();
        let pool = Pool::new(&instance.instance_type, &instance.zone, instance.lifecycle);
        let (subnet, interfaces) = (instance.subnet.clone(), instance.interfaces.clone());
        let reservation = instance.capacity_reservation.clone();
        match reservation.and_then(|id| self.reservations.get_mut(&id)) {
            Some(reservation) => reservation.give_back(),
            None => self.pools.give_back(&pool),
        }
        if let Some(subnet) = self.subnets.get_mut(&subnet) {
            for interface in interfaces {
                subnet.unreserve(16 * interface.prefixes);
                if let Some(address) = interface.address {
                    subnet.give_back(address);
                }
            }
        }
        self.instances
            .schedule(later(at, VISIBLE_AFTER_TERMINATION), id, Due::Gone);
        self.tell_state(id, at);
    }
}
