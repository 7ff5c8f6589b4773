//! Subnets, security groups, reservations, placement groups, instance profiles.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use jiff::Timestamp;
use karpenter_aws::api::{CapacityReservationSelectorTerm, PlacementGroupSelector};
use karpenter_aws::providers::capacity_reservation::{ReservationCounts, Reservations};
use karpenter_aws::providers::instance_profile::InstanceProfiles;
use karpenter_aws::providers::placement_group::PlacementGroups;
use karpenter_aws::providers::security_group::SecurityGroups;
use karpenter_aws::providers::subnet::Subnets;
use karpenter_aws_fake::{
    CapacityReservation, DEFAULT_VPC, Fault, PlacementGroup, SecurityGroup, Subnet,
};
use karpenter_core::fake;
use karpenter_core::instance_type::InstanceType;
use serde_json::json;

use crate::ec2::support::{World, class};

const MINUTE: Duration = Duration::from_secs(60);

fn subnet(id: &str, zone: &str, block: u8) -> Subnet {
    Subnet::new(id, DEFAULT_VPC, zone, (Ipv4Addr::new(10, 1, block, 0), 24))
}

/// Adds subnets in one zone, with the tag `team` and these numbers of free addresses.
fn team_x(world: &World, all: &[(&str, u32)]) {
    for (block, (id, free)) in (1..).zip(all) {
        let tagged = subnet(id, "us-west-2a", block).tag("team", "x");
        world.fake.add_subnet(tagged);
        world.fake.set_free_addresses(id, *free);
    }
}

async fn ids(subnets: &Subnets, terms: serde_json::Value) -> Vec<String> {
    let class = class("c", json!({ "subnetSelectorTerms": terms }));
    let found = subnets.list(&class).await.unwrap();
    found.iter().map(|s| s.id.clone()).collect()
}

/// Conformance: AWS-subnet-04
#[tokio::test]
async fn subnets_of_all_pages_match_all_tags_of_any_term() {
    let world = World::with(|b| b.page_size(1)).await;
    world
        .fake
        .add_subnet(subnet("subnet-a", "us-west-2a", 1).tag("team", "x"));
    world.fake.add_subnet(
        subnet("subnet-b", "us-west-2b", 2)
            .tag("team", "x")
            .tag("tier", "web"),
    );
    world
        .fake
        .add_subnet(subnet("subnet-c", "us-west-2b", 3).tag("tier", "web"));
    world.fake.set_free_addresses("subnet-a", 10);
    world.fake.set_free_addresses("subnet-b", 100);
    world.fake.set_free_addresses("subnet-c", 20);
    let each = || Subnets::new(world.aws.clone(), MINUTE);
    let both = json!([{ "tags": { "team": "x", "tier": "web" } }]);
    assert_eq!(ids(&each(), both).await, ["subnet-b"]);
    let either = json!([{ "tags": { "team": "x" } }, { "tags": { "tier": "*" } }]);
    assert_eq!(
        ids(&each(), either).await,
        ["subnet-b", "subnet-c", "subnet-a"],
        "most addresses first"
    );
    let listed = json!([{ "id": "subnet-a" }, { "id": "subnet-c" }]);
    assert_eq!(ids(&each(), listed).await, ["subnet-c", "subnet-a"]);
    assert_eq!(
        ids(&each(), json!([{ "id": "subnet-none" }])).await,
        [""; 0]
    );

    let subnets = each();
    let before = world.calls("DescribeSubnets");
    let mut selected = class(
        "c",
        json!({ "subnetSelectorTerms": [{ "tags": { "team": "x" } }] }),
    );
    subnets.list(&selected).await.unwrap();
    let asked = world.calls("DescribeSubnets");
    assert!(asked > before);
    subnets.list(&selected).await.unwrap();
    assert_eq!(world.calls("DescribeSubnets"), asked, "remembered");
    selected.metadata.generation = Some(2);
    selected.spec.subnet_selector_terms[0].tags =
        Some([("tier".to_owned(), "web".to_owned())].into());
    let changed = subnets.list(&selected).await.unwrap();
    assert_eq!(changed.len(), 2, "another spec has its own cache entry");
}

fn instance_type(pods: i64, zone: &str) -> InstanceType {
    let offered = vec![fake::offering("on-demand", zone, 0.1)];
    fake::instance_type("m5.large")
        .pods(pods)
        .offerings(offered)
        .build()
}

/// Conformance: AWS-subnet-01, AWS-subnet-02, AWS-ice-07
#[tokio::test]
async fn launches_between_two_answers_are_deducted_from_the_free_addresses() {
    let world = World::new().await;
    team_x(&world, &[("subnet-a", 100), ("subnet-b", 90)]);
    let subnets = Subnets::new(world.aws.clone(), MINUTE);
    let selected = class(
        "c",
        json!({ "subnetSelectorTerms": [{ "tags": { "team": "x" } }] }),
    );
    let found = subnets.list(&selected).await.unwrap();
    let types = [
        instance_type(20, "us-west-2a"),
        instance_type(58, "us-west-2a"),
    ];
    let launch = || subnets.for_launch(&found, &types, "on-demand").unwrap();
    let zone = |reserved: &karpenter_aws::providers::subnet::Reserved| {
        reserved.of("us-west-2a").unwrap().id.clone()
    };

    let first = launch();
    assert_eq!(zone(&first), "subnet-a");
    let second = launch();
    assert_eq!(
        zone(&second),
        "subnet-b",
        "90 is more than the 80 the first has left"
    );
    drop(first);
    drop(second);
    let third = launch();
    assert_eq!(
        zone(&third),
        "subnet-a",
        "launches that failed released theirs"
    );
    third.commit(&BTreeSet::from(["subnet-a".to_owned()]));
    assert_eq!(zone(&launch()), "subnet-b", "used addresses stay taken");

    // The doctor reports these numbers.
    assert_eq!(subnets.free("subnet-a"), Some(80));
    assert_eq!(subnets.free("subnet-c"), None, "not asked for");
    subnets.exhausted("subnet-b");
    assert_eq!(subnets.free("subnet-b"), Some(0));
    assert_eq!(
        zone(&launch()),
        "subnet-a",
        "a subnet without free addresses comes last"
    );
    assert!(subnets.for_launch(&[], &types, "on-demand").is_err());
}

/// Conformance: AWS-sg-02
#[tokio::test]
async fn security_groups_are_found_by_id_by_name_and_by_tags() {
    let world = World::with(|b| b.page_size(1)).await;
    let groups = [("sg-b", "beta"), ("sg-a", "alpha"), ("sg-c", "gamma")];
    let [b, a, c] = groups.map(|(id, name)| SecurityGroup::new(id, name));
    for group in [b.tag("team", "x"), a.tag("team", "x"), c] {
        world.fake.add_security_group(group);
    }
    let groups = SecurityGroups::new(world.aws.clone());
    let find = async |name: &str, terms: serde_json::Value| -> Vec<String> {
        let class = class(name, json!({ "securityGroupSelectorTerms": terms }));
        let found = groups.list(&class).await.unwrap();
        found.iter().map(|g| g.id.clone()).collect()
    };
    assert_eq!(
        find("1", json!([{ "tags": { "team": "*" } }])).await,
        ["sg-a", "sg-b"]
    );
    assert_eq!(
        find("2", json!([{ "name": "gamma" }, { "id": "sg-a" }])).await,
        ["sg-a", "sg-c"]
    );
    assert_eq!(find("3", json!([{ "name": "none" }])).await, [""; 0]);
}

fn term(value: serde_json::Value) -> CapacityReservationSelectorTerm {
    serde_json::from_value(value).unwrap()
}

/// Conformance: AWS-cr-01
#[tokio::test]
async fn reservations_match_all_fields_of_a_term_and_missing_ones_are_skipped() {
    let world = World::with(|b| b.page_size(1)).await;
    for (id, criteria, tagged) in [
        ("cr-1", "open", true),
        ("cr-2", "targeted", true),
        ("cr-3", "open", false),
    ] {
        let mut reservation = CapacityReservation::new(id, "m5.large", "us-west-2a", 3);
        reservation.match_criteria = criteria.into();
        if tagged {
            reservation.tags.insert("team".into(), "x".into());
        }
        world.fake.add_capacity_reservation(reservation);
    }
    let counts = ReservationCounts::default();
    let reservations = Reservations::new(world.aws.clone(), counts.clone());
    let now = Timestamp::now();
    let find = async |terms: &[CapacityReservationSelectorTerm]| -> Vec<String> {
        let found = reservations.list(terms, now).await.unwrap();
        found.into_iter().map(|r| r.id).collect()
    };
    let all = term(
        json!({ "tags": { "team": "x" }, "instanceMatchCriteria": "open", "ownerID": karpenter_aws_fake::ACCOUNT }),
    );
    assert_eq!(find(&[all]).await, ["cr-1"]);
    let foreign = term(json!({ "tags": { "team": "x" }, "ownerID": "999999999999" }));
    assert_eq!(find(&[foreign]).await, [""; 0]);
    let ids = ["cr-3", "cr-99", "cr-2"].map(|id| term(json!({ "id": id })));
    assert_eq!(find(&ids).await, ["cr-2", "cr-3"]);
    assert_eq!(counts.left("cr-2"), 3);
    assert_eq!(find(&[term(json!({ "id": "cr-99" }))]).await, [""; 0]);
}

/// Conformance: AWS-cr-08
#[tokio::test]
async fn a_missing_reservation_does_not_hide_the_others_whatever_ec2_names() {
    let world = World::new().await;
    for id in ["cr-1", "cr-12", "cr-2"] {
        let reservation = CapacityReservation::new(id, "m5.large", "us-west-2a", 3);
        world.fake.add_capacity_reservation(reservation);
    }
    let now = Timestamp::now();
    let ids = |ids: &[&str]| -> Vec<_> { ids.iter().map(|id| term(json!({ "id": id }))).collect() };
    let find = async |terms: &[CapacityReservationSelectorTerm]| -> Vec<String> {
        let fresh = Reservations::new(world.aws.clone(), ReservationCounts::default());
        let found = fresh.list(terms, now).await.unwrap();
        found.into_iter().map(|r| r.id).collect()
    };
    world.fake.set(|s| s.nameless_errors = true);
    let found = find(&ids(&["cr-1", "cr-2", "cr-99"])).await;
    assert_eq!(found, ["cr-1", "cr-2"], "none is named");
    assert_eq!(find(&ids(&["cr-99"])).await, [""; 0]);

    let all_named = Fault::error(
        "DescribeCapacityReservations",
        "InvalidCapacityReservationId.NotFound",
    )
    .message("one of 'cr-1, cr-2' does not exist");
    world.fake.add_fault(all_named);
    let found = find(&ids(&["cr-1", "cr-2"])).await;
    assert_eq!(found, ["cr-1", "cr-2"], "all are named");

    world.fake.set(|s| s.nameless_errors = false);
    let found = find(&ids(&["cr-1", "cr-12", "cr-123"])).await;
    assert_eq!(found, ["cr-1", "cr-12"], "IDs are compared as words");
}

#[tokio::test]
async fn a_selection_by_tags_that_is_answered_with_not_found_is_an_error() {
    let world = World::new().await;
    let gone = Fault::error(
        "DescribeCapacityReservations",
        "InvalidCapacityReservationId.NotFound",
    );
    world.fake.add_fault(gone);
    let reservations = Reservations::new(world.aws.clone(), ReservationCounts::default());
    let terms = [term(json!({ "tags": { "team": "x" } }))];
    assert!(reservations.list(&terms, Timestamp::now()).await.is_err());
}

/// Conformance: AWS-subnet-05
#[tokio::test]
async fn of_subnets_with_equally_many_addresses_the_first_is_taken() {
    let world = World::new().await;
    let free = [("subnet-a", 50), ("subnet-b", 50), ("subnet-c", 40)];
    team_x(&world, &free);
    let subnets = Subnets::new(world.aws.clone(), MINUTE);
    let selected = class(
        "c",
        json!({ "subnetSelectorTerms": [{ "tags": { "team": "x" } }] }),
    );
    let found = subnets.list(&selected).await.unwrap();
    let first = |order: &[usize]| {
        let listed: Vec<_> = order.iter().map(|n| found[*n].clone()).collect();
        let chosen = subnets.for_launch(&listed, &[], "on-demand").unwrap();
        chosen.of("us-west-2a").unwrap().id.clone()
    };
    assert_eq!(first(&[0, 1, 2]), "subnet-a");
    assert_eq!(first(&[2, 1, 0]), "subnet-b");
}

/// Conformance: AWS-cr-05
#[tokio::test]
async fn a_reservation_that_is_over_is_left_out() {
    let world = World::new().await;
    let now = Timestamp::now();
    for (id, seconds) in [("cr-1", 100), ("cr-2", 200)] {
        let mut reservation = CapacityReservation::new(id, "m5.large", "us-west-2a", 3);
        reservation.end = Some(now + Duration::from_secs(seconds));
        world.fake.add_capacity_reservation(reservation);
    }
    let terms = [term(json!({ "id": "cr-1" })), term(json!({ "id": "cr-2" }))];
    let reservations = Reservations::new(world.aws.clone(), ReservationCounts::default());
    let at = async |seconds: u64| -> Vec<String> {
        let at = now + Duration::from_secs(seconds);
        let found = reservations.list(&terms, at).await.unwrap();
        found.into_iter().map(|r| r.id).collect()
    };
    assert_eq!(at(99).await, ["cr-1", "cr-2"]);
    assert_eq!(at(101).await, ["cr-2"]);
    assert_eq!(at(201).await, [""; 0]);
}

/// Lets time pass while nothing is asked.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// Conformance: AWS-cache-01
#[tokio::test]
async fn what_a_class_selects_is_asked_for_anew_after_a_minute() {
    let world = World::new().await;
    let group = PlacementGroup::new("pg-1", "racks", "cluster");
    world.fake.add_placement_group(group);
    let class = class("c", json!({}));
    let subnets = Subnets::new(world.aws.clone(), MINUTE);
    let groups = SecurityGroups::new(world.aws.clone());
    let reservations = Reservations::new(world.aws.clone(), ReservationCounts::default());
    let placement = PlacementGroups::new(world.aws.clone());
    let terms = [term(json!({ "tags": { "team": "x" } }))];
    let racks = PlacementGroupSelector {
        name: Some("racks".into()),
        id: None,
    };
    let look = async || {
        subnets.list(&class).await.unwrap();
        groups.list(&class).await.unwrap();
        reservations.list(&terms, Timestamp::now()).await.unwrap();
        placement.get(&racks).await.unwrap();
    };
    let calls = || {
        [
            "DescribeSubnets",
            "DescribeSecurityGroups",
            "DescribeCapacityReservations",
            "DescribePlacementGroups",
        ]
        .map(|action| world.calls(action))
    };
    look().await;
    let first = calls();
    pass(Duration::from_secs(50)).await;
    look().await;
    assert_eq!(calls(), first, "remembered");
    pass(Duration::from_secs(11)).await;
    look().await;
    assert_eq!(calls(), first.map(|calls| 2 * calls));
}

/// Conformance: AWS-profile-08
#[tokio::test]
async fn a_profile_of_ours_stands_below_the_path_of_its_class() {
    let world = World::new().await;
    let profiles = profiles(&world);
    let tags = cluster_tags();
    profiles
        .ensure("p", "KarpenterNodeRole-test", &tags, "uid")
        .await
        .unwrap();
    let calls = world.fake.calls();
    let created = calls.iter().find(|c| c.action == "CreateInstanceProfile");
    let params = &created.unwrap().params;
    assert_eq!(params["Path"], "/karpenter/us-west-2/test/uid/");
    assert_eq!(params["InstanceProfileName"], "p");
    let profile = profiles.get("p").await.unwrap();
    assert_eq!(profile.tags, tags);
}

/// Conformance: AWS-profile-10
#[tokio::test]
async fn profiles_and_missing_roles_are_remembered_for_their_time() {
    let world = World::new().await;
    let profiles = profiles(&world);
    let tags = cluster_tags();
    let attempt = async || profiles.ensure("n", "NoSuchRole", &tags, "uid").await;
    attempt().await.unwrap_err();
    let added = world.calls("AddRoleToInstanceProfile");
    pass(Duration::from_secs(50)).await;
    attempt().await.unwrap_err();
    assert_eq!(world.calls("AddRoleToInstanceProfile"), added);
    pass(Duration::from_secs(11)).await;
    attempt().await.unwrap_err();
    assert!(
        world.calls("AddRoleToInstanceProfile") > added,
        "tried again"
    );

    let role = "KarpenterNodeRole-test";
    profiles.ensure("p", role, &tags, "uid").await.unwrap();
    profiles.protect("p");
    let asked = world.calls("GetInstanceProfile");
    pass(MINUTE - Duration::from_secs(5)).await;
    assert_eq!(profiles.just_made(role, "uid").as_deref(), Some("p"));
    pass(Duration::from_secs(6)).await;
    assert_eq!(profiles.just_made(role, "uid"), None);
    pass(13 * MINUTE).await;
    profiles.get("p").await.unwrap();
    assert_eq!(world.calls("GetInstanceProfile"), asked, "remembered");
    pass(MINUTE).await;
    profiles.get("p").await.unwrap();
    assert_eq!(world.calls("GetInstanceProfile"), asked + 1);
    pass(44 * MINUTE).await;
    assert!(profiles.is_protected("p"));
    pass(MINUTE).await;
    assert!(!profiles.is_protected("p"));
}

/// Conformance: AWS-startup-02
#[tokio::test]
async fn shifts_of_registered_clusters_are_followed_while_they_are_applied() {
    use karpenter_aws::controllers::zonal_shift::{Managed, NotManaged};
    let world = World::new().await;
    let now = world.fake.clock().now();
    let unregistered = Managed::find(&world.aws, "test").await.unwrap_err();
    assert!(
        matches!(unregistered, NotManaged::Unregistered { .. }),
        "{unregistered}"
    );
    let shift = |zone: &str, status: &str, seconds: u64| karpenter_aws_fake::ZonalShift {
        away_from: zone.into(),
        status: status.into(),
        start: now,
        expiry: now + Duration::from_secs(seconds),
    };
    world.fake.add_cluster(karpenter_aws_fake::Cluster {
        zonal_shift: true,
        shifts: vec![
            shift("usw2-az1", "APPLIED", 3600),
            shift("usw2-az2", "NOT_APPLIED", 3600),
            shift("usw2-az3", "APPLIED", 600),
        ],
        ..karpenter_aws_fake::Cluster::new("test", "1.34")
    });
    let managed = Managed::find(&world.aws, "test").await.unwrap();
    let at = |seconds: u64| -> Vec<String> {
        let shifts = managed.at_first(now + Duration::from_secs(seconds));
        shifts.into_keys().collect()
    };
    assert_eq!(at(0), ["usw2-az1", "usw2-az3"]);
    assert_eq!(at(700), ["usw2-az1"]);
    assert_eq!(at(3700), [""; 0]);
}

/// Conformance: AWS-pg-02
#[tokio::test]
async fn the_last_placement_group_is_returned_after_a_failed_call() {
    let world = World::new().await;
    world.fake.add_placement_group(PlacementGroup {
        partitions: Some(3),
        ..PlacementGroup::new("pg-1", "racks", "partition")
    });
    let groups = PlacementGroups::new(world.aws.clone());
    let named = |name: &str| PlacementGroupSelector {
        name: Some(name.into()),
        id: None,
    };
    let found = groups.get(&named("racks")).await.unwrap().unwrap();
    assert_eq!((found.id.as_str(), found.partitions), ("pg-1", 3));
    assert_eq!(groups.get(&named("none")).await.unwrap(), None);

    tokio::time::pause();
    tokio::time::advance(MINUTE + MINUTE).await;
    tokio::time::resume();
    world
        .fake
        .fail("DescribePlacementGroups", "UnauthorizedOperation");
    let failed = groups.get(&named("racks")).await.unwrap_err();
    assert_eq!(failed.last, Some(found));
    assert!(failed.error.is_unauthorized());
}

fn profiles(world: &World) -> InstanceProfiles {
    InstanceProfiles::new(world.aws.clone(), "test")
}

fn cluster_tags() -> std::collections::BTreeMap<String, String> {
    [("kubernetes.io/cluster/test".to_owned(), "owned".to_owned())].into()
}

/// Conformance: AWS-profile-02, AWS-profile-04
#[tokio::test]
async fn a_profile_is_created_once_and_its_role_is_corrected() {
    let world = World::new().await;
    world.fake.add_role("Other");
    let profiles = profiles(&world);
    let ensure = async |role: &str| profiles.ensure("p", role, &cluster_tags(), "uid").await;
    ensure("KarpenterNodeRole-test").await.unwrap();
    assert_eq!(
        profiles
            .just_made("KarpenterNodeRole-test", "uid")
            .as_deref(),
        Some("p")
    );
    assert_eq!(profiles.just_made("KarpenterNodeRole-test", "other"), None);
    let listed = profiles.list(&profiles.class_path("uid")).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].role.as_deref(), Some("KarpenterNodeRole-test"));

    world.fake.forget_calls();
    ensure("KarpenterNodeRole-test").await.unwrap();
    assert!(world.fake.calls().is_empty(), "nothing to write");
    ensure("path/Other").await.unwrap();
    assert_eq!(world.calls("RemoveRoleFromInstanceProfile"), 1);
    assert_eq!(
        profiles.get("p").await.unwrap().role.as_deref(),
        Some("Other")
    );
    profiles.protect("p");
    assert!(profiles.is_protected("p"));
    profiles.delete("p").await.unwrap();
    profiles.delete("p").await.unwrap();
    assert!(!profiles.is_protected("p"));
    assert!(profiles.get("p").await.unwrap_err().is_not_found());
}

/// Conformance: AWS-profile-05, AWS-profile-06
#[tokio::test]
async fn a_missing_role_leaves_no_profile_and_is_not_retried_at_once() {
    let world = World::new().await;
    let profiles = profiles(&world);
    let ensure = async || {
        profiles
            .ensure("p", "NoSuchRole", &cluster_tags(), "uid")
            .await
    };
    assert!(ensure().await.unwrap_err().is_not_found());
    assert_eq!(profiles.list("/karpenter/").await.unwrap(), []);
    world.fake.forget_calls();
    assert!(ensure().await.is_err());
    assert!(world.fake.calls().is_empty());
}
