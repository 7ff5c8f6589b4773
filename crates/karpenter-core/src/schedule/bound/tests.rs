//! The bound is below every plan, and close to the best.

use jiff::Timestamp;
use karpenter_fixtures::{CAPACITY_TYPE, Object, Pod, copies, node, node_pool, pod};
use proptest::prelude::*;

use super::*;
use crate::cluster::Cluster;
use crate::fake;
use crate::instance_type::InstanceType;
use crate::schedule::{Objective, Policy, Query, schedule};

/// An instance type of so many cores.
fn sized(cpu: i64, price: f64) -> InstanceType {
    let offerings = ["on-demand", "spot"].map(|capacity_type| {
        let share = if capacity_type == "spot" { 0.5 } else { 1.0 };
        fake::offering(capacity_type, "zone-1", price * share)
    });
    let sized = fake::instance_type(&format!("t-{cpu}"))
        .cpu(cpu)
        .gib(cpu * 4);
    sized.offerings(offerings.into()).build()
}

/// Returns what the plan for some pods costs and the least it could, where a node costs $1 beside its instance.
fn objective(types: &[(i64, f64)], pods: Vec<Object<Pod>>) -> Objective {
    let types: Vec<InstanceType> = types
        .iter()
        .map(|(cpu, price)| sized(*cpu, *price))
        .collect();
    let mut cluster = Cluster::new(fake::cluster_config());
    let pool = node_pool("default").requires(CAPACITY_TYPE, "In", &["spot", "on-demand"]);
    cluster.apply_node_pool(&pool.build());
    cluster.set_instance_types("default", Ok(types.into()));
    cluster.apply_node(&node("full").cpu("1").build());
    for pod in pods {
        cluster.apply_pod(&pod.build());
    }
    let policy = Policy::at(Timestamp::UNIX_EPOCH).with_node_overhead_price(1.0);
    let query = Query::default().with_bounded_price();
    let plan = schedule(&cluster.snapshot(), &policy, &query);
    assert_eq!(plan.unplaced, []);
    plan.objective.unwrap()
}

#[test]
fn a_plan_of_one_node_is_known_to_be_the_cheapest() {
    let types = [(4, 4.0), (8, 7.0), (16, 20.0)];
    let steady = pod("steady").cpu("3").select(CAPACITY_TYPE, "on-demand");
    let with_spot = objective(&types, copies(&pod("p").cpu("3"), 2));
    assert_eq!((with_spot.price, with_spot.lowest), (4.5, 4.5));
    let on_demand = objective(&types, copies(&steady, 2));
    assert_eq!((on_demand.price, on_demand.lowest), (8.0, 8.0));
}

#[test]
fn pods_that_no_node_holds_together_need_two() {
    let found = objective(&[(4, 4.0)], copies(&pod("p").cpu("3"), 2));
    assert_eq!((found.price, found.lowest), (6.0, 6.0));
}

#[test]
fn pods_on_existing_nodes_are_free() {
    assert_eq!(
        objective(&[(4, 4.0)], vec![pod("p").cpu("500m")]),
        Objective::default()
    );
}

/// A node of a small catalogue: room for two resources, and its price.
type Node = ([i64; 2], f64);

/// Returns what the cheapest nodes for some pods cost, by trying all ways to divide them.
fn cheapest(pods: &[([i64; 2], bool)], nodes: &[Node], left: &mut Vec<Vec<usize>>) -> f64 {
    let placed: usize = left.iter().map(Vec::len).sum();
    if placed == pods.len() {
        let price = |group: &Vec<usize>| {
            let sum = |place: usize| group.iter().map(|pod| pods[*pod].0[place]).sum::<i64>();
            let steady = group.iter().any(|pod| pods[*pod].1);
            let fits = |node: &&Node| (0..2).all(|place| sum(place) <= node.0[place]);
            let prices = nodes.iter().filter(fits).map(|node| node.1);
            prices.fold(f64::MAX, f64::min) * if steady { 2.0 } else { 1.0 } + 0.5
        };
        return left.iter().map(price).sum();
    }
    let mut best = f64::MAX;
    for group in 0..=left.len() {
        if group == left.len() {
            left.push(Vec::new());
        }
        left[group].push(placed);
        best = best.min(cheapest(pods, nodes, left));
        left[group].pop();
        left.retain(|group| !group.is_empty());
    }
    best
}

proptest! {
    #[test]
    fn no_way_to_divide_pods_among_nodes_costs_less(
        pods in prop::collection::vec(([1_i64..9, 1_i64..9], any::<bool>()), 1..6),
        nodes in prop::collection::vec(([4_i64..20, 4_i64..20], 0.1_f64..5.0), 0..5),
    ) {
        let mut nodes: Vec<Node> = nodes;
        nodes.push(([9, 9], 3.0));
        let total = |place: usize| pods.iter().map(|pod| pod.0[place]).sum::<i64>();
        let groups: Vec<Group> = pods.iter().map(|(requests, steady)| {
            let fits = |node: &&Node| (0..2).all(|place| requests[place] <= node.0[place]);
            let offers = nodes.iter().filter(fits).map(|(room, price)| Offer {
                price: price * if *steady { 2.0 } else { 1.0 },
                room: (0..2).map(|place| room[place].min(total(place)) as f64).collect(),
                holds_all: (0..2).all(|place| total(place) <= room[place]),
            });
            Group {
                requests: requests.iter().map(|request| *request as f64).collect(),
                offers: offers.collect(),
            }
        }).collect();
        let bound = lowest(&groups, 0.5);
        let best = cheapest(&pods, &nodes, &mut Vec::new());
        prop_assert!(bound <= best + 1e-9, "{bound} for {best}");
    }
}
