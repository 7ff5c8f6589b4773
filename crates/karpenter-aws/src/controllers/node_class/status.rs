//! The resources that AWS returned for a node class, and the conditions in its status.
//!
//! A failed call does not change a condition that is True for the current spec: the last result is still the best
//! available. Otherwise the condition has the error of AWS as a message that does not vary between calls.
//!
//! UPSTREAM: pkg/controllers/nodeclass/{ami,capacityreservation,placementgroup,subnet,securitygroup,instanceprofile}.go

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use karpenter_api::conditions::{HasConditions, Status};

use super::outcome::Outcome;
use super::profile;
use crate::api::{
    Ami, CapacityReservation, EC2NodeClass, SecurityGroup, Subnet, condition_types as types,
};
use crate::context::AwsContext;
use crate::providers::image::ImagesError;
use crate::providers::instance_type::PlacementGroup;
use crate::providers::placement_group::LookupFailed;
use crate::sdk::AwsError;

const MINUTE: Duration = Duration::from_secs(60);
const FIVE_MINUTES: Duration = Duration::from_secs(5 * 60);

/// Results of the calls to AWS.
pub(super) struct Lookups {
    amis: Result<Arc<[Ami]>, ImagesError>,
    /// `None` if the feature gate ReservedCapacity is off.
    reservations: Option<Result<Vec<CapacityReservation>, AwsError>>,
    group: Result<Option<PlacementGroup>, LookupFailed>,
    subnets: Result<Arc<[Subnet]>, AwsError>,
    security_groups: Result<Arc<[SecurityGroup]>, AwsError>,
    profile: Result<String, AwsError>,
}

/// A class whose status is being updated.
pub(super) struct StatusUpdate<'a> {
    pub(super) class: &'a mut EC2NodeClass,
    pub(super) now: Timestamp,
}

impl StatusUpdate<'_> {
    fn set_true(&mut self, condition: &str) {
        self.class.set_true(condition, self.now);
    }

    pub(super) fn set_false(&mut self, condition: &str, reason: &str, message: &str) {
        self.class.set_false(condition, reason, message, self.now);
    }

    /// Sets the condition to the error of a call, unless the condition is True for the current spec.
    pub(super) fn set_error(&mut self, condition: &str, reason: &str, error: &AwsError) {
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

impl Lookups {
    /// Makes all calls concurrently.
    pub(super) async fn request(aws: &AwsContext, class: &EC2NodeClass, now: Timestamp) -> Self {
        let spec = &class.spec;
        let reservations = async {
            if !aws.settings.reserved_capacity {
                return None;
            }
            let terms = &spec.capacity_reservation_selector_terms;
            Some(aws.reservations.list(terms, now).await)
        };
        let group = async {
            match &spec.placement_group_selector {
                Some(selector) => aws.placement_groups.get(selector).await,
                None => Ok(None),
            }
        };
        let (amis, reservations, group, subnets, security_groups, profile) = futures::join!(
            aws.images.list(class, now),
            reservations,
            group,
            aws.subnets.list(class),
            aws.security_groups.list(class),
            profile::ensure(aws, class),
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

    /// Writes the results into the status.
    pub(super) fn write(self, update: &mut StatusUpdate<'_>, outcome: &mut Outcome) {
        amis(update, self.amis, outcome);
        reservations(update, self.reservations, outcome);
        placement_group(update, self.group, outcome);
        subnets(update, self.subnets, outcome);
        security_groups(update, self.security_groups, outcome);
        instance_profile(update, self.profile, outcome);
    }
}

fn amis(
    update: &mut StatusUpdate<'_>,
    found: Result<Arc<[Ami]>, ImagesError>,
    outcome: &mut Outcome,
) {
    match found {
        Ok(amis) if amis.is_empty() => {
            update.class.status.amis.clear();
            let message = "AMISelector did not match any AMIs: change spec.amiSelectorTerms, or share the images with this account and region";
            update.set_false(types::AMIS_READY, "AMINotFound", message);
            outcome.requeue(MINUTE);
        }
        Ok(amis) => {
            if *update.class.status.amis != *amis {
                tracing::debug!(
                    logger = "nodeclass",
                    EC2NodeClass = update.class.metadata.name,
                    ids = joined(amis.iter().map(|a| &a.id)),
                    "discovered amis"
                );
            }
            update.class.status.amis = amis.to_vec();
            update.set_true(types::AMIS_READY);
            outcome.requeue(FIVE_MINUTES);
        }
        Err(ImagesError::Aws(error)) => {
            update.set_error(types::AMIS_READY, "AMIResolutionFailed", &error);
            outcome.failed("getting amis", error);
        }
        // A retry helps only after a change of the alias or an upgrade of the cluster.
        Err(error) => {
            let (reason, again) = match error {
                ImagesError::Unpublished { .. } => ("AMINotFound", MINUTE),
                _ => ("UnsupportedAlias", FIVE_MINUTES),
            };
            update.class.status.amis.clear();
            update.set_false(types::AMIS_READY, reason, &error.to_string());
            outcome.requeue(again);
        }
    }
}

fn reservations(
    update: &mut StatusUpdate<'_>,
    found: Option<Result<Vec<CapacityReservation>, AwsError>>,
    outcome: &mut Outcome,
) {
    match found {
        None => {
            update.class.status.capacity_reservations.clear();
            update.set_true(types::CAPACITY_RESERVATIONS_READY);
        }
        Some(Ok(reservations)) => {
            let ends = reservations.iter().filter_map(|r| r.end_time.as_ref());
            let soonest = ends
                .filter_map(|end| Duration::try_from(end.0.duration_since(update.now)).ok())
                .min();
            outcome.requeue(MINUTE.min(soonest.unwrap_or(MINUTE)));
            let ids = joined(reservations.iter().map(|r| &r.id));
            let known = &update.class.status.capacity_reservations;
            if ids != joined(known.iter().map(|r| &r.id)) {
                tracing::debug!(
                    logger = "nodeclass",
                    EC2NodeClass = update.class.metadata.name,
                    ids,
                    "discovered capacity reservations"
                );
            }
            update.class.status.capacity_reservations = reservations;
            update.set_true(types::CAPACITY_RESERVATIONS_READY);
        }
        Some(Err(error)) => {
            let reason = "CapacityReservationResolutionFailed";
            update.set_error(types::CAPACITY_RESERVATIONS_READY, reason, &error);
            outcome.failed("getting capacity reservations", error);
        }
    }
}

fn placement_group(
    update: &mut StatusUpdate<'_>,
    found: Result<Option<PlacementGroup>, LookupFailed>,
    outcome: &mut Outcome,
) {
    let condition = types::PLACEMENT_GROUP_READY;
    let Some(selector) = &update.class.spec.placement_group_selector else {
        update.set_true(condition);
        return;
    };
    let wanted = selector.name.as_ref().or(selector.id.as_ref());
    let wanted = wanted.cloned().unwrap_or_default();
    match found {
        Ok(Some(group)) => {
            if !update.class.is_true(condition) {
                tracing::debug!(
                    logger = "nodeclass",
                    EC2NodeClass = update.class.metadata.name,
                    id = group.id,
                    name = group.name,
                    strategy = group.strategy,
                    "discovered placement group"
                );
            }
            update.set_true(condition);
        }
        Ok(None) => {
            let message = format!(
                "Placement group \"{wanted}\" not found: create it, or change spec.placementGroupSelector"
            );
            update.set_false(condition, "PlacementGroupNotFound", &message);
            outcome.requeue(MINUTE);
        }
        Err(unanswered) => {
            let reason = "PlacementGroupResolutionFailed";
            update.set_error(condition, reason, &unanswered.error);
            outcome.failed("resolving placement group", unanswered.error);
        }
    }
}

fn subnets(
    update: &mut StatusUpdate<'_>,
    found: Result<Arc<[Subnet]>, AwsError>,
    outcome: &mut Outcome,
) {
    match found {
        Ok(subnets) if subnets.is_empty() => {
            update.class.status.subnets.clear();
            let message = "SubnetSelector did not match any Subnets: change spec.subnetSelectorTerms, or tag the subnets of the cluster's VPC as they say";
            update.set_false(types::SUBNETS_READY, "SubnetsNotFound", message);
            outcome.requeue(MINUTE);
        }
        Ok(subnets) => {
            let ids = joined(subnets.iter().map(|s| &s.id));
            if ids != joined(update.class.status.subnets.iter().map(|s| &s.id)) {
                tracing::debug!(
                    logger = "nodeclass",
                    EC2NodeClass = update.class.metadata.name,
                    subnets = ids,
                    "discovered subnets"
                );
            }
            update.class.status.subnets = subnets.to_vec();
            update.set_true(types::SUBNETS_READY);
            outcome.requeue(MINUTE);
        }
        Err(error) => {
            update.set_error(types::SUBNETS_READY, "SubnetResolutionFailed", &error);
            outcome.failed("getting subnets", error);
        }
    }
}

fn security_groups(
    update: &mut StatusUpdate<'_>,
    found: Result<Arc<[SecurityGroup]>, AwsError>,
    outcome: &mut Outcome,
) {
    match found {
        Ok(groups) if groups.is_empty() => {
            update.class.status.security_groups.clear();
            let message = "SecurityGroupSelector did not match any SecurityGroups: change spec.securityGroupSelectorTerms, or tag the groups of the cluster's VPC as they say";
            update.set_false(
                types::SECURITY_GROUPS_READY,
                "SecurityGroupsNotFound",
                message,
            );
            outcome.requeue(MINUTE);
        }
        Ok(groups) => {
            let ids = joined(groups.iter().map(|g| &g.id));
            if ids != joined(update.class.status.security_groups.iter().map(|g| &g.id)) {
                tracing::debug!(
                    logger = "nodeclass",
                    EC2NodeClass = update.class.metadata.name,
                    "security-groups" = ids,
                    "discovered security groups"
                );
            }
            update.class.status.security_groups = groups.to_vec();
            update.set_true(types::SECURITY_GROUPS_READY);
            outcome.requeue(FIVE_MINUTES);
        }
        Err(error) => {
            let reason = "SecurityGroupResolutionFailed";
            update.set_error(types::SECURITY_GROUPS_READY, reason, &error);
            outcome.failed("getting security groups", error);
        }
    }
}

fn instance_profile(
    update: &mut StatusUpdate<'_>,
    found: Result<String, AwsError>,
    outcome: &mut Outcome,
) {
    match found {
        Ok(name) => {
            update.class.status.instance_profile = Some(name);
            update.set_true(types::INSTANCE_PROFILE_READY);
        }
        Err(error) => {
            let reason = "InstanceProfileResolutionFailed";
            update.set_error(types::INSTANCE_PROFILE_READY, reason, &error);
            outcome.failed("getting instance profile", error);
        }
    }
}

/// Joins IDs, sorted, so that the same ones are the same text.
fn joined<'a>(ids: impl IntoIterator<Item = &'a String>) -> String {
    let mut ids: Vec<&str> = ids.into_iter().map(String::as_str).collect();
    ids.sort_unstable();
    ids.join(", ")
}

#[cfg(test)]
mod tests {
    use karpenter_kube::controller::Next;
    use serde_json::json;

    use super::*;
    use crate::api::Alias;
    use crate::logged::logged;

    fn class() -> EC2NodeClass {
        serde_json::from_value(json!({
            "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass",
            "metadata": { "name": "default" },
            "spec": { "subnetSelectorTerms": [], "securityGroupSelectorTerms": [], "amiSelectorTerms": [],
                "placementGroupSelector": { "name": "racks" } },
        }))
        .unwrap()
    }

    /// Returns when a class is reconciled again (none: with back-off), and the reason of a condition.
    fn observed(
        condition: &str,
        reconcile: impl FnOnce(&mut StatusUpdate<'_>, &mut Outcome),
    ) -> (Option<u64>, String) {
        let mut class = class();
        let mut outcome = Outcome::default();
        let now = Timestamp::UNIX_EPOCH;
        reconcile(
            &mut StatusUpdate {
                class: &mut class,
                now,
            },
            &mut outcome,
        );
        let reason = class.condition(condition).unwrap().reason.clone();
        match outcome.finish() {
            Ok(Next::After(again)) => (Some(again.as_secs()), reason),
            Ok(Next::Wait) => (Some(u64::MAX), reason),
            Err(_) => (None, reason),
        }
    }

    /// Conformance: AWS-nodeclass-15
    #[test]
    fn each_result_sets_its_requeue_interval() {
        let alias: Alias = Alias::parse("al2@latest").unwrap();
        let unsupported = alias.check_supported("1.33").unwrap_err();
        let refused = || AwsError::refused("Describe", "UnauthorizedOperation", "no");
        let one_ami = || Arc::from([Ami::default()]);
        for (found, expected) in [
            (Ok(one_ami()), (Some(300), "AMIsReady")),
            (Ok(Arc::from([])), (Some(60), "AMINotFound")),
            (
                Err(ImagesError::Unsupported(unsupported)),
                (Some(300), "UnsupportedAlias"),
            ),
            (
                Err(ImagesError::Aws(refused())),
                (None, "AMIResolutionFailed"),
            ),
        ] {
            let (again, reason) = observed("AMIsReady", |seen, outcome| amis(seen, found, outcome));
            assert_eq!((again, reason.as_str()), expected);
        }
        let ending = |after: Option<i64>| -> CapacityReservation {
            let end = after.map(|s| Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_secs(s));
            serde_json::from_value(json!({
                "id": "cr-1", "availabilityZone": "a", "instanceMatchCriteria": "open",
                "instanceType": "m5.large", "ownerID": "123456789012", "endTime": end,
            }))
            .unwrap()
        };
        let ready = "CapacityReservationsReady";
        for (found, expected) in [
            (Ok(vec![]), (Some(60), ready)),
            (
                Ok(vec![ending(None), ending(Some(3600))]),
                (Some(60), ready),
            ),
            (
                Ok(vec![ending(Some(40)), ending(Some(20))]),
                (Some(20), ready),
            ),
            (
                Err(refused()),
                (None, "CapacityReservationResolutionFailed"),
            ),
        ] {
            let (again, reason) = observed(ready, |seen, outcome| {
                reservations(seen, Some(found), outcome);
            });
            assert_eq!((again, reason.as_str()), expected);
        }
        let unanswered = LookupFailed {
            last: None,
            error: refused(),
        };
        for (found, expected) in [
            (Ok(None), (Some(60), "PlacementGroupNotFound")),
            (Err(unanswered), (None, "PlacementGroupResolutionFailed")),
        ] {
            let (again, reason) = observed("PlacementGroupReady", |seen, outcome| {
                placement_group(seen, found, outcome);
            });
            assert_eq!((again, reason.as_str()), expected);
        }
        let one: Arc<[Subnet]> = Arc::from([Subnet::default()]);
        for (found, expected) in [
            (Ok(one), (Some(60), "SubnetsReady")),
            (Ok(Arc::from([])), (Some(60), "SubnetsNotFound")),
            (Err(refused()), (None, "SubnetResolutionFailed")),
        ] {
            let (again, reason) = observed("SubnetsReady", |seen, outcome| {
                subnets(seen, found, outcome);
            });
            assert_eq!((again, reason.as_str()), expected);
        }
        let one: Arc<[SecurityGroup]> = Arc::from([SecurityGroup::default()]);
        for (found, expected) in [
            (Ok(one), (Some(300), "SecurityGroupsReady")),
            (Ok(Arc::from([])), (Some(60), "SecurityGroupsNotFound")),
            (Err(refused()), (None, "SecurityGroupResolutionFailed")),
        ] {
            let (again, reason) = observed("SecurityGroupsReady", |seen, outcome| {
                security_groups(seen, found, outcome);
            });
            assert_eq!((again, reason.as_str()), expected);
        }
    }

    /// Conformance: AWS-nodeclass-12
    #[test]
    fn a_class_is_ready_when_all_it_needs_is() {
        let needed = [
            "AMIsReady",
            "SubnetsReady",
            "SecurityGroupsReady",
            "InstanceProfileReady",
            "ValidationSucceeded",
            "PlacementGroupReady",
        ];
        let now = Timestamp::UNIX_EPOCH;
        let mut ready = class();
        ready.set_true("CapacityReservationsReady", now);
        for condition in needed {
            assert!(!ready.is_true("Ready"), "{condition} is missing");
            ready.set_true(condition, now);
        }
        assert!(ready.is_true("Ready"));
        for condition in needed {
            let mut class = ready.clone();
            class.set_false(condition, "Reason", "", now);
            assert!(class.is_false("Ready"), "{condition}");
        }
    }

    #[test]
    fn resources_are_logged_when_they_are_discovered_or_change() {
        let subnet: Subnet =
            serde_json::from_value(json!({ "id": "subnet-1", "zone": "a" })).unwrap();
        let security_group: SecurityGroup =
            serde_json::from_value(json!({ "id": "sg-1", "name": "node" })).unwrap();
        let mut reservation: CapacityReservation = serde_json::from_value(json!({
            "id": "cr-1", "availabilityZone": "a", "instanceMatchCriteria": "open",
            "instanceType": "m5.large", "ownerID": "123456789012",
        }))
        .unwrap();
        let group = PlacementGroup {
            id: "pg-1".into(),
            name: "racks".into(),
            strategy: "spread".into(),
            partitions: 0,
        };
        let mut class = class();
        let now = Timestamp::UNIX_EPOCH;
        let mut outcome = Outcome::default();
        let lines = logged(|| {
            for end in [None, Some(Timestamp::MAX)] {
                let update = &mut StatusUpdate {
                    class: &mut class,
                    now,
                };
                subnets(update, Ok([subnet.clone()].into()), &mut outcome);
                security_groups(update, Ok([security_group.clone()].into()), &mut outcome);
                // A reservation with another end or count is not another reservation.
                reservation.end_time =
                    end.map(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time);
                reservations(update, Some(Ok(vec![reservation.clone()])), &mut outcome);
                placement_group(update, Ok(Some(group.clone())), &mut outcome);
            }
        });
        let expected = [
            ("discovered subnets", "subnets=\"subnet-1\""),
            ("discovered security groups", "security-groups=\"sg-1\""),
            ("discovered capacity reservations", "ids=\"cr-1\""),
            ("discovered placement group", "strategy=\"spread\""),
        ];
        assert_eq!(lines.len(), expected.len(), "{lines:?}");
        for (line, (message, field)) in lines.iter().zip(expected) {
            assert!(line.contains(message) && line.contains(field), "{line}");
        }
    }
}
