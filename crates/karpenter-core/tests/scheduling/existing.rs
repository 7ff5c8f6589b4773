//! Existing nodes: which are used, their taints, host ports and nominated pods.

use karpenter_core::fake;
use karpenter_core::schedule::{PodSet, Solver};
use serde_json::{Value, json};

use crate::fixture::*;

/// Returns the NodeClaim of a node, which is not registered.
fn claim(name: &str) -> Object<NodeClaim> {
    claim_of(&node(name))
        .remove("/status/nodeName")
        .remove("/status/conditions")
        .without_label("karpenter.test.sh/testnodeclass")
        .without_label(OS)
}

fn uninitialized(name: &str) -> Object<Node> {
    node(name).without_label(INITIALIZED)
}

/// Conformance: SCH-076
#[test]
fn a_second_pod_is_placed_on_the_launched_node() {
    let mut world = World::new().with(pod("a").cpu("100m"));
    world.launch_and_bind();
    world.add(pod("b").cpu("100m"));
    let plan = world.plan();
    assert_eq!((plan.new_node_claims.len(), plan.existing.len()), (0, 1));
    world.add(pod("c").cpu("14"));
    world.add(pod("d").select(ARCH, "arm64"));
    assert_eq!(
        world.plan().new_node_claims.len(),
        1,
        "both on one arm64 node"
    );
}

#[test]
fn a_node_is_used_wherever_it_is_among_many() {
    let nodes = (0..70).map(|index| {
        let node = node(&format!("n-{index:02}"));
        match index {
            69 => node.label("disk", "ssd"),
            _ => node,
        }
    });
    let world = World::new().with(nodes.collect::<Vec<_>>());
    let plan = world.with(pod("p").select("disk", "ssd")).plan();
    assert_eq!(plan.existing[0].node, "n-69");
}

/// The controllers keep a solver for the next question only if this estimate is below a bound.
#[test]
fn the_estimated_memory_of_a_solver_grows_with_its_nodes() {
    let memory = |nodes: usize| {
        let nodes = (0..nodes).map(|index| node(&format!("n-{index:02}")));
        let world = World::new().with(nodes.collect::<Vec<_>>());
        let snapshot = world.cluster.snapshot();
        Solver::prepare_for(&snapshot, &world.policy, &world.query).memory()
    };
    let (none, some) = (memory(0), memory(50));
    assert!((100..100_000).contains(&none), "{none} bytes");
    let of_a_node = (some - none) / 50;
    assert!((100..300).contains(&of_a_node), "{of_a_node} bytes");
}

#[test]
fn the_memory_of_a_solver_grows_with_the_anti_affinity_of_bound_pods() {
    let memory = |terms: bool| {
        let pods = (0..50).map(|index| {
            let app = format!("app-{index}");
            let pod = pod(&app).label("app", &app).on("n");
            match terms {
                true => pod.anti_affinity(ZONE, ("app", &app)),
                false => pod,
            }
        });
        let world = World::new().with((node("n"), pods.collect::<Vec<_>>()));
        let snapshot = world.cluster.snapshot();
        Solver::prepare_for(&snapshot, &world.policy, &world.query).memory()
    };
    let (without, with) = (memory(false), memory(true));
    let of_a_term = (with - without) / 50;
    assert!((128..400).contains(&of_a_term), "{of_a_term} bytes");
}

/// Conformance: SCH-077
#[test]
fn a_node_is_used_if_the_pod_admits_its_zone() {
    let in_z2 = node("n").zone(Z2);
    let used = |zones: &[&str]| {
        plan_of((in_z2.clone(), pod("p").require(ZONE, "In", zones)))
            .existing
            .len()
    };
    assert_eq!(used(&[Z1, Z2]), 1);
    assert_eq!(used(&[Z1, Z3]), 0);
}

/// Conformance: SCH-078
#[test]
fn a_deleting_node_is_not_used() {
    let mut world = World::new().with(claim("n").deleted("2026-01-01T00:00:00Z"));
    world.add(node("n"));
    world.add(pod("p"));
    assert_eq!(world.plan().new_node_claims.len(), 1);
    let mut world = World::new().with((node("n"), pod("p")));
    world.cluster.mark_for_deletion(&["fake://n"]);
    assert_eq!(world.plan().new_node_claims.len(), 1);
    world.cluster.unmark_for_deletion(&["fake://n"]);
    assert_eq!(world.plan().new_node_claims.len(), 0);
}

/// Conformance: SCH-079
#[test]
fn nodes_are_filled_before_others_are_launched() {
    let mut world = World::of(node_pool("default").requires(INSTANCE_TYPE, "In", &["fake-it-4"]))
        .with_types(fake::instance_types(5));
    let mut state = 1_u64;
    for round in 0..10 {
        for index in 0..7 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let cpu = ["250m", "500m", "1", "750m"][(state >> 33) as usize % 4];
            world.add(pod(&format!("p-{round}-{index}")).cpu(cpu));
        }
        assert!(all_placed(&world.launch_and_bind()));
        let snapshot = world.cluster.snapshot();
        let spare = snapshot.nodes().filter(|node| {
            let used = snapshot
                .node_pods(node.name())
                .map_or(0, |pods| pods.requests().get("cpu"));
            node.allocatable().get("cpu") - used >= 1000
        });
        assert!(spare.count() <= 1);
    }
}

/// Conformance: SCH-080
#[test]
fn an_initialized_node_comes_first() {
    let mut world = World::new();
    for index in 0..100 {
        let name = format!("n-{index:02}");
        world = world.with(claim(&name));
        if index % 2 == 0 {
            world.add(if index == 50 {
                node(&name)
            } else {
                uninitialized(&name)
            });
        }
    }
    world.add(node("n-50"));
    world.add(pod("p"));
    assert_eq!(world.plan().existing[0].node, "n-50");
}

/// Conformance: SCH-081
#[test]
fn an_unmanaged_node_is_used() {
    let foreign = bare_node("foreign").cpu("10").memory("10Gi").pods("110");
    let plan = World::new()
        .with(foreign)
        .with(copies(&pod("p").cpu("10m").memory("10Mi"), 100))
        .plan();
    assert_eq!(counts(&plan), (100, 0));
}

#[test]
fn a_pod_that_only_an_existing_node_can_hold_is_placed_before_larger_ones() {
    let only = "example.com/only";
    let small = bare_node("n").cpu("10").memory("10Gi").pods("1");
    let tied = pod("tied").cpu("100m").select(only, "true");
    let plan = plan_of((small.label(only, "true"), vec![pod("free").cpu("1"), tied]));
    assert!(all_placed(&plan), "{:?}", plan.unplaced);
}

/// Conformance: SCH-082
#[test]
fn a_required_label_that_the_node_lacks_rules_it_out() {
    let bare = node("n").without_label(ZONE);
    let plan = plan_of((bare, pod("p").require(ZONE, "Exists", &[])));
    assert_eq!(counts(&plan), (0, 1));
}

/// Conformance: SCH-083
#[test]
fn pods_planned_but_not_bound_do_not_launch_another_node() {
    let mut world = World::new().with(copies(&pod("p").cpu("500m"), 3));
    let plan = world.plan();
    world.launch("n", &plan.new_node_claims[0]);
    let again = world.plan();
    assert_eq!((again.existing.len(), again.new_node_claims.len()), (3, 0));
}

/// Conformance: SCH-084
#[test]
fn a_resource_the_kubelet_has_not_reported_yet_comes_from_the_claim() {
    let gpu = |claim: Object<NodeClaim>| {
        claim
            .set("/status/capacity/fake.com~1vendor-a", "2")
            .set("/status/allocatable/fake.com~1vendor-a", "2")
    };
    let world = World::new().with(gpu(claim("n")));
    let zero = uninitialized("n").set(
        "/status/allocatable",
        json!({ "cpu": "4", "memory": "4Gi", "pods": "5", fake::GPU_VENDOR_A: "0" }),
    );
    let plan = world
        .with((zero, pod("p").request(fake::GPU_VENDOR_A, "1")))
        .plan();
    assert_eq!(counts(&plan), (1, 0));
}

/// Conformance: SCH-085
#[test]
fn a_second_affine_pod_joins_the_zone_of_the_first() {
    let own = |name: &str| {
        pod(name)
            .label("app", "web")
            .affinity(ZONE, ("app", "web"))
            .cpu("1500m")
    };
    let mut world = World::new().with(own("a"));
    let first = world.launch_and_bind();
    world.add(own("b"));
    let second = world.plan();
    let zone = values(&first.new_node_claims[0], ZONE);
    assert!(second.existing.len() == 1 || values(&second.new_node_claims[0], ZONE) == zone);
}

/// Conformance: SCH-086
#[test]
fn pods_of_a_deleting_node_are_placed_with_the_pending_ones() {
    let mut world = World::new().with((
        node("n"),
        pod("a").cpu("100m").on("n"),
        pod("b").cpu("100m").on("n"),
    ));
    world.cluster.mark_for_deletion(&["fake://n"]);
    world.add(copies(&pod("p").cpu("100m"), 2));
    assert_eq!(world.sizes(), [4]);
}

#[test]
fn a_what_if_leaves_the_node_out_and_does_not_change_the_snapshot() {
    let mut world = World::new().with((node("a"), node("b"), member("p").cpu("1").on("a")));
    let snapshot = world.cluster.snapshot();
    world.query.pods = PodSet::Given(snapshot.pods_on("a").to_vec());
    world.query.without = vec!["a".to_owned()];
    let plan = world.plan();
    assert_eq!(plan.existing[0].node, "b");
    assert_eq!(snapshot.nodes().count(), 2);
    assert_eq!(snapshot.without(&["a"]).nodes().count(), 1);
}

fn tainted(node: Object<Node>, key: &str, effect: &str) -> Object<Node> {
    node.taint(key, "v", effect)
}

/// Conformance: SCH-087
#[test]
fn ephemeral_taints_of_an_uninitialized_node_do_not_matter() {
    let usable = |node: Object<Node>| {
        World::new()
            .with(claim("n"))
            .with((node, pod("p")))
            .plan()
            .existing
            .len()
            == 1
    };
    let not_ready = "node.kubernetes.io/not-ready";
    assert!(usable(tainted(uninitialized("n"), not_ready, "NoExecute")));
    assert!(usable(tainted(uninitialized("n"), not_ready, "NoSchedule")));
    assert!(usable(tainted(
        uninitialized("n"),
        "readiness.k8s.io/gpu",
        "NoSchedule"
    )));
    assert!(!usable(tainted(uninitialized("n"), "other", "NoSchedule")));
    assert!(!usable(tainted(node("n"), not_ready, "NoExecute")));
}

/// Conformance: SCH-088
#[test]
fn a_startup_taint_matters_once_the_node_is_initialized() {
    let startup = json!([{ "key": "startup", "value": "v", "effect": "NoSchedule" }]);
    let usable = |node: Object<Node>| {
        let world = World::new().with(claim("n").set("/spec/startupTaints", startup.clone()));
        world.with((node, pod("p"))).plan().existing.len() == 1
    };
    assert!(usable(tainted(uninitialized("n"), "startup", "NoSchedule")));
    assert!(!usable(tainted(node("n"), "startup", "NoSchedule")));
}

/// Conformance: SCH-089
#[test]
fn a_pool_s_taint_must_be_tolerated() {
    let world = || World::of(node_pool("default").taint("key", "value", "NoSchedule"));
    assert!(!world().places(pod("p")));
    for (toleration, tolerated) in [
        (
            json!({ "key": "key", "value": "value", "effect": "NoSchedule" }),
            true,
        ),
        (
            json!({ "key": "key", "operator": "Exists", "effect": "NoSchedule" }),
            true,
        ),
        (json!({ "key": "key", "operator": "Exists" }), true),
        (json!({ "operator": "Exists" }), true),
        (json!({ "key": "other", "operator": "Exists" }), false),
        (
            json!({ "key": "key", "operator": "Equal", "value": "other" }),
            false,
        ),
    ] {
        let text = toleration.to_string();
        let tolerating = pod("p").tolerate(toleration);
        assert_eq!(world().places(tolerating), tolerated, "{text}");
    }
}

/// Conformance: SCH-090
#[test]
fn a_host_port_is_used_once_per_node() {
    let two = copies(&pod("p").host_port(8080), 2);
    assert_eq!(World::new().with(two).sizes(), [1, 1]);
    let plan = plan_of((
        node("n"),
        pod("e").host_port(8080).on("n"),
        pod("p").host_port(8080),
        pod("q").host_port(8081),
    ));
    assert_eq!(counts(&plan), (1, 1));
}

fn with_nominations(mut world: World, nominations: &[(&str, &str)]) -> World {
    for (pod, node) in nominations {
        let snapshot = world.cluster.snapshot();
        let key = snapshot.pod("default", pod).unwrap().key.clone();
        world.query.nominated.push((key, (*node).to_owned()));
    }
    world
}

fn node_of(plan: &karpenter_core::schedule::Plan, pod: &str) -> Option<String> {
    let placed = plan.existing.iter().find(|placed| placed.pod.name == pod);
    placed.map(|placed| placed.node.clone())
}

#[test]
fn a_nominated_pod_keeps_its_node_before_larger_pods_are_placed() {
    let world = World::new().with((
        node("a"),
        node("b"),
        pod("small").cpu("1"),
        pod("large").cpu("4"),
    ));
    let world = world.with(claim("b"));
    let world = with_nominations(world, &[("small", "b-claim")]);
    let plan = world.plan();
    assert_eq!(node_of(&plan, "small").as_deref(), Some("b"));
    assert_eq!(node_of(&plan, "large").as_deref(), Some("a"));
}

#[test]
fn a_pod_that_no_longer_fits_its_nominated_node_is_placed_like_any_other() {
    let tainted = node("a").push(
        "/spec/taints",
        json!({ "key": "example.com/t", "effect": "NoSchedule" }),
    );
    let full = copies(&pod("full").cpu("1").on("b"), 4);
    let world = World::new()
        .with([tainted, node("b"), node("c")])
        .with(full);
    let pods = ["tainted", "full", "gone", "other-zone"];
    let world = world.with([0, 1, 2].map(|index| pod(pods[index]).cpu("1")));
    let world = world.with(pod("other-zone").cpu("1").select(ZONE, Z2));
    let nominations = [
        ("tainted", "a"),
        ("full", "b"),
        ("gone", "nowhere"),
        ("other-zone", "c"),
    ];
    let plan = with_nominations(world, &nominations).plan();
    for pod in &pods[..3] {
        assert_eq!(node_of(&plan, pod).as_deref(), Some("c"), "{pod}");
    }
    assert_eq!(plan.new_node_claims.len(), 1);
    assert_eq!(plan.new_node_claims[0].pods[0].name, "other-zone");
}

#[test]
fn a_nominated_pod_counts_for_spread() {
    let spread = |name: &str| {
        let pod = pod(name).cpu("1").label("app", "web");
        pod.spread(HOSTNAME, 1, ("app", "web"))
    };
    let world = World::new().with((node("a"), node("b"), spread("p"), spread("q")));
    let plan = with_nominations(world, &[("q", "a")]).plan();
    assert_eq!(node_of(&plan, "q").as_deref(), Some("a"));
    assert_eq!(node_of(&plan, "p").as_deref(), Some("b"));
}

#[test]
fn resources_a_node_does_not_list_matter_only_to_pods_that_request_them() {
    let bound = pod("b").request("ephemeral-storage", "1Gi").on("n");
    let world = World::new().with((node("n"), bound, pod("p").cpu("1")));
    assert_eq!(
        world.plan().existing.len(),
        1,
        "what a bound pod uses does not matter to other pods"
    );
    let mut world = World::new().with((node("n"), pod("p").cpu("1")));
    world.add(daemon_set("d").request("example.com/plug", "1"));
    assert_eq!(
        world.plan().existing.len(),
        1,
        "nor does what a daemon will request"
    );
    let asking = World::new().with((node("n"), pod("p").request("ephemeral-storage", "1Gi")));
    assert!(
        asking.plan().existing.is_empty(),
        "a pod that requests it does not fit"
    );
}

/// Conformance: SCH-211
#[test]
fn an_overcommitted_node_gets_no_pods() {
    let allocatable = json!({ "cpu": "4", "memory": "4Gi", "pods": "5", "example.com/gpu": "0" });
    let holds = pod("b").request("example.com/gpu", "1").on("n");
    let world = World::new().with((
        node("n").set("/status/allocatable", allocatable),
        holds,
        pod("p"),
    ));
    assert!(world.plan().existing.is_empty());
}

#[test]
fn a_node_without_free_memory_gets_only_pods_that_request_none() {
    let with_memory = |requested: &str| {
        let world = World::new().with((
            node("n").cpu("4").memory("4Gi"),
            pod("b").memory(requested).on("n"),
            pod("p").cpu("1"),
        ));
        node_of(&world.plan(), "p")
    };
    assert_eq!(with_memory("3Gi").as_deref(), Some("n"));
    assert_eq!(with_memory("4Gi").as_deref(), Some("n"));
    assert_eq!(with_memory("5Gi"), None);
}

/// Conformance: SCH-209
#[test]
fn a_pod_resized_in_place_counts_with_its_new_requests() {
    let resized = |conditions: Value| {
        let status = json!({
            "phase": "Running", "conditions": conditions,
            "containerStatuses": [{
                "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "resources": { "requests": { "cpu": "1" } }, "allocatedResources": { "cpu": "1" },
            }],
        });
        let big = pod("b").cpu("3500m").on("n").set("/status", status);
        plan_of((node("n"), big, pod("p").cpu("2"))).existing.len()
    };
    assert_eq!(resized(json!([])), 0, "what is requested will be allocated");
    let infeasible =
        json!([{ "type": "PodResizePending", "status": "True", "reason": "Infeasible" }]);
    assert_eq!(
        resized(infeasible),
        1,
        "an infeasible resize is not counted"
    );
}

#[test]
fn a_given_pod_no_longer_counts_on_its_old_node() {
    let member = |name: &str| member(name).cpu("1").anti_affinity(HOSTNAME, APP);
    let mut world = World::new().with((
        node("n"),
        node("other"),
        member("p").on("n"),
        member("q").on("other"),
    ));
    let given = world
        .cluster
        .snapshot()
        .pod("default", "p")
        .cloned()
        .unwrap();
    world.query.pods = PodSet::Given(vec![given]);
    world.query.without = vec!["n".to_owned()];
    let plan = world.plan();
    assert_eq!(
        (plan.new_node_claims.len(), plan.existing.len()),
        (1, 0),
        "alone on its host, and not on the one being deleted"
    );
}

#[test]
fn a_nominated_pod_goes_to_its_node_although_the_node_is_not_initialized() {
    let world = World::new().with((
        [node("a"), node("b")],
        uninitialized("c"),
        uninitialized("d"),
        pod("p").cpu("1"),
    ));
    let world = world.with(claim("d"));
    let plan = with_nominations(world, &[("p", "d-claim")]).plan();
    assert_eq!(node_of(&plan, "p").as_deref(), Some("d"));
}
