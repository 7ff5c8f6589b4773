//! Reserved capacity: the instances left in a reservation are counted, and pods wait for them.

use karpenter_core::fake::{instance_type, offering, reserved};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::schedule::{ReservedMode, Unschedulable};
use serde_json::json;

use crate::fixture::*;

const DELETED: &str = "2026-01-01T00:00:00Z";

fn reserved_type(name: &str, cpu: i64, reservations: &[(&str, u32)]) -> InstanceType {
    let price = 0.1 * cpu as f64;
    let mut offerings = vec![
        offering("on-demand", Z1, price),
        offering("spot", Z1, price * 0.9),
    ];
    offerings.extend(
        reservations
            .iter()
            .map(|(id, left)| reserved(id, *left, Z1, price / 1e6)),
    );
    instance_type(name)
        .cpu(cpu)
        .gib(cpu)
        .offerings(offerings)
        .build()
}

fn any_capacity(name: &str) -> Object<NodePool> {
    node_pool(name).requires(CAPACITY_TYPE, "In", &["on-demand", "spot", "reserved"])
}

/// Returns a world in which so many instances of four cores are left in a reservation.
fn left(number: u32) -> World {
    World::of(any_capacity("a")).with_types(reserved_type("t", 4, &[("r", number)]))
}

/// Returns the numbers of planned nodes and of pods without a place.
fn planned(plan: &karpenter_core::schedule::Plan) -> (usize, usize) {
    (plan.new_node_claims.len(), plan.unplaced.len())
}

fn apart() -> Object<Pod> {
    member("p").cpu("1800m").anti_affinity(HOSTNAME, APP)
}

fn is_reserved(plan: &karpenter_core::schedule::Plan, index: usize) -> bool {
    values(&plan.new_node_claims[index], CAPACITY_TYPE) == ["reserved"]
}

/// Conformance: SCH-157, SCH-243
#[test]
fn a_reservation_is_shared_by_all_pools() {
    let world = |a: &str, b: &str| {
        let mut world =
            World::of(any_capacity("a").weight(2)).with_types(reserved_type("t", 4, &[(a, 1)]));
        world.cluster.apply_node_pool(&any_capacity("b").build());
        let types = [reserved_type("t", 4, &[(b, 1)])].into_iter().collect();
        world.cluster.set_instance_types("b", Ok(types));
        world.with([
            apart().select(NODE_POOL, "a").renamed("pa"),
            apart().select(NODE_POOL, "b").renamed("pb"),
        ])
    };
    let plan = world("same", "same").plan();
    assert_eq!(planned(&plan), (1, 1));
    assert!(plan.unplaced[0].why.is_deferred());
    let plan = world("one", "two").plan();
    assert_eq!(plan.new_node_claims.len(), 2);
    assert!(is_reserved(&plan, 0) && is_reserved(&plan, 1));
}

/// Conformance: SCH-276
#[test]
fn the_least_count_that_an_offering_gives_a_reservation_is_its_capacity() {
    let planned = |counts: [u32; 2], zones: [&str; 2]| {
        let types = ["small", "large"]
            .into_iter()
            .zip(counts.into_iter().zip(zones));
        let types = types.map(|(name, (left, zone))| {
            let offered = reserved("r", left, zone, 1e-6);
            instance_type(name).cpu(4).gib(4).offerings(vec![offered])
        });
        let plan = World::of(any_capacity("default"))
            .with_types(types.collect::<Vec<_>>())
            .with(copies(&apart(), 3))
            .plan();
        plan.new_node_claims.len()
    };
    for zones in [[Z1, Z1], [Z1, Z2]] {
        let of = |counts| planned(counts, zones);
        assert_eq!((of([3, 3]), of([3, 1]), of([2, 3])), (3, 1, 2), "{zones:?}");
    }
}

/// Conformance: SCH-159, SCH-243
#[test]
fn a_pod_waits_for_a_reservation_rather_than_take_a_lighter_pool() {
    let world = World::of(any_capacity("heavy").weight(10))
        .with_types(reserved_type("t", 4, &[("r", 1)]))
        .with_pool(node_pool("light").requires(CAPACITY_TYPE, "In", &["on-demand"]))
        .with(copies(&apart(), 2));
    let plan = world.plan();
    assert_eq!(planned(&plan), (1, 1));
    assert_eq!(plan.new_node_claims[0].node_pool, "heavy");
    assert!(matches!(
        plan.unplaced[0].why,
        Unschedulable::ReservationWait(_)
    ));
    assert_eq!(
        first_values(&plan, karpenter_core::fake::RESERVATION_ID),
        ["r"]
    );
    assert_eq!(plan.new_node_claims[0].reservations, ["r"]);
}

/// Conformance: SCH-160
#[test]
fn a_preference_is_not_dropped_because_a_reservation_is_busy() {
    let world = World::of(any_capacity("preferred"))
        .with_types(reserved_type("t", 4, &[("r", 1)]))
        .with_pool(
            node_pool("other")
                .requires(CAPACITY_TYPE, "In", &["on-demand"])
                .weight(10),
        )
        .with(copies(
            &apart().prefer(1, NODE_POOL, "In", &["preferred"]),
            2,
        ));
    let plan = world.plan();
    assert_eq!(planned(&plan), (1, 1));
    assert_eq!(plan.new_node_claims[0].node_pool, "preferred");
}

/// Conformance: SCH-161
#[test]
fn pods_on_one_planned_node_hold_one_reservation() {
    let affine = member("p").cpu("1").affinity(HOSTNAME, APP);
    let world = left(1);
    let plan = world.with(copies(&affine, 2)).plan();
    assert_eq!(sizes(&plan), [2]);
    assert!(is_reserved(&plan, 0));
}

/// Conformance: SCH-162
#[test]
fn an_instance_left_in_a_reservation_is_planned_once() {
    let world = |number: u32| left(number).with(copies(&apart(), 3));
    assert_eq!(
        world(0).plan().new_node_claims.len(),
        0,
        "compatible, but no instance left: all pods wait"
    );
    assert_eq!(world(2).plan().new_node_claims.len(), 2);
    assert_eq!(world(3).plan().new_node_claims.len(), 3);
}

#[test]
fn a_claim_that_is_not_launched_yet_counts_in_the_reservation() {
    let mut world = left(2).with(copies(&apart(), 3));
    let plan = world.plan();
    assert_eq!(plan.new_node_claims.len(), 2);
    for (index, draft) in plan.new_node_claims.iter().enumerate() {
        let mut claim = draft.to_node_claim();
        claim.metadata.name = Some(format!("a-{index}"));
        claim.metadata.uid = claim.metadata.name.clone();
        world.cluster.apply_node_claim(&claim);
    }
    // The provider has launched neither, and reports that two instances are left.
    let plan = world.plan();
    assert_eq!(planned(&plan), (0, 1));
    assert!(plan.unplaced[0].why.is_deferred());
}

#[test]
fn a_launched_or_deleted_claim_no_longer_counts_in_the_reservation() {
    let planned_beside = |change: fn(Object<NodeClaim>) -> Object<NodeClaim>| {
        let mut world = left(2).with(apart());
        let draft = world.plan().new_node_claims[0].to_node_claim();
        let claim = Object::from_json(serde_json::to_value(&draft).unwrap());
        world.cluster.remove_pod("default", "p");
        world.add(change(claim.renamed("a-0").uid("a-0")));
        let others = copies(&apart().renamed("q").cpu("3"), 2);
        world.with(others).plan().new_node_claims.len()
    };
    assert_eq!(planned_beside(|claim| claim), 1);
    assert_eq!(planned_beside(|claim| claim.launched("fake://a-0")), 2);
    assert_eq!(planned_beside(|claim| claim.deleted(DELETED)), 2);
}

/// Conformance: SCH-244
#[test]
fn in_fallback_mode_other_capacity_types_are_used_without_waiting() {
    let mut world = left(1).with(copies(&apart(), 2));
    world.policy.reserved_mode = ReservedMode::Fallback;
    let plan = world.plan();
    assert_eq!(plan.new_node_claims.len(), 2);
    assert!(is_reserved(&plan, 0));
    assert_eq!(
        values(&plan.new_node_claims[1], CAPACITY_TYPE),
        ["on-demand", "spot"]
    );
}

/// Returns an instance type whose offerings of a reservation without instances left are unavailable.
fn with_left(name: &str, cpu: i64, reservations: &[(&str, u32)]) -> InstanceType {
    let mut instance_type = reserved_type(name, cpu, reservations);
    for offering in &mut instance_type.offerings {
        offering.available &=
            offering.capacity_type() != Some("reserved") || offering.reservation_capacity > 0;
    }
    instance_type
}

fn next_round(world: &mut World, types: Vec<InstanceType>) -> karpenter_core::schedule::Plan {
    world.cluster.set_instance_types("a", Ok(types.into()));
    world.launch_and_bind()
}

/// Conformance: SCH-156
#[test]
fn reservations_are_used_up_round_by_round_cheapest_first() {
    let mut world = World::of(any_capacity("a")).with(copies(&apart(), 3));
    let types = |small: u32, medium: u32| {
        vec![
            with_left("small", 2, &[("s", small)]),
            with_left("medium", 4, &[("m", medium)]),
        ]
    };
    for (left, name, reserved) in [
        ((1, 1), "small", true),
        ((0, 1), "medium", true),
        ((0, 0), "small", false),
    ] {
        let plan = next_round(&mut world, types(left.0, left.1));
        assert_eq!(plan.new_node_claims.len(), 1);
        assert_eq!(plan.new_node_claims[0].instance_types[0], name);
        assert_eq!(is_reserved(&plan, 0), reserved);
    }
}

/// Conformance: SCH-158
#[test]
fn several_reservations_of_one_type_are_used_up() {
    let mut world = World::of(any_capacity("a")).with(copies(&apart(), 4));
    let rounds = [((1, 2), 2, true), ((0, 1), 1, true), ((0, 0), 1, false)];
    for ((first, second), claims, reserved) in rounds {
        let plan = next_round(
            &mut world,
            vec![with_left("t", 4, &[("one", first), ("two", second)])],
        );
        assert_eq!(plan.new_node_claims.len(), claims);
        assert_eq!(is_reserved(&plan, 0), reserved);
    }
}

#[test]
fn a_spread_continues_in_zones_without_a_reservation() {
    let everywhere = |price: f64| [Z1, Z2, Z3].map(|zone| offering("on-demand", zone, price));
    let mut offerings = everywhere(1.0).to_vec();
    offerings.push(reserved("r", 1, Z1, 0.001));
    let types = [instance_type("t").cpu(4).gib(4).offerings(offerings)];
    let pool = node_pool("default").requires(CAPACITY_TYPE, "In", &["on-demand", "reserved"]);
    let spread = member("p").cpu("3").spread(ZONE, 1, APP);
    let world = World::of(pool).with_types(types).with(copies(&spread, 3));
    let plan = world.plan();
    assert!(all_placed(&plan));
    let mut places: Vec<[String; 2]> = plan
        .new_node_claims
        .iter()
        .map(|draft| [ZONE, CAPACITY_TYPE].map(|key| values(draft, key).join(",")))
        .collect();
    places.sort();
    assert_eq!(
        places,
        [[Z1, "reserved"], [Z2, "on-demand"], [Z3, "on-demand"],]
    );
    // The fourth pod may be in any zone; it does not wait where there is no reservation.
    let four = world.with(copies(&spread.set("/metadata/name", json!("q")), 1));
    assert!(four.is_placed());
}

/// Conformance: SCH-245
#[test]
fn reservations_that_are_not_tracked_are_used_like_any_offering() {
    let offerings = vec![offering("on-demand", Z1, 1.0), reserved("r", 1, Z1, 0.001)];
    let types = instance_type("t").cpu(4).gib(4).offerings(offerings);
    let world = |mode: ReservedMode| {
        let mut world = World::new()
            .with_types(types.clone())
            .with(copies(&pod("p").cpu("3"), 2));
        world.policy.reserved_mode = mode;
        world.plan()
    };
    assert_eq!(world(ReservedMode::Off).new_node_claims.len(), 2);
    assert_eq!(world(ReservedMode::Fallback).new_node_claims.len(), 2);
    let strict = world(ReservedMode::Strict);
    assert_eq!(planned(&strict), (1, 1));
    assert!(strict.unplaced[0].why.is_deferred());
}

#[test]
fn a_reserved_node_lists_only_its_zone_once_a_constraint_counts_its_pods() {
    let large = vec![offering("on-demand", Z1, 0.8)];
    let small = vec![reserved("r", 1, Z2, 1e-6)];
    let types = [
        instance_type("large").cpu(8).gib(8).offerings(large),
        instance_type("small").cpu(4).gib(4).offerings(small),
    ];
    let group = |name: &str| member(name);
    // The pod that joins may be in the zone of the running pod, too, and does not decide the zone.
    let running = group("runs").cpu("1").on("n");
    let joins = group("joins").cpu("100m").affinity(ZONE, APP);
    let plan = World::of(any_capacity("default"))
        .with_types(types)
        .with((node("n").zone(Z1).cpu("1"), running))
        .with([group("first").cpu("2"), joins])
        .plan();
    assert_eq!(plan.new_node_claims.len(), 1, "{plan:#?}");
    assert_eq!(plan.new_node_claims[0].pods.len(), 2);
    assert!(is_reserved(&plan, 0));
    assert_eq!(first_values(&plan, ZONE), [Z2]);
}
