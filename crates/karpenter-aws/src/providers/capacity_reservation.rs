//! Capacity reservations of a node class, and the number of instances left in them.
//!
//! EC2 reports the number with a delay; launches and terminations are counted in addition.
//!
//! UPSTREAM: pkg/providers/capacityreservation/provider.go, pkg/cache/capacityreservation

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_ec2::types as ec2;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use parking_lot::Mutex;

use crate::api::{
    CapacityReservation, CapacityReservationSelectorTerm, ReservationState, ReservationType,
};
use crate::sdk::pages::each_page;
use crate::sdk::terms::{TtlCache, filter, tag_filters};
use crate::sdk::{Aws, AwsError};

const REFRESH: Duration = Duration::from_secs(60);
const PAGE: i32 = 1000;
/// A capacity block expires this long before its end: EC2 terminates its instances half an hour before.
const EXPIRY_MARGIN: SignedDuration = SignedDuration::from_mins(40);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Query {
    Ids(Vec<String>),
    Filters(BTreeMap<String, String>, Option<String>, Option<String>),
}

/// Number of instances left in capacity reservations. Cheap to clone; clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct ReservationCounts(Arc<Mutex<HashMap<String, u32>>>);

impl ReservationCounts {
    /// Returns the number of instances left; zero if the reservation is unknown.
    pub fn left(&self, id: &str) -> u32 {
        self.0.lock().get(id).copied().unwrap_or(0)
    }

    /// Sets the number that EC2 reports.
    pub fn set_reported(&self, id: &str, left: u32) {
        self.0.lock().insert(id.to_owned(), left);
    }

    /// Counts a launch into the reservation.
    pub fn launched(&self, id: &str) {
        if let Some(left) = self.0.lock().get_mut(id) {
            *left = left.saturating_sub(1);
        }
    }

    /// Counts a termination in the reservation.
    pub fn terminated(&self, id: &str) {
        if let Some(left) = self.0.lock().get_mut(id) {
            *left = left.saturating_add(1);
        }
    }

    /// Sets the number to zero until EC2 reports it again.
    pub fn exhausted(&self, id: &str) {
        self.0.lock().insert(id.to_owned(), 0);
    }
}

/// Resolves and caches the capacity reservations of node classes.
#[derive(Clone, Debug)]
pub struct Reservations {
    aws: Aws,
    found: Arc<TtlCache<Query, Arc<[CapacityReservation]>>>,
    counts: ReservationCounts,
}

impl Reservations {
    /// Creates a resolver whose results expire after a minute.
    #[must_use]
    pub fn new(aws: Aws, counts: ReservationCounts) -> Self {
        Self {
            aws,
            found: Arc::new(TtlCache::new(REFRESH)),
            counts,
        }
    }

    /// Returns the number of instances left in each reservation.
    #[must_use]
    pub fn counts(&self) -> &ReservationCounts {
        &self.counts
    }

    /// Returns the reservations that these terms select and that have not ended, ordered by ID.
    ///
    /// # Errors
    /// If a call to EC2 fails.
    pub async fn list(
        &self,
        terms: &[CapacityReservationSelectorTerm],
        now: Timestamp,
    ) -> Result<Vec<CapacityReservation>, AwsError> {
        let mut ids: Vec<String> = terms.iter().filter_map(|t| t.id.clone()).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut queries: Vec<Query> = terms
            .iter()
            .filter(|t| t.id.is_none())
            .map(|t| {
                let tags = t.tags.clone().unwrap_or_default();
                Query::Filters(tags, t.owner_id.clone(), t.instance_match_criteria.clone())
            })
            .collect();
        if !ids.is_empty() {
            queries.push(Query::Ids(ids));
        }
        let answers = queries.into_iter().map(|query| self.describe(query));
        let mut found: BTreeMap<String, CapacityReservation> = BTreeMap::new();
        for answer in futures::future::join_all(answers).await {
            for reservation in answer?.iter() {
                found.insert(reservation.id.clone(), reservation.clone());
            }
        }
        let lasting = |r: &CapacityReservation| r.end_time.as_ref().is_none_or(|end| end.0 > now);
        let found = found.into_values().filter(lasting).map(|mut r| {
            r.state = state(&r, now);
            r
        });
        Ok(found.collect())
    }

    async fn describe(&self, query: Query) -> Result<Arc<[CapacityReservation]>, AwsError> {
        if let Some(found) = self.found.get(&query) {
            return Ok(found);
        }
        let mut filters = vec![filter("state", ["active"])];
        let (ids, page) = match &query {
            Query::Ids(ids) => (Some(ids.clone()), None),
            Query::Filters(tags, owner, criteria) => {
                filters.extend(tag_filters(tags));
                filters.extend(owner.iter().map(|o| filter("owner-id", [o.as_str()])));
                let criteria = criteria.iter().map(String::as_str);
                filters.extend(criteria.map(|c| filter("instance-match-criteria", [c])));
                (None, Some(PAGE))
            }
        };
        let (filters, ids) = (&filters, &ids);
        let ask = |token: Option<String>| {
            self.aws.ec2("DescribeCapacityReservations", move |client| {
                client
                    .describe_capacity_reservations()
                    .set_filters(Some(filters.clone()))
                    .set_capacity_reservation_ids(ids.clone())
                    .set_max_results(page)
                    .set_next_token(token.clone())
                    .send()
            })
        };
        let mut found = Vec::new();
        let asked = each_page(ask, |answer| {
            for raw in answer.capacity_reservations() {
                match read(raw) {
                    Some((reservation, left)) => {
                        self.counts.set_reported(&reservation.id, left);
                        found.push(reservation);
                    }
                    None => tracing::error!(
                        logger = "nodeclass",
                        "capacity-reservation" = raw.capacity_reservation_id(),
                        "skipped a capacity reservation that cannot be parsed"
                    ),
                }
            }
        });
        match asked.await {
            Ok(()) => {}
            // Reservations that do not exist are skipped; the others are queried without them.
            Err(error) if error.is_not_found() => match split(&query, &error) {
                Some(parts) => {
                    let parts = parts.into_iter().map(|part| Box::pin(self.describe(part)));
                    for part in futures::future::join_all(parts).await {
                        found.extend(part?.iter().cloned());
                    }
                }
                None => return Err(error),
            },
            Err(error) => return Err(error),
        }
        let found: Arc<[CapacityReservation]> = found.into();
        self.found.put(query, Arc::clone(&found));
        Ok(found)
    }
}

/// Returns the queries to make instead when one of the IDs does not exist: the other IDs, if the error names it; each
/// ID alone, if the error names none or all of them; no query, if there is only one ID. `None` if the query has no IDs.
fn split(query: &Query, error: &AwsError) -> Option<Vec<Query>> {
    let Query::Ids(ids) = query else {
        return None;
    };
    if ids.len() == 1 {
        return Some(Vec::new());
    }
    let words: BTreeSet<&str> = error
        .message
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
        .collect();
    let rest = ids.iter().filter(|id| !words.contains(id.as_str()));
    let rest: Vec<String> = rest.cloned().collect();
    Some(if rest.is_empty() || rest.len() == ids.len() {
        let each = ids.iter().cloned();
        each.map(|id| Query::Ids(vec![id])).collect()
    } else {
        vec![Query::Ids(rest)]
    })
}

/// Returns the state of a reservation: only capacity blocks expire.
fn state(reservation: &CapacityReservation, now: Timestamp) -> ReservationState {
    let ends_soon = reservation
        .end_time
        .as_ref()
        .is_some_and(|end| end.0.duration_since(now) <= EXPIRY_MARGIN);
    if reservation.reservation_type == ReservationType::CapacityBlock && ends_soon {
        ReservationState::Expiring
    } else {
        ReservationState::Active
    }
}

fn read(raw: &ec2::CapacityReservation) -> Option<(CapacityReservation, u32)> {
    let end_time = match raw.end_date() {
        Some(end) => Some(Time(
            Timestamp::new(end.secs(), end.subsec_nanos().cast_signed()).ok()?,
        )),
        None => None,
    };
    let block = raw.reservation_type() == Some(&ec2::CapacityReservationType::CapacityBlock);
    let reservation = CapacityReservation {
        availability_zone: raw.availability_zone()?.to_owned(),
        end_time,
        id: raw.capacity_reservation_id()?.to_owned(),
        instance_match_criteria: raw.instance_match_criteria()?.as_str().to_owned(),
        instance_type: raw.instance_type()?.to_owned(),
        owner_id: raw.owner_id()?.to_owned(),
        reservation_type: if block {
            ReservationType::CapacityBlock
        } else {
            ReservationType::Default
        },
        interruptible: raw.interruptible().unwrap_or(false),
        state: ReservationState::Active,
    };
    let left = u32::try_from(raw.available_instance_count().unwrap_or(0)).unwrap_or(0);
    Some((reservation, left))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw() -> ec2::builders::CapacityReservationBuilder {
        ec2::CapacityReservation::builder()
            .capacity_reservation_id("cr-1")
            .availability_zone("us-west-2a")
            .instance_match_criteria(ec2::InstanceMatchCriteria::Open)
            .instance_type("m5.large")
            .owner_id("123456789012")
            .available_instance_count(3)
    }

    /// Conformance: AWS-cr-02
    #[test]
    fn a_reservation_is_not_interruptible_by_default() {
        assert!(!read(&raw().build()).unwrap().0.interruptible);
        assert!(
            read(&raw().interruptible(true).build())
                .unwrap()
                .0
                .interruptible
        );
        let nameless = ec2::CapacityReservation::builder().build();
        assert!(read(&nameless).is_none());
    }

    /// Conformance: AWS-cr-07
    #[test]
    fn only_blocks_expire() {
        let now = Timestamp::UNIX_EPOCH;
        let mut reservation = read(&raw().build()).unwrap().0;
        reservation.end_time = Some(Time(now + SignedDuration::from_mins(39)));
        assert_eq!(state(&reservation, now), ReservationState::Active);
        reservation.reservation_type = ReservationType::CapacityBlock;
        assert_eq!(state(&reservation, now), ReservationState::Expiring);
        reservation.end_time = Some(Time(now + SignedDuration::from_mins(41)));
        assert_eq!(state(&reservation, now), ReservationState::Active);
    }

    /// Conformance: AWS-cr-06
    #[test]
    fn launches_and_terminations_are_counted_on_top_of_what_ec2_reports() {
        let counts = ReservationCounts::default();
        counts.launched("cr-1");
        assert_eq!(counts.left("cr-1"), 0, "unknown");
        counts.set_reported("cr-1", 1);
        counts.launched("cr-1");
        counts.launched("cr-1");
        assert_eq!(counts.left("cr-1"), 0, "not below zero");
        counts.terminated("cr-1");
        assert_eq!(counts.left("cr-1"), 1);
        counts.exhausted("cr-1");
        assert_eq!(counts.left("cr-1"), 0);
    }
}
