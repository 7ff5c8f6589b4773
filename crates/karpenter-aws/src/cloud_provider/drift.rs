//! Drift between an instance and its node class.
//!
//! UPSTREAM: pkg/cloudprovider/drift.go

use std::collections::BTreeSet;

use karpenter_api::labels as core_labels;
use karpenter_api::v1::NodeClaim;
use karpenter_core::instance_type::InstanceType;

use crate::api::labels::annotations;
use crate::api::{EC2NodeClass, labels};
use crate::providers::image::first_compatible;
use crate::providers::instance::Instance;
use crate::providers::placement_group::PlacementGroup;

/// Drift reason: the static part of the node class changed.
pub const NODE_CLASS: &str = "NodeClassDrift";
/// Drift reason: the AMI is not the one for the instance type any more.
pub const AMI: &str = "AMIDrift";
/// Drift reason: the instance has other security groups than the node class selects.
pub const SECURITY_GROUP: &str = "SecurityGroupDrift";
/// Drift reason: the subnet of the instance is not selected.
pub const SUBNET: &str = "SubnetDrift";
/// Drift reason: the capacity reservation of the instance is not selected.
pub const CAPACITY_RESERVATION: &str = "CapacityReservationDrift";
/// Drift reason: the instance is not in the placement group of the node class.
pub const PLACEMENT_GROUP: &str = "PlacementGroupDrift";

/// Drift cannot be determined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unknown {
    /// The label with the instance type is missing, or the type is unknown.
    #[error("finding node instance type \"{0}\"")]
    InstanceType(String),
    /// The node class has no AMIs.
    #[error("no amis exist given constraints")]
    NoAmis,
    /// The NodeClaim's status has no AMI.
    #[error("nodeclaim has no image id")]
    NoImage,
    /// The node class has no security groups.
    #[error("no security groups are present in the status")]
    NoSecurityGroups,
    /// The node class has no subnets.
    #[error("no subnets are discovered")]
    NoSubnets,
}

/// Returns whether the static part of the node class changed since the NodeClaim was created. `false` if one of the
/// annotations is missing, or if the hash versions differ.
#[must_use]
pub fn is_static_part_changed(class: &EC2NodeClass, claim: &NodeClaim) -> bool {
    let pair = |key| class.annotation(key).zip(claim.annotation(key));
    let hashes = pair(annotations::NODE_CLASS_HASH);
    let versions = pair(annotations::NODE_CLASS_HASH_VERSION);
    match (hashes, versions) {
        (Some((theirs, ours)), Some((their_version, our_version))) => {
            their_version == our_version && theirs != ours
        }
        _ => false,
    }
}

/// Returns whether the NodePool's v1beta1 kubelet settings differ from those the NodeClaim was launched with.
pub fn is_kubelet_changed(of_pool: Option<&str>, claim: &NodeClaim) -> bool {
    let read = |text: Option<&str>| text.map(serde_json::from_str::<serde_json::Value>);
    let (theirs, ours) = (read(of_pool), read(claim.kubelet_compatibility()));
    match (theirs, ours) {
        (None, None) => false,
        (Some(Ok(theirs)), Some(Ok(ours))) => theirs != ours,
        // Settings that cannot be parsed are not drift.
        (Some(Err(_)), _) | (_, Some(Err(_))) => false,
        (Some(Ok(_)), None) | (None, Some(Ok(_))) => true,
    }
}

/// Returns whether the AMI is not the one for the NodeClaim's instance type any more.
///
/// # Errors
/// If drift cannot be determined.
pub fn is_ami_changed(
    class: &EC2NodeClass,
    claim: &NodeClaim,
    types: &[InstanceType],
) -> Result<bool, Unknown> {
    let name = claim.label(core_labels::INSTANCE_TYPE).unwrap_or_default();
    let instance_type = types
        .iter()
        .find(|t| t.name == name)
        .ok_or_else(|| Unknown::InstanceType(name.to_owned()))?;
    if class.status.amis.is_empty() {
        return Err(Unknown::NoAmis);
    }
    let ours = claim.status.image_id.as_deref().ok_or(Unknown::NoImage)?;
    // If no AMI matches the type, the node's AMI is not selected any more.
    let ami = first_compatible(&class.status.amis, &instance_type.requirements);
    Ok(ami.is_none_or(|ami| ami.id != ours))
}

/// Returns the drift reason of an instance, except for reservations.
///
/// # Errors
/// If drift cannot be determined.
pub fn of_instance(
    class: &EC2NodeClass,
    instance: &Instance,
) -> Result<Option<&'static str>, Unknown> {
    let status = &class.status;
    if status.security_groups.is_empty() {
        return Err(Unknown::NoSecurityGroups);
    }
    let groups: BTreeSet<&str> = status
        .security_groups
        .iter()
        .map(|g| g.id.as_str())
        .collect();
    if !instance
        .security_groups
        .iter()
        .map(String::as_str)
        .eq(groups)
    {
        return Ok(Some(SECURITY_GROUP));
    }
    if status.subnets.is_empty() {
        return Err(Unknown::NoSubnets);
    }
    let selected = status.subnets.iter().any(|s| s.id == instance.subnet_id);
    Ok((!selected).then_some(SUBNET))
}

/// Returns whether the instance runs in a reservation that the node class does not select any more.
#[must_use]
pub fn left_reservations(class: &EC2NodeClass, instance: &Instance) -> bool {
    let selected = &class.status.capacity_reservations;
    instance
        .reservation
        .as_ref()
        .is_some_and(|r| selected.iter().all(|s| s.id != r.id))
}

/// Returns whether the NodeClaim was launched into another placement group than the node class selects now.
#[must_use]
pub fn is_placement_changed(claim: &NodeClaim, group: Option<&PlacementGroup>) -> bool {
    claim.label(labels::PLACEMENT_GROUP_ID).unwrap_or_default()
        != group.map(|g| g.id.as_str()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use karpenter_core::fake::instance_type;
    use serde_json::json;

    use super::*;
    use crate::providers::instance::InReservation;

    fn class() -> EC2NodeClass {
        serde_json::from_value(json!({
            "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass",
            "metadata": { "name": "default" },
            "spec": { "subnetSelectorTerms": [], "securityGroupSelectorTerms": [], "amiSelectorTerms": [{ "alias": "al2023@latest" }] },
            "status": {
                "subnets": [{ "id": "subnet-1", "zone": "a" }, { "id": "subnet-2", "zone": "b" }],
                "securityGroups": [{ "id": "sg-1" }, { "id": "sg-2" }],
                "amis": [
                    { "id": "ami-gpu", "requirements": [{ "key": "gpu", "operator": "Exists" }] },
                    { "id": "ami-new", "requirements": [{ "key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"] }] },
                    { "id": "ami-old", "requirements": [{ "key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"] }] },
                ],
                "capacityReservations": [{ "id": "cr-1", "availabilityZone": "a", "instanceMatchCriteria": "open", "instanceType": "m5.large", "ownerID": "123456789012" }],
            },
        }))
        .unwrap()
    }

    fn claim(image: &str) -> NodeClaim {
        let mut claim = NodeClaim::new("c", Default::default());
        claim.metadata.labels =
            Some([(core_labels::INSTANCE_TYPE.to_owned(), "m5.large".to_owned())].into());
        claim.status.image_id = Some(image.to_owned());
        claim
    }

    #[test]
    fn a_change_of_the_kubelet_settings_of_v1beta1_drifts() {
        let with = |text: Option<&str>| {
            let mut claim = claim("ami-new");
            let key = core_labels::annotations::KUBELET_COMPATIBILITY.to_owned();
            claim.metadata.annotations = text.map(|text| [(key, text.to_owned())].into());
            claim
        };
        let pool = Some(r#"{"maxPods":20,"podsPerCore":2}"#);
        let same = with(Some(r#"{"podsPerCore": 2, "maxPods": 20}"#));
        assert!(!is_kubelet_changed(pool, &same));
        assert!(!is_kubelet_changed(None, &with(None)));
        assert!(is_kubelet_changed(pool, &with(Some(r#"{"maxPods":20}"#))));
        assert!(is_kubelet_changed(pool, &with(None)));
        assert!(is_kubelet_changed(None, &same));
        assert!(!is_kubelet_changed(Some("broken"), &same));
    }

    fn types() -> Vec<InstanceType> {
        vec![instance_type("m5.large").build()]
    }

    fn instance() -> Instance {
        Instance {
            subnet_id: "subnet-1".into(),
            security_groups: ["sg-1", "sg-2"].map(str::to_owned).into(),
            ..Instance::default()
        }
    }

    /// Conformance: AWS-drift-04
    #[test]
    fn the_static_part_drifts_only_when_both_sides_know_hash_and_version() {
        let stamped = |(hash, version): (Option<&str>, Option<&str>)| {
            let pairs = [
                (annotations::NODE_CLASS_HASH, hash),
                (annotations::NODE_CLASS_HASH_VERSION, version),
            ];
            let known = pairs.into_iter();
            let known = known.filter_map(|(k, v)| Some((k.to_owned(), v?.to_owned())));
            Some(known.collect::<BTreeMap<_, _>>())
        };
        let drifts = |theirs, ours| {
            let (mut class, mut claim) = (class(), claim("x"));
            class.metadata.annotations = stamped(theirs);
            claim.metadata.annotations = stamped(ours);
            is_static_part_changed(&class, &claim)
        };
        let v6 = Some("v6");
        assert!(drifts((Some("1"), v6), (Some("2"), v6)));
        assert!(!drifts((Some("1"), v6), (Some("1"), v6)));
        assert!(!drifts((Some("1"), v6), (Some("2"), Some("v5"))));
        assert!(!drifts((None, v6), (Some("2"), v6)));
        assert!(!drifts((Some("1"), None), (Some("2"), v6)));
        assert!(!drifts((Some("1"), v6), (None, v6)));
        assert!(!drifts((Some("1"), v6), (Some("2"), None)));
    }

    /// Conformance: AWS-drift-08
    #[test]
    fn the_newest_image_for_the_type_is_the_one_to_boot() {
        assert_eq!(
            is_ami_changed(&class(), &claim("ami-new"), &types()),
            Ok(false)
        );
        assert_eq!(
            is_ami_changed(&class(), &claim("ami-old"), &types()),
            Ok(true),
            "older, though listed"
        );
        assert_eq!(
            is_ami_changed(&class(), &claim("ami-gone"), &types()),
            Ok(true)
        );
    }

    #[test]
    fn a_node_for_whose_type_no_image_is_left_has_drifted() {
        let mut arm = class();
        arm.status.amis = vec![
            serde_json::from_value(json!({
                "id": "ami-arm",
                "requirements": [{ "key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"] }],
            }))
            .unwrap(),
        ];
        assert_eq!(is_ami_changed(&arm, &claim("ami-new"), &types()), Ok(true));
    }

    /// Conformance: AWS-drift-02
    #[test]
    fn undetermined_drift_is_an_error_and_not_drift() {
        let mut bare = class();
        bare.status.security_groups.clear();
        assert_eq!(
            of_instance(&bare, &instance()),
            Err(Unknown::NoSecurityGroups)
        );
        let mut bare = class();
        bare.status.subnets.clear();
        assert_eq!(of_instance(&bare, &instance()), Err(Unknown::NoSubnets));
        let mut bare = class();
        bare.status.amis.clear();
        assert_eq!(
            is_ami_changed(&bare, &claim("ami-new"), &types()),
            Err(Unknown::NoAmis)
        );
        let mut imageless = claim("x");
        imageless.status.image_id = None;
        assert_eq!(
            is_ami_changed(&class(), &imageless, &types()),
            Err(Unknown::NoImage)
        );
        let mut unlabeled = claim("ami-new");
        unlabeled.metadata.labels = None;
        assert!(matches!(
            is_ami_changed(&class(), &unlabeled, &types()),
            Err(Unknown::InstanceType(_))
        ));
        assert_eq!(
            crate::providers::instance::instance_id(""),
            None,
            "no provider id"
        );
    }

    /// Conformance: AWS-drift-03
    #[test]
    fn security_groups_must_be_exactly_those_selected() {
        let of = |groups: &[&str]| {
            let mut instance = instance();
            instance.security_groups = groups.iter().map(|g| (*g).to_owned()).collect();
            of_instance(&class(), &instance).unwrap()
        };
        assert_eq!(of(&["sg-1", "sg-2"]), None);
        assert_eq!(of(&["sg-1"]), Some(SECURITY_GROUP));
        assert_eq!(of(&["sg-1", "sg-2", "sg-3"]), Some(SECURITY_GROUP));
    }

    /// Conformance: AWS-drift-09
    #[test]
    fn subnet_reservation_and_placement_group_must_be_selected() {
        let mut elsewhere = instance();
        elsewhere.subnet_id = "subnet-9".into();
        assert_eq!(of_instance(&class(), &elsewhere), Ok(Some(SUBNET)));
        let mut reserved = instance();
        let mut within = |id: &str| {
            reserved.reservation = Some(InReservation {
                id: id.into(),
                type_: "default",
                interruptible: false,
            });
            left_reservations(&class(), &reserved)
        };
        assert!(!within("cr-1"));
        assert!(within("cr-2"));
        assert!(!left_reservations(&class(), &instance()), "on demand");
        let group = PlacementGroup {
            id: "pg-1".into(),
            name: "g".into(),
            strategy: "cluster".into(),
            partitions: 0,
        };
        let mut placed = claim("ami-new");
        assert!(is_placement_changed(&placed, Some(&group)), "added");
        placed
            .metadata
            .labels
            .get_or_insert_default()
            .insert(labels::PLACEMENT_GROUP_ID.into(), "pg-1".into());
        assert!(!is_placement_changed(&placed, Some(&group)));
        assert!(is_placement_changed(&placed, None), "removed");
        let other = PlacementGroup {
            id: "pg-2".into(),
            ..group
        };
        assert!(is_placement_changed(&placed, Some(&other)), "changed");
    }
}
