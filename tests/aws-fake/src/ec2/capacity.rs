//! Capacity of EC2: pools per instance type, zone and lifecycle, their spot prices, and capacity reservations.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use super::filters::{Filters, Tags, tag_set};
use super::instances::{Due, Lifecycle};
use super::{Ec2, Ec2Call};
use crate::clock::{later, rfc3339};
use crate::glob;
use crate::wire::Reply;
use crate::wire::error::AwsError;
use crate::wire::params::Params;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Pool {
    pub(crate) instance_type: String,
    pub(crate) zone: String,
    pub(crate) spot: bool,
}

impl Pool {
    pub(crate) fn new(instance_type: &str, zone: &str, lifecycle: Lifecycle) -> Self {
        Self {
            instance_type: instance_type.to_owned(),
            zone: zone.to_owned(),
            spot: lifecycle == Lifecycle::Spot,
        }
    }

    fn capacity_type(&self) -> &'static str {
        if self.spot { "spot" } else { "on-demand" }
    }
}

/// Pools without capacity. Patterns have `*` and `?`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    /// Pattern of the instance type.
    pub instance_type: String,
    /// Pattern of the zone.
    pub zone: String,
    /// Capacity type: `on-demand`, `spot` or `*`.
    pub capacity_type: String,
    /// Error code; the default is `InsufficientInstanceCapacity`.
    pub code: Option<String>,
    /// Error message; the default is EC2's message for insufficient capacity.
    pub message: Option<String>,
}

impl Shortage {
    /// Creates a shortage of the pools that match the patterns. `capacity_type` is `on-demand`, `spot` or `*`.
    #[must_use]
    pub fn new(instance_type: &str, zone: &str, capacity_type: &str) -> Self {
        Self {
            instance_type: instance_type.to_owned(),
            zone: zone.to_owned(),
            capacity_type: capacity_type.to_owned(),
            code: None,
            message: None,
        }
    }

    /// Sets the error that launches fail with.
    #[must_use]
    pub fn code(mut self, code: &str, message: &str) -> Self {
        self.code = Some(code.to_owned());
        self.message = Some(message.to_owned());
        self
    }
}

#[derive(Debug, Default)]
pub(crate) struct Pools {
    /// Number of instances left in limited pools.
    left: HashMap<Pool, u32>,
    pub(crate) shortages: Vec<Shortage>,
}

impl Pools {
    /// Returns the number of instances the pool can launch now; `None` if unlimited.
    pub(crate) fn left(&self, pool: &Pool) -> Option<u32> {
        if self.shortage(pool).is_some() {
            return Some(0);
        }
        self.left.get(pool).copied()
    }

    /// Returns the shortage the pool is in, if any.
    pub(crate) fn shortage(&self, pool: &Pool) -> Option<&Shortage> {
        self.shortages.iter().find(|s| {
            glob::matches(&s.instance_type, &pool.instance_type)
                && glob::matches(&s.zone, &pool.zone)
                && glob::matches(&s.capacity_type, pool.capacity_type())
        })
    }

    /// Returns the depth of the pool as an allocation strategy sees it. A shortage has an effect only on a launch.
    pub(crate) fn depth(&self, pool: &Pool) -> u32 {
        self.left.get(pool).copied().unwrap_or(u32::MAX)
    }

    pub(crate) fn set(&mut self, pool: Pool, instances: u32) {
        self.left.insert(pool, instances);
    }

    /// Takes an instance from the pool. Returns whether one was left.
    pub(crate) fn take(&mut self, pool: &Pool) -> bool {
        match self.left(pool) {
            None => true,
            Some(0) => false,
            Some(left) => {
                self.left.insert(pool.clone(), left - 1);
                true
            }
        }
    }

    pub(crate) fn release(&mut self, pool: &Pool) {
        if let Some(left) = self.left.get_mut(pool) {
            *left += 1;
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct CapacityReservation {
    /// ID of the reservation, `cr-…`.
    pub id: String,
    pub instance_type: String,
    pub zone: String,
    /// Number of reserved instances.
    pub total: u32,
    /// Number of instances left.
    pub available: u32,
    /// ID of the owning account.
    pub owner: String,
    /// Match criteria: `open` or `targeted`.
    pub match_criteria: String,
    /// State: `active`, `expired`, `cancelled`, `pending`, …
    pub state: String,
    pub block: bool,
    /// End of the reservation, if it has one.
    pub end: Option<Timestamp>,
    pub tags: Tags,
}

impl CapacityReservation {
    /// Creates an open, active on-demand reservation of this account for `instances` instances, without end.
    #[must_use]
    pub fn new(id: &str, instance_type: &str, zone: &str, instances: u32) -> Self {
        Self {
            id: id.to_owned(),
            instance_type: instance_type.to_owned(),
            zone: zone.to_owned(),
            total: instances,
            available: instances,
            owner: crate::ACCOUNT.to_owned(),
            match_criteria: "open".to_owned(),
            state: "active".to_owned(),
            block: false,
            end: None,
            tags: Tags::new(),
        }
    }

    pub(crate) fn release(&mut self) {
        self.available = (self.available + 1).min(self.total);
    }

    pub(crate) fn serves(&self, instance_type: &str, zone: &str) -> bool {
        self.state == "active" && self.instance_type == instance_type && self.zone == zone
    }
}

/// The instances of a capacity block are terminated this long before its end.
const BLOCK_RECLAIM: Duration = Duration::from_secs(30 * 60);
/// The warning is sent this long before the end of a capacity block.
const BLOCK_WARNING: Duration = Duration::from_secs(40 * 60);

impl Ec2 {
    /// Returns the spot price of a pool and the time of its last change; `None` without spot offering.
    pub(crate) fn spot_price_since(
        &self,
        instance_type: &str,
        zone: &str,
    ) -> Option<(f64, Timestamp)> {
        if !self.catalog.offers(instance_type, zone) {
            return None;
        }
        // A stable discount between 55 and 75 percent that differs between pools.
        let hash = instance_type
            .bytes()
            .chain(zone.bytes())
            .fold(7_u32, |h, b| h.wrapping_mul(31).wrapping_add(u32::from(b)));
        let factor = 0.25 + f64::from(hash % 200) / 1000.0;
        Some((self.catalog.price(instance_type) * factor, self.started))
    }

    /// Returns the price of an instance of the pool per hour.
    pub(crate) fn pool_price(&self, pool: &Pool) -> f64 {
        if pool.spot {
            self.spot_price_since(&pool.instance_type, &pool.zone)
                .map_or(f64::MAX, |(price, _)| price)
        } else {
            self.catalog.price(&pool.instance_type)
        }
    }

    /// Expires reservations, and warns and reclaims the instances of capacity blocks.
    pub(crate) fn expire_reservations(&mut self, now: Timestamp) {
        let mut warn = Vec::new();
        for reservation in self.reservations.values_mut() {
            let Some(end) = reservation.end else { continue };
            if reservation.state == "active"
                && reservation.block
                && now >= before(end, BLOCK_WARNING)
                && self.warned.insert(reservation.id.clone())
            {
                warn.push((reservation.id.clone(), end));
            }
            if reservation.state == "active" && now >= end {
                reservation.state = "expired".to_owned();
                reservation.available = 0;
            }
        }
        for (id, end) in warn {
            for instance in self.instances_in(&id) {
                self.emit_reservation_interruption(&instance, now);
                let at = before(end, BLOCK_RECLAIM);
                self.instances.schedule(at, &instance, Due::Reclaim);
            }
        }
        // Instances of an on-demand reservation that ended keep running without it.
        let ended: Vec<String> = self
            .reservations
            .values()
            .filter(|r| r.state != "active" && !r.block)
            .map(|r| r.id.clone())
            .collect();
        for id in ended {
            self.release_reservation(&id);
        }
    }

    /// Removes the reservation from its live instances.
    pub(crate) fn release_reservation(&mut self, id: &str) {
        for instance in self.instances_in(id) {
            if let Some(instance) = self.instances.get_mut(&instance) {
                instance.capacity_reservation = None;
                instance.touch();
            }
        }
    }

    /// Returns the IDs of the live instances in a reservation.
    pub(crate) fn instances_in(&self, reservation: &str) -> Vec<String> {
        if self.reservations.is_empty() {
            return vec![];
        }
        self.instances
            .all()
            .filter(|i| i.state.is_alive())
            .filter(|i| i.capacity_reservation.as_deref() == Some(reservation))
            .map(|i| i.id.clone())
            .collect()
    }

    /// Returns when the next reservation warns or ends.
    pub(crate) fn next_reservation_change(&self, now: Timestamp) -> Option<Timestamp> {
        self.reservations
            .values()
            .filter(|r| r.state == "active")
            .filter_map(|r| r.end.map(|end| (r.block, end)))
            .flat_map(|(block, end)| [block.then(|| before(end, BLOCK_WARNING)), Some(end)])
            .flatten()
            .filter(|at| *at > now)
            .min()
    }
}

fn before(at: Timestamp, by: Duration) -> Timestamp {
    jiff::SignedDuration::try_from(by)
        .ok()
        .and_then(|by| at.checked_sub(by).ok())
        .unwrap_or(Timestamp::MIN)
}

impl Ec2Call<'_> {
    pub(crate) fn describe_capacity_reservations(
        &mut self,
        p: Params<'_>,
    ) -> Result<Reply, AwsError> {
        let filters = Filters::read(p, &["tag", "owner-id", "state", "instance-match-criteria"])?;
        let ids = p.texts("CapacityReservationId");
        if !ids.is_empty() && p.has("MaxResults") {
            return Err(AwsError::combination(
                "The parameter CapacityReservationIds cannot be used with the parameter MaxResults",
            ));
        }
        let page = self.page(p, (1, 1000))?;
        let nameless = self.settings.nameless_errors;
        let found = super::network::by_id(
            &ids,
            self.ec2.reservations.values(),
            |r| &r.id,
            |id| {
                let message = if nameless {
                    "The capacity reservation does not exist".to_owned()
                } else {
                    format!("The capacity reservation '{id}' does not exist")
                };
                AwsError::new("InvalidCapacityReservationId.NotFound", message)
            },
        )?;
        let wanted = |r: &&CapacityReservation| {
            filters.matches(&r.tags, |name| match name {
                "owner-id" => vec![&r.owner],
                "state" => vec![&r.state],
                _ => vec![&r.match_criteria],
            })
        };
        let rows = found.into_iter().filter(wanted).map(|r| {
            let wire = json!({
                "capacityReservationId": r.id,
                "ownerId": r.owner,
                "instanceType": r.instance_type,
                "availabilityZone": r.zone,
                "availabilityZoneId": self.ec2.catalog.zone_id(&r.zone),
                "availableInstanceCount": r.available,
                "state": r.state,
                "endDate": r.end.map(rfc3339),
                "instanceMatchCriteria": r.match_criteria,
                "reservationType": if r.block { "capacity-block" } else { "default" },
                "tagSet": tag_set(&r.tags),
            });
            (r.id.clone(), wire)
        });
        let (rows, token) = page.cut(rows);
        Ok(Reply::Tree(
            json!({"capacityReservationSet": rows, "nextToken": token}),
        ))
    }
}

/// Time between the interruption warning and the termination of a spot or reserved instance.
pub(crate) const INTERRUPTION_NOTICE: Duration = Duration::from_secs(120);

impl Ec2 {
    /// Sends an interruption warning for a spot instance, and terminates it two minutes later. Unknown instances are
    /// ignored.
    pub(crate) fn interrupt(&mut self, id: &str, now: Timestamp) -> bool {
        if !self.instances.get(id).is_some_and(|i| i.state.is_alive()) {
            return false;
        }
        self.emit_spot_interruption(id, now);
        self.instances
            .schedule(later(now, INTERRUPTION_NOTICE), id, Due::Reclaim);
        true
    }
}
