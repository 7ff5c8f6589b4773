//! Repacking of claims that cost too much for their pods.

use karpenter_core::fake::{instance_type, offering};
use karpenter_core::schedule::{Packing, Plan, schedule};

use crate::fixture::*;

/// Returns instance types of 2 to 64 cores with 4 GiB per core, spot at a third of the on-demand price.
fn world() -> World {
    let types = [2, 4, 8, 16, 32, 64].map(|cpu| {
        let price = cpu as f64 / 10.0;
        let offerings = [Z1, Z2].iter().flat_map(|zone| {
            [
                offering("on-demand", zone, price),
                offering("spot", zone, price / 3.0),
            ]
        });
        instance_type(&format!("m-{cpu:02}"))
            .cpu(cpu)
            .gib(cpu * 4)
            .pods(100)
            .offerings(offerings.collect())
    });
    World::of(node_pool("default").requires(CAPACITY_TYPE, "In", &["spot", "on-demand"]))
        .with_types(types)
}

fn first_fit(world: &World) -> Plan {
    schedule(
        &world.cluster.snapshot(),
        &world.policy.clone().with_packing(Packing::FewestNodes),
        &world.query,
    )
}

fn on_demand() -> Object<Pod> {
    pod("steady").cpu("1").select(CAPACITY_TYPE, "on-demand")
}

#[test]
fn on_demand_pods_do_not_keep_other_pods_off_spot() {
    let world = world()
        .with(copies(&on_demand(), 3))
        .with(copies(&pod("p").cpu("1"), 40));
    let plan = world.plan();
    assert!(all_placed(&plan));
    assert_eq!(sizes(&first_fit(&world)), [43]);
    assert!(plan.hourly_price() < 0.5 * first_fit(&world).hourly_price());
    for draft in &plan.new_node_claims {
        let steady = draft.pods.iter().any(|pod| pod.name.starts_with("steady"));
        assert_eq!(
            values(draft, CAPACITY_TYPE) == ["on-demand"],
            steady,
            "{:?}",
            draft.pods
        );
    }
}

#[test]
fn a_node_with_few_pods_is_repacked_unless_the_policy_is_fewest_nodes() {
    let world = world()
        .with(on_demand())
        .with(copies(&pod("p").cpu("1"), 9));
    assert_eq!(sizes(&first_fit(&world)), [10]);
    let plan = world.plan();
    assert!(all_placed(&plan));
    assert!(plan.hourly_price() < 0.6 * first_fit(&world).hourly_price());
}

#[test]
fn repacking_that_saves_little_is_discarded() {
    let world = world().with(copies(&pod("p").cpu("1"), 31));
    let plan = world.plan();
    assert_eq!(sizes(&plan), [31]);
    assert_eq!(plan.new_node_claims, first_fit(&world).new_node_claims);
}

#[test]
fn pods_affine_to_a_host_stay_together() {
    let pair = pod("pair")
        .cpu("1")
        .label("app", "pair")
        .affinity(HOSTNAME, ("app", "pair"));
    let world = world()
        .with(copies(&pair, 4))
        .with(copies(&on_demand(), 2))
        .with(copies(&pod("p").cpu("1"), 40));
    let plan = world.plan();
    assert!(all_placed(&plan));
    assert!(plan.hourly_price() <= first_fit(&world).hourly_price());
    let pairs = |draft: &karpenter_core::schedule::PlannedNodeClaim| {
        let pods = draft.pods.iter();
        pods.filter(|pod| pod.name.starts_with("pair")).count()
    };
    let pairs: Vec<usize> = plan.new_node_claims.iter().map(pairs).collect();
    assert_eq!(pairs.iter().max(), Some(&4), "{pairs:?}");
}

#[test]
fn repacking_keeps_spread_and_anti_affinity() {
    let apart = pod("apart")
        .cpu("1")
        .label("app", "apart")
        .anti_affinity(HOSTNAME, ("app", "apart"));
    let spread = pod("spread")
        .cpu("1")
        .label("app", "spread")
        .spread(ZONE, 1, ("app", "spread"));
    let world = world()
        .with(copies(&apart, 2))
        .with(copies(&spread, 20))
        .with(copies(&on_demand(), 3))
        .with(copies(&pod("p").cpu("1"), 40));
    let plan = world.plan();
    assert!(all_placed(&plan));
    assert!(plan.hourly_price() < 0.6 * first_fit(&world).hourly_price());
    let of = |draft: &karpenter_core::schedule::PlannedNodeClaim, name: &str| {
        draft
            .pods
            .iter()
            .filter(|pod| pod.name.starts_with(name))
            .count()
    };
    assert!(
        plan.new_node_claims
            .iter()
            .all(|draft| of(draft, "apart") < 2)
    );
    let in_zone = |zone: &str| -> usize {
        let there = plan
            .new_node_claims
            .iter()
            .filter(|draft| values(draft, ZONE) == [zone]);
        there.map(|draft| of(draft, "spread")).sum()
    };
    assert_eq!((in_zone(Z1), in_zone(Z2)), (10, 10));
}

#[test]
fn repacking_keeps_limits() {
    let pods = || (copies(&on_demand(), 3), copies(&pod("p").cpu("1"), 40));
    let limited = |resource: &str, amount: &str| {
        world()
            .with_pool(
                node_pool("default")
                    .requires(CAPACITY_TYPE, "In", &["spot", "on-demand"])
                    .limit(resource, amount),
            )
            .with(pods())
    };
    assert_eq!(limited("nodes", "1").sizes(), [43]);
    let plan = limited("cpu", "100").plan();
    assert!(all_placed(&plan));
    let largest = |draft: &karpenter_core::schedule::PlannedNodeClaim| -> usize {
        let cores = draft.instance_types.iter().map(|name| name[2..].parse());
        cores.map(Result::unwrap).max().unwrap()
    };
    assert!(plan.new_node_claims.len() > 1);
    assert!(plan.new_node_claims.iter().map(largest).sum::<usize>() <= 100);
}

/// Two nodes cost two cents less than one for both pods.
#[test]
fn an_additional_node_counts_with_its_own_price() {
    let types = [(1, 0.08), (2, 0.1), (4, 0.2)].map(|(cpu, price)| {
        instance_type(&format!("m-{cpu:02}"))
            .cpu(cpu)
            .gib(cpu * 4)
            .pods(100)
            .offerings(vec![offering("on-demand", Z1, price)])
    });
    let nodes = |price: f64| {
        let pods = [pod("large").cpu("1500m"), pod("small").cpu("800m")];
        let mut world = World::new().with_types(types.clone()).with(pods);
        world.policy = world.policy.with_node_overhead_price(price);
        world.sizes().len()
    };
    assert_eq!([0.0, 0.019, 0.021].map(nodes), [2, 2, 1]);
}

/// Returns a world with nodes of 64 cores, and of 16 cores at `price`; of the cheapest type, at $1, no pod fits a node.
fn large_or_medium(price: f64) -> World {
    let types = [(1, 1.0), (16, price), (64, 20.0)].map(|(cpu, price)| {
        let offerings = vec![offering("on-demand", Z1, price)];
        let name = format!("m-{cpu:02}");
        let sized = instance_type(&name).cpu(cpu).gib(cpu * 16).pods(100);
        sized.offerings(offerings).build()
    });
    World::empty()
        .with_types(types)
        .with(copies(&pod("p").cpu("990m"), 640))
}

#[test]
fn nodes_are_compared_by_price_and_the_fewest_of_equal_ones_are_used() {
    let nodes = |price: f64, own: f64| {
        let mut world = large_or_medium(price).with_pool(node_pool("default"));
        world.policy = world.policy.with_node_overhead_price(own);
        world.sizes()
    };
    // Forty nodes cost $180, ten cost $200.
    assert_eq!(nodes(4.5, 0.004), [16; 40]);
    assert_eq!(nodes(4.5, 1.0), [64; 10]);
    assert_eq!(nodes(5.0, 0.0), [64; 10]);
}

#[test]
fn planned_nodes_are_repacked_within_the_limits_of_their_pool() {
    let limited =
        |cores: &str| large_or_medium(4.0).with_pool(node_pool("default").limit("cpu", cores));
    assert_eq!(limited("640").sizes(), [16; 40]);
    // Ten nodes of 64 cores are within this limit, and forty of sixteen are not.
    let nodes = |limit: &str| {
        let pool = node_pool("default")
            .limit("cpu", "640")
            .limit("nodes", limit);
        large_or_medium(4.0).with_pool(pool).sizes().len()
    };
    assert_eq!((nodes("40"), nodes("39")), (40, 10));
}

#[test]
fn planned_nodes_with_pods_that_must_be_apart_are_repacked_too() {
    let apart = pod("apart").cpu("990m").label("app", "apart");
    let apart = apart.anti_affinity(HOSTNAME, ("app", "apart"));
    let world = large_or_medium(4.0)
        .with_pool(node_pool("default"))
        .with(copies(&apart, 2));
    assert_eq!(sizes(&first_fit(&world))[0], 64);
    let plan = world.plan();
    assert!(all_placed(&plan));
    assert_eq!(sizes(&plan)[0], 16);
    let together = |draft: &karpenter_core::schedule::PlannedNodeClaim| {
        let pods = draft.pods.iter();
        pods.filter(|pod| pod.name.starts_with("apart")).count()
    };
    assert!(plan.new_node_claims.iter().all(|draft| together(draft) < 2));
}

#[test]
fn repacked_pods_keep_their_node_pool() {
    let requires = |name| node_pool(name).requires(CAPACITY_TYPE, "In", &["spot", "on-demand"]);
    let not_tolerated = requires("first").weight(10).taint("t", "t", "NoSchedule");
    let world = world()
        .with_pool(not_tolerated)
        .with(copies(&on_demand(), 3))
        .with(copies(&pod("p").cpu("1"), 40));
    let plan = world.plan();
    assert!(plan.hourly_price() < 0.5 * first_fit(&world).hourly_price());
    for draft in &plan.new_node_claims {
        assert_eq!(draft.node_pool, "default");
    }
    assert_eq!(sizes(&plan).iter().sum::<usize>(), 43);
}
