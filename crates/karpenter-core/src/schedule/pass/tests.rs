//! Passes with one strategy.

use jiff::Timestamp;
use karpenter_fixtures::{HOSTNAME, Object, Pod, Z1, Z2, Z3, ZONE, node, node_pool, pod};

use super::*;
use crate::cluster::Cluster;
use crate::fake;
use crate::schedule::request::{Packing, Policy};
use crate::schedule::strategy::DomainOrder;

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

fn attempt(cluster: &Cluster, query: &Query, domains: DomainOrder) -> Attempt {
    let policy = Policy::at(Timestamp::UNIX_EPOCH).with_packing(Packing::FewestNodes);
    let solver = Solver::prepare_for(&cluster.snapshot(), &policy, query);
    let strategy = Strategy {
        domains,
        ..Strategy::default()
    };
    run(&solver, query, strategy).unwrap()
}

/// Returns a pod with two terms of required node affinity: the first zone or the second.
fn either_zone(name: &str) -> Object<Pod> {
    let pod = pod(name).cpu("1");
    pod.require(ZONE, "In", &[Z1]).require(ZONE, "In", &[Z2])
}

#[test]
fn after_a_dropped_preference_upstream_tries_only_the_last_affinity_term() {
    let zones = |pod: &Object<Pod>, domains| {
        let made = attempt(&cluster([pod.clone()]), &Query::default(), domains);
        made.plan.new_node_claims[0].zones().concat()
    };
    let plain = either_zone("p");
    assert_eq!(zones(&plain, DomainOrder::Upstream), Z1);
    assert_eq!(zones(&plain, DomainOrder::Price), Z1);
    let unmet = either_zone("p").prefer(1, "disk", "In", &["ssd"]);
    assert_eq!(zones(&unmet, DomainOrder::Upstream), Z2);
    assert_eq!(zones(&unmet, DomainOrder::Name), Z1);
    assert_eq!(zones(&unmet, DomainOrder::Price), Z1);
}

#[test]
fn preferences_dropped_by_the_pods_of_a_pass_are_counted() {
    let dropped = |pods: Vec<Object<Pod>>| {
        let made = attempt(&cluster(pods), &Query::default(), DomainOrder::Price);
        made.pods.dropped
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
    let made = attempt(&cluster, &query, DomainOrder::Price);
    assert_eq!((made.plan.existing.len(), made.pods.dropped), (1, 1));
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
        let made = attempt(&cluster, &Query::default(), DomainOrder::Price);
        assert_eq!(made.pods.unplaced, 0);
        made.pods.dropped
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
    let made = attempt(&cluster, &Query::default(), DomainOrder::Price);
    let left_out: Vec<usize> = made.pods.left_out.values().copied().collect();
    assert_eq!((made.pods.unplaced, left_out), (2, vec![2]));
    assert_eq!((made.buffers.unplaced, made.classes), (0, 2));
}

/// Returns the zone of the planned node of a pod that is spread over zones with these prices, in which so many pods run.
fn zone_of_spread_pod(prices: [f64; 3], running: [usize; 3], domains: DomainOrder) -> String {
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
    let made = attempt(&cluster, &Query::default(), domains);
    made.plan.new_node_claims[0].zones().concat()
}

#[test]
fn of_the_zones_with_the_fewest_pods_of_a_spread_the_cheapest_is_used() {
    let by_price = |prices, running| zone_of_spread_pod(prices, running, DomainOrder::Price);
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
    let by_name = |prices, running| zone_of_spread_pod(prices, running, DomainOrder::Name);
    assert_eq!(by_name([2.0, 1.0, 3.0], [0, 0, 0]), Z1);
    assert_eq!(by_name([1.0, 3.0, 2.0], [1, 0, 0]), Z2);
    let shuffled = [1, 2, 3, 4, 5].map(|number| {
        zone_of_spread_pod([2.0, 1.0, 3.0], [1, 0, 0], DomainOrder::Shuffled(number))
    });
    assert!(shuffled.iter().any(|zone| zone == Z2) && shuffled.iter().any(|zone| zone == Z3));
    assert!(!shuffled.iter().any(|zone| zone == Z1), "{shuffled:?}");
}
