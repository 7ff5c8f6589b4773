//! minValues: how many different values of a key, such as instance types or zones, a NodeClaim must keep.

use karpenter_core::fake;
use karpenter_core::fake::instance_type;
use karpenter_core::schedule::{
    MinValuesPolicy, Packing, PlannedNodeClaim, PoolOutcome, Unschedulable,
};

use crate::fixture::*;

fn two_types() -> World {
    let types = [
        instance_type("a").cpu(1).gib(1).price(0.1),
        instance_type("b").cpu(4).gib(4).price(0.4),
    ];
    World::empty().with_types(types)
}

/// Conformance: SCH-149
#[test]
fn pods_open_another_node_rather_than_narrow_the_choice() {
    let pool = node_pool("default").requires_min(INSTANCE_TYPE, "Exists", &[], 2);
    let plan = two_types()
        .with_pool(pool)
        .with(copies(&pod("p").cpu("800m"), 2))
        .plan();
    assert_eq!(sizes(&plan), [1, 1]);
    for draft in &plan.new_node_claims {
        assert_eq!(*draft.instance_types, ["a", "b"]);
        assert_eq!(min_values(draft, INSTANCE_TYPE), Some(2));
    }
}

/// Conformance: SCH-150
#[test]
fn the_largest_minimum_of_a_key_applies() {
    for (first, second) in [(("Gt", "1"), ("Lt", "5")), (("Gt", "1"), ("Lt", "6"))] {
        let pool = node_pool("default")
            .requires_min("integer", first.0, &[first.1], 1)
            .requires_min("integer", second.0, &[second.1], 3);
        let plan = World::of(pool)
            .with_types(fake::instance_types(8))
            .with(copies(&pod("p").cpu("1500m"), 2))
            .plan();
        assert!(all_placed(&plan));
        for draft in &plan.new_node_claims {
            let types = &draft.instance_types;
            assert!(types.len() >= 3, "{types:?}");
        }
    }
    let names = ["fake-it-0", "fake-it-1", "fake-it-2"];
    let pool = node_pool("default")
        .requires_min(INSTANCE_TYPE, "In", &names, 1)
        .requires_min(INSTANCE_TYPE, "NotIn", &["fake-it-0"], 2);
    let plan = World::of(pool)
        .with_types(fake::instance_types(8))
        .with(copies(&pod("p").cpu("1500m"), 2))
        .plan();
    assert_eq!(sizes(&plan), [1, 1]);
    assert_eq!(
        *plan.new_node_claims[0].instance_types,
        ["fake-it-1", "fake-it-2"]
    );
    let pool = node_pool("default")
        .requires_min(INSTANCE_TYPE, "Exists", &[], 3)
        .requires_min(INSTANCE_TYPE, "In", &names, 1);
    let plan = World::of(pool)
        .with_types(fake::instance_types(8))
        .with(pod("p").cpu("100m"))
        .plan();
    assert_eq!(*plan.new_node_claims[0].instance_types, names);
}

/// Conformance: SCH-151
#[test]
fn a_minimum_that_cannot_be_met_is_reported() {
    let pool = node_pool("default").requires_min(INSTANCE_TYPE, "Exists", &[], 11);
    let plan = World::of(pool)
        .with_types(fake::instance_types(10))
        .with(pod("p"))
        .plan();
    assert_eq!(
        plan.pools[0].outcome,
        PoolOutcome::NoCompatibleInstanceTypes { min_values: true }
    );
    assert!(!all_placed(&plan));
    let pool = node_pool("default").requires_min("integer", "Exists", &[], 2);
    let plan = World::of(pool)
        .with_types(fake::instance_types(3))
        .with(pod("p").require("integer", "Gt", &["2"]))
        .plan();
    assert_why(
        &plan,
        "p",
        "minValues requirement is not met for label(s) (label(s)=[integer])",
    );
}

/// Conformance: SCH-152
#[test]
fn cutting_the_list_may_break_a_minimum() {
    let pool = node_pool("default").requires_min(INSTANCE_TYPE, "Exists", &[], 2);
    let mut world = two_types()
        .with_pool(pool)
        .with(copies(&pod("p").cpu("100m"), 2));
    world.policy.max_instance_types = 1;
    let plan = world.plan();
    assert!(plan.new_node_claims.is_empty());
    let reasons: Vec<_> = plan.unplaced.iter().map(|it| &it.why).collect();
    assert_eq!(reasons, [&Unschedulable::MinValuesAfterTruncation; 2]);
}

/// Conformance: SCH-153
#[test]
fn minimums_of_several_keys_are_all_kept() {
    let types = ["amd64", "arm64"].map(|arch| instance_type(arch).arch(arch).os(&["linux"]));
    let pool = node_pool("default")
        .requires_min(ARCH, "Exists", &[], 2)
        .requires_min(INSTANCE_TYPE, "Exists", &[], 1);
    let plan = World::of(pool).with_types(types).with(pod("p")).plan();
    let minimum = |key| min_values(&plan.new_node_claims[0], key);
    assert_eq!((minimum(ARCH), minimum(INSTANCE_TYPE)), (Some(2), Some(1)));
    assert_eq!(plan.new_node_claims[0].instance_types.len(), 2);
}

/// Returns the annotation that says whether a minimum was lowered.
fn relaxed(draft: &PlannedNodeClaim) -> String {
    let annotations = draft.to_node_claim().metadata.annotations.unwrap();
    annotations["karpenter.sh/nodeclaim-min-values-relaxed"].clone()
}

/// Conformance: SCH-154
#[test]
fn best_effort_lowers_a_minimum() {
    for (key, least) in [(INSTANCE_TYPE, 3), (ZONE, 4)] {
        let pool = || node_pool("default").requires_min(key, "Exists", &[], least);
        assert!(!two_types().with_pool(pool()).places(pod("p")));
        let mut world = two_types().with_pool(pool()).with(pod("p"));
        world.policy.min_values_policy = MinValuesPolicy::BestEffort;
        let plan = world.plan();
        assert!(all_placed(&plan));
        let draft = &plan.new_node_claims[0];
        assert!(draft.min_values_relaxed);
        assert_eq!(relaxed(draft), "true");
        assert_eq!(min_values(draft, key), Some(i64::from(least) - 1));
    }
    let world = two_types().with_pool(node_pool("default"));
    assert_eq!(
        relaxed(&world.with(pod("p")).plan().new_node_claims[0]),
        "false"
    );
}

/// Conformance: SCH-275
#[test]
fn best_effort_lowers_no_minimum_of_a_node_that_is_planned_already() {
    // Both pods fit together on type `b` alone, which is one type and not two.
    let pool = node_pool("default").requires_min(INSTANCE_TYPE, "Exists", &[], 2);
    let mut world = two_types()
        .with_pool(pool)
        .with(copies(&pod("p").cpu("800m"), 2));
    world.policy.min_values_policy = MinValuesPolicy::BestEffort;
    // Two nodes of type `a` are cheaper, too.
    world.policy.packing = Packing::FewestNodes;
    let plan = world.plan();
    assert_eq!(sizes(&plan), [1, 1]);
    for draft in &plan.new_node_claims {
        assert!(!draft.min_values_relaxed);
        assert_eq!(*draft.instance_types, ["a", "b"]);
    }
}

/// Conformance: SCH-155
#[test]
fn best_effort_lowers_a_minimum_before_it_tries_another_pool() {
    let heavy = node_pool("heavy")
        .weight(10)
        .requires_min(INSTANCE_TYPE, "Exists", &[], 3);
    let mut world = two_types()
        .with_pool(heavy)
        .with_pool(node_pool("light"))
        .with(pod("p"));
    world.policy.min_values_policy = MinValuesPolicy::BestEffort;
    assert_eq!(world.plan().new_node_claims[0].node_pool, "heavy");
    world.policy.min_values_policy = MinValuesPolicy::Strict;
    assert_eq!(world.plan().new_node_claims[0].node_pool, "light");
}

/// Found by EXP-04: upstream leaves the zone of such a node open, and the pod was told to be blocked by its anti-affinity.
#[test]
fn a_node_of_anti_affinity_keeps_its_zones_if_one_has_too_few_types() {
    let one_zone_each = || {
        let types = [
            instance_type("a").cpu(4).price(0.1).zones(&[Z1]),
            instance_type("b").cpu(4).price(0.2).zones(&[Z2]),
        ];
        World::empty().with_types(types)
    };
    let apart = pod("p")
        .cpu("1")
        .label("app", "web")
        .anti_affinity(ZONE, ("app", "web"));
    let plan = |least| {
        let pool = node_pool("default").requires_min(INSTANCE_TYPE, "Exists", &[], least);
        let pods = copies(&apart, 2);
        one_zone_each().with_pool(pool).with(pods).plan()
    };
    let open = plan(2);
    // The first pod may come to be in either zone, so the second has none.
    assert_eq!(sizes(&open), [1]);
    assert_eq!(*open.new_node_claims[0].instance_types, ["a", "b"]);
    assert_eq!(open.unplaced.len(), 1);
    assert_eq!(sizes(&plan(1)), [1, 1]);
}
