//! Subnets, security groups, AMIs, reservations and placement groups in the status.

use std::net::Ipv4Addr;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::conditions::{HasConditions, types as core_types};
use karpenter_aws::api::condition_types as types;
use karpenter_aws_fake::{
    CapacityReservation, DEFAULT_VPC, Fault, Image, PlacementGroup, SecurityGroup, Subnet,
};
use karpenter_kube::controller::Next;
use serde_json::json;

use crate::node_class::support::{IMAGES, World, is, observed, reason, says};

const MINUTE: Duration = Duration::from_secs(60);

fn subnet(id: &str, zone: &str, block: u8) -> Subnet {
    let block = (Ipv4Addr::new(10, 1, block, 0), 24);
    Subnet::new(id, DEFAULT_VPC, zone, block).tag("team", "x")
}

fn text(words: [&str; 3]) -> (String, String, String) {
    let [a, b, c] = words.map(str::to_owned);
    (a, b, c)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_class_is_ready_after_one_reconciliation() {
    let world = World::new().await;
    world.create("default", json!({})).await;
    assert_eq!(
        world.reconcile("default").await.unwrap(),
        Next::After(MINUTE),
        "subnets and reservations are refreshed every minute"
    );
    let class = world.get("default").await;
    assert!(class.is_true(core_types::READY), "{:#?}", class.status);
    assert_eq!(class.status.subnets.len(), 4);
    assert!(class.status.subnets.iter().all(|s| s.zone_id.is_some()));
    assert_eq!(class.status.security_groups[0].id, "sg-00000000000000001");
    assert_eq!(
        class.status.security_groups[0].name.as_deref(),
        Some("node")
    );
    let images: Vec<&str> = class.status.amis.iter().map(|a| a.id.as_str()).collect();
    assert!(images.contains(&world.image("x86_64").as_str()));
    assert!(images.contains(&world.image("arm64").as_str()));
    assert_eq!(class.status.amis.len(), 5);
    let again = world.seen("default").await;
    assert_eq!(again, class, "nothing to write");
}

/// Conformance: AWS-nodeclass-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_selector_that_matches_nothing_clears_the_list_and_its_condition() {
    let world = World::new().await;
    world.ready("default", json!({})).await;
    let nothing = json!([{ "tags": { "no": "such" } }]);
    world
        .respecify(
            "default",
            json!({
                "subnetSelectorTerms": nothing, "securityGroupSelectorTerms": nothing,
                "amiSelectorTerms": nothing, "amiFamily": "AL2023",
            }),
        )
        .await;
    assert_eq!(
        world.reconcile("default").await.unwrap(),
        Next::After(MINUTE)
    );
    let class = world.get("default").await;
    for (condition, why, message, advice) in [
        (
            types::SUBNETS_READY,
            "SubnetsNotFound",
            "SubnetSelector did not match any Subnets",
            "change spec.subnetSelectorTerms",
        ),
        (
            types::SECURITY_GROUPS_READY,
            "SecurityGroupsNotFound",
            "SecurityGroupSelector did not match any SecurityGroups",
            "change spec.securityGroupSelectorTerms",
        ),
        (
            types::AMIS_READY,
            "AMINotFound",
            "AMISelector did not match any AMIs",
            "change spec.amiSelectorTerms",
        ),
        (
            types::VALIDATION_SUCCEEDED,
            "DependenciesNotReady",
            "Awaiting AMI, Instance Profile, Security Group, and Subnet resolution",
            "",
        ),
    ] {
        let (status, found, actual) = observed(&class, condition);
        assert_eq!((status, found), is("False", why));
        assert!(
            actual.starts_with(message) && actual.contains(advice),
            "{actual}"
        );
    }
    assert!(class.status.subnets.is_empty());
    assert!(class.status.security_groups.is_empty());
    assert!(class.status.amis.is_empty());
    assert!(class.is_false(core_types::READY));
}

/// Conformance: AWS-subnet-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_pages_are_read_and_an_empty_page_is_not_the_last() {
    let world = World::new().await;
    world.fake.set(|s| {
        s.page_size = 1;
        s.page_sizes.clear();
        s.empty_pages = true;
    });
    for (id, block) in [("subnet-a", 1), ("subnet-b", 2), ("subnet-c", 3)] {
        world.fake.add_subnet(subnet(id, "us-west-2a", block));
    }
    for id in ["sg-a", "sg-b", "sg-c"] {
        world
            .fake
            .add_security_group(SecurityGroup::new(id, id).tag("team", "x"));
    }
    let ours = json!([{ "tags": { "team": "x" } }]);
    let class = world
        .made(
            "default",
            json!({ "subnetSelectorTerms": ours, "securityGroupSelectorTerms": ours }),
        )
        .await;
    assert_eq!(class.status.subnets.len(), 3);
    assert_eq!(class.status.security_groups.len(), 3);
    assert!(
        world.calls("DescribeSubnets") >= 4,
        "three pages and an empty one"
    );
}

/// Conformance: AWS-nodeclass-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aliases_without_images_for_the_version_are_reported() {
    let world = World::new().await;
    for (name, alias, version) in [
        ("old", "al2@latest", "1.33"),
        ("new", "windows2025@latest", "1.34"),
    ] {
        world.aws.kubernetes.set(version);
        let class = world
            .made(name, json!({ "amiSelectorTerms": [{ "alias": alias }] }))
            .await;
        says(
            &class,
            types::AMIS_READY,
            is("False", "UnsupportedAlias"),
            &["use "],
        );
        assert!(class.status.amis.is_empty());
    }
    world.aws.kubernetes.set("1.32");
    let class = world.seen("old").await;
    assert_eq!(
        reason(&class, types::AMIS_READY),
        is("False", "AMINotFound"),
        "the stand-in publishes none for 1.32"
    );
}

/// Conformance: AWS-nodeclass-04
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_parameters_are_skipped() {
    let world = World::new().await;
    for missing in ["x86_64/nvidia", "x86_64/neuron", "arm64/nvidia"] {
        let name = format!("{IMAGES}/{missing}/recommended/image_id");
        world.fake.remove_parameter(&name);
    }
    let class = world.made("default", json!({})).await;
    assert!(class.is_true(types::AMIS_READY));
    assert_eq!(class.status.amis.len(), 2);
}

/// Conformance: AWS-nodeclass-05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn images_that_are_all_deprecated_are_listed_and_marked() {
    let world = World::new().await;
    let hour = SignedDuration::from_hours(1);
    let mut image = Image::new("ami-0abc", "mine", "x86_64", Timestamp::now() - hour * 2);
    image.deprecated = Some(Timestamp::now() - hour);
    world.fake.add_image(image.tag("team", "x"));
    let class = world
        .made(
            "default",
            json!({ "amiSelectorTerms": [{ "tags": { "team": "x" } }], "amiFamily": "AL2023" }),
        )
        .await;
    assert!(class.is_true(types::AMIS_READY));
    assert!(class.is_true(core_types::READY), "{:#?}", class.status);
    assert_eq!(class.status.amis.len(), 1);
    assert!(class.status.amis[0].deprecated);
}

/// Conformance: AWS-ami-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_parameter_is_skipped_and_any_other_error_fails() {
    let world = World::new().await;
    world.fake.put_parameter("/mine", &world.image("arm64"));
    let terms = json!([{ "ssmParameter": "/mine" }, { "ssmParameter": "/none" }]);
    let class = world
        .made(
            "default",
            json!({ "amiSelectorTerms": terms, "amiFamily": "AL2023" }),
        )
        .await;
    assert_eq!(class.status.amis.len(), 1);
    assert_eq!(class.status.amis[0].id, world.image("arm64"));

    let denied = Fault::error("GetParameter", "AccessDeniedException").message("not yours");
    world.fake.add_fault(denied.always());
    let other = json!([{ "ssmParameter": "/other" }]);
    world
        .respecify("default", json!({ "amiSelectorTerms": other }))
        .await;
    let (class, error) = world.failed("default").await;
    assert!(error.to_string().contains("not yours"), "{error}");
    assert_eq!(
        observed(&class, types::AMIS_READY),
        text([
            "False",
            "AMIResolutionFailed",
            "GetParameter, AccessDeniedException: not yours"
        ])
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parameters_of_latest_are_cached_until_their_image_is_deprecated() {
    let world = World::new().await;
    world.create("default", json!({})).await;
    world.seen("default").await;
    let asked = world.calls("GetParameter");
    world.seen("default").await;
    assert_eq!(world.calls("GetParameter"), asked, "for a day");
    let now = Timestamp::now();
    assert_eq!(
        world.aws.images.invalidate_deprecated(now).await.unwrap(),
        0
    );
    world.fake.remove_image(&world.image("arm64"));
    assert_eq!(
        world.aws.images.invalidate_deprecated(now).await.unwrap(),
        1
    );
    let newer = Image::new("ami-0new", "newer", "arm64", now).by_amazon("602401143452");
    world.fake.add_image(newer);
    let name = format!("{IMAGES}/arm64/standard/recommended/image_id");
    world.fake.put_parameter(&name, "ami-0new");
    let class = world.seen("default").await;
    assert_eq!(class.status.amis[0].id, "ami-0new", "newest first");
}

/// Conformance: AWS-pg-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_placement_group_must_exist_and_be_available_if_one_is_selected() {
    let world = World::new().await;
    let group = |state: &str| PlacementGroup {
        state: state.into(),
        ..PlacementGroup::new("pg-1", "racks", "cluster")
    };
    let condition = types::PLACEMENT_GROUP_READY;
    let named = |name: &str| json!({ "placementGroupSelector": { "name": name } });
    let class = world.made("default", named("none")).await;
    let (_, why, message) = observed(&class, condition);
    assert_eq!(why, "PlacementGroupNotFound");
    assert_eq!(
        message,
        "Placement group \"none\" not found: create it, or change spec.placementGroupSelector"
    );
    world.fake.add_placement_group(group("deleting"));
    let class = world.changed("default", named("racks")).await;
    assert_eq!(
        reason(&class, condition),
        is("False", "PlacementGroupNotFound")
    );
    let class = world
        .changed("default", json!({ "placementGroupSelector": null }))
        .await;
    assert!(class.is_true(condition));
    assert!(class.is_true(core_types::READY));

    let mut available = group("available");
    available.name = "others".into();
    world.fake.add_placement_group(available);
    assert!(
        world
            .changed("default", named("others"))
            .await
            .is_true(condition)
    );
}

/// Conformance: AWS-nodeclass-02, AWS-nodeclass-11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subnets_are_ordered_by_free_addresses_and_what_is_equal_by_id() {
    let world = World::new().await;
    for (id, block, free) in [
        ("subnet-c", 1, 10),
        ("subnet-a", 2, 10),
        ("subnet-b", 3, 20),
    ] {
        world.fake.add_subnet(subnet(id, "us-west-2a", block));
        world.fake.set_free_addresses(id, free);
    }
    for id in ["sg-c", "sg-a", "sg-b"] {
        let group = SecurityGroup::new(id, &id.replace("sg", "name-of"));
        world.fake.add_security_group(group);
    }
    for id in ["cr-c", "cr-a", "cr-b"] {
        let reservation = CapacityReservation::new(id, "m5.large", "us-west-2a", 1);
        world.fake.add_capacity_reservation(reservation);
    }
    // Terms of their own, so that the answers come in the order of the terms.
    let ids = |ids: [&str; 3]| json!([{ "id": ids[0] }, { "id": ids[1] }, { "id": ids[2] }]);
    let spec = json!({
        "subnetSelectorTerms": [{ "tags": { "team": "x" } }],
        "securityGroupSelectorTerms": [{ "name": "name-of-c" }, { "id": "sg-b" }, { "id": "sg-a" }],
        "capacityReservationSelectorTerms": ids(["cr-c", "cr-b", "cr-a"]),
    });
    let status = world.made("default", spec).await.status;
    let subnets: Vec<_> = status.subnets.iter().map(|s| s.id.as_str()).collect();
    assert_eq!(subnets, ["subnet-b", "subnet-a", "subnet-c"]);
    let groups: Vec<_> = status
        .security_groups
        .iter()
        .map(|g| g.id.as_str())
        .collect();
    assert_eq!(groups, ["sg-a", "sg-b", "sg-c"]);
    let reservations: Vec<_> = status
        .capacity_reservations
        .iter()
        .map(|r| r.id.as_str())
        .collect();
    assert_eq!(reservations, ["cr-a", "cr-b", "cr-c"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reservations_are_in_the_status_and_refreshed_when_they_end() {
    let world = World::new().await;
    let mut reservation = CapacityReservation::new("cr-1", "m5.large", "us-west-2a", 3);
    reservation.end = Some(Timestamp::now() + SignedDuration::from_secs(20));
    world.fake.add_capacity_reservation(reservation);
    let terms = json!([{ "id": "cr-1" }]);
    world
        .create(
            "default",
            json!({ "capacityReservationSelectorTerms": terms }),
        )
        .await;
    let Next::After(wait) = world.reconcile("default").await.unwrap() else {
        unreachable!("the class is requeued")
    };
    assert!(wait <= Duration::from_secs(20), "{wait:?}");
    let class = world.get("default").await;
    assert_eq!(class.status.capacity_reservations[0].id, "cr-1");
    assert!(class.is_true(types::CAPACITY_RESERVATIONS_READY));
    assert_eq!(world.aws.reservations.counts().left("cr-1"), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_gate_no_reservations_are_described() {
    let terms = json!([{ "id": "cr-1" }]);
    let world = World::with(|aws| aws, |s| s.reserved_capacity = false).await;
    let class = world
        .made(
            "default",
            json!({ "capacityReservationSelectorTerms": terms }),
        )
        .await;
    assert!(class.is_true(types::CAPACITY_RESERVATIONS_READY));
    assert_eq!(world.calls("DescribeCapacityReservations"), 0);
}

/// Conformance: AWS-nodeclass-14
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_call_does_not_affect_others_or_earlier_results() {
    let world = World::new().await;
    world.fake.deny(&["ec2:DescribeSecurityGroups"]);
    world.create("default", json!({})).await;
    let (class, error) = world.failed("default").await;
    assert!(
        error.to_string().contains("DescribeSecurityGroups"),
        "{error}"
    );
    says(
        &class,
        types::SECURITY_GROUPS_READY,
        is("False", "SecurityGroupResolutionFailed"),
        &["ec2:DescribeSecurityGroups"],
    );
    for condition in [
        types::SUBNETS_READY,
        types::AMIS_READY,
        types::INSTANCE_PROFILE_READY,
    ] {
        assert!(class.is_true(condition), "{condition}");
    }
    let (again, _) = world.failed("default").await;
    assert_eq!(again, class, "the same failure is not written again");

    world.fake.deny(&[]);
    assert!(world.seen("default").await.is_true(core_types::READY));
    world.fake.fail("DescribeSubnets", "InternalError");
    let (class, _) = world.failed("default").await;
    assert!(
        class.is_true(core_types::READY),
        "the result for this spec is still valid"
    );
}
