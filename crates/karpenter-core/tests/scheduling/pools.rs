//! Which NodePools and instance types a pass uses.

use karpenter_api::labels::annotations::{CAPACITY_OVERLAY_APPLIED, PRICE_OVERLAY_APPLIED};
use karpenter_core::fake::instance_type;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::schedule::PoolOutcome;
use serde_json::json;

use crate::fixture::*;

#[test]
fn a_node_pool_without_instance_types_is_reported() {
    let world = World::new()
        .with_types(Vec::<InstanceType>::new())
        .with(pod("p"));
    let plan = world.plan();
    assert_eq!(
        plan.pools[0].outcome,
        PoolOutcome::Unknown("no instance types".to_owned())
    );
    assert_eq!(plan.unplaced.len(), 1);
}

#[test]
fn an_instance_type_whose_overhead_exceeds_its_capacity_is_not_used() {
    let used = |lasers: i64, is_last: bool| {
        let typed = |name: &str, cpu: i64| instance_type(name).cpu(cpu).gib(8);
        let small = typed("small", 2).resource("example.com/laser", lasers);
        let mut types = [small.build(), typed("large", 4).build()];
        if is_last {
            types.reverse();
        }
        let world = World::new().with_types(types).with(pod("p").cpu("1"));
        world.plan().new_node_claims[0].instance_types.to_vec()
    };
    for is_last in [false, true] {
        assert_eq!(used(-1, is_last), ["large"]);
        assert_eq!(used(0, is_last), ["small", "large"]);
        assert_eq!(used(1, is_last), ["small", "large"]);
    }
}

#[test]
fn node_overlays_change_prices_only_if_their_feature_is_enabled() {
    let price = |enabled: bool| {
        let mut world = World::configured(|config| config.node_overlays = enabled)
            .with_pool(node_pool("default"))
            .with(pod("p").cpu("1"));
        let overlay =
            json!({ "metadata": { "name": "o" }, "spec": { "requirements": [], "price": "77.5" } });
        world.cluster.apply_node_overlay(&read(overlay));
        world.plan().hourly_price()
    };
    assert_eq!(price(true), 77.5);
    assert!(price(false) < 77.5);
}

#[test]
fn a_planned_node_says_whether_an_overlay_changed_any_of_its_types() {
    let marked = |spec: serde_json::Value| {
        let typed = |name: &str| instance_type(name).cpu(2).gib(8);
        let mut world = World::configured(|config| config.node_overlays = true)
            .with_types(["a", "b", "c"].map(typed))
            .with_pool(node_pool("default"))
            .with(pod("p").cpu("1"));
        let overlay = json!({ "metadata": { "name": "o" }, "spec": spec });
        world.cluster.apply_node_overlay(&read(overlay));
        let claim = world.plan().new_node_claims[0].to_node_claim();
        let annotations = claim.metadata.annotations.unwrap_or_default();
        [PRICE_OVERLAY_APPLIED, CAPACITY_OVERLAY_APPLIED].map(|key| annotations.contains_key(key))
    };
    let requirements = json!([expression(INSTANCE_TYPE, "In", &["b"])]);
    assert_eq!(
        marked(json!({ "requirements": requirements, "price": "7.5" })),
        [true, false]
    );
    assert_eq!(
        marked(json!({ "requirements": requirements, "capacity": { "example.com/x": "1" } })),
        [false, true]
    );
    let none = json!([expression(INSTANCE_TYPE, "In", &["d"])]);
    assert_eq!(
        marked(json!({ "requirements": none, "price": "7.5" })),
        [false, false]
    );
}
