//! Capacity reservations of a node class, and how many machines are left in them.
//!
//! EC2 tells the number with a delay; launches and terminations are counted on top of it.
//!
//! UPSTREAM: pkg/providers/capacityreservation/provider.go, pkg/cache/capacityreservation

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_sdk_ec2::types as ec2;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::{
    CapacityReservation, CapacityReservationSelectorTerm, ReservationState, ReservationType,
};
use crate::sdk::pages::each_page;
use crate::sdk::terms::{Remembered, tag_filters};
use crate::sdk::{Aws, AwsError};

const REFRESH: Duration = Duration::from_secs(60);
const PAGE: i32 = 1000;
/// A capacity block is about to end that long before its end: EC2 takes its machines half an hour before.
const EXPIRING: SignedDuration = SignedDuration::from_mins(40);

/// One question to EC2.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Question {
    Ids(Vec<String>),
    Filters(BTreeMap<String, String>, Option<String>, Option<String>),
}

/// Machines left in reservations. Cheap to clone; clones agree.
#[derive(Clone, Debug, Default)]
pub struct ReservationCounts(Arc<Mutex<HashMap<String, u32>>>);

impl ReservationCounts {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Machines left; none if the reservation is not known.
    pub fn left(&self, id: &str) -> u32 {
        self.lock().get(id).copied().unwrap_or(0)
    }

    /// EC2 told the number.
    pub fn told(&self, id: &str, left: u32) {
        self.lock().insert(id.to_owned(), left);
    }

    /// A machine was launched.
    pub fn launched(&self, id: &str) {
        if let Some(left) = self.lock().get_mut(id) {
            *left = left.saturating_sub(1);
        }
    }

    /// A machine is gone.
    pub fn terminated(&self, id: &str) {
        if let Some(left) = self.lock().get_mut(id) {
            *left = left.saturating_add(1);
        }
    }

    /// There is nothing left, whatever EC2 told.
    pub fn exhausted(&self, id: &str) {
        self.lock().insert(id.to_owned(), 0);
    }
}

/// The capacity reservations of node classes.
#[derive(Clone, Debug)]
pub struct Reservations {
    aws: Aws,
    found: Arc<Remembered<Question, Arc<[CapacityReservation]>>>,
    counts: ReservationCounts,
}

impl Reservations {
    /// Reservations that are asked for anew every minute.
    #[must_use]
    pub fn new(aws: Aws, counts: ReservationCounts) -> Self {
        Self {
            aws,
            found: Arc::new(Remembered::for_(REFRESH)),
            counts,
        }
    }

    /// Machines left in them.
    #[must_use]
    pub fn counts(&self) -> &ReservationCounts {
        &self.counts
    }

    /// The reservations these terms select that have not ended, ordered by id.
    ///
    /// # Errors
    /// When EC2 cannot be asked.
    pub async fn list(
        &self,
        terms: &[CapacityReservationSelectorTerm],
        now: Timestamp,
    ) -> Result<Vec<CapacityReservation>, AwsError> {
        let mut ids: Vec<String> = terms.iter().filter_map(|t| t.id.clone()).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut questions: Vec<Question> = terms
            .iter()
            .filter(|t| t.id.is_none())
            .map(|t| {
                let tags = t.tags.clone().unwrap_or_default();
                Question::Filters(tags, t.owner_id.clone(), t.instance_match_criteria.clone())
            })
            .collect();
        if !ids.is_empty() {
            questions.push(Question::Ids(ids));
        }
        let answers = questions.into_iter().map(|question| self.ask(question));
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

    async fn ask(&self, question: Question) -> Result<Arc<[CapacityReservation]>, AwsError> {
        if let Some(found) = self.found.get(&question) {
            return Ok(found);
        }
        let mut filters = vec![crate::instances::filter("state", ["active"])];
        let (ids, page) =
            match &question {
                Question::Ids(ids) => (Some(ids.clone()), None),
                Question::Filters(tags, owner, criteria) => {
                    filters.extend(tag_filters(tags));
                    filters.extend(
                        owner
                            .iter()
                            .map(|o| crate::instances::filter("owner-id", [o.as_str()])),
                    );
                    filters.extend(criteria.iter().map(|c| {
                        crate::instances::filter("instance-match-criteria", [c.as_str()])
                    }));
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
                        self.counts.told(&reservation.id, left);
                        found.push(reservation);
                    }
                    None => tracing::error!(
                        logger = "nodeclass",
                        "capacity-reservation" = raw.capacity_reservation_id(),
                        "skipped a capacity reservation that could not be read"
                    ),
                }
            }
        });
        match asked.await {
            Ok(()) => {}
            // One that is gone is as good as one that was never there; the others are asked for without it.
            Err(error) if error.is_not_found() => match apart(&question, &error) {
                Some(parts) => {
                    let parts = parts.into_iter().map(|part| Box::pin(self.ask(part)));
                    for part in futures::future::join_all(parts).await {
                        found.extend(part?.iter().cloned());
                    }
                }
                None => return Err(error),
            },
            Err(error) => return Err(error),
        }
        let found: Arc<[CapacityReservation]> = found.into();
        self.found.put(question, Arc::clone(&found));
        Ok(found)
    }
}

/// What to ask instead when one of the ids does not exist: the others, if the error names it; each alone, if it names none or
/// all, as an answer to several says nothing about any one of them; nothing, if there is one only. None if there are no ids.
fn apart(question: &Question, error: &AwsError) -> Option<Vec<Question>> {
    let Question::Ids(ids) = question else {
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
        each.map(|id| Question::Ids(vec![id])).collect()
    } else {
        vec![Question::Ids(rest)]
    })
}

/// Whether a reservation is about to end: only blocks do.
fn state(reservation: &CapacityReservation, now: Timestamp) -> ReservationState {
    let ends_soon = reservation
        .end_time
        .as_ref()
        .is_some_and(|end| end.0.duration_since(now) <= EXPIRING);
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
    fn a_reservation_that_does_not_say_is_not_interruptible() {
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

    #[test]
    fn launches_and_terminations_are_counted_on_top_of_what_ec2_told() {
        let counts = ReservationCounts::default();
        counts.launched("cr-1");
        assert_eq!(counts.left("cr-1"), 0, "unknown");
        counts.told("cr-1", 1);
        counts.launched("cr-1");
        counts.launched("cr-1");
        assert_eq!(counts.left("cr-1"), 0, "not below zero");
        counts.terminated("cr-1");
        assert_eq!(counts.left("cr-1"), 1);
        counts.exhausted("cr-1");
        assert_eq!(counts.left("cr-1"), 0);
    }
}
