//! Speed of replacing or consolidating many nodes, and bounds on runaway launches. The numbers are those of upstream's regression
//! and scale suites.
//!
//! UPSTREAM: test/suites/regression/chaos_test.go, drift_test.go; test/suites/scale/deprovisioning_test.go

use std::cell::{Cell, RefCell};

use k8s_openapi::api::core::v1::Node;
use karpenter_api::v1::NodePool;
use karpenter_fixtures::{CAPACITY_TYPE, HOSTNAME, Object};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::world::{World, deployment, node_pool, settings};

/// A cluster whose NodePool has these disruption settings and nodes of at most this many cores.
async fn cluster(pool: Object<NodePool>, cores: u32) -> World {
    let bound = (cores + 1).to_string();
    let pool = pool
        .requires(CAPACITY_TYPE, "In", &["on-demand"])
        .requires("karpenter.kwok.sh/instance-cpu", "Lt", &[&bound])
        .expire_after("Never");
    World::with(pool).await
}

/// Taints every new node, so that no pod can stay: the pods need new nodes without end.
async fn taint_new_nodes(world: &World) {
    let taint = json!([{"key": "example.com/adversary", "value": "true", "effect": "NoExecute"}]);
    for node in world.nodes().await {
        let spec = node.spec.as_ref();
        let tainted = spec.and_then(|s| s.taints.as_ref()).is_some_and(|taints| {
            let mut all = taints.iter();
            all.any(|t| t.key == "example.com/adversary")
        });
        if !tainted && node.metadata.deletion_timestamp.is_none() {
            let name = node.metadata.name.unwrap_or_default();
            let patch = Patch::Strategic(json!({"spec": {"taints": taint}}));
            // It may be deleted by now.
            let patched = world
                .api::<Node>()
                .patch(&name, &PatchParams::default(), &patch)
                .await;
            assert!(
                patched.is_ok() || matches!(patched, Err(kube::Error::Api(s)) if s.is_not_found())
            );
        }
    }
}

async fn nodes_stay_below_35_with_an_adversary(pool: Object<NodePool>) {
    let world = cluster(pool, 16).await;
    world.deploy("app", 1).await;
    let most = Cell::new(0);
    let start = world.cluster.clock.now();
    until!(world, 330, "five minutes have passed", |w| {
        taint_new_nodes(w).await;
        most.set(most.get().max(w.nodes().await.len()));
        w.cluster.clock.since(start).as_secs() >= 300
    });
    assert!(world.cluster.cloud.launched() > 1, "no node was tainted");
    assert!(most.get() < 35, "{} nodes at a time", most.get());
}

/// Conformance: DIS-196
#[tokio::test(start_paused = true)]
async fn an_adversary_that_taints_every_new_node_gets_no_more_than_35() {
    let empty = node_pool("default")
        .consolidation_policy("WhenEmpty")
        .consolidate_after("30s");
    for pool in [node_pool("default"), empty] {
        nodes_stay_below_35_with_an_adversary(pool).await;
    }
}

/// One pod whose nodes are all tainted as soon as they join: nodes are launched after 0, 10, 30, 70, 150 and 310 seconds.
#[tokio::test(start_paused = true)]
async fn a_pod_that_is_never_bound_gets_nodes_with_back_off_and_a_message() {
    let world = cluster(node_pool("default").consolidate_after("Never"), 16).await;
    world.deploy("app", 1).await;
    let start = world.cluster.clock.now();
    let times = RefCell::new(Vec::new());
    until!(world, 330, "five minutes have passed", |w| {
        taint_new_nodes(w).await;
        let passed = w.cluster.clock.since(start).as_secs();
        let mut times = times.borrow_mut();
        times.resize(usize::try_from(w.cluster.cloud.launched()).unwrap(), passed);
        passed >= 300
    });
    let times = times.into_inner();
    let gaps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!((3..=5).contains(&gaps.len()), "launched at {times:?}");
    assert!(gaps[0] >= 10, "launched at {times:?}");
    let doubles = |pair: &[u64]| pair[1] * 2 >= pair[0] * 3;
    assert!(gaps.windows(2).all(doubles), "launched at {times:?}");
    let says = "Failed to schedule pod, kube-scheduler has not bound it to nodeclaim/default-";
    let messages = world.messages().await;
    let is_it = |it: &String| it.starts_with(says) && it.contains("nodes are available: ");
    assert!(messages.iter().any(is_it), "{messages:#?}");
}

async fn change_template(world: &World) {
    let template = json!({"spec": {"template": {"metadata": {"labels": {"generation": "two"}}}}});
    world.patch::<NodePool>("default", template).await;
}

/// Conformance: API-172, API-173, DIS-195
#[tokio::test(start_paused = true)]
async fn a_hundred_drifted_nodes_are_replaced_within_ten_minutes() {
    let world = cluster(node_pool("default").consolidate_after("Never"), 2).await;
    let apart = deployment("app", 100).anti_affinity(HOSTNAME, ("app", "app"));
    world.add(apart).await;
    world.until_running(100, 300).await;
    let old = world.claims().await;
    assert_eq!(old.len(), 100);
    change_template(&world).await;
    until!(world, 600, "no old node is left", |w| {
        let claims = w.claims().await;
        claims
            .iter()
            .all(|c| old.iter().all(|o| o.uid() != c.uid()))
    });
    world.until_running(100, 120).await;
    world.until_claims(100, 300).await;
    let counted = "karpenter_nodeclaims_disrupted_total{reason=\"drifted\",nodepool=\"default\",capacity_type=\"on-demand\",consolidation_policy=\"\",termination_mode=\"graceful\"}";
    assert_eq!(world.metric(counted), Some(100.0));
}

/// Conformance: DIS-197
#[tokio::test(start_paused = true)]
async fn a_cluster_is_consolidated_half_an_hour_after_most_pods_are_deleted() {
    let world = cluster(node_pool("default"), 4).await;
    // Three and a half cores each: one pod per node.
    world.add(deployment("app", 60).cpu("3")).await;
    world.until_running(60, 300).await;
    let before = world.claims().await.len();
    assert!(before >= 60, "{before} nodes");
    world.scale("app", 12).await;
    until!(world, 1800, "twelve nodes are left", |w| {
        w.claims().await.len() <= 12
    });
    world.until_running(12, 60).await;
    world.assert_no_orphans().await;
}

/// A burst at the memory limit is planned in slices, and all pods get nodes.
#[tokio::test(start_paused = true)]
async fn a_burst_beyond_the_memory_limit_is_planned_in_slices() {
    let mut settings = settings();
    // Below what any process has: each slice has the least number of pods.
    settings.options.memory_limit = 1;
    let world = World::with_settings(settings, node_pool("default")).await;
    world.deploy("burst", 500).await;
    let deferred = || {
        let gauge = world.metric("karpenter_scheduler_deferred_pods_count");
        gauge.unwrap_or_default()
    };
    until!(world, 30, "pods are deferred", |_| deferred() > 0.0);
    assert_eq!(deferred(), 300.0, "{}", world.describe().await);
    world.until_running(500, 120).await;
    let plans = "karpenter_scheduler_scheduling_duration_seconds_count{controller=\"provisioner\"}";
    let plans = world.metric(plans);
    assert!(plans >= Some(3.0), "{plans:?}");
    until!(world, 30, "no pod is deferred", |_| deferred() == 0.0);
    world.assert_no_orphans().await;
}
