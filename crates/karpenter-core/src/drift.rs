//! Drift: whether a NodeClaim still matches its NodePool and the provider's instance types.
//!
//! Three checks, cheapest first; the provider has a fourth one (`CloudProvider::is_drifted`).
//!
//! UPSTREAM: pkg/controllers/nodeclaim/disruption/drift.go

use std::time::Duration;

use jiff::Timestamp;
use karpenter_api::conditions::reasons;
use karpenter_api::labels;
use karpenter_api::labels::annotations;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_api::validation::WellKnown;

use crate::instance_type::InstanceType;
use crate::lifecycle::after;
use crate::offering::Offering;
use crate::requirements::{
    AllowUndefined, InvalidRequirement, Operator, Requirement, Requirements,
};

/// Age from which the instance type of a NodeClaim is checked.
const INSTANCE_TYPE_CHECKED_AFTER: Duration = Duration::from_secs(60 * 60);

/// Reports whether a NodeClaim is old enough for [`is_instance_type_gone`]: a type may disappear for a short time.
pub fn is_instance_type_checked(claim: &NodeClaim, now: Timestamp) -> bool {
    let created = claim.metadata.creation_timestamp.as_ref();
    created.is_some_and(|at| after(at.0, INSTANCE_TYPE_CHECKED_AFTER) < now)
}

/// Returns the reason of the condition Drifted by which a NodeClaim no longer matches its NodePool: the static part of the
/// template first, then the requirements.
///
/// # Errors
/// Fails for invalid requirements of the NodePool, which its validation reports, too.
pub fn from_node_pool(
    pool: &NodePool,
    claim: &NodeClaim,
    names: &WellKnown,
) -> Result<Option<&'static str>, InvalidRequirement> {
    if is_static_part_changed(pool, claim) {
        return Ok(Some(reasons::NODE_POOL_DRIFTED));
    }
    let unmet = are_requirements_unmet(pool, claim, names)?;
    Ok(unmet.then_some(reasons::REQUIREMENTS_DRIFTED))
}

/// Reports whether the static part of the NodePool's template changed since the NodeClaim was created. Returns false as long as
/// one of the two hashes is missing, or if their versions differ.
pub fn is_static_part_changed(pool: &NodePool, claim: &NodeClaim) -> bool {
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
/// choice of an instance type, which is already made.
///
/// # Errors
/// Fails for invalid requirements of the NodePool, which its validation reports, too.
pub fn are_requirements_unmet(
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
pub fn is_instance_type_gone(types: &[InstanceType], claim: &NodeClaim, names: &WellKnown) -> bool {
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
    use serde_json::{Value, json};

    use super::*;
    use crate::fake;

    fn pool(annotations: Value, requirements: Value) -> NodePool {
        serde_json::from_value(json!({
            "metadata": { "name": "p", "annotations": annotations },
            "spec": { "template": { "spec": { "nodeClassRef": { "group": "g", "kind": "k", "name": "n" }, "requirements": requirements } } },
        }))
        .unwrap()
    }

    fn claim(annotations: Value, labels: Value) -> NodeClaim {
        let mut claim = NodeClaim::new("c", Default::default());
        claim.metadata.annotations = serde_json::from_value(annotations).unwrap();
        claim.metadata.labels = serde_json::from_value(labels).unwrap();
        claim
    }

    fn hashed(hash: Option<&str>, version: Option<&str>) -> Value {
        let mut map = serde_json::Map::new();
        for (key, value) in [
            (annotations::NODE_POOL_HASH, hash),
            (annotations::NODE_POOL_HASH_VERSION, version),
        ] {
            if let Some(value) = value {
                map.insert(key.to_owned(), value.into());
            }
        }
        Value::Object(map)
    }

    /// Conformance: DIS-060, API-069
    #[test]
    fn the_static_part_drifts_only_when_both_sides_know_hash_and_version() {
        let changed = |pool_says: Value, claim_says: Value| {
            is_static_part_changed(&pool(pool_says, json!([])), &claim(claim_says, json!({})))
        };
        let v3 = |hash| hashed(Some(hash), Some("v3"));
        assert!(changed(v3("1"), v3("2")));
        assert!(!changed(v3("1"), v3("1")));
        assert!(!changed(hashed(None, Some("v3")), v3("2")));
        assert!(!changed(v3("1"), hashed(None, Some("v3"))));
        assert!(!changed(hashed(Some("1"), None), v3("2")));
        assert!(!changed(v3("1"), hashed(Some("2"), None)));
        assert!(!changed(v3("1"), hashed(Some("2"), Some("v2"))));
    }

    /// Conformance: DIS-058, DIS-059
    #[test]
    fn requirements_drift_when_the_labels_no_longer_meet_them() {
        let drifted = |requirements: Value, labels: Value| {
            are_requirements_unmet(
                &pool(json!({}), requirements),
                &claim(json!({}), labels),
                &fake::well_known(),
            )
            .unwrap()
        };
        let labels = json!({ "topology.kubernetes.io/zone": "test-zone-1", "karpenter.sh/capacity-type": "spot", "integer": "4" });
        let one = |key: &str, operator: &str, values: Value| json!([{ "key": key, "operator": operator, "values": values }]);
        let zone = "topology.kubernetes.io/zone";
        assert!(!drifted(
            one(zone, "In", json!(["test-zone-1"])),
            labels.clone()
        ));
        assert!(
            drifted(one(zone, "In", json!(["test-zone-2"])), labels.clone()),
            "narrowed"
        );
        assert!(
            !drifted(
                one(zone, "In", json!(["test-zone-1", "test-zone-2"])),
                labels.clone()
            ),
            "widened"
        );
        assert!(!drifted(one(zone, "Exists", json!([])), labels.clone()));
        assert!(
            drifted(one("team", "In", json!(["a"])), labels.clone()),
            "a key was added"
        );
        assert!(drifted(one("team", "Exists", json!([])), labels.clone()));
        assert!(!drifted(
            one("team", "DoesNotExist", json!([])),
            labels.clone()
        ));
        assert!(drifted(
            one(zone, "DoesNotExist", json!([])),
            labels.clone()
        ));
        assert!(drifted(one("integer", "Gt", json!(["4"])), labels.clone()));
        assert!(!drifted(one("integer", "Gt", json!(["3"])), labels));
    }

    /// Conformance: DIS-202
    #[test]
    fn min_values_make_no_node_drift() {
        let zone = "topology.kubernetes.io/zone";
        let several =
            json!([{ "key": zone, "operator": "In", "values": ["a", "b"], "minValues": 2 }]);
        let drifted = |label: &str| {
            are_requirements_unmet(
                &pool(json!({}), several.clone()),
                &claim(json!({}), json!({ zone: label })),
                &fake::well_known(),
            )
            .unwrap()
        };
        assert_eq!((drifted("a"), drifted("c")), (false, true));
    }

    fn of_type(name: Option<&str>, zone: &str, capacity_type: &str) -> NodeClaim {
        let mut labels = json!({ "topology.kubernetes.io/zone": zone, "karpenter.sh/capacity-type": capacity_type });
        if let Some(name) = name {
            labels["node.kubernetes.io/instance-type"] = name.into();
        }
        claim(json!({}), labels)
    }

    /// Conformance: DIS-062
    #[test]
    fn an_instance_type_is_gone_without_label_type_or_matching_offering() {
        let types = [fake::instance_type("a").build()];
        let gone = |types: &[InstanceType], claim: &NodeClaim| {
            is_instance_type_gone(types, claim, &fake::well_known())
        };
        assert!(!gone(&types, &of_type(Some("a"), "test-zone-1", "spot")));
        assert!(gone(&types, &of_type(None, "test-zone-1", "spot")));
        assert!(gone(&types, &of_type(Some("b"), "test-zone-1", "spot")));
        assert!(
            gone(&types, &of_type(Some("a"), "test-zone-3", "spot")),
            "spot is not offered in that zone"
        );
        let mut unavailable = types.clone();
        unavailable[0]
            .offerings
            .iter_mut()
            .for_each(|offering| offering.available = false);
        assert!(!gone(
            &unavailable,
            &of_type(Some("a"), "test-zone-1", "spot")
        ));
        unavailable[0].offerings.clear();
        assert!(gone(
            &unavailable,
            &of_type(Some("a"), "test-zone-1", "spot")
        ));
    }

    /// Conformance: DIS-061
    #[test]
    fn a_reserved_node_does_not_drift_while_its_type_is_offered_on_demand() {
        let mut reserved = of_type(Some("a"), "test-zone-1", "reserved");
        reserved
            .metadata
            .labels
            .get_or_insert_default()
            .insert(fake::RESERVATION_ID.to_owned(), "r-1".to_owned());
        let gone = |offerings: Vec<Offering>| {
            is_instance_type_gone(
                &[fake::instance_type("a").offerings(offerings).build()],
                &reserved,
                &fake::well_known(),
            )
        };
        let on_demand = || fake::offering("on-demand", "test-zone-1", 1.0);
        assert!(!gone(vec![on_demand()]));
        assert!(
            !gone(vec![
                fake::reserved("r-2", 1, "test-zone-1", 0.1),
                on_demand()
            ]),
            "another reservation"
        );
        assert!(!gone(vec![fake::reserved("r-2", 1, "test-zone-1", 0.1)]));
        assert!(!gone(vec![
            fake::reserved("r-1", 1, "test-zone-2", 0.1),
            on_demand()
        ]));
        assert!(gone(vec![fake::reserved("r-1", 1, "test-zone-2", 0.1)]));
        assert!(gone(vec![fake::offering("spot", "test-zone-1", 1.0)]));
        assert!(gone(vec![fake::offering("on-demand", "test-zone-2", 1.0)]));
        assert!(gone(vec![]));
    }
}
