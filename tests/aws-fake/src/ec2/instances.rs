//! Instances: their properties, state transitions and termination.
//!
//! pending → running after a configurable delay; shutting-down → terminated after another; a terminated instance stays
//! listed for an hour. Transitions wait in a queue ordered by time and are applied when the state is accessed.

use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::filters::Tags;
use super::listing::check_ids;
use super::status::StatusReport;
use super::{Ec2, Ec2Call, Pool};
use crate::clock::later;
use crate::services::permissions::Permission;
use crate::wire::Reply;
use crate::wire::error::AwsError;
use crate::wire::params::Params;

/// How long a terminated instance stays listed.
const VISIBLE_AFTER_TERMINATION: Duration = Duration::from_secs(3600);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum InstanceState {
    /// Launched, not running yet.
    Pending,
    Running,
    ShuttingDown,
    /// Terminated; still listed for an hour.
    Terminated,
}

impl InstanceState {
    /// Returns EC2's name of the state.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::ShuttingDown => "shutting-down",
            Self::Terminated => "terminated",
        }
    }

    pub(super) fn code(self) -> u8 {
        match self {
            Self::Pending => 0,
            Self::Running => 16,
            Self::ShuttingDown => 32,
            Self::Terminated => 48,
        }
    }

    pub(crate) fn wire(self) -> Value {
        json!({"code": self.code(), "name": self.name()})
    }

    /// Returns whether the instance still uses capacity.
    #[must_use]
    pub fn is_alive(self) -> bool {
        matches!(self, Self::Pending | Self::Running)
    }
}

/// How an instance is billed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lifecycle {
    /// On demand, also inside a capacity reservation.
    OnDemand,
    Spot,
    CapacityBlock,
}

impl Lifecycle {
    /// Returns the name that fleets and pools use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OnDemand => "on-demand",
            Self::Spot => "spot",
            Self::CapacityBlock => "capacity-block",
        }
    }
}

/// A network interface of an instance.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Interface {
    /// Interface type: `interface`, `efa` or `efa-only`.
    pub(crate) kind: String,
    /// Private IPv4 address; `efa-only` interfaces have none.
    pub(crate) address: Option<Ipv4Addr>,
    /// Number of IP prefixes, of sixteen addresses each.
    pub(crate) prefixes: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Instance {
    /// ID of the instance, `i-…`.
    pub id: String,
    /// ID of the launch, `r-…`, shared by the instances of one call.
    pub reservation: String,
    pub instance_type: String,
    /// ID of the AMI.
    pub image: String,
    /// Architecture: `x86_64` or `arm64`.
    pub architecture: String,
    pub zone: String,
    pub zone_id: String,
    pub subnet: String,
    /// Private address of the primary interface.
    pub private_ip: Ipv4Addr,
    pub(crate) interfaces: Vec<Interface>,
    /// ID and name of the primary interface's security groups.
    pub groups: Vec<(String, String)>,
    pub tags: Tags,
    pub launched: Timestamp,
    pub state: InstanceState,
    /// Whether termination protection is enabled (`disableApiTermination`).
    pub protected: bool,
    /// How the instance is billed.
    pub lifecycle: Lifecycle,
    pub spot_request: Option<String>,
    /// ID of the capacity reservation it runs in.
    pub capacity_reservation: Option<String>,
    /// Reservation preference `open`, `none` or `capacity-reservations-only`, and the targeted reservation.
    pub reservation_preference: (String, Option<String>),
    /// Name, ARN and ID of the instance profile.
    pub profile: Option<(String, String, String)>,
    /// Launch data after merging template and overrides, with the request's parameter names.
    pub data: Value,
    /// ID of the placement group, and the partition.
    pub placement: Option<(String, Option<u32>)>,
    pub windows: bool,
    pub vcpus: u32,
    pub memory_mib: u64,
    /// Status in DescribeInstanceStatus, where it differs from `ok`.
    pub status: StatusReport,
    /// When the instance started or the last status check failed; checks pass a minute later.
    pub up_since: Option<Timestamp>,
    pub(crate) sequence: u64,
    /// Rendered listing of the instance; invalidated when the instance changes.
    pub(crate) rendered: Option<Arc<str>>,
}

/// A scheduled transition of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    Running,
    Terminated,
    Gone,
    /// EC2 reclaims the instance.
    Reclaim,
}

/// Instances of a region in launch order, and their scheduled transitions.
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

    /// Iterates over the instances launched after one, in launch order.
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

    /// Takes the next transition that is due at `now`, with its time.
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
    /// Invalidates the rendered listing after a change.
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
        // As AWS documents: the request fails, but terminates the named instances in zones without a protected
        // instance.
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
            self.ec2.terminate(id, now, shutting_down);
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
    /// Starts the shutdown of an instance; has no effect on one that is shutting down or terminated.
    pub(crate) fn terminate(&mut self, id: &str, now: Timestamp, shutting_down: Duration) {
        let Some(instance) = self.instances.get_mut(id) else {
            return;
        };
        if !instance.state.is_alive() {
            return;
        }
        instance.state = InstanceState::ShuttingDown;
        instance.touch();
        self.instances
            .schedule(later(now, shutting_down), id, Due::Terminated);
        self.emit_state(id, now);
    }

    /// Applies all transitions that are due at `now`.
    pub(crate) fn apply_due(&mut self, now: Timestamp, shutting_down: Duration) {
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
                        self.emit_state(&id, at);
                    }
                }
                Due::Terminated => self.finish(&id, at),
                Due::Gone => self.instances.remove(&id),
                Due::Reclaim => self.terminate(&id, at, shutting_down),
            }
        }
        self.expire_reservations(now);
    }

    /// Terminates an instance that is shutting down, and releases its capacity and addresses.
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
            Some(reservation) => reservation.release(),
            None => self.pools.release(&pool),
        }
        if let Some(subnet) = self.subnets.get_mut(&subnet) {
            for interface in interfaces {
                subnet.unreserve(16 * interface.prefixes);
                if let Some(address) = interface.address {
                    subnet.release(address);
                }
            }
        }
        self.instances
            .schedule(later(at, VISIBLE_AFTER_TERMINATION), id, Due::Gone);
        self.emit_state(id, at);
    }
}
