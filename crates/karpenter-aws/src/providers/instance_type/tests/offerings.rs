//! Offerings follow prices, unavailable pools, capacity reservations and zonal shifts.

use super::*;

/// Conformance: AWS-offering-01
#[test]
fn every_zone_is_offered_and_available_where_the_type_and_the_class_are() {
    let mut world = World::new();
    let zones = |found: &InstanceType| -> Vec<String> {
        let offerings = found.offerings.iter();
        let mut all: Vec<String> = offerings
            .map(|o| format!("{}/{}", o.zone().unwrap(), o.capacity_type().unwrap()))
            .collect();
        all.sort();
        all
    };
    let everywhere = [
        "test-zone-1a-local/on-demand",
        "test-zone-1a-local/spot",
        "test-zone-1a/on-demand",
        "test-zone-1a/spot",
        "test-zone-1b/on-demand",
        "test-zone-1b/spot",
        "test-zone-1c/on-demand",
        "test-zone-1c/spot",
    ];
    assert_eq!(zones(&world.find("m5.xlarge")), everywhere);
    assert_eq!(
        world.available("m5.xlarge"),
        ["a/on-demand", "a/spot", "b/on-demand", "b/spot"],
        "where EC2 has the type"
    );
    world.class.status.subnets.remove(0);
    assert_eq!(zones(&world.find("m5.xlarge")), everywhere);
    assert_eq!(
        world.available("m5.xlarge"),
        ["b/on-demand", "b/spot"],
        "where the class has a subnet"
    );
}

/// Conformance: AWS-types-12
#[test]
fn a_zone_shifted_away_is_not_offered() {
    let mut world = World::new();
    let before = world.available("m5.xlarge");
    assert_eq!(before, ["a/on-demand", "a/spot", "b/on-demand", "b/spot"]);
    world.shifted.insert("test-zone-1a-id".into());
    assert_eq!(world.available("m5.xlarge"), ["b/on-demand", "b/spot"]);
    world.shifted.clear();
    assert_eq!(world.available("m5.xlarge"), before);
}

/// Conformance: AWS-types-13
#[test]
fn an_expiring_capacity_block_keeps_its_count_and_is_not_available() {
    let mut world = World::new();
    world.class.status.capacity_reservations = vec![CapacityReservation {
        reservation_type: ReservationType::CapacityBlock,
        ..reservation("cr-1", "m5.large")
    }];
    world.counts.insert("cr-1".into(), 7);
    let reserved = |world: &mut World| {
        let found = world.find("m5.large");
        let offering = found
            .offerings
            .iter()
            .find(|o| o.capacity_type() == Some("reserved"));
        let offering = offering.unwrap().clone();
        (offering.available, offering.reservation_capacity)
    };
    assert_eq!(reserved(&mut world), (true, 7));
    world.class.status.capacity_reservations[0].state = ReservationState::Expiring;
    assert_eq!(reserved(&mut world), (false, 7));
}

/// Conformance: AWS-offering-02
#[test]
fn reservations_become_offerings_with_a_price_close_to_zero() {
    let mut world = World::new();
    world.class.status.capacity_reservations = vec![reservation("cr-1", "m5.large")];
    world.counts.insert("cr-1".into(), 2);
    let found = world.find("m5.large");
    let offering = found.offerings.last().unwrap();
    assert_eq!(
        offering.single(labels::CAPACITY_RESERVATION_ID),
        Some("cr-1")
    );
    assert_eq!(
        offering.price,
        world.pricing.on_demand("m5.large").unwrap() / 10_000_000.0
    );
    let requires = |key: &str| found.requirements.get(key).unwrap().clone();
    assert!(requires("karpenter.sh/capacity-type").has("reserved"));
    assert!(requires(labels::CAPACITY_RESERVATION_ID).has("cr-1"));
    assert!(
        !world
            .find("m5.xlarge")
            .requirements
            .get("karpenter.sh/capacity-type")
            .unwrap()
            .has("reserved")
    );
    // A count that falls to zero changes the offerings of its type only.
    world.counts.insert("cr-1".into(), 0);
    let resolved = world.resolve();
    assert_eq!(resolved.refreshed, 1);
    assert!(
        !resolved
            .get("m5.large")
            .unwrap()
            .0
            .offerings
            .last()
            .unwrap()
            .available
    );
    assert_eq!(world.resolve().refreshed, 0);
}

/// Conformance: AWS-labels-05, AWS-offering-07
#[test]
fn partitions_multiply_offerings() {
    let mut world = World::new();
    let group = PlacementGroup {
        id: "pg-1".into(),
        name: "group".into(),
        strategy: "partition".into(),
        partitions: 3,
    };
    let plain = world.find("m5.large").offerings.len();
    let shape = Shape::of(&world.class, Some(group)).unwrap();
    let resolved = world.resolve_shape("uid", &shape).unwrap();
    let (found, _) = resolved.get("m5.large").unwrap();
    assert_eq!(found.offerings.len(), plain * 3);
    assert_eq!(
        found
            .requirements
            .get(labels::PLACEMENT_GROUP_ID)
            .unwrap()
            .single(),
        Some("pg-1")
    );
    let partitions: BTreeSet<_> = found
        .offerings
        .iter()
        .filter_map(|o| o.single(labels::PLACEMENT_GROUP_PARTITION))
        .collect();
    assert_eq!(partitions, BTreeSet::from(["1", "2", "3"]));

    // Marking one partition as unavailable leaves the others available.
    let pool = Pool {
        capacity_type: CapacityType::Spot,
        instance_type: "m5.large".into(),
        zone: "test-zone-1a".into(),
        placement: Some(crate::providers::instance_type::unavailable::Placement {
            group: "pg-1".into(),
            partition: Some(2),
        }),
    };
    world.unavailable.mark(pool, now());
    let resolved = world.resolve_shape("uid", &shape).unwrap();
    assert_eq!(resolved.refreshed, 1);
    let (found, _) = resolved.get("m5.large").unwrap();
    let gone: Vec<_> = found
        .offerings
        .iter()
        .filter(|o| !o.available && o.zone() == Some("test-zone-1a"))
        .map(|o| o.single(labels::PLACEMENT_GROUP_PARTITION))
        .collect();
    assert_eq!(gone, [Some("2")]);
}

/// Conformance: AWS-ice-06
#[test]
fn a_zone_is_not_offered_when_all_its_subnets_are_out_of_addresses() {
    let mut world = World::new();
    world
        .class
        .status
        .subnets
        .push(subnet("subnet-4", "test-zone-1a"));
    world
        .class
        .status
        .subnets
        .push(subnet("subnet-5", "test-zone-1a"));
    let before = world.available("m5.xlarge");
    for id in ["subnet-1", "subnet-4"] {
        world.unavailable.mark_subnet(id, now());
        assert_eq!(world.available("m5.xlarge"), before);
    }
    world.unavailable.mark_subnet("subnet-5", now());
    assert_eq!(world.available("m5.xlarge"), ["b/on-demand", "b/spot"]);
}

/// Conformance: AWS-ice-09
#[test]
fn a_pool_is_unavailable_for_its_type_and_a_capacity_type_for_all_types() {
    let mut world = World::new();
    let before = world.resolve();
    let pool = Pool {
        capacity_type: CapacityType::Spot,
        instance_type: "m5.large".into(),
        zone: "test-zone-1a".into(),
        placement: None,
    };
    world.unavailable.mark(pool, now());
    let after = world.resolve();
    assert_eq!(after.refreshed, 1);
    assert_eq!(
        world.available("m5.large"),
        [
            "a/on-demand",
            "b/on-demand",
            "b/spot",
            "c/on-demand",
            "c/spot"
        ]
    );
    for (old, new) in before.types.iter().zip(after.types.iter()) {
        let shared = std::ptr::eq(&*old.offerings, &*new.offerings);
        assert_eq!(shared, old.name != "m5.large", "{}", old.name);
        assert_eq!(shared, old == new);
    }
    world
        .unavailable
        .mark_capacity_type(CapacityType::Spot, now());
    let all = world.resolve();
    let spot_types = before
        .types
        .iter()
        .filter(|found| describe(found).iter().any(|way| way.ends_with("spot")));
    assert_eq!(all.refreshed, spot_types.count());
    assert_eq!(world.available("m5.xlarge"), ["a/on-demand", "b/on-demand"]);
    world
        .unavailable
        .expire("1970-01-01T00:10:00Z".parse().unwrap());
    assert_eq!(world.resolve().types, before.types);
}

#[test]
fn another_class_sees_an_unavailable_pool_at_once() {
    let mut world = World::new();
    let one = Shape::of(&world.class, None).unwrap();
    world.class.status.subnets.remove(1);
    let two = Shape::of(&world.class, None).unwrap();
    for (uid, shape) in [("1", &one), ("2", &two)] {
        world.resolve_shape(uid, shape).unwrap();
    }
    world
        .unavailable
        .mark_capacity_type(CapacityType::OnDemand, now());
    for (uid, shape) in [("1", &one), ("2", &two)] {
        let resolved = world.resolve_shape(uid, shape).unwrap();
        let ways = describe(resolved.get("m5.large").unwrap().0);
        assert!(ways.iter().all(|way| way.ends_with("/spot")), "{ways:?}");
    }
}

#[test]
fn only_the_types_whose_price_changed_are_recomputed() {
    let mut world = World::new();
    world.resolve();
    let prices = |m5: f64| {
        [("m5.large", m5), ("m5.xlarge", 0.2)]
            .map(|(name, price)| (name.to_owned(), "test-zone-1a".to_owned(), price))
    };
    world.pricing.update_spot(prices(0.1));
    world.resolve();
    world.pricing.update_spot(prices(0.05));
    let resolved = world.resolve();
    assert_eq!(resolved.refreshed, 1);
    let found = resolved.get("m5.large").unwrap().0.clone();
    let spot = found
        .offerings
        .iter()
        .find(|o| o.capacity_type() == Some("spot") && o.zone() == Some("test-zone-1a"));
    assert_eq!(spot.unwrap().price, 0.05);
    assert_eq!(
        world.available("m5.large"),
        ["a/on-demand", "a/spot", "b/on-demand", "c/on-demand"],
        "no spot price in the other zones"
    );
}
