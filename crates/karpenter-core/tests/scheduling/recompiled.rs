//! A solver whose NodePools were compiled again plans like one that was prepared from the changed cluster.

use std::sync::Arc;

use karpenter_core::cluster::Cluster;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::schedule::Solver;

use crate::fixture::{NodePool, Object, World, Z1, Z2, ZONE, node, node_pool, pod};

/// Two NodePools, nodes of one of them, and pods of several kinds.
fn world() -> World {
    let spread = |index: usize| {
        pod(&format!("spread-{index}"))
            .cpu("500m")
            .label("app", "web")
            .spread(ZONE, 1, ("app", "web"))
    };
    let small = |index: usize| pod(&format!("small-{index}")).cpu("300m");
    World::of(
        node_pool("a")
            .limit("cpu", "64")
            .requires(ZONE, "In", &[Z1, Z2])
            .weight(10),
    )
    .with_pool(node_pool("b").taint("team", "search", "NoSchedule"))
    .with([node("n1"), node("n2")])
    .with((0..6).map(spread))
    .with((0..4).map(small))
    .with([
        pod("large").cpu("12"),
        pod("tolerant")
            .cpu("1")
            .tolerate(serde_json::json!({ "key": "team", "operator": "Exists" })),
        pod("alone")
            .cpu("1")
            .label("app", "db")
            .anti_affinity(ZONE, ("app", "db")),
    ])
}

fn agree(change: &dyn Fn(&mut Cluster)) {
    agree_in(&world(), change);
}

fn agree_in(world: &World, change: &dyn Fn(&mut Cluster)) {
    let before = world.cluster.snapshot();
    let solver = Solver::prepare_for(&before, &world.policy, &world.query);
    let mut changed = Cluster::from(before.fork());
    change(&mut changed);
    let copy = changed.snapshot();
    let prepared = Solver::prepare_for(&copy, &world.policy, &world.query).solve(&world.query);
    let shared = solver.with_node_pools_of(&copy, &world.policy);
    assert_eq!(shared.solve(&world.query), prepared);
    // Once more: what the first plan cached must not change the second.
    assert_eq!(shared.solve(&world.query), prepared);
    assert_eq!(
        solver.solve(&world.query),
        Solver::prepare_for(&before, &world.policy, &world.query).solve(&world.query),
        "the solver itself is unchanged"
    );
}

fn replace(cluster: &mut Cluster, pool: Object<NodePool>) {
    cluster.apply_node_pool(&pool.build());
}

#[test]
fn without_a_change() {
    agree(&|_| ());
}

#[test]
fn with_other_requirements_taints_and_weights() {
    agree(&|cluster| {
        replace(
            cluster,
            node_pool("a")
                .limit("cpu", "64")
                .requires(ZONE, "In", &[Z2]),
        );
        replace(cluster, node_pool("b").weight(50));
    });
}

#[test]
fn with_a_taint_that_pods_should_avoid() {
    agree(&|cluster| {
        replace(
            cluster,
            node_pool("a")
                .requires(ZONE, "In", &[Z1, Z2])
                .weight(10)
                .taint("team", "soft", "PreferNoSchedule"),
        );
    });
}

#[test]
fn with_other_limits() {
    for limit in ["1", "2", "8", "1000"] {
        agree(&|cluster| replace(cluster, node_pool("a").limit("cpu", limit)));
    }
    agree(&|cluster| replace(cluster, node_pool("a")));
    // This one had none.
    agree(&|cluster| replace(cluster, node_pool("b").limit("cpu", "2")));
}

/// Returns three instance types, of which the largest has so many cores.
fn types(most: i64) -> Arc<[InstanceType]> {
    let types = [("a", 2), ("b", 4), ("c", most)].map(|(name, cores)| {
        let builder = karpenter_core::fake::instance_type(name);
        builder.cpu(cores).gib(8).build()
    });
    types.into_iter().collect()
}

/// Returns a cluster with a NodeClaim of a NodePool that is not launched yet, and a pod that requests seven cores.
fn launching(pool: Object<NodePool>) -> World {
    let mut world = World::of(pool)
        .with_types(types(8))
        .with(pod("launching").cpu("1500m"));
    let mut claim = world.plan().new_node_claims[0].to_node_claim();
    claim.metadata.name = Some("launching".to_owned());
    claim.metadata.uid = Some("launching".to_owned());
    world.cluster.apply_node_claim(&claim);
    world.cluster.remove_pod("default", "launching");
    world.with(pod("large").cpu("7"))
}

/// A launching node counts as the largest instance type that it may become.
#[test]
fn with_a_first_limit_of_a_pool_that_has_a_launching_node() {
    let pool = || node_pool("default");
    let world = launching(pool());
    for limit in ["12", "16"] {
        agree_in(&world, &|cluster| {
            replace(cluster, pool().limit("cpu", limit))
        });
    }
}

/// The node may become a larger one than before.
#[test]
fn with_other_instance_types_of_a_pool_that_has_a_launching_node() {
    let world = launching(node_pool("default").limit("cpu", "20"));
    assert!(world.is_placed());
    agree_in(&world, &|cluster| {
        cluster.set_instance_types("default", Ok(types(16)));
    });
}

#[test]
fn with_fewer_and_more_node_pools() {
    agree(&|cluster| {
        cluster.remove_node_pool("a");
    });
    agree(&|cluster| {
        cluster.remove_node_pool("a");
        cluster.remove_node_pool("b");
    });
    agree(&|cluster| {
        let types = cluster.snapshot().instance_types("a").cloned().unwrap();
        cluster.set_instance_types("c", types);
        replace(cluster, node_pool("c").weight(100));
    });
}

#[test]
fn with_other_instance_types() {
    agree(&|cluster| {
        let types = cluster
            .snapshot()
            .instance_types("a")
            .cloned()
            .unwrap()
            .unwrap();
        let fewer: Vec<_> = types.iter().skip(1).cloned().collect();
        cluster.set_instance_types("a", Ok(fewer.into()));
    });
}
