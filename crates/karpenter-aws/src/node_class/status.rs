//! What AWS found for a node class, and what the status says of it.
//!
//! A call that fails takes back no condition that holds for the present spec: what was found last is still the best there is.
//! Otherwise the condition says what AWS said, in words that are the same each time.
//!
//! UPSTREAM: pkg/controllers/nodeclass/{ami,capacityreservation,placementgroup,subnet,securitygroup,instanceprofile}.go

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use karpenter_api::conditions::{HasConditions, Status};

use super::controller::Outcome;
use super::profile;
use crate::api::condition_types as types;
use crate::api::{Ami, CapacityReservation, EC2NodeClass, SecurityGroup, Subnet};
use crate::images::ImagesError;
use crate::instance_types::PlacementGroup;
use crate::operator::Parts;
use crate::placement_groups::Unanswered;
use crate::sdk::AwsError;

const MINUTE: Duration = Duration::from_secs(60);
const FIVE_MINUTES: Duration = Duration::from_secs(5 * 60);

/// What AWS answered.
pub(super) struct Found {
    amis: Result<Arc<[Ami]>, ImagesError>,
    /// None with the gate ReservedCapacity off.
    reservations: Option<Result<Vec<CapacityReservation>, AwsError>>,
    group: Result<Option<PlacementGroup>, Unanswered>,
    subnets: Result<Arc<[Subnet]>, AwsError>,
    security_groups: Result<Arc<[SecurityGroup]>, AwsError>,
    profile: Result<String, AwsError>,
}

/// A class whose status is being written.
pub(super) struct Seen<'a> {
    pub(super) class: &'a mut EC2NodeClass,
    pub(super) now: Timestamp,
}

impl Seen<'_> {
    fn holds(&mut self, condition: &str) {
        self.class.set_true(condition, self.now);
    }

    pub(super) fn fails(&mut self, condition: &str, reason: &str, message: &str) {
        self.class.set_false(condition, reason, message, self.now);
    }

    /// Says why something is not known, unless it is known from before.
    pub(super) fn unknown(&mut self, condition: &str, reason: &str, error: &AwsError) {
        let known = self.class.condition(condition).is_some_and(|c| {
            Status::of(c) == Status::True && c.observed_generation == self.class.metadata.generation
        });
        if known {
            return;
        }
        let status = if error.is_refusal() {
            Status::False
        } else {
            Status::Unknown
        };
        self.class
            .set_condition(condition, status, reason, &error.sentence(), self.now);
    }
}

impl Found {
    /// Asks everything at once.
    pub(super) async fn ask(parts: &Parts, class: &EC2NodeClass, now: Timestamp) -> Self {
        let spec = &class.spec;
        let reservations = async {
            if !parts.settings.reserved_capacity {
                return None;
            }
            let terms = &spec.capacity_reservation_selector_terms;
            Some(parts.reservations.list(terms, now).await)
        };
        let group = async {
            match &spec.placement_group_selector {
                Some(selector) => parts.placement_groups.get(selector).await,
                None => Ok(None),
            }
        };
        let (amis, reservations, group, subnets, security_groups, profile) = futures::join!(
            parts.images.list(class, now),
            reservations,
            group,
            parts.subnets.list(class),
            parts.security_groups.list(class),
            profile::ensure(parts, class),
        );
        Self {
            amis,
            reservations,
            group,
            subnets,
            security_groups,
            profile,
        }
    }

    /// Writes it into the status.
    pub(super) fn tell(self, seen: &mut Seen<'_>, outcome: &mut Outcome) {
        amis(seen, self.amis, outcome);
        reservations(seen, self.reservations, outcome);
        placement_group(seen, self.group, outcome);
        subnets(seen, self.subnets, outcome);
        security_groups(seen, self.security_groups, outcome);
        instance_profile(seen, self.profile, outcome);
    }
}

fn amis(seen: &mut Seen<'_>, found: Result<Arc<[Ami]>, ImagesError>, outcome: &mut Outcome) {
    match found {
        Ok(amis) if amis.is_empty() => {
            seen.class.status.amis.clear();
            let message = "AMISelector did not match any AMIs: change spec.amiSelectorTerms, or share the images with this account and region";
            seen.fails(types::AMIS_READY, "AMINotFound", message);
            outcome.again(MINUTE);
        }
        Ok(amis) => {
            if *seen.class.status.amis != *amis {
                let ids: Vec<&str> = amis.iter().map(|a| a.id.as_str()).collect();
                discovered(seen.class, "amis", &ids);
            }
            seen.class.status.amis = amis.to_vec();
            seen.holds(types::AMIS_READY);
            outcome.again(FIVE_MINUTES);
        }
        Err(ImagesError::Aws(error)) => {
            seen.unknown(types::AMIS_READY, "AMIResolutionFailed", &error);
            outcome.failed("getting amis", error);
        }
        // Nothing helps but another alias, or another version of the cluster.
        Err(error) => {
            let (reason, again) = match error {
                ImagesError::Unpublished { .. } => ("AMINotFound", MINUTE),
                _ => ("UnsupportedAlias", FIVE_MINUTES),
            };
            seen.class.status.amis.clear();
            seen.fails(types::AMIS_READY, reason, &error.to_string());
            outcome.again(again);
        }
    }
}

fn reservations(
    seen: &mut Seen<'_>,
    found: Option<Result<Vec<CapacityReservation>, AwsError>>,
    outcome: &mut Outcome,
) {
    match found {
        None => {
            seen.class.status.capacity_reservations.clear();
            seen.holds(types::CAPACITY_RESERVATIONS_READY);
        }
        Some(Ok(reservations)) => {
            let ends = reservations.iter().filter_map(|r| r.end_time.as_ref());
            let soonest = ends
                .filter_map(|end| Duration::try_from(end.0.duration_since(seen.now)).ok())
                .min();
            outcome.again(MINUTE.min(soonest.unwrap_or(MINUTE)));
            seen.class.status.capacity_reservations = reservations;
            seen.holds(types::CAPACITY_RESERVATIONS_READY);
        }
        Some(Err(error)) => {
            let reason = "CapacityReservationResolutionFailed";
            seen.unknown(types::CAPACITY_RESERVATIONS_READY, reason, &error);
            outcome.failed("getting capacity reservations", error);
        }
    }
}

fn placement_group(
    seen: &mut Seen<'_>,
    found: Result<Option<PlacementGroup>, Unanswered>,
    outcome: &mut Outcome,
) {
    let condition = types::PLACEMENT_GROUP_READY;
    let Some(selector) = &seen.class.spec.placement_group_selector else {
        seen.holds(condition);
        return;
    };
    let wanted = selector.name.as_ref().or(selector.id.as_ref());
    let wanted = wanted.cloned().unwrap_or_default();
    match found {
        Ok(Some(_)) => seen.holds(condition),
        Ok(None) => {
            let message = format!(
                "Placement group \"{wanted}\" not found: create it, or change spec.placementGroupSelector"
            );
            seen.fails(condition, "PlacementGroupNotFound", &message);
            outcome.again(MINUTE);
        }
        Err(unanswered) => {
            let reason = "PlacementGroupResolutionFailed";
            seen.unknown(condition, reason, &unanswered.error);
            outcome.failed("resolving placement group", unanswered.error);
        }
    }
}

fn subnets(seen: &mut Seen<'_>, found: Result<Arc<[Subnet]>, AwsError>, outcome: &mut Outcome) {
    match found {
        Ok(subnets) if subnets.is_empty() => {
            seen.class.status.subnets.clear();
            let message = "SubnetSelector did not match any Subnets: change spec.subnetSelectorTerms, or tag the subnets of the cluster's VPC as they say";
            seen.fails(types::SUBNETS_READY, "SubnetsNotFound", message);
            outcome.again(MINUTE);
        }
        Ok(subnets) => {
            seen.class.status.subnets = subnets.to_vec();
            seen.holds(types::SUBNETS_READY);
            outcome.again(MINUTE);
        }
        Err(error) => {
            seen.unknown(types::SUBNETS_READY, "SubnetResolutionFailed", &error);
            outcome.failed("getting subnets", error);
        }
    }
}

fn security_groups(
    seen: &mut Seen<'_>,
    found: Result<Arc<[SecurityGroup]>, AwsError>,
    outcome: &mut Outcome,
) {
    match found {
        Ok(groups) if groups.is_empty() => {
            seen.class.status.security_groups.clear();
            let message = "SecurityGroupSelector did not match any SecurityGroups: change spec.securityGroupSelectorTerms, or tag the groups of the cluster's VPC as they say";
            seen.fails(
                types::SECURITY_GROUPS_READY,
                "SecurityGroupsNotFound",
                message,
            );
            outcome.again(MINUTE);
        }
        Ok(groups) => {
            seen.class.status.security_groups = groups.to_vec();
            seen.holds(types::SECURITY_GROUPS_READY);
            outcome.again(FIVE_MINUTES);
        }
        Err(error) => {
            let reason = "SecurityGroupResolutionFailed";
            seen.unknown(types::SECURITY_GROUPS_READY, reason, &error);
            outcome.failed("getting security groups", error);
        }
    }
}

fn instance_profile(seen: &mut Seen<'_>, found: Result<String, AwsError>, outcome: &mut Outcome) {
    match found {
        Ok(name) => {
            seen.class.status.instance_profile = Some(name);
            seen.holds(types::INSTANCE_PROFILE_READY);
        }
        Err(error) => {
            let reason = "InstanceProfileResolutionFailed";
            seen.unknown(types::INSTANCE_PROFILE_READY, reason, &error);
            outcome.failed("getting instance profile", error);
        }
    }
}

fn discovered(class: &EC2NodeClass, what: &str, ids: &[&str]) {
    tracing::debug!(
        logger = "nodeclass",
        EC2NodeClass = class.metadata.name,
        ids = ids.join(", "),
        "discovered {what}"
    );
}
