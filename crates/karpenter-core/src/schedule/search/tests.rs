//! The steps of the search, and when it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use jiff::Timestamp;
use karpenter_fixtures::{CAPACITY_TYPE, HOSTNAME, copies, node_pool, pod};

use super::*;
use crate::cluster::Cluster;
use crate::fake;
use crate::schedule::request::Policy;

/// Returns a cluster whose first-fit plan is dear: an on-demand pod keeps others off spot, and pods must be apart.
fn cluster() -> Cluster {
    let mut cluster = Cluster::new(fake::cluster_config());
    let pool = node_pool("default").requires(CAPACITY_TYPE, "In", &["spot", "on-demand"]);
    cluster.apply_node_pool(&pool.build());
    cluster.set_instance_types("default", Ok(fake::catalogue()));
    let apart = pod("apart").cpu("1").label("app", "apart");
    let apart = apart.anti_affinity(HOSTNAME, ("app", "apart"));
    let steady = pod("steady").cpu("2").select(CAPACITY_TYPE, "on-demand");
    let other = pod("other").cpu("500m").memory("3Gi");
    for pod in [copies(&apart, 3), copies(&steady, 2), copies(&other, 9)].concat() {
        cluster.apply_pod(&pod.build());
    }
    cluster
}

fn with_first_fit<R>(query: &Query, read: impl FnOnce(&mut Pass<'_>) -> R) -> R {
    let policy = Policy::at(Timestamp::UNIX_EPOCH);
    let solver = Solver::prepare_for(&cluster().snapshot(), &policy, query);
    let mut pass = Pass::new(&solver, query).unwrap();
    pass.place_first(true);
    read(&mut pass)
}

#[test]
fn a_step_places_each_pod_once_and_those_of_a_class_by_age() {
    with_first_fit(&Query::default(), |pass| {
        let all: Vec<PodIdx> = pass.queue.pods.indices().collect();
        let mut random = Random::new(3);
        let mut orders = Vec::new();
        for _ in 0..50 {
            let (order, _) = recreate(pass, &all, &mut random);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, all);
            for class in pass.queue.classes.indices() {
                let of_class = |pod: &&PodIdx| pass.queue.pods[**pod].class == class;
                assert!(order.iter().filter(of_class).is_sorted());
            }
            orders.push(order);
        }
        orders.sort();
        orders.dedup();
        assert!(orders.len() > 10, "{} orders", orders.len());
    });
}

#[test]
fn the_search_leaves_a_better_plan_and_the_same_each_time() {
    let searched = || {
        with_first_fit(&Query::default(), |pass| {
            let first_fit = pass.cost();
            search(pass, 40);
            let found = pass.cost();
            assert!(
                found.improves(&first_fit, first_fit.unmet()),
                "{found:?} for {first_fit:?}"
            );
            assert!(found.is_admissible(&first_fit));
            found
        })
    };
    assert_eq!(searched(), searched());
}

#[test]
fn a_search_that_is_cancelled_keeps_the_best_plan_so_far() {
    for calls in 1..40 {
        let made = Arc::new(AtomicUsize::new(0));
        let cancel = move || made.fetch_add(1, Ordering::Relaxed) >= calls;
        let query = Query::default().with_cancel(Arc::new(cancel));
        with_first_fit(&query, |pass| {
            let first_fit = pass.cost().price;
            search(pass, 40);
            let states = pass.queue.pods.iter().map(|queued| queued.state);
            let waiting = states.filter(|state| *state == PodState::Waiting).count();
            assert_eq!(waiting, 0, "cancelled at call {calls}");
            assert!(pass.cost().price <= first_fit, "cancelled at call {calls}");
        });
    }
}
