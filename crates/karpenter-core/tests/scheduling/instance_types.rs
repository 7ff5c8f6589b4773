//! Which instance types a claim lists, and in which order.

use karpenter_core::fake;
use karpenter_core::fake::{GPU_VENDOR_A, GPU_VENDOR_B, instance_type, offering};
use karpenter_core::resources::Resources;
use karpenter_core::schedule::Packing;

use crate::fixture::*;

/// Conformance: SCH-034
#[test]
fn the_cheapest_offering_is_used_whether_pod_or_pool_constrains_it() {
    let all = fake::assorted();
    for zone in [None, Some(Z2)] {
        for arch in [None, Some("arm64")] {
            for capacity_type in [None, Some("spot")] {
                for on_pool in [true, false] {
                    let wanted = [(ZONE, zone), (ARCH, arch), (CAPACITY_TYPE, capacity_type)];
                    let mut asked = pod("p");
                    let mut pool = node_pool("default");
                    for (key, value) in wanted
                        .iter()
                        .filter_map(|(key, value)| Some((*key, (*value)?)))
                    {
                        if on_pool {
                            pool = pool.requires(key, "In", &[value]);
                        } else {
                            asked = asked.select(key, value);
                        }
                    }
                    let plan = World::of(pool).with_types(all.clone()).with(asked).plan();
                    let draft = &plan.new_node_claims[0];
                    let cheapest =
                        fake::price(&Resources::new().with("cpu", 1000).with("memory", 1 << 30));
                    assert_eq!(draft.hourly_price, cheapest);
                    assert!(draft.instance_types[0].starts_with("1-cpu-1-mem"));
                    assert!(
                        draft
                            .instance_types
                            .iter()
                            .all(|name| arch.is_none_or(|arch| name.contains(arch)))
                    );
                }
            }
        }
    }
}

/// Conformance: SCH-035
#[test]
fn a_combination_without_an_offering_fails() {
    let only = vec![
        instance_type("arm")
            .arch("arm64")
            .os(&["linux"])
            .zones(&[Z1]),
        instance_type("amd").os(&["windows"]).zones(&[Z2]),
    ];
    let world = || World::empty().with_types(only.clone());
    let asked = pod("p")
        .select(ARCH, "arm64")
        .select("kubernetes.io/os", "windows");
    assert!(!world().with_pool(node_pool("default")).places(asked));
    let asked = pod("p").select(ARCH, "arm64").select(ZONE, Z2);
    assert!(!world().with_pool(node_pool("default")).places(asked));
    let pool = node_pool("default")
        .requires(ARCH, "In", &["arm64"])
        .requires(ZONE, "In", &[Z2]);
    assert!(!world().with_pool(pool).places(pod("p")));
}

/// Conformance: SCH-036, API-212
#[test]
fn options_are_ordered_by_price_not_by_size() {
    let all = vec![
        instance_type("small").cpu(1).gib(1).price(3.0),
        instance_type("medium").cpu(2).gib(2).price(2.0),
        instance_type("large").cpu(4).gib(4).price(1.0),
    ];
    let plan = World::new()
        .with_types(all)
        .with(pod("p").cpu("500m"))
        .plan();
    assert_eq!(
        *plan.new_node_claims[0].instance_types,
        ["large", "medium", "small"]
    );
    assert_eq!(plan.new_node_claims[0].hourly_price, 1.0);
}

/// Conformance: SCH-037, API-212
#[test]
fn prices_of_other_capacity_types_do_not_matter() {
    let all = vec![
        instance_type("a").offerings(vec![
            offering("on-demand", Z1, 1.0),
            offering("spot", Z1, 3.0),
        ]),
        instance_type("b").offerings(vec![
            offering("on-demand", Z1, 2.0),
            offering("spot", Z1, 0.5),
        ]),
    ];
    let world = World::of(node_pool("default").requires(CAPACITY_TYPE, "In", &["on-demand"]))
        .with_types(all);
    let plan = world.with(pod("p")).plan();
    assert_eq!(*plan.new_node_claims[0].instance_types, ["a", "b"]);
    assert_eq!(first_values(&plan, CAPACITY_TYPE), ["on-demand"]);
}

/// Conformance: SCH-038
#[test]
fn every_listed_type_has_room_for_all_pods_and_the_overhead() {
    let all = fake::assorted();
    for cpu in [1, 2, 4, 8, 16, 32, 40] {
        for gib in [1, 2, 4, 8, 16, 32, 40] {
            let one = pod("p")
                .cpu(&format!("{}m", cpu * 100))
                .memory(&format!("{}Mi", gib * 100));
            // One node, although two small ones may cost less.
            let mut world = World::new().with_types(all.clone()).with(copies(&one, 3));
            world.policy.packing = Packing::FewestNodes;
            let plan = world.plan();
            assert_eq!(sizes(&plan), [3]);
            for name in plan.new_node_claims[0].instance_types.iter() {
                let listed = all.iter().find(|listed| listed.name == *name).unwrap();
                let asked = Resources::new()
                    .with("cpu", 300 * cpu)
                    .with("memory", (300 * gib) << 20)
                    .with("pods", 3);
                assert!(Resources::fits(&asked, &listed.allocatable()), "{name}");
            }
        }
    }
}

/// Conformance: SCH-039
#[test]
fn two_kinds_of_gpus_on_different_types_need_two_nodes() {
    let one = pod("a").request(GPU_VENDOR_A, "1");
    let other = pod("b").request(GPU_VENDOR_B, "1");
    assert_eq!(World::new().with([one, other]).sizes(), [1, 1]);
    let both = pod("c")
        .request(GPU_VENDOR_A, "1")
        .request(GPU_VENDOR_B, "1");
    assert!(!World::new().places(both));
}

/// Conformance: SCH-040
#[test]
fn a_provider_s_labels_select_instance_types() {
    let first = |pod: Object<Pod>| {
        let world = World::new().with_types(fake::instance_types(5));
        world.with(pod).first_type()
    };
    assert_eq!(first(pod("p").select("size", "large")), "fake-it-4");
    assert_eq!(first(pod("p").select("size", "small")), "fake-it-0");
    let both = pod("p").select("size", "large");
    assert_eq!(first(both.select(INSTANCE_TYPE, "fake-it-0")), "");
}

/// Conformance: SCH-041
#[test]
fn an_optional_label_may_be_required_or_excluded() {
    let options = |operator: &str| {
        World::new()
            .with_types(fake::instance_types(5))
            .with(pod("p").require("special", operator, &[]))
            .plan()
            .new_node_claims[0]
            .instance_types
            .to_vec()
    };
    assert_eq!(options("Exists"), ["fake-it-4"]);
    assert_eq!(
        options("DoesNotExist"),
        ["fake-it-0", "fake-it-1", "fake-it-2", "fake-it-3"]
    );
}

/// Conformance: SCH-042
#[test]
fn an_architecture_the_pool_excludes_fails() {
    let amd = || World::of(node_pool("default").requires(ARCH, "In", &["amd64"]));
    assert!(!amd().places(pod("p").select(INSTANCE_TYPE, "arm-instance-type")));
    assert!(!amd().places(pod("p").select("kubernetes.io/os", "ios")));
    assert!(!amd().places(pod("p").cpu("14")));
    assert!(World::new().places(pod("p").cpu("14")));
}

/// Conformance: SCH-043
#[test]
fn a_pool_without_any_instance_type_is_reported() {
    let bad = [
        node_pool("default").requires(INSTANCE_TYPE, "In", &["nothing"]),
        node_pool("default").requires(ARCH, "In", &["s390x"]),
        node_pool("default")
            .requires(ARCH, "In", &["arm64"])
            .requires(INSTANCE_TYPE, "In", &["small-instance-type"]),
        node_pool("default").requires(ZONE, "In", &["nowhere"]),
    ];
    for pool in bad {
        let plan = World::of(pool).with([pod("p"), pod("q")]).plan();
        for name in ["p", "q"] {
            let text = "nodepool requirements filtered out all available instance types";
            assert_why(&plan, name, text);
        }
    }
}

/// Conformance: SCH-044
#[test]
fn a_resource_may_come_with_an_offering_only() {
    let special = |available: bool| {
        let mut extra = offering("on-demand", Z1, 1.0);
        extra.capacity_override = Some(Resources::new().with("example.com/x", 2));
        extra.available = available;
        vec![
            instance_type("plain"),
            instance_type("special").offerings(vec![offering("on-demand", Z2, 0.5), extra]),
        ]
    };
    let asked = pod("p").request("example.com/x", "1");
    let plan = World::new()
        .with_types(special(true))
        .with(asked.clone())
        .plan();
    assert_eq!(*plan.new_node_claims[0].instance_types, ["special"]);
    assert_eq!(
        plan.new_node_claims[0].hourly_price, 1.0,
        "the price of the offering that has it"
    );
    assert!(!World::new().with_types(special(false)).places(asked));
}

/// Conformance: SCH-045
#[test]
fn a_claim_carries_owner_class_and_requirements() {
    let pool = node_pool("default").requires("custom", "In", &["v"]);
    let draft = World::of(pool)
        .with(pod("p").select(ARCH, "arm64"))
        .plan()
        .new_node_claims
        .remove(0);
    let owner = &draft.to_node_claim().metadata.owner_references.unwrap()[0];
    assert_eq!(
        (
            owner.kind.as_str(),
            owner.name.as_str(),
            owner.block_owner_deletion
        ),
        ("NodePool", "default", Some(true))
    );
    assert_eq!(
        draft.to_node_claim().metadata.generate_name.as_deref(),
        Some("default-")
    );
    assert_eq!(draft.to_node_claim().spec.node_class_ref.name, "default");
    assert_eq!(values(&draft, "custom"), ["v"]);
    assert_eq!(values(&draft, INSTANCE_TYPE), ["arm-instance-type"]);
    let labels = draft.to_node_claim().metadata.labels.unwrap();
    assert_eq!(labels["karpenter.test.sh/testnodeclass"], "default");
    let plan = plan_of(pod("p").select("kubernetes.io/os", "ios"));
    assert_eq!(first_values(&plan, INSTANCE_TYPE), ["arm-instance-type"]);
    let plan = plan_of(pod("p").request(GPU_VENDOR_A, "1"));
    assert_eq!(
        first_values(&plan, INSTANCE_TYPE),
        ["gpu-vendor-instance-type"]
    );
}

/// Conformance: SCH-046
#[test]
fn well_known_requirements_do_not_become_labels() {
    let pool = node_pool("default")
        .requires(ZONE, "In", &[Z1])
        .requires("custom", "In", &["v"]);
    let asked = pod("p").tolerate(serde_json::json!({ "key": "t", "operator": "Exists" }));
    let draft = World::of(pool).with(asked).plan().new_node_claims.remove(0);
    let labels = draft.to_node_claim().metadata.labels.unwrap();
    assert!(!labels.contains_key(ZONE) && labels["custom"] == "v");
    assert!(draft.to_node_claim().spec.taints.is_empty());
}

/// Found by the fuzz test: a plan whose hourly price is NaN is not equal to itself.
#[test]
fn an_offering_whose_price_is_not_a_number_is_not_used() {
    let offerings = vec![
        offering("spot", Z1, f64::NAN),
        offering("on-demand", Z1, 2.0),
    ];
    let world = |offerings| {
        let all = vec![instance_type("a").offerings(offerings)];
        World::new().with_types(all)
    };
    let plan = world(offerings).with(pod("p")).plan();
    assert_eq!(plan.new_node_claims[0].hourly_price, 2.0);
    assert_eq!(first_values(&plan, CAPACITY_TYPE), ["on-demand"]);
    let plan = world(vec![offering("spot", Z1, f64::NAN)])
        .with(pod("p"))
        .plan();
    assert!(plan.new_node_claims.is_empty());
}
