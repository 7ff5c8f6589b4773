//! Resources that DaemonSets use on a node.

use karpenter_core::fake::instance_type;
use serde_json::json;

use crate::fixture::*;

/// Returns a DaemonSet of 2 cores and 1 GiB.
fn daemon() -> Object<DaemonSet> {
    daemon_set("d").cpu("2").memory("1Gi")
}

fn sized(cpu: &str) -> Object<DaemonSet> {
    daemon_set("d").cpu(cpu)
}

/// Returns the pod of the scenarios, which needs the default type with a daemon and the small one without.
fn asked() -> Object<Pod> {
    pod("p").cpu("1").memory("1Gi")
}

/// Returns the instance type for the pod of the scenarios beside these daemons.
fn beside(daemons: impl Applied) -> String {
    beside_in(World::new(), daemons)
}

fn beside_in(world: World, daemons: impl Applied) -> String {
    world.with((daemons, asked())).first_type()
}

const COUNTED: &str = "default-instance-type";
const IGNORED: &str = "small-instance-type";

/// Conformance: SCH-063, SCH-287
#[test]
fn a_daemon_pod_uses_its_requests() {
    assert_eq!(beside(daemon()), COUNTED);
    let startup = node_pool("default").set(
        "/spec/template/spec/startupTaints",
        json!([{ "key": "s", "effect": "NoSchedule" }]),
    );
    assert_eq!(beside_in(World::of(startup), daemon()), COUNTED);
}

/// Conformance: SCH-064
#[test]
fn a_daemon_pod_that_fits_no_instance_type_leaves_no_room_for_pods() {
    let huge = sized("10000");
    assert_eq!(beside(huge), "");
    let limits = json!({ "limits": { "cpu": "10000" } });
    let limited = daemon_set("d").set_pod("/spec/containers/0/resources", limits);
    assert_eq!(beside(limited), "");
    let init = json!({ "name": "i", "resources": { "requests": { "cpu": "10000" } } });
    let init = daemon().push_pod("/spec/initContainers", init);
    assert_eq!(beside(init), "");
}

fn live(cpu: &str) -> Object<Pod> {
    pod("d-live")
        .namespace("kube-system")
        .cpu(cpu)
        .owned_by("apps/v1", "DaemonSet", "d")
        .on("elsewhere")
}

/// Conformance: SCH-065
#[test]
fn the_requests_of_a_running_daemon_pod_count_instead_of_the_template() {
    assert_eq!(beside((daemon(), live("100m"))), IGNORED);
}

/// Conformance: SCH-066
#[test]
fn a_daemon_s_init_container_counts() {
    let init = json!({ "name": "i", "resources": { "requests": { "cpu": "2500m" } } });
    let init = sized("100m").push_pod("/spec/initContainers", init);
    assert_eq!(beside(init), COUNTED);
}

/// Conformance: SCH-067
#[test]
fn a_daemon_that_cannot_run_on_the_node_uses_nothing() {
    let tainted = || World::of(node_pool("default").taint("t", "t", "NoSchedule"));
    let mut world = tainted().with(daemon());
    world.add(asked().tolerate(json!({ "operator": "Exists" })));
    assert_eq!(world.first_type(), IGNORED);
    let selecting = daemon().select("other", "yes");
    assert_eq!(beside(selecting), IGNORED);
    let nowhere = daemon().select(INSTANCE_TYPE, "nothing");
    assert_eq!(beside(nowhere), IGNORED);
}

/// Conformance: SCH-068
#[test]
fn a_daemon_s_node_affinity_is_followed() {
    let labeled = || World::of(node_pool("default").node_label("team", "a"));
    let by_label = daemon().select("team", "a");
    assert_eq!(beside_in(labeled(), by_label), COUNTED);
    let not_in = daemon().require("absent", "NotIn", &["x"]);
    assert_eq!(beside(not_in), COUNTED);
    let second = daemon()
        .require("absent", "In", &["x"])
        .require(ARCH, "In", &["amd64"]);
    assert_eq!(beside(second), COUNTED);
}

/// Conformance: SCH-069
#[test]
fn a_daemon_s_preferences_do_not_matter() {
    let preferring = daemon().prefer(1, "absent", "In", &["x"]);
    assert_eq!(beside(preferring), COUNTED);
    let soft = World::of(node_pool("default").taint("t", "t", "PreferNoSchedule"));
    assert_eq!(beside_in(soft, daemon()), COUNTED);
}

/// Conformance: SCH-269
#[test]
fn spread_and_affinity_of_a_daemon_do_not_matter() {
    let absent = json!([affinity_term(ZONE, ("app", "absent"))]);
    let required = "/spec/affinity/podAffinity/requiredDuringSchedulingIgnoredDuringExecution";
    let affine = daemon().set_pod(required, absent);
    assert_eq!(beside(affine), COUNTED);
    let unknown = json!([{
        "maxSkew": 1, "topologyKey": "unknown", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {},
    }]);
    let spread = daemon().set_pod("/spec/topologySpreadConstraints", unknown);
    assert_eq!(beside(spread), COUNTED);
}

/// Conformance: SCH-070
#[test]
fn the_node_a_daemon_pod_is_pinned_to_does_not_matter() {
    let pinned = live("2").require("kubernetes.io/hostname", "In", &["elsewhere"]);
    let labeled = World::of(node_pool("default").node_label("foo", "bar"));
    let template = daemon().require("foo", "In", &["bar"]);
    assert_eq!(beside_in(labeled, (template, pinned)), COUNTED);
}

/// Conformance: SCH-071
#[test]
fn the_overhead_of_each_type_is_that_of_the_daemons_it_runs() {
    let types = vec![
        instance_type("small").cpu(4).gib(4),
        instance_type("large").cpu(8).gib(16),
    ];
    let mut world = World::new().with_types(types);
    world.add(daemon_set("a").cpu("3500m").select("size", "small"));
    world.add(daemon_set("b").cpu("1").select("size", "large"));
    let plan = world.with(asked()).plan();
    assert_eq!(*plan.new_node_claims[0].instance_types, ["large"]);
    assert_eq!(plan.new_node_claims[0].requests.get("cpu"), 2000);
}

/// Conformance: SCH-072
#[test]
fn a_daemon_s_host_port_is_used_where_the_daemon_runs() {
    let port = daemon().host_port(8080);
    assert!(
        !World::new()
            .with(port.clone())
            .places(pod("p").host_port(8080))
    );
    let on_large = port.clone().select("size", "large");
    let plan = World::new()
        .with(on_large)
        .with(pod("p").host_port(8080).select("size", "small"))
        .plan();
    assert!(all_placed(&plan));
}

/// Conformance: SCH-073
#[test]
fn a_daemon_may_select_labels_that_registration_sets() {
    for label in ["karpenter.sh/initialized", "karpenter.sh/registered"] {
        let selecting = daemon().select(label, "true");
        let world = World::new().with(selecting).with(asked());
        let draft = world.plan().new_node_claims.remove(0);
        assert_eq!(draft.instance_types[0], "default-instance-type");
        let labels = draft.to_node_claim().metadata.labels.unwrap();
        assert!(!labels.contains_key(label));
        assert!(values(&draft, label).is_empty());
    }
}

/// Conformance: SCH-057
#[test]
fn a_claim_requests_its_pods_and_one_set_of_daemons() {
    let small = || sized("1");
    let plan = World::new()
        .with(small())
        .with(copies(&pod("p").cpu("1"), 2))
        .plan();
    let draft = &plan.new_node_claims[0];
    let requests = &draft.requests;
    assert_eq!((requests.get("cpu"), requests.get("pods")), (3000, 3));
    let written = draft.to_node_claim().spec.resources.requests;
    assert_eq!(written["cpu"].0, "3");
}

/// Conformance: SCH-074
#[test]
fn the_requests_of_a_running_daemon_pod_are_not_reserved_again() {
    let small = || sized("1");
    let running = live("1").on("n");
    let world = World::new().with(small()).with((node("n"), running));
    let plan = world.with(pod("p").cpu("3")).plan();
    assert_eq!(plan.existing.len(), 1, "4 cores less the daemon's one");
    let unexpected = pod("x")
        .namespace("kube-system")
        .cpu("3")
        .owned_by("apps/v1", "DaemonSet", "other")
        .on("n");
    let world = World::new()
        .with(small())
        .with((node("n"), unexpected, pod("q").cpu("1100m")));
    let plan = world.plan();
    assert_eq!(
        counts(&plan),
        (0, 1),
        "what bound pods use is not free, and the rest is not negative"
    );
    let world = World::new()
        .with(small())
        .with((node("n"), live("3").on("n"), pod("q").cpu("1")));
    assert_eq!(world.plan().existing.len(), 1);
}

/// Conformance: SCH-075
#[test]
fn a_daemon_that_does_not_run_on_a_node_reserves_nothing_there() {
    let huge = sized("10000").select(CAPACITY_TYPE, "spot");
    let spot = node_pool("default").requires(CAPACITY_TYPE, "In", &["spot"]);
    let plan = World::of(spot)
        .with(huge)
        .with(node("n"))
        .with(copies(&pod("p").cpu("3"), 2))
        .plan();
    assert_eq!((plan.existing.len(), plan.unplaced.len()), (1, 1));
}

#[test]
fn a_daemon_that_waits_for_a_startup_taint_counts_before_initialization() {
    let taint = json!({ "key": "warming", "effect": "NoSchedule" });
    let world = |initialized: &str| {
        let claim = node_claim("c")
            .pool("default")
            .startup_taint("warming", "NoSchedule")
            .launched("fake://n");
        World::new()
            .with((claim, daemon_set("d").cpu("3")))
            .with((
                node("n")
                    .set(
                        "/metadata/labels/karpenter.sh~1initialized",
                        json!(initialized),
                    )
                    .push("/spec/taints", taint.clone()),
                pod("p").cpu("2").tolerate(json!({ "operator": "Exists" })),
                pod("q")
                    .cpu("500m")
                    .tolerate(json!({ "operator": "Exists" })),
            ))
            .plan()
    };
    // Three of four cores are reserved for the daemon: one pod fits.
    assert_eq!(world("false").existing.len(), 1);
    // Once the node is initialized, the taint is like any other and keeps the daemon off.
    assert_eq!(world("true").existing.len(), 2);
}
