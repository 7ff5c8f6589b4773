//! Packing, pod requests, limits.

use karpenter_core::fake;
use karpenter_core::fake::{GPU_VENDOR_A, instance_type};
use karpenter_core::resources::Resources;
use karpenter_core::schedule::Unschedulable;
use serde_json::{Value, json};

use crate::fixture::*;

fn container(name: &str, cpu: &str, memory: &str) -> Value {
    json!({ "name": name, "resources": { "requests": { "cpu": cpu, "memory": memory } } })
}

fn sidecar(name: &str, cpu: &str, memory: &str) -> Value {
    let mut value = container(name, cpu, memory);
    value["restartPolicy"] = json!("Always");
    value
}

fn first_type(world: World, pod: Object<Pod>) -> String {
    world.with(pod).first_type()
}

/// Conformance: SCH-047
#[test]
fn a_runtime_class_s_overhead_counts() {
    let asked = pod("p")
        .cpu("1")
        .set("/spec/overhead", json!({ "cpu": "2" }));
    assert_eq!(first_type(World::new(), asked), "default-instance-type");
    assert_eq!(
        first_type(World::new(), pod("p").cpu("1")),
        "small-instance-type"
    );
}

/// Conformance: SCH-048
#[test]
fn small_pods_fill_the_room_that_large_ones_leave() {
    let amd = || World::of(node_pool("default").requires(ARCH, "In", &["amd64"]));
    let large = copies(&pod("large").memory("1.8G"), 40);
    assert_eq!(amd().with(large.clone()).plan().new_node_claims.len(), 20);
    let small = copies(&pod("small").memory("400M"), 20);
    assert_eq!(
        amd().with(large).with(small).plan().new_node_claims.len(),
        20
    );
}

/// Conformance: SCH-049
#[test]
fn pods_that_do_not_fit_together_get_nodes_of_their_size() {
    let plan = World::new()
        .with_types(fake::instance_types(5))
        .with([pod("a").cpu("4.5"), pod("b").cpu("1")])
        .plan();
    let firsts = plan
        .new_node_claims
        .iter()
        .map(|draft| &*draft.instance_types[0]);
    assert_eq!(firsts.collect::<Vec<_>>(), ["fake-it-4", "fake-it-1"]);
}

/// Conformance: SCH-050
#[test]
fn the_number_of_pods_is_a_resource() {
    let tiny = copies(&pod("p").cpu("10m").memory("1Mi"), 25);
    let amd = node_pool("default").requires(INSTANCE_TYPE, "In", &["small-instance-type"]);
    assert_eq!(World::of(amd).with(tiny.clone()).sizes(), [5; 5]);
    let single = node_pool("default").requires(INSTANCE_TYPE, "In", &["single-pod-instance-type"]);
    assert_eq!(World::of(single).with(tiny).sizes(), [1; 25]);
}

/// Conformance: SCH-051
#[test]
fn an_init_container_s_peak_counts() {
    let asked = pod("p")
        .cpu("1")
        .set("/spec/initContainers", json!([container("i", "2", "1Mi")]));
    assert_eq!(first_type(World::new(), asked), "default-instance-type");
    let asked = pod("p").set("/spec/initContainers", json!([container("i", "1", "1Ti")]));
    assert_eq!(first_type(World::new(), asked), "");
}

fn exact_types() -> World {
    let types = [(9, 4), (10, 4), (11, 5), (12, 6)];
    let build = |(cpu, gib): (i64, i64)| {
        instance_type(&format!("{cpu}/{gib}"))
            .resource("cpu", cpu * 1000 + 100)
            .resource("memory", (gib << 30) + (10 << 20))
            .pods(10)
    };
    World::new().with_types(types.map(build))
}

/// Conformance: SCH-054
#[test]
fn each_resource_has_its_own_peak() {
    let asked = pod("p")
        .set(
            "/spec/initContainers",
            json!([
                sidecar("s1", "1", "1Gi"),
                container("i1", "9.5", "1Gi"),
                sidecar("s2", "1", "1Gi"),
                container("i2", "1", "2.9Gi"),
            ]),
        )
        .set("/spec/containers", json!([container("c", "2", "1Gi")]));
    assert_eq!(first_type(exact_types(), asked), "11/5");
}

/// Conformance: SCH-055
#[test]
fn pod_level_requests_replace_the_sum() {
    let asked = pod("p")
        .set("/spec/containers", json!([container("c", "9", "3Gi")]))
        .set(
            "/spec/resources",
            json!({ "requests": { "cpu": "9.9", "memory": "3.9Gi" } }),
        );
    assert_eq!(first_type(exact_types(), asked), "10/4");
}

/// Conformance: SCH-058
#[test]
fn a_pool_beyond_its_limit_launches_nothing() {
    let world = World::of(node_pool("default").limit("cpu", "20"));
    let big = node("big")
        .set("/status/capacity", json!({ "cpu": "100" }))
        .set("/status/allocatable", json!({ "cpu": "0", "pods": "5" }));
    let plan = world.with((big, pod("p").cpu("1"))).plan();
    assert_why(
        &plan,
        "p",
        "all available instance types exceed limits for nodepool",
    );
}

/// Conformance: SCH-059
#[test]
fn a_limit_admits_nodes_that_fit_into_it() {
    let limited = || World::of(node_pool("default").limit("cpu", "2"));
    assert!(!limited().places(pod("p").cpu("2.1")));
    let mut world = limited().with(pod("p").cpu("1.75"));
    assert!(all_placed(&world.launch_and_bind()));
    world.add(pod("q").cpu("1.75"));
    assert!(!world.is_placed());
}

#[test]
fn a_claim_that_is_not_launched_counts_as_the_types_that_it_lists() {
    let sized = |name: &str, cpu: i64| fake::instance_type(name).cpu(cpu).gib(64);
    let placed = |operator: &str| {
        let claim = node_claim("c").pool("default").set(
            "/spec/requirements",
            json!([expression(INSTANCE_TYPE, operator, &["large"])]),
        );
        let mut world = World::of(node_pool("default").limit("cpu", "10"))
            .with_types(vec![sized("small", 2), sized("large", 8)]);
        world.cluster.apply_node_claim(&claim.build());
        world.places(pod("q").cpu("3"))
    };
    assert!(!placed("In"), "it may be a large one");
    assert!(placed("NotIn"), "it cannot be a large one");
}

/// The instance type is known once the NodeClaim is launched; until then the next pass must not use the same limit.
#[test]
fn a_claim_that_is_not_launched_counts_as_its_largest_instance_type() {
    let sized = |name: &str, cpu: i64| {
        let offerings = vec![fake::offering("on-demand", "test-zone-1", cpu as f64)];
        let builder = fake::instance_type(name).cpu(cpu).gib(64).pods(10);
        builder.offerings(offerings).build()
    };
    let apart = |name: &str, cpu: &str| {
        let pod = member(name).cpu(cpu);
        pod.anti_affinity(HOSTNAME, APP)
    };
    let with_another = |cpu: &str| {
        let mut world = World::of(node_pool("default").limit("cpu", "10"))
            .with_types(vec![sized("small", 2), sized("large", 8)])
            .with(apart("p", "1.5"));
        let draft = world.plan().new_node_claims.remove(0);
        assert_eq!(
            draft.instance_types.len(),
            2,
            "it may be launched as either"
        );
        let mut claim = draft.to_node_claim();
        claim.metadata.name = Some("p".to_owned());
        claim.metadata.uid = Some("p".to_owned());
        world.cluster.apply_node_claim(&claim);
        world.add(apart("q", cpu));
        world.plan()
    };
    assert!(
        all_placed(&with_another("1.5")),
        "the limit admits a small one"
    );
    let plan = with_another("3");
    assert_why(
        &plan,
        "q",
        "all available instance types exceed limits for nodepool",
    );
}

/// Conformance: SCH-061
#[test]
fn any_resource_can_be_limited() {
    let plan = World::of(node_pool("default").limit("pods", "1"))
        .with(pod("p").request(GPU_VENDOR_A, "1"))
        .plan();
    assert!(!all_placed(&plan));
}

/// Conformance: SCH-062, SCH-263
#[test]
fn the_number_of_nodes_can_be_limited_also_within_a_pass() {
    let apart = member("p").anti_affinity(HOSTNAME, APP);
    let plan = World::of(node_pool("default").limit("nodes", "2"))
        .with(copies(&apart, 3))
        .plan();
    assert_eq!((plan.new_node_claims.len(), plan.unplaced.len()), (2, 1));
    assert!(
        plan.unplaced[0]
            .why
            .to_string()
            .contains("node limits have been exhausted for nodepool")
    );
    let mut world = World::of(node_pool("default").limit("nodes", "2"));
    for (round, pod) in copies(&apart, 3).into_iter().enumerate() {
        world.add(pod);
        assert_eq!(all_placed(&world.launch_and_bind()), round < 2);
    }
}

/// Conformance: SCH-181
#[test]
fn without_any_pool_the_reason_is_that_there_is_none() {
    let plan = World::empty().with(pod("p")).plan();
    assert_eq!(plan.unplaced[0].why, Unschedulable::NoNodePools);
    assert_eq!(why(&plan, "p"), "no dynamic nodepools found");
}

/// Conformance: SCH-006
#[test]
fn a_pool_that_is_not_ready_is_not_used() {
    let condition = |type_: &str, status: &str| json!({ "type": type_, "status": status, "lastTransitionTime": "2025-12-31T00:00:00Z" });
    let not_ready = json!([
        condition("ValidationSucceeded", "True"),
        condition("Ready", "False"),
    ]);
    for conditions in [json!([]), not_ready] {
        let plan = World::of(node_pool("default").set("/status/conditions", conditions))
            .with(pod("p"))
            .plan();
        assert!(!all_placed(&plan));
        assert_eq!(
            plan.pools[0].outcome,
            karpenter_core::schedule::PoolOutcome::NotReady
        );
    }
}

/// Conformance: SCH-012
#[test]
fn each_pod_that_cannot_be_placed_is_reported_once() {
    let bad = copies(&pod("bad").select(ZONE, "nowhere"), 10);
    let plan = World::new().with(bad).with(copies(&pod("good"), 5)).plan();
    assert_eq!(plan.unplaced.len(), 10);
}

#[test]
fn overhead_of_a_resource_that_a_type_lacks_reduces_nothing() {
    let mut small = instance_type("t").cpu(4).gib(4).build();
    small
        .overhead
        .kube_reserved
        .set("ephemeral-storage", 1 << 30);
    let world = World::new().with_types(small).with(pod("p").cpu("1"));
    assert!(world.is_placed());
}

#[test]
fn amounts_at_the_limits_of_integers_fit_nowhere_and_do_not_overflow() {
    let plan = plan_of([
        pod("p").cpu("9223372036854775807"),
        pod("q").memory("9223372036854775807"),
        pod("r").cpu("1"),
    ]);
    assert_eq!((plan.new_node_claims.len(), plan.unplaced.len()), (1, 2));
    let full = Resources::new().with("cpu", i64::MAX);
    let mut twice = full.clone();
    twice.add_assign(&full);
    assert_eq!(twice.get("cpu"), i64::MAX);
}

#[test]
fn pods_with_different_host_ports_share_a_planned_node() {
    let plan = |ports: [i32; 2]| {
        let pods = ports.map(|port| pod(&format!("p{port}")).host_port(port));
        World::new().with(pods).by_size().sizes()
    };
    assert_eq!(plan([8080, 8081]), [2]);
}
