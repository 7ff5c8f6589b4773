//! Drift: whether a NodeClaim still matches its NodePool and the provider's instance types.
//!
//! Three checks, cheapest first; the provider has a fourth one (`CloudProvider::is_drifted`).
//!
//! UPSTREAM: pkg/controllers/nodeclaim/disruption/drift.go. DIFFERS: a known instance type is checked again after five minutes,
//! not after half an hour: the model has the instance types, the provider is not asked.

use std::time::Duration;

use jiff::Timestamp;
use karpenter_api::conditions::{HasConditions, reasons, types};
use karpenter_api::labels;
use karpenter_api::labels::annotations;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_api::validation::WellKnown;

use crate::cluster::Snapshot;
use crate::instance_type::InstanceType;
use crate::lifecycle::after;
use crate::offering::Offering;
use crate::requirements::{
    AllowUndefined, InvalidRequirement, Operator, Requirement, Requirements,
};

/// Interval between checks of a NodeClaim if nothing changes: the instance types and the provider's answer may.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(5 * 60);

/// Age from which the instance type of a NodeClaim is checked.
const INSTANCE_TYPE_CHECKED_AFTER: Duration = Duration::from_secs(60 * 60);

/// The drift of a NodeClaim as far as the model tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drift {
    /// It has drifted, for this reason of the condition Drifted.
    Drifted(&'static str),
    /// It has not: it is not launched.
    NotDrifted,
    /// `CloudProvider::is_drifted` tells.
    ProviderTells,
}

impl Drift {
    /// Returns the reason if the provider is not asked: what it said last, as the condition has it, still holds.
    pub fn without_provider(self, claim: &NodeClaim) -> Option<&str> {
        let ours = [
            reasons::NODE_POOL_DRIFTED,
            reasons::REQUIREMENTS_DRIFTED,
            reasons::INSTANCE_TYPE_NOT_FOUND,
        ];
        match self {
            Self::Drifted(reason) => Some(reason),
            Self::NotDrifted => None,
            Self::ProviderTells => known_reason(claim).filter(|reason| !ours.contains(reason)),
        }
    }
}

fn known_reason(claim: &NodeClaim) -> Option<&str> {
    let condition = claim.condition(types::DRIFTED);
    let condition = condition.filter(|_| claim.is_true(types::DRIFTED))?;
    Some(&condition.reason)
}

/// Checks a NodeClaim for drift: the first check that finds it counts. While the instance types of its NodePool are unknown, what was
/// known of its own type still holds.
pub fn check(snapshot: &Snapshot, pool: &NodePool, claim: &NodeClaim, now: Timestamp) -> Drift {
    if !claim.is_true(types::LAUNCHED) {
        return Drift::NotDrifted;
    }
    let names = &snapshot.config().well_known;
    if is_static_part_changed(pool, claim) {
        return Drift::Drifted(reasons::NODE_POOL_DRIFTED);
    }
    // The NodePool's validation reports invalid requirements; nodes that exist do not drift because of them.
    if are_requirements_unmet(pool, claim, names).unwrap_or(false) {
        return Drift::Drifted(reasons::REQUIREMENTS_DRIFTED);
    }
    let is_gone = match snapshot.instance_types(pool.name()) {
        Some(Ok(types)) => {
            is_instance_type_checked(claim, now) && is_instance_type_gone(types, claim, names)
        }
        _ => known_reason(claim) == Some(reasons::INSTANCE_TYPE_NOT_FOUND),
    };
    match is_gone {
        true => Drift::Drifted(reasons::INSTANCE_TYPE_NOT_FOUND),
        false => Drift::ProviderTells,
    }
}

/// Reports whether a NodeClaim is old enough for [`is_instance_type_gone`]: a type may disappear for a short time.
fn is_instance_type_checked(claim: &NodeClaim, now: Timestamp) -> bool {
    let created = claim.metadata.creation_timestamp.as_ref();
    created.is_some_and(|at| after(at.0, INSTANCE_TYPE_CHECKED_AFTER) < now)
}

/// Reports whether the static part of the NodePool's template changed since the NodeClaim was created. Returns false as long as
/// one of the two hashes is missing, or if their versions differ.
fn is_static_part_changed(pool: &NodePool, claim: &NodeClaim) -> bool {
    let of_pool = |key: &str| {
        pool.metadata
            .annotations
            .as_ref()?
            .get(key)
            .map(String::as_str)
    };
    let pair = |key: &str| of_pool(key).zip(claim.annotation(key));
    let Some(((theirs, ours), (their_version, our_version))) =
        pair(annotations::NODE_POOL_HASH).zip(pair(annotations::NODE_POOL_HASH_VERSION))
    else {
        return false;
    };
    their_version == our_version && theirs != ours
}

/// Reports whether the NodeClaim's labels no longer meet the NodePool's requirements. `minValues` is ignored: it restricts the
/// choice of an instance type, which is already made. An invalid requirement is an error.
fn are_requirements_unmet(
    pool: &NodePool,
    claim: &NodeClaim,
    names: &WellKnown,
) -> Result<bool, InvalidRequirement> {
    let asked = Requirements::from_api(&pool.spec.template.spec.requirements, names)?;
    let labels = Requirements::from_labels(claim.metadata.labels.iter().flatten(), names);
    Ok(!labels.is_compatible(&asked, AllowUndefined::Nothing))
}

/// Reports whether the provider no longer offers the NodeClaim's instance type, or no offering of it matches the NodeClaim's
/// labels. Availability of the offering is ignored.
///
/// A NodeClaim with a capacity reservation is not drifted as long as its instance type is offered reserved or on demand in its
/// zone: after the end of the reservation the instance continues on demand.
fn is_instance_type_gone(types: &[InstanceType], claim: &NodeClaim, names: &WellKnown) -> bool {
    let Some(instance_type) = claim
        .label(labels::INSTANCE_TYPE)
        .and_then(|name| types.iter().find(|t| t.name == name))
    else {
        return true;
    };
    let mut wanted = Requirements::from_labels(claim.metadata.labels.iter().flatten(), names);
    if claim.label(labels::CAPACITY_TYPE) == Some(labels::CAPACITY_TYPE_RESERVED) {
        // Labels that identify a reservation are those that no other offering has a value for.
        let others: Vec<&Offering> = instance_type
            .offerings
            .iter()
            .filter(|o| o.capacity_type() != Some(labels::CAPACITY_TYPE_RESERVED))
            .collect();
        let of_reservations = |key: &str| {
            let mut required = others.iter().filter_map(|o| o.requirements.get(key));
            key != labels::ZONE && required.all(|r| r.operator() == Operator::DoesNotExist)
        };
        let keys: Vec<String> = wanted.keys().map(str::to_owned).collect();
        for key in keys.iter().filter(|key| of_reservations(key)) {
            wanted.remove(key);
        }
        let admitted = [
            labels::CAPACITY_TYPE_RESERVED,
            labels::CAPACITY_TYPE_ON_DEMAND,
        ];
        wanted.replace(Requirement::new(
            labels::CAPACITY_TYPE,
            Operator::In,
            admitted,
        ));
    }
    !instance_type
        .offerings
        .iter()
        .any(|offering| wanted.intersects(&offering.requirements).is_ok())
}

#[cfg(test)]
mod tests {
    use karpenter_fixtures::{
        CAPACITY_TYPE, INSTANCE_TYPE, Object, Z1, Z2, Z3, ZONE, node_claim, node_pool,
    };

    use super::*;
    use crate::cluster::Cluster;
    use crate::fake;

    /// Adds the annotations with a hash and its version.
    fn hashed<K>(object: Object<K>, hash: Option<&str>, version: Option<&str>) -> Object<K> {
        let marks = [
            (annotations::NODE_POOL_HASH, hash),
            (annotations::NODE_POOL_HASH_VERSION, version),
        ];
        let known = marks
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?)));
        known.fold(object, |object, (key, value)| object.annotation(key, value))
    }

    /// Conformance: DIS-060, API-069
    #[test]
    fn the_static_part_drifts_only_when_both_sides_know_hash_and_version() {
        type Hash = (Option<&'static str>, Option<&'static str>);
        let changed = |pool: Hash, claim: Hash| {
            let pool = hashed(node_pool("p"), pool.0, pool.1);
            let claim = hashed(node_claim("c"), claim.0, claim.1);
            is_static_part_changed(&pool.build(), &claim.build())
        };
        let v3 = |hash| (Some(hash), Some("v3"));
        assert!(changed(v3("1"), v3("2")));
        assert!(!changed(v3("1"), v3("1")));
        assert!(!changed((None, Some("v3")), v3("2")));
        assert!(!changed(v3("1"), (None, Some("v3"))));
        assert!(!changed((Some("1"), None), v3("2")));
        assert!(!changed(v3("1"), (Some("2"), None)));
        assert!(!changed(v3("1"), (Some("2"), Some("v2"))));
    }

    fn is_unmet(pool: Object<NodePool>, claim: Object<NodeClaim>) -> bool {
        are_requirements_unmet(&pool.build(), &claim.build(), &fake::well_known()).unwrap()
    }

    /// Conformance: DIS-058, DIS-059
    #[test]
    fn requirements_drift_when_the_labels_no_longer_meet_them() {
        for (key, operator, values, expected) in [
            (ZONE, "In", &[Z1][..], false),
            (ZONE, "In", &[Z2], true),
            (ZONE, "In", &[Z1, Z2], false),
            (ZONE, "Exists", &[], false),
            (ZONE, "DoesNotExist", &[], true),
            ("team", "In", &["a"], true),
            ("team", "Exists", &[], true),
            ("team", "DoesNotExist", &[], false),
            ("integer", "Gt", &["4"], true),
            ("integer", "Gt", &["3"], false),
        ] {
            let pool = node_pool("p").requires(key, operator, values);
            let claim = of_type("a", Z1, "spot").label("integer", "4");
            assert_eq!(
                is_unmet(pool, claim),
                expected,
                "{key} {operator} {values:?}"
            );
        }
    }

    /// Conformance: DIS-202
    #[test]
    fn min_values_make_no_node_drift() {
        let drifted = |zone: &str| {
            let pool = node_pool("p").requires_min(ZONE, "In", &["a", "b"], 2);
            is_unmet(pool, node_claim("c").label(ZONE, zone))
        };
        assert_eq!((drifted("a"), drifted("c")), (false, true));
    }

    fn of_type(name: &str, zone: &str, capacity_type: &str) -> Object<NodeClaim> {
        let claim = node_claim("c").label(INSTANCE_TYPE, name);
        claim.label(ZONE, zone).label(CAPACITY_TYPE, capacity_type)
    }

    fn is_gone(instance_type: InstanceType, claim: Object<NodeClaim>) -> bool {
        is_instance_type_gone(&[instance_type], &claim.build(), &fake::well_known())
    }

    /// Conformance: DIS-062
    #[test]
    fn an_instance_type_is_gone_without_label_type_or_matching_offering() {
        let offered = || fake::instance_type("a").build();
        let spot = || of_type("a", Z1, "spot");
        assert!(!is_gone(offered(), spot()));
        assert!(is_gone(offered(), spot().without_label(INSTANCE_TYPE)));
        assert!(is_gone(offered(), of_type("b", Z1, "spot")));
        // Spot is not offered in that zone.
        assert!(is_gone(offered(), of_type("a", Z3, "spot")));
        let mut unavailable = offered();
        for offering in &mut unavailable.offerings {
            offering.available = false;
        }
        assert!(!is_gone(unavailable, spot()));
        let nowhere = fake::instance_type("a").offerings(vec![]).build();
        assert!(is_gone(nowhere, spot()));
    }

    /// Conformance: DIS-061
    #[test]
    fn a_reserved_node_does_not_drift_while_its_type_is_offered_on_demand() {
        let reserved = |id, zone| fake::reserved(id, 1, zone, 0.1);
        let offered = |capacity_type, zone| fake::offering(capacity_type, zone, 1.0);
        let on_demand = || offered("on-demand", Z1);
        for (offerings, expected) in [
            (vec![on_demand()], false),
            (vec![reserved("r-2", Z1), on_demand()], false),
            (vec![reserved("r-2", Z1)], false),
            (vec![reserved("r-1", Z2), on_demand()], false),
            (vec![reserved("r-1", Z2)], true),
            (vec![offered("spot", Z1)], true),
            (vec![offered("on-demand", Z2)], true),
            (vec![], true),
        ] {
            let text = format!("{offerings:?}");
            let offered = fake::instance_type("a").offerings(offerings).build();
            let claim = of_type("a", Z1, "reserved").label(fake::RESERVATION_ID, "r-1");
            assert_eq!(is_gone(offered, claim), expected, "{text}");
        }
    }

    /// Conformance: DIS-165
    #[test]
    fn the_first_check_that_finds_drift_counts() {
        let mut cluster = Cluster::new(fake::cluster_config());
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let (young, old) = (at("2026-01-01T01:00:00Z"), at("2026-01-01T01:00:01Z"));
        let claim = of_type("gone", Z1, "spot").created("2026-01-01T00:00:00Z");
        let launched = || claim.clone().is("Launched");
        let stamped = |object| hashed(object, Some("1"), Some("v3"));
        let pool = |zone| {
            hashed(
                node_pool("p").requires(ZONE, "In", &[zone]),
                Some("1"),
                Some("v3"),
            )
        };
        let drift = |cluster: &Cluster, zone, claim: Object<NodeClaim>, now| {
            check(
                &cluster.snapshot(),
                &pool(zone).build(),
                &claim.build(),
                now,
            )
        };
        assert_eq!(drift(&cluster, Z2, claim.clone(), old), Drift::NotDrifted);
        let changed = hashed(launched(), Some("2"), Some("v3"));
        let found = drift(&cluster, Z2, changed, old);
        assert_eq!(found, Drift::Drifted(reasons::NODE_POOL_DRIFTED));
        let found = drift(&cluster, Z2, stamped(launched()), old);
        assert_eq!(found, Drift::Drifted(reasons::REQUIREMENTS_DRIFTED));
        // The instance types are unknown.
        let gone = Drift::Drifted(reasons::INSTANCE_TYPE_NOT_FOUND);
        let known =
            |reason| launched().condition("Drifted", "True", reason, "2026-01-01T00:00:00Z");
        let of = |claim| drift(&cluster, Z1, claim, old);
        assert_eq!(of(launched()), Drift::ProviderTells);
        assert_eq!(of(known("InstanceTypeNotFound")), gone);
        assert_eq!(of(known("AMIDrift")), Drift::ProviderTells);
        cluster.set_instance_types("p", Ok(fake::catalogue()));
        assert_eq!(drift(&cluster, Z1, launched(), young), Drift::ProviderTells);
        assert_eq!(drift(&cluster, Z1, launched(), old), gone);
    }

    #[test]
    fn the_provider_s_last_answer_holds_until_it_is_asked_again() {
        let known = |reason| {
            let claim =
                node_claim("c").condition("Drifted", "True", reason, "2026-01-01T00:00:00Z");
            let claim = claim.build();
            let reason = Drift::ProviderTells.without_provider(&claim);
            reason.map(str::to_owned)
        };
        assert_eq!(known("AMIDrift").as_deref(), Some("AMIDrift"));
        assert_eq!(known("RequirementsDrifted"), None);
        let claim = node_claim("c").build();
        assert_eq!(Drift::ProviderTells.without_provider(&claim), None);
    }
}
