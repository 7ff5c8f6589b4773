//! What a NodeClaim may become: instance types, offerings, requirements (sections 5, 10, 14 and 19 of the reference).

use karpenter_core::fake;
use karpenter_core::fake::{instance_type, offering};
use karpenter_core::resources::Resources;
use karpenter_core::schedule::Unschedulable;
use serde_json::json;

use crate::fixture::*;

/// Conformance: SCH-212
#[test]
fn room_and_a_fitting_offering_must_come_from_the_same_override() {
    let plan = |cpu: &str, zone: &str| {
        let mut large = offering("on-demand", Z2, 1.0);
        large.capacity_override = Some(Resources::new().with("cpu", 8000));
        let offerings = vec![offering("on-demand", Z1, 1.0), large];
        let types = [instance_type("t").cpu(2).gib(8).offerings(offerings)];
        World::new()
            .with_types(types)
            .with(pod("p").cpu(cpu).select(ZONE, zone))
            .plan()
    };
    assert!(all_placed(&plan("1", Z1)));
    assert!(all_placed(&plan("4", Z2)));
    assert!(!all_placed(&plan("4", Z1)), "the room is in the other zone");
}

/// Conformance: API-205
#[test]
fn the_overrides_of_an_offering_replace_capacity_and_summed_overhead() {
    let gib = 1_i64 << 30;
    let mut instance_type = instance_type("t").cpu(4).gib(16).build();
    instance_type.overhead.kube_reserved =
        Resources::new().with("memory", gib / 2).with("cpu", 100);
    instance_type.overhead.system_reserved = Resources::new().with("memory", gib / 2);
    instance_type.overhead.eviction_threshold = Resources::new();
    assert_eq!(instance_type.allocatable().get("memory"), 15 * gib);
    let mut special = offering("on-demand", Z1, 1.0);
    special.overhead_override = Some(Resources::new().with("memory", 3 * gib));
    let room = instance_type.allocatable_of(&special);
    assert_eq!((room.get("memory"), room.get("cpu")), (13 * gib, 3900));
    special.capacity_override = Some(Resources::new().with("cpu", 2000));
    let room = instance_type.allocatable_of(&special);
    assert_eq!((room.get("memory"), room.get("cpu")), (13 * gib, 1900));
}

/// Conformance: API-204
#[test]
fn hugepages_leave_no_less_than_no_memory() {
    let pages = |mib: i64| {
        let huge = instance_type("huge")
            .gib(1)
            .resource("hugepages-2Mi", mib << 20);
        huge.build().allocatable().get("memory")
    };
    assert_eq!(pages(512), (1 << 30) - (10 << 20) - (512 << 20));
    assert_eq!(pages(4096), 0);
}

/// Conformance: SCH-258
#[test]
fn a_claim_lists_the_six_hundred_cheapest_types() {
    let mut world = World::new()
        .with_types(fake::instance_types(700))
        .with(pod("p").cpu("100m"));
    let listed = first_values(&world.plan(), INSTANCE_TYPE);
    assert_eq!(listed.len(), 600);
    assert_eq!(listed[0], "fake-it-0");
    assert!(!listed.iter().any(|name| name == "fake-it-600"));
    world.policy.max_instance_types = 2;
    let claim = &world.plan().new_node_claims[0];
    assert_eq!(*claim.instance_types, ["fake-it-0", "fake-it-1"]);
}

/// Conformance: SCH-240
#[test]
fn values_that_only_the_pod_excludes_count_for_min_values() {
    let pool = node_pool("default").requires_min(ZONE, "Exists", &[], 2);
    let plan = World::of(pool).with(pod("p").select(ZONE, Z1)).plan();
    assert!(all_placed(&plan), "{}", why(&plan, "p"));
    assert_eq!(first_values(&plan, ZONE), [Z1]);
}

/// Conformance: SCH-259
#[test]
fn a_claim_asks_for_no_host_and_for_capacity_types_that_can_be_launched() {
    let types = [instance_type("t").cpu(4).gib(4).offerings(vec![
        offering("on-demand", Z1, 1.0),
        offering("spot", Z2, 0.5),
    ])];
    let apart = member("p").anti_affinity(HOSTNAME, APP).select(ZONE, Z1);
    let plan =
        World::of(node_pool("default").requires(CAPACITY_TYPE, "In", &["on-demand", "spot"]))
            .with_types(types)
            .with(apart)
            .plan();
    let draft = &plan.new_node_claims[0];
    let requirements = &draft.to_node_claim().spec.requirements;
    assert!(
        requirements
            .iter()
            .all(|requirement| requirement.key != HOSTNAME)
    );
    assert_eq!(values(draft, CAPACITY_TYPE), ["on-demand"]);
}

/// Conformance: SCH-226
#[test]
fn the_constraint_that_leaves_no_domain_is_named_with_its_key() {
    let says = |pod: Object<Pod>, kind: &str, key: &str| {
        let taken = [Z1, Z2, Z3].map(|zone| {
            let at = "/metadata/labels/topology.kubernetes.io~1zone";
            node(zone).set(at, json!(zone))
        });
        let loud = [Z1, Z2, Z3].map(|zone| crate::fixture::pod(zone).label("app", "loud").on(zone));
        let plan = World::new().with(taken).with(loud).with(pod).plan();
        let text = why(&plan, "p");
        let expected = format!("unsatisfiable topology constraint for {kind}, key={key}");
        assert!(text.contains(&expected), "{text}");
    };
    says(
        pod("p").anti_affinity(ZONE, ("app", "loud")),
        "pod anti-affinity",
        ZONE,
    );
    says(
        pod("p").affinity(ZONE, ("app", "absent")),
        "pod affinity",
        ZONE,
    );
    says(
        member("p").spread("example.com/rack", 1, APP),
        "topology spread",
        "example.com/rack",
    );
}

/// Conformance: SCH-227
#[test]
fn a_spread_over_hosts_knows_no_least_number_of_domains() {
    let spread = member("p").spread_with(HOSTNAME, 1, APP, json!({ "minDomains": 5 }));
    assert_eq!(World::new().with(copies(&spread, 2)).sizes(), [1, 1]);
}

/// Conformance: SCH-241
#[test]
fn what_the_cut_list_lacks_is_said_in_upstreams_words() {
    assert_eq!(
        Unschedulable::MinValuesAfterTruncation.to_string(),
        "pod didn't schedule because NodePool couldn't meet minValues requirements"
    );
}

/// Conformance: SCH-267
#[test]
fn constraints_that_differ_in_min_domains_alone_are_two() {
    let zones = node_pool("default").requires(ZONE, "In", &[Z1, Z2]);
    let spread = |name: &str, further: serde_json::Value| {
        let pod = member(name).cpu("1");
        pod.spread_with(ZONE, 1, APP, further)
    };
    let free = copies(&spread("free", json!({})), 3);
    let bound = spread("bound", json!({ "minDomains": 3 })).cpu("500m");
    let plan = World::of(zones).with(free).with(bound).by_size().plan();
    let left: Vec<&str> = plan.unplaced.iter().map(|u| u.pod.name.as_str()).collect();
    assert_eq!(left, ["bound"], "it may make no zone hold more than one");
}
