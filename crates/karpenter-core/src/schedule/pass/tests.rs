//! Passes that place the pods once.

use jiff::Timestamp;
use karpenter_fixtures::{HOSTNAME, Object, Pod, Z1, Z2, Z3, ZONE, node, node_pool, pod};

use super::*;
use crate::cluster::Cluster;
use crate::fake;
use crate::schedule::request::Policy;

fn cluster(pods: impl IntoIterator<Item = Object<Pod>>) -> Cluster {
    let mut cluster = Cluster::new(fake::cluster_config());
    cluster.apply_node_pool(&node_pool("default").build());
    cluster.set_instance_types("default", Ok(fake::catalogue()));
    for pod in pods {
        cluster.apply_pod(&pod.build());
    }
    cluster
}

/// A label that only the node `n` has.
const ONLY_ON_N: &str = "example.com/n";

/// Returns the cost of the plan whose pods are placed in this manner, and the plan.
fn placed(cluster: &Cluster, query: &Query, manner: Manner) -> (Cost, Plan) {
    let policy = Policy::at(Timestamp::UNIX_EPOCH);
    let solver = Solver::prepare_for(&cluster.snapshot(), &policy, query);
    let mut pass = Pass::new(&solver, query).unwrap();
    let order = pass.queue.pods.indices().collect();
    pass.place(order, manner, &mut None, true);
    (pass.cost(), pass.into_plan())
}

/// Returns a pod with two terms of required node affinity: the first zone or the second.
fn either_zone(name: &str) -> Object<Pod> {
    let pod = pod(name).cpu("1");
    pod.require(ZONE, "In", &[Z1]).require(ZONE, "In", &[Z2])
}

#[test]
fn after_a_dropped_preference_upstream_tries_only_the_last_affinity_term() {
    let zones = |pod: &Object<Pod>, manner| {
        let (_, plan) = placed(&cluster([pod.clone()]), &Query::default(), manner);
        plan.new_node_claims[0].zones().concat()
    };
    let plain = either_zone("p");
    assert_eq!(zones(&plain, Manner::Upstream), Z1);
    assert_eq!(zones(&plain, Manner::FirstFit), Z1);
    let unmet = either_zone("p").prefer(1, "disk", "In", &["ssd"]);
    assert_eq!(zones(&unmet, Manner::Upstream), Z2);
    assert_eq!(zones(&unmet, Manner::FirstFit), Z1);
}

#[test]
fn preferences_dropped_by_the_pods_of_a_pass_are_counted() {
    let dropped = |pods: Vec<Object<Pod>>| {
        placed(&cluster(pods), &Query::default(), Manner::FirstFit)
            .0
            .pods
            .unmet
    };
    let wishing = |name: &str| either_zone(name).prefer(1, "disk", "In", &["ssd"]);
    assert_eq!(dropped(vec![either_zone("p")]), 0);
    assert_eq!(dropped(vec![either_zone("p"), wishing("q")]), 1);
    let more = wishing("r").prefer(1, "disk", "In", &["nvme"]);
    assert_eq!(dropped(vec![wishing("q"), more]), 3);
}

#[test]
fn preferences_dropped_by_a_pod_on_its_nominated_node_are_counted() {
    let wishing = either_zone("p").prefer(1, "disk", "In", &["ssd"]);
    let mut cluster = cluster([wishing]);
    cluster.apply_node(&node("n").zone(Z1).build());
    let pod = cluster.snapshot().pod("default", "p").unwrap().key.clone();
    let query = Query::default().with_nominated(vec![(pod, "n".to_owned())]);
    let (cost, plan) = placed(&cluster, &query, Manner::FirstFit);
    assert_eq!((plan.existing.len(), cost.pods.unmet), (1, 1));
}

#[test]
fn preferences_for_other_pods_are_counted_by_where_pods_are_in_the_end() {
    let web = ("app", "web");
    let unmet = |pods: Vec<Object<Pod>>| {
        let mut cluster = cluster(pods);
        cluster.apply_node(
            &node("n")
                .zone(Z1)
                .cpu("16")
                .label(ONLY_ON_N, "true")
                .build(),
        );
        let (cost, _) = placed(&cluster, &Query::default(), Manner::FirstFit);
        assert_eq!(cost.pods.unplaced, []);
        cost.pods.unmet
    };
    let running = || pod("running").label("app", "web").on("n");
    let beside = |key: &str| pod("p").prefer_affinity(1, key, web);
    let away = |key: &str| pod("p").prefer_anti_affinity(1, key, web);
    for key in [HOSTNAME, ZONE] {
        assert_eq!(unmet(vec![beside(key)]), 1, "nothing is there");
        assert_eq!(unmet(vec![beside(key), running()]), 0);
        assert_eq!(unmet(vec![away(key)]), 0);
        assert_eq!(unmet(vec![away(key), running()]), 0);
        let stuck = away(key).select(ZONE, Z1).select(ONLY_ON_N, "true");
        assert_eq!(unmet(vec![stuck, running()]), 1, "it has no other node");
        let pair = |name: &str| beside(key).renamed(name).label("app", "web");
        assert_eq!(unmet(vec![pair("a")]), 1, "a pod is not beside itself");
        assert_eq!(unmet(vec![pair("a"), pair("b")]), 0);
        let apart = |name: &str| away(key).renamed(name).label("app", "web");
        assert_eq!(unmet(vec![apart("a")]), 0);
        assert_eq!(unmet(vec![apart("a"), apart("b")]), 0);
    }
    // The zones that it can be in have no other pod.
    let elsewhere = beside(ZONE).label("app", "web").cpu("1");
    let elsewhere = elsewhere.require(ZONE, "In", &[Z2, Z3]);
    assert_eq!(unmet(vec![elsewhere, running()]), 1);
}

#[test]
fn a_pod_without_a_place_counts_in_its_class_and_pods_of_buffers_apart() {
    let mut cluster = cluster([pod("p").cpu("1"), pod("large").cpu("9000")]);
    cluster.apply_pod(&pod("larger").cpu("9000").build());
    let (cost, _) = placed(&cluster, &Query::default(), Manner::FirstFit);
    let left_out: Vec<usize> = cost.pods.left_out.values().copied().collect();
    assert_eq!((cost.pods.unplaced, left_out), (vec![(0, 2)], vec![2]));
    assert_eq!(cost.buffers, Outcome::default());
}

/// Returns the zone of the planned node of a pod that is spread over zones with these prices, in which so many pods run.
fn zone_of_spread_pod(prices: [f64; 3], running: [usize; 3], manner: Manner) -> String {
    let zones = [Z1, Z2, Z3];
    let offers = zones.iter().zip(prices);
    let offers = offers.map(|(zone, price)| fake::offering("on-demand", zone, price));
    let offered = fake::instance_type("t").cpu(4).gib(8);
    let web = |name: &str| pod(name).label("app", "web");
    let mut cluster = cluster([web("p").cpu("3").spread(ZONE, 5, ("app", "web"))]);
    let types = [offered.offerings(offers.collect()).build()];
    cluster.set_instance_types("default", Ok(types.into()));
    for (zone, running) in zones.into_iter().zip(running) {
        cluster.apply_node(&node(zone).zone(zone).cpu("2").build());
        for index in 0..running {
            let name = format!("{zone}-{index}");
            cluster.apply_pod(&web(&name).on(zone).build());
        }
    }
    let (_, plan) = placed(&cluster, &Query::default(), manner);
    plan.new_node_claims[0].zones().concat()
}

#[test]
fn of_the_zones_with_the_fewest_pods_of_a_spread_the_cheapest_is_used() {
    let by_price = |prices, running| zone_of_spread_pod(prices, running, Manner::FirstFit);
    assert_eq!(by_price([2.0, 1.0, 3.0], [0, 0, 0]), Z2);
    assert_eq!(by_price([2.0, 3.0, 1.0], [1, 1, 1]), Z3);
    assert_eq!(
        by_price([2.0, 2.0, 2.0], [0, 0, 0]),
        Z1,
        "the first of equals"
    );
    assert_eq!(
        by_price([2.0, 3.0, 1.0], [0, 0, 1]),
        Z1,
        "it has fewer pods"
    );
    assert_eq!(by_price([1.0, 3.0, 2.0], [1, 0, 0]), Z3);
    let by_name = |prices, running| zone_of_spread_pod(prices, running, Manner::Upstream);
    assert_eq!(by_name([2.0, 1.0, 3.0], [0, 0, 0]), Z1);
    assert_eq!(by_name([1.0, 3.0, 2.0], [1, 0, 0]), Z2);
}

/// Returns pods with constraints of all kinds, and a node that has room for one of them.
fn constrained() -> Cluster {
    let web = ("app", "web");
    let mut pods = Vec::new();
    for index in 0..4 {
        let named = |kind: &str| pod(&format!("{kind}-{index}")).cpu("1");
        pods.push(named("spread").label("app", "web").spread(ZONE, 1, web));
        pods.push(named("beside").affinity(ZONE, web));
        pods.push(
            named("apart")
                .label("app", "db")
                .anti_affinity(HOSTNAME, ("app", "db")),
        );
        pods.push(named("near").prefer_affinity(1, ZONE, ("app", "db")));
        pods.push(named("large").cpu("9000"));
    }
    let mut cluster = cluster(pods);
    cluster.apply_node(&node("n").zone(Z1).cpu("2").build());
    cluster
}

/// Calls `read` with a pass whose pods are placed first fit.
fn with_first_fit<R>(read: impl FnOnce(&mut Pass<'_>) -> R) -> R {
    let policy = Policy::at(Timestamp::UNIX_EPOCH);
    let query = Query::default();
    let solver = Solver::prepare_for(&constrained().snapshot(), &policy, &query);
    let mut pass = Pass::new(&solver, &query).unwrap();
    pass.place_first(true);
    read(&mut pass)
}

/// Returns where each pod of a pass is.
fn places(pass: &Pass<'_>) -> Vec<PodState> {
    pass.queue.pods.iter().map(|queued| queued.state).collect()
}

#[test]
fn pods_placed_again_in_the_same_order_get_the_same_places() {
    with_first_fit(|pass| {
        let before = (places(pass), pass.cost());
        let order: Vec<PodIdx> = pass.queue.pods.indices().collect();
        for _ in 0..3 {
            pass.place_again(order.clone(), Manner::FirstFit);
            assert_eq!((places(pass), pass.cost()), before);
        }
    });
}

#[test]
fn a_plan_that_is_taken_back_leaves_the_plan_before_it() {
    with_first_fit(|pass| {
        let before = (places(pass), pass.cost());
        let order: Vec<PodIdx> = pass.queue.pods.indices().collect();
        let reversed: Vec<PodIdx> = order.into_iter().rev().collect();
        for manner in [Manner::FirstFit, Manner::Cheapest] {
            pass.place_again(reversed.clone(), manner);
            assert_ne!(places(pass), before.0);
            pass.take_back();
            assert_eq!((places(pass), pass.cost()), before);
        }
    });
}

#[test]
fn a_plan_costs_what_it_says_and_the_price_of_each_node_beside() {
    with_first_fit(|pass| {
        let cost = pass.cost();
        let planned = pass.state.planned.all().len();
        assert_eq!(cost.nodes, planned);
        let prices = pass.state.planned.all().iter();
        let prices: f64 = prices.map(|node| node.lowest_price(&mut pass.rows)).sum();
        let beside = pass.solver.policy.node_overhead_price * planned as f64;
        assert!((cost.price - prices - beside).abs() < 1e-9);
        assert!(beside > 0.0);
    });
}
