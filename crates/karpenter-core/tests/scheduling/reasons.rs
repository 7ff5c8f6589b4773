//! Event texts of pods that cannot be placed (section 13 of the reference).

use karpenter_core::fake::{instance_type, offering};
use karpenter_core::schedule::{
    Incompatibility, InstanceTypeMismatch, Requested, TopologyConstraint, Unschedulable,
};
use serde_json::json;

use crate::fixture::*;

fn text(world: World) -> String {
    let plan = world.plan();
    why(&plan, "p")
}

/// Returns one small type, on demand in zone 1 and as spot in zone 2.
fn small() -> World {
    let small = instance_type("small").cpu(2).gib(2).offerings(vec![
        offering("on-demand", Z1, 1.0),
        offering("spot", Z2, 0.5),
    ]);
    World::new().with_types(small)
}

/// Conformance: SCH-235
#[test]
fn the_text_names_the_test_that_no_instance_type_passed() {
    let says = |pod: Object<Pod>, expected: &str| {
        let text = text(small().with(pod));
        let expected = format!("{expected}, requirements=");
        assert!(text.contains(&expected), "{text}");
        assert!(text.contains(", resources={"), "{text}");
    };
    let other = |pod: Object<Pod>| pod.select(INSTANCE_TYPE, "large");
    let elsewhere = |pod: Object<Pod>| pod.select(CAPACITY_TYPE, "spot").select(ZONE, Z1);
    let huge = |pod: Object<Pod>| pod.cpu("64");
    says(other(pod("p")), "no instance type met all requirements");
    says(huge(pod("p")), "no instance type has enough resources");
    says(
        elsewhere(pod("p")),
        "no instance type has the required offering",
    );
    says(
        other(huge(pod("p"))),
        "no instance type met the scheduling requirements or had enough resources",
    );
    says(
        other(elsewhere(pod("p"))),
        "no instance type met the scheduling requirements or had a required offering",
    );
    says(
        huge(elsewhere(pod("p"))),
        "no instance type had enough resources or had a required offering",
    );
    says(
        other(huge(elsewhere(pod("p")))),
        "no instance type met the scheduling requirements or had enough resources or had a required offering",
    );
}

/// Conformance: SCH-236
#[test]
fn the_text_names_the_two_tests_that_no_instance_type_passed_together() {
    // Offered as spot in one zone, on demand in the other.
    let kind = |name: &str, cpu: i64, spot: &str| {
        let other = if spot == Z1 { Z2 } else { Z1 };
        let offerings = vec![
            offering("spot", spot, 1.0),
            offering("on-demand", other, 1.0),
        ];
        instance_type(name).cpu(cpu).gib(8).offerings(offerings)
    };
    let says = |types: [(&str, i64, &str); 2], expected: &str| {
        let types = types.map(|(name, cpu, spot)| kind(name, cpu, spot));
        let asked = pod("p")
            .cpu("4")
            .select(CAPACITY_TYPE, "spot")
            .select(ZONE, Z1)
            .require(INSTANCE_TYPE, "In", &["a"]);
        let world = World::new().with_types(types).with(asked);
        let text = text(world);
        assert!(text.contains(expected), "{text}");
    };
    says(
        [("a", 8, Z2), ("b", 2, Z1)],
        "no instance type which met the scheduling requirements and had enough resources, had a required offering",
    );
    says(
        [("a", 2, Z2), ("b", 8, Z1)],
        "no instance type which had enough resources and the required offering met the scheduling requirements",
    );
    says(
        [("a", 2, Z1), ("b", 8, Z2)],
        "no instance type which met the scheduling requirements and the required offering had the required resources",
    );
}

/// Conformance: SCH-237
#[test]
fn a_huge_cpu_request_gets_a_hint_about_a_missing_m() {
    let text = text(small().with(pod("p").cpu("1000000")));
    assert!(
        text.contains("no instance type has enough resources, requirements="),
        "{text}"
    );
    assert!(
        text.ends_with(" (CPU request >= 1 Million, m vs M typo?)"),
        "{text}"
    );
}

/// Conformance: SCH-239
#[test]
fn all_taints_that_are_not_tolerated_are_named() {
    let tainted = node_pool("default")
        .taint("a", "x", "NoSchedule")
        .taint("b", "", "NoExecute")
        .taint("c", "", "NoSchedule");
    let tolerated = json!({ "key": "c", "operator": "Exists" });
    let text = text(World::of(tainted).with(pod("p").tolerate(tolerated)));
    assert!(
        text.ends_with("did not tolerate taint (taint=a=x:NoSchedule); did not tolerate taint (taint=b:NoExecute)"),
        "{text}"
    );
}

/// Conformance: SCH-238
#[test]
fn daemons_that_differ_by_type_show_as_a_range() {
    let types = [instance_type("a").cpu(2), instance_type("b").cpu(4)];
    let mut world = World::new()
        .with_types(types.map(|t| t.gib(4)))
        .with(pod("p").cpu("64"));
    world.add(daemon_set("d").cpu("1").select(INSTANCE_TYPE, "b"));
    let text = text(world);
    assert!(
        text.contains(r#"resources=min={"cpu":"64","pods":"1"}, max={"cpu":"65","pods":"2"}"#),
        "{text}"
    );
}

/// Conformance: SCH-239
#[test]
fn volume_and_label_requirements_have_different_texts() {
    let mut world = World::of(node_pool("default").requires(ZONE, "In", &[Z1]));
    world.add((
        crate::volumes::bound("c", "v"),
        persistent_volume("v").zone(Z2),
    ));
    let volumes = text(world.with(pod("p").volume("c")));
    assert!(
        volumes.contains("incompatible volume requirements, key topology.kubernetes.io/zone"),
        "{volumes}"
    );
    let labels = text(World::new().with(pod("p").select("team", "a")));
    assert!(
        labels.contains("incompatible requirements, label \"team\" does not have known values"),
        "{labels}"
    );
}

/// Conformance: SCH-216, SCH-239
#[test]
fn every_pool_has_its_reason() {
    let world = World::of(node_pool("a").weight(3).limit("cpu", "0"))
        .with_pool(node_pool("b").weight(2).taint("x", "", "NoSchedule"))
        .with_pool(node_pool("c").weight(1).requires(ZONE, "In", &[Z1]))
        .with(pod("p").select(ZONE, Z2));
    let text = text(world);
    let parts: Vec<&str> = text.split("; ").collect();
    assert_eq!(parts.len(), 3, "{text}");
    assert!(
        parts[0].starts_with("incompatible with nodepool \"a\"")
            && parts[0].ends_with("all available instance types exceed limits for nodepool")
    );
    assert!(
        parts[1].starts_with("incompatible with nodepool \"b\"")
            && parts[1].ends_with("did not tolerate taint (taint=x:NoSchedule)")
    );
    assert!(parts[2].starts_with("incompatible with nodepool \"c\"") && parts[2].contains("incompatible requirements, key topology.kubernetes.io/zone, topology.kubernetes.io/zone In [test-zone-2] not in topology.kubernetes.io/zone In [test-zone-1]"), "{text}");
}

/// Returns the reason of the only NodePool against the pod `p`.
fn reason(world: World) -> Incompatibility {
    let plan = world.plan();
    let unplaced = plan.unplaced.iter().find(|it| it.pod.name == "p").unwrap();
    match &unplaced.why {
        Unschedulable::NoFit(pools) => pools[0].reason.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_hostname_constraint_that_excludes_new_nodes_is_the_reason() {
    let full = pod("web").label("app", "web").cpu("4").on("n");
    let follower = pod("p")
        .cpu("1")
        .label("app", "p")
        .spread(ZONE, 1, ("app", "p"))
        .affinity(HOSTNAME, ("app", "web"));
    let world = World::new().with((node("n"), full, follower));
    assert_eq!(
        reason(world),
        Incompatibility::Topology {
            constraint: TopologyConstraint::Affinity,
            key: HOSTNAME.to_owned(),
            domains: Vec::new(),
        }
    );
}

#[test]
fn unmet_min_values_are_the_reason_also_beside_host_ports() {
    // The DaemonSet on `b` uses the port, so that only `a` is left.
    let types = [instance_type("a").cpu(2), instance_type("b").cpu(2)];
    let mut world = World::of(node_pool("default").requires_min(INSTANCE_TYPE, "Exists", &[], 2))
        .with_types(types.map(|t| t.gib(4)))
        .with(pod("p").host_port(80));
    world.add(daemon_set("d").host_port(80).select(INSTANCE_TYPE, "b"));
    let Incompatibility::MinValues {
        key,
        min_values,
        found,
        requested,
    } = reason(world)
    else {
        panic!("another reason");
    };
    assert_eq!((key.as_str(), min_values, found), (INSTANCE_TYPE, 2, 1));
    assert!(requested.requirements.get(INSTANCE_TYPE).is_some());
}

#[test]
fn a_node_pool_whose_name_differs_in_two_characters_at_most_is_suggested() {
    let suggested = |name: &str| {
        let world = World::of(node_pool("default"))
            .with_pool(node_pool("gpu"))
            .with_pool(node_pool("xy"))
            .with(pod("p").select(NODE_POOL, name));
        let text = text(world);
        let (_, rest) = text.split_once("typo of \"")?;
        rest.split_once('"').map(|(name, _)| name.to_owned())
    };
    assert_eq!(suggested("defualt").as_deref(), Some("default"));
    assert_eq!(suggested("defaul").as_deref(), Some("default"));
    assert_eq!(suggested("defxxlt").as_deref(), Some("default"));
    assert_eq!(suggested("defxxxt"), None);
    assert_eq!(suggested("gxx").as_deref(), Some("gpu"));
    // All characters differ.
    assert_eq!(suggested("ab"), None);
    assert_eq!(suggested("infrastructure"), None);
}

#[test]
fn the_text_for_types_that_passed_each_test_alone_names_the_pair() {
    let says = |requirements_and_resources, resources_and_offering, requirements_and_offering| {
        let mismatch = InstanceTypeMismatch {
            requirements: true,
            resources: true,
            offering: true,
            requirements_and_resources,
            resources_and_offering,
            requirements_and_offering,
            // A hint about cores belongs to the text about resources alone.
            suspicious_cpu: true,
            shortage: None,
            requested: Requested::default(),
        };
        let text = mismatch.to_string();
        text.split_once(", requirements=").unwrap().0.to_owned()
            + if text.contains("typo") { " typo" } else { "" }
    };
    let texts = [
        "no instance type which met the scheduling requirements and had enough resources, had a required offering",
        "no instance type which had enough resources and the required offering met the scheduling requirements",
        "no instance type which met the scheduling requirements and the required offering had the required resources",
        "no instance type met the requirements/resources/offering tuple",
    ];
    assert_eq!(says(true, true, true), texts[0]);
    assert_eq!(says(false, true, true), texts[1]);
    assert_eq!(says(false, false, true), texts[2]);
    assert_eq!(says(false, false, false), texts[3]);
}

#[test]
fn requirements_on_labels_of_the_simulation_are_not_in_the_text() {
    let world = small().with(pod("p").cpu("64").select("example.com/team", "a"));
    let world = world.with_pool(node_pool("default").node_label("example.com/team", "a"));
    let Incompatibility::InstanceTypes(mismatch) = reason(world) else {
        panic!("another reason");
    };
    let requested = |key: &str| Requested {
        requirements: [karpenter_core::requirements::Requirement::equal(key, "x")]
            .into_iter()
            .collect(),
        ..Requested::default()
    };
    assert!(
        mismatch
            .requested
            .requirements_text()
            .contains("example.com/team In [a]")
    );
    assert_eq!(requested("a").requirements_text(), "a In [x]");
    for key in [HOSTNAME, REGISTERED, INITIALIZED] {
        assert_eq!(requested(key).requirements_text(), "");
    }
}

#[test]
fn only_a_pod_that_waits_for_a_reservation_is_deferred() {
    let plan = small().with(pod("p").cpu("64")).plan();
    let why = &plan.unplaced[0].why;
    assert!(!why.is_deferred() && !why.is_silent());
}

#[test]
fn the_reason_is_that_against_the_last_term_of_node_affinity() {
    let terms = ["x", "y", "z"]
        .iter()
        .fold(pod("p"), |pod, zone| pod.require(ZONE, "In", &[zone]));
    let text = text(World::new().with(terms));
    assert!(
        text.contains("topology.kubernetes.io/zone In [z]"),
        "{text}"
    );
    assert!(!text.contains("[x]") && !text.contains("[y]"), "{text}");
}

/// The reason of the pod against two types, of which the kubelet takes 100 millicores and 10 MiB, and a DaemonSet 100 millicores and a
/// gigabyte.
fn too_large(asked: Object<Pod>) -> (String, serde_json::Value) {
    let kind = |name: &str, cpu: i64, gib: i64| instance_type(name).cpu(cpu).gib(gib);
    let mut world = World::new()
        .with_types([kind("c-256x", 256, 512), kind("r-16x", 16, 1024)])
        .with(asked);
    world.add(daemon_set("d").cpu("100m").memory("1Gi"));
    let plan = world.plan();
    let why = karpenter_core::reason::pod_reason(&plan.unplaced[0].why);
    let parameters = serde_json::to_value(&why).unwrap()["parameters"]["shortage"].clone();
    assert!(
        plan.unplaced[0]
            .why
            .to_string()
            .ends_with(&format!("({why})"))
    );
    (why.to_string(), parameters)
}

#[test]
fn a_pod_that_is_too_large_is_told_the_largest_amount_and_the_difference() {
    let (text, parameters) = too_large(pod("p").cpu("5000").memory("1Gi"));
    assert_eq!(
        text,
        "requests cpu 5,000; the largest type, c-256x, offers 255.8, short by 4,744.2"
    );
    let amounts = json!({ "resource": "cpu", "requested": "5000", "largest": "255.8", "instanceType": "c-256x", "shortBy": "4744.2" });
    assert_eq!(parameters, amounts);
    let (text, _) = too_large(pod("p").memory("1500Gi"));
    assert_eq!(
        text,
        "requests memory 1,500Gi; the largest type, r-16x, offers 1,022.99Gi, short by 477Gi"
    );
}

#[test]
fn of_several_resources_the_one_is_told_that_is_short_by_most() {
    let (text, _) = too_large(pod("p").cpu("300").memory("9000Gi"));
    assert!(text.starts_with("requests memory 9,000Gi;"), "{text}");
    let (text, _) = too_large(pod("p").cpu("9000").request("nvidia.com/gpu", "1"));
    assert_eq!(text, "no instance type has nvidia.com/gpu");
}

#[test]
fn a_pod_that_fits_nowhere_for_several_resources_has_no_shortage() {
    let asked = pod("p").cpu("100").memory("600Gi");
    let mut world = World::new().with_types(
        [("c", 256, 512), ("r", 16, 1024)]
            .map(|(name, cpu, gib)| instance_type(name).cpu(cpu).gib(gib)),
    );
    world = world.with(asked);
    let Incompatibility::InstanceTypes(mismatch) = reason(world) else {
        panic!("another reason");
    };
    assert_eq!((mismatch.resources, mismatch.shortage), (false, None));
}

#[test]
fn a_misspelt_architecture_is_recognized_where_no_node_pool_restricts_it() {
    let world =
        World::of(node_pool("default").without_requirements()).with_types(instance_type("a"));
    let text = text(world.with(pod("p").select("kubernetes.io/arch", "amd46")));
    assert!(text.ends_with("typo of \"amd64\"?)"), "{text}");
}
