//! How much EC2 has to give: pools per type, zone and lifecycle, their spot prices, and capacity reservations.

use std::{collections::HashMap, time::Duration};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    Ec2, Ec2Call,
    filters::{Filterable, Filters, Tags, tag_set},
    instances::{Due, Lifecycle, Reclaim},
};
use crate::{
    clock::{later, rfc3339},
    glob,
    wire::{Reply, error::AwsError, params::Params},
};

/// A capacity pool.
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

/// Pools that have nothing to give. Patterns have `*` and `?`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shortage {
    /// Instance type pattern.
    #[serde(rename = "type")]
    pub instance_type: String,
    /// Zone pattern.
    pub zone: String,
    /// `on-demand`, `spot` or `*`.
    pub capacity_type: String,
    /// The error code; `InsufficientInstanceCapacity` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The error message; what EC2 says for want of capacity when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl Shortage {
    /// No capacity in the pools that match the patterns. `capacity_type` is `on-demand`, `spot` or `*`.
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

    /// Launches fail with `code` instead.
    #[must_use]
    pub fn code(mut self, code: &str, message: &str) -> Self {
        self.code = Some(code.to_owned());
        self.message = Some(message.to_owned());
        self
    }
}

/// The capacity of all pools.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    /// Machines left, where limited.
    left: HashMap<Pool, u32>,
    /// Machines in pools without an entry; unlimited when `None`.
    pub(crate) default: Option<u32>,
    pub(crate) shortages: Vec<Shortage>,
}

impl Pools {
    /// Machines the pool can give now, `None` when unlimited.
    pub(crate) fn left(&self, pool: &Pool) -> Option<u32> {
        if self.shortage(pool).is_some() {
            return Some(0);
        }
        self.left.get(pool).copied().or(self.default)
    }

    /// The shortage the pool is in, if any.
    pub(crate) fn shortage(&self, pool: &Pool) -> Option<&Shortage> {
        self.shortages.iter().find(|s| {
            glob::matches(&s.instance_type, &pool.instance_type)
                && glob::matches(&s.zone, &pool.zone)
                && glob::matches(&s.capacity_type, pool.capacity_type())
        })
    }

    /// How deep the pool looks to an allocation strategy. A shortage shows only when the machine is asked for.
    pub(crate) fn depth(&self, pool: &Pool) -> u32 {
        self.left
            .get(pool)
            .copied()
            .or(self.default)
            .unwrap_or(u32::MAX)
    }

    pub(crate) fn set(&mut self, pool: Pool, machines: u32) {
        self.left.insert(pool, machines);
    }

    /// Takes a machine.
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

    pub(crate) fn give_back(&mut self, pool: &Pool) {
        if let Some(left) = self.left.get_mut(pool) {
            *left += 1;
        }
    }
}

/// A capacity reservation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CapacityReservation {
    /// `cr-…`
    pub id: String,
    /// Instance type.
    pub instance_type: String,
    /// Zone name.
    pub zone: String,
    /// Machines it was made for.
    pub total: u32,
    /// Machines left.
    pub available: u32,
    /// The owning account.
    #[serde(default = "own_account")]
    pub owner: String,
    /// `open` or `targeted`.
    #[serde(default = "open")]
    pub match_criteria: String,
    /// `active`, `expired`, `cancelled`, `pending`, …
    #[serde(default = "active")]
    pub state: String,
    /// Whether it is a capacity block.
    #[serde(default)]
    pub block: bool,
    /// Whether AWS may take it back.
    #[serde(default)]
    pub interruptible: bool,
    /// When it ends.
    #[serde(default)]
    pub end: Option<Timestamp>,
    /// When it began.
    #[serde(default)]
    pub start: Option<Timestamp>,
    /// Tags.
    #[serde(default)]
    pub tags: Tags,
}

fn own_account() -> String {
    crate::ACCOUNT.to_owned()
}

fn open() -> String {
    "open".to_owned()
}

fn active() -> String {
    "active".to_owned()
}

impl CapacityReservation {
    /// An open, active on-demand reservation for `machines` of this account, without end.
    #[must_use]
    pub fn new(id: &str, instance_type: &str, zone: &str, machines: u32) -> Self {
        Self {
            id: id.to_owned(),
            instance_type: instance_type.to_owned(),
            zone: zone.to_owned(),
            total: machines,
            available: machines,
            owner: own_account(),
            match_criteria: open(),
            state: active(),
            block: false,
            interruptible: false,
            end: None,
            start: None,
            tags: Tags::new(),
        }
    }

    pub(crate) fn give_back(&mut self) {
        self.available = (self.available + 1).min(self.total);
    }

    pub(crate) fn serves(&self, instance_type: &str, zone: &str) -> bool {
        self.state == "active" && self.instance_type == instance_type && self.zone == zone
    }
}

/// Capacity blocks take their instances back this long before they end.
const BLOCK_RECLAIM: Duration = Duration::from_secs(30 * 60);
/// And warn this long before they end.
const BLOCK_WARNING: Duration = Duration::from_secs(40 * 60);

impl Filterable for CapacityReservation {
    fn values(&self, name: &str) -> Vec<String> {
        let value = match name {
            "instance-type" => self.instance_type.clone(),
            "owner-id" => self.owner.clone(),
            "state" => self.state.clone(),
            "availability-zone" => self.zone.clone(),
            "instance-match-criteria" => self.match_criteria.clone(),
            "instance-platform" => "Linux/UNIX".to_owned(),
            "tenancy" => "default".to_owned(),
            "end-date-type" => self.end.map_or("unlimited", |_| "limited").to_owned(),
            "reservation-type" => self.kind().to_owned(),
            "interruptible" => self.interruptible.to_string(),
            _ => return vec![],
        };
        vec![value]
    }

    fn tags(&self) -> &Tags {
        &self.tags
    }
}

impl CapacityReservation {
    fn kind(&self) -> &'static str {
        if self.block {
            "capacity-block"
        } else {
            "default"
        }
    }
}

impl Ec2 {
    /// The spot price of a pool and since when it holds; `None` where the type is not sold as spot.
    pub(crate) fn spot_price_since(
        &self,
        instance_type: &str,
        zone: &str,
    ) -> Option<(f64, Timestamp)> {
        let key = (instance_type.to_owned(), zone.to_owned());
        if let Some((price, since)) = self.spot_prices.get(&key) {
            return price.map(|price| (price, *since));
        }
        if !self.catalog.offers(instance_type, zone) {
            return None;
        }
        // A stable discount between 55 and 75 per cent that differs between pools.
        let hash = instance_type
            .bytes()
            .chain(zone.bytes())
            .fold(7_u32, |h, b| h.wrapping_mul(31).wrapping_add(u32::from(b)));
        let factor = 0.25 + f64::from(hash % 200) / 1000.0;
        Some((self.catalog.price(instance_type) * factor, self.started))
    }

    /// What a machine of the pool costs per hour.
    pub(crate) fn pool_price(&self, pool: &Pool) -> f64 {
        if pool.spot {
            self.spot_price_since(&pool.instance_type, &pool.zone)
                .map_or(f64::MAX, |(price, _)| price)
        } else {
            self.catalog.price(&pool.instance_type)
        }
    }

    /// Ends reservations whose time has come, and warns and takes back the instances of capacity blocks.
    pub(crate) fn settle_reservations(&mut self, now: Timestamp) {
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
                self.tell_reservation_interruption(&instance, now);
                let at = before(end, BLOCK_RECLAIM);
                self.instances
                    .schedule(at, &instance, Due::Reclaim(Reclaim::CapacityReservation));
            }
        }
        // Instances of an on-demand reservation that ended go on, outside of it.
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

    /// Lets the live instances of a reservation run on without it.
    pub(crate) fn release_reservation(&mut self, id: &str) {
        for instance in self.instances_in(id) {
            if let Some(instance) = self.instances.get_mut(&instance) {
                instance.capacity_reservation = None;
                instance.touch();
            }
        }
    }

    /// Ids of the live instances in a reservation.
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

    /// When the next reservation warns or ends.
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
        let filters = Filters::read(
            p,
            &[
                "tag",
                "instance-type",
                "owner-id",
                "state",
                "availability-zone",
                "instance-match-criteria",
                "instance-platform",
                "tenancy",
                "end-date-type",
                "reservation-type",
                "interruptible",
            ],
        )?;
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
        let rows = found.into_iter().filter(|r| filters.keep(*r)).map(|r| {
            let start = rfc3339(r.start.unwrap_or(self.ec2.started));
            let wire = json!({
                "capacityReservationId": r.id,
                "ownerId": r.owner,
                "capacityReservationArn": self.arn("capacity-reservation", &r.id).replace(&self.ec2.account, &r.owner),
                "instanceType": r.instance_type,
                "instancePlatform": "Linux/UNIX",
                "availabilityZone": r.zone,
                "availabilityZoneId": self.ec2.catalog.zone_id(&r.zone),
                "tenancy": "default",
                "totalInstanceCount": r.total,
                "availableInstanceCount": r.available,
                "ebsOptimized": false,
                "ephemeralStorage": false,
                "state": r.state,
                "startDate": start,
                "createDate": start,
                "endDate": r.end.map(rfc3339),
                "endDateType": if r.end.is_some() { "limited" } else { "unlimited" },
                "instanceMatchCriteria": r.match_criteria,
                "reservationType": r.kind(),
                "interruptible": r.interruptible,
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

/// What happens to a spot or reserved instance two minutes before it is taken away.
pub(crate) const INTERRUPTION_NOTICE: Duration = Duration::from_secs(120);

impl Ec2 {
    /// Warns that an instance will be taken away, and takes it away two minutes later. Unknown instances are ignored.
    pub(crate) fn interrupt(&mut self, id: &str, by: Reclaim, now: Timestamp) -> bool {
        let Some(instance) = self.instances.get(id).filter(|i| i.state.is_alive()) else {
            return false;
        };
        let id = instance.id.clone();
        match by {
            Reclaim::Spot => self.tell_spot_interruption(&id, now),
            Reclaim::CapacityReservation => self.tell_reservation_interruption(&id, now),
        }
        self.instances
            .schedule(later(now, INTERRUPTION_NOTICE), &id, Due::Reclaim(by));
        true
    }
}
