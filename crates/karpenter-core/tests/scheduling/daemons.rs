//! Resources that DaemonSets use on a node.

use karpenter_core::fake::instance_type;
use serde_json::{Value, json};

use crate::fixture::*;

/// Returns a DaemonSet of 2 cores and 1 GiB.
fn daemon(change: impl FnOnce(&mut Value)) -> Value {
    let mut set = json!({
        "metadata": { "name": "d", "namespace": "kube-system", "uid": "d" },
        "spec": { "selector": {}, "template": {
            "metadata": { "labels": { "app": "d" } },
            "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": "2", "memory": "1Gi" } } }] },
        } },
    });
    change(&mut set);
    set
}

fn with_daemon(mut world: World, change: impl FnOnce(&mut Value)) -> World {
    world.cluster.apply_daemon_set(&read(daemon(change)));
    world
}

/// Returns the pod of the scenarios, which needs the default type with a daemon and the small one without.
fn asked() -> Object<Pod> {
    pod("p").cpu("1").memory("1Gi")
}

fn first_type(world: World) -> Option<String> {
    world
        .with([asked()])
        .plan()
        .new_claims
        .first()
        .map(|draft| draft.instance_types[0].clone())
}

const COUNTED: Option<&str> = Some("default-instance-type");
const IGNORED: Option<&str> = Some("small-instance-type");

fn affinity(key: &str, operator: &str, values: &[&str]) -> Value {
    json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [term(&[(key, operator, values)])] } } })
}

fn spec(set: &mut Value) -> &mut Value {
    &mut set["spec"]["template"]["spec"]
}

/// Conformance: SCH-063
#[test]
fn a_daemon_pod_uses_its_requests() {
    assert_eq!(
        first_type(with_daemon(World::new(), |_| ())).as_deref(),
        COUNTED
    );
    let startup = node_pool("default").set(
        "/spec/template/spec/startupTaints",
        json!([{ "key": "s", "effect": "NoSchedule" }]),
    );
    assert_eq!(
        first_type(with_daemon(World::empty().with_pool(startup), |_| ())).as_deref(),
        COUNTED
    );
}

/// Conformance: SCH-064
#[test]
fn a_daemon_pod_that_fits_no_instance_type_leaves_no_room_for_pods() {
    let huge = |set: &mut Value| {
        spec(set)["containers"][0]["resources"] = json!({ "requests": { "cpu": "10000" } })
    };
    assert_eq!(first_type(with_daemon(World::new(), huge)), None);
    let limited = |set: &mut Value| {
        spec(set)["containers"][0]["resources"] = json!({ "limits": { "cpu": "10000" } })
    };
    assert_eq!(first_type(with_daemon(World::new(), limited)), None);
    let init = |set: &mut Value| {
        spec(set)["initContainers"] =
            json!([{ "name": "i", "resources": { "requests": { "cpu": "10000" } } }]);
    };
    assert_eq!(first_type(with_daemon(World::new(), init)), None);
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
    assert_eq!(
        first_type(with_daemon(World::new(), |_| ()).with([live("100m")])).as_deref(),
        IGNORED
    );
}

/// Conformance: SCH-066
#[test]
fn a_daemon_s_init_container_counts() {
    let init = |set: &mut Value| {
        spec(set)["containers"][0]["resources"] = json!({ "requests": { "cpu": "100m" } });
        spec(set)["initContainers"] =
            json!([{ "name": "i", "resources": { "requests": { "cpu": "2500m" } } }]);
    };
    assert_eq!(
        first_type(with_daemon(World::new(), init)).as_deref(),
        COUNTED
    );
}

/// Conformance: SCH-067
#[test]
fn a_daemon_that_cannot_run_on_the_node_uses_nothing() {
    let tainted = || World::empty().with_pool(node_pool("default").taint("t", "t", "NoSchedule"));
    let mut world = with_daemon(tainted(), |_| ());
    world.add(asked().tolerate(json!({ "operator": "Exists" })));
    assert_eq!(
        world.plan().new_claims[0].instance_types[0],
        "small-instance-type"
    );
    let selecting = |set: &mut Value| spec(set)["nodeSelector"] = json!({ "other": "yes" });
    assert_eq!(
        first_type(with_daemon(World::new(), selecting)).as_deref(),
        IGNORED
    );
    let nowhere = |set: &mut Value| spec(set)["nodeSelector"] = json!({ INSTANCE_TYPE: "nothing" });
    assert_eq!(
        first_type(with_daemon(World::new(), nowhere)).as_deref(),
        IGNORED
    );
}

/// Conformance: SCH-068
#[test]
fn a_daemon_s_node_affinity_is_followed() {
    let labeled = || World::empty().with_pool(node_pool("default").node_label("team", "a"));
    let by_label = |set: &mut Value| spec(set)["nodeSelector"] = json!({ "team": "a" });
    assert_eq!(
        first_type(with_daemon(labeled(), by_label)).as_deref(),
        COUNTED
    );
    let not_in = |set: &mut Value| spec(set)["affinity"] = affinity("absent", "NotIn", &["x"]);
    assert_eq!(
        first_type(with_daemon(World::new(), not_in)).as_deref(),
        COUNTED
    );
    let second = |set: &mut Value| {
        spec(set)["affinity"] = affinity("absent", "In", &["x"]);
        let terms = &mut spec(set)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            ["nodeSelectorTerms"];
        terms
            .as_array_mut()
            .unwrap()
            .push(term(&[(ARCH, "In", &["amd64"])]));
    };
    assert_eq!(
        first_type(with_daemon(World::new(), second)).as_deref(),
        COUNTED
    );
}

/// Conformance: SCH-069
#[test]
fn a_daemon_s_preferences_do_not_matter() {
    let preferring = |set: &mut Value| {
        spec(set)["affinity"] = json!({ "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [
            { "weight": 1, "preference": term(&[("absent", "In", &["x"])]) },
        ] } });
    };
    assert_eq!(
        first_type(with_daemon(World::new(), preferring)).as_deref(),
        COUNTED
    );
    let soft = World::empty().with_pool(node_pool("default").taint("t", "t", "PreferNoSchedule"));
    assert_eq!(first_type(with_daemon(soft, |_| ())).as_deref(), COUNTED);
}

/// Conformance: SCH-070
#[test]
fn the_node_a_daemon_pod_is_pinned_to_does_not_matter() {
    let pinned = live("2").require("kubernetes.io/hostname", "In", &["elsewhere"]);
    let labeled = World::empty().with_pool(node_pool("default").node_label("foo", "bar"));
    let template = |set: &mut Value| spec(set)["affinity"] = affinity("foo", "In", &["bar"]);
    assert_eq!(
        first_type(with_daemon(labeled, template).with([pinned])).as_deref(),
        COUNTED
    );
}

/// Conformance: SCH-071
#[test]
fn the_overhead_of_each_type_is_that_of_the_daemons_it_runs() {
    let sized = |name: &'static str, size: &'static str, cpu: &'static str| {
        daemon(move |set| {
            set["metadata"]["name"] = json!(name);
            set["metadata"]["uid"] = json!(name);
            spec(set)["nodeSelector"] = json!({ "size": size });
            spec(set)["containers"][0]["resources"] = json!({ "requests": { "cpu": cpu } });
        })
    };
    let types = vec![
        instance_type("small").cpu(4).gib(4).build(),
        instance_type("large").cpu(8).gib(16).build(),
    ];
    let mut world = World::new().with_types(types.into());
    world
        .cluster
        .apply_daemon_set(&read(sized("a", "small", "3500m")));
    world
        .cluster
        .apply_daemon_set(&read(sized("b", "large", "1")));
    let plan = world.with([asked()]).plan();
    assert_eq!(*plan.new_claims[0].instance_types, ["large"]);
    assert_eq!(plan.new_claims[0].requests.get("cpu"), 2000);
}

/// Conformance: SCH-072
#[test]
fn a_daemon_s_host_port_is_used_where_the_daemon_runs() {
    let port = |set: &mut Value| {
        spec(set)["containers"][0]["ports"] = json!([{ "containerPort": 8080, "hostPort": 8080 }])
    };
    assert!(!all_placed(
        &with_daemon(World::new(), port)
            .with([pod("p").host_port(8080)])
            .plan()
    ));
    let on_large = |set: &mut Value| {
        port(set);
        spec(set)["nodeSelector"] = json!({ "size": "large" });
    };
    let plan = with_daemon(World::new(), on_large)
        .with([pod("p").host_port(8080).select("size", "small")])
        .plan();
    assert!(all_placed(&plan));
}

/// Conformance: SCH-073
#[test]
fn a_daemon_may_select_labels_that_registration_sets() {
    for label in ["karpenter.sh/initialized", "karpenter.sh/registered"] {
        let selecting = |set: &mut Value| spec(set)["nodeSelector"] = json!({ label: "true" });
        let world = with_daemon(World::new(), selecting).with([asked()]);
        let draft = world.plan().new_claims.remove(0);
        assert_eq!(draft.instance_types[0], "default-instance-type");
        assert!(
            !draft
                .to_node_claim()
                .metadata
                .labels
                .unwrap()
                .contains_key(label)
        );
        assert!(values(&draft, label).is_empty());
    }
}

/// Conformance: SCH-057
#[test]
fn a_claim_requests_its_pods_and_one_set_of_daemons() {
    let small = |set: &mut Value| {
        spec(set)["containers"][0]["resources"] = json!({ "requests": { "cpu": "1" } })
    };
    let plan = with_daemon(World::new(), small)
        .with(copies(&pod("p").cpu("1"), 2))
        .plan();
    let requests = &plan.new_claims[0].requests;
    assert_eq!((requests.get("cpu"), requests.get("pods")), (3000, 3));
    assert_eq!(
        plan.new_claims[0].to_node_claim().spec.resources.requests["cpu"].0,
        "3"
    );
}

/// Conformance: SCH-074
#[test]
fn the_requests_of_a_running_daemon_pod_are_not_reserved_again() {
    let small = |set: &mut Value| {
        spec(set)["containers"][0]["resources"] = json!({ "requests": { "cpu": "1" } })
    };
    let running = live("1").on("n");
    let world = with_daemon(World::new(), small).with((node("n"), running));
    let plan = world.with([pod("p").cpu("3")]).plan();
    assert_eq!(plan.existing.len(), 1, "4 cores less the daemon's one");
    let unexpected = pod("x")
        .namespace("kube-system")
        .cpu("3")
        .owned_by("apps/v1", "DaemonSet", "other")
        .on("n");
    let world =
        with_daemon(World::new(), small).with((node("n"), unexpected, pod("q").cpu("1100m")));
    let plan = world.plan();
    assert_eq!(
        (plan.existing.len(), plan.new_claims.len()),
        (0, 1),
        "what bound pods use is not free, and the rest is not negative"
    );
    let world =
        with_daemon(World::new(), small).with((node("n"), live("3").on("n"), pod("q").cpu("1")));
    assert_eq!(world.plan().existing.len(), 1);
}

/// Conformance: SCH-075
#[test]
fn a_daemon_that_does_not_run_on_a_node_reserves_nothing_there() {
    let huge = |set: &mut Value| {
        spec(set)["nodeSelector"] = json!({ "karpenter.sh/capacity-type": "spot" });
        spec(set)["containers"][0]["resources"] = json!({ "requests": { "cpu": "10000" } });
    };
    let spot = node_pool("default").requires(CAPACITY_TYPE, "In", &["spot"]);
    let plan = with_daemon(World::empty().with_pool(spot), huge)
        .with([node("n")])
        .with(copies(&pod("p").cpu("3"), 2))
        .plan();
    assert_eq!((plan.existing.len(), plan.unplaced.len()), (1, 1));
}
