//! NodePools and the installation.

use karpenter_core::provider::SubnetAddresses;
use karpenter_decisions::doctor::{MissingKind, MissingPermission};
use serde_json::{Value, json};

use crate::doctor::fixture::{World, ZONE, blocks, pod, read, says};

const REQUIREMENTS: &str = "/spec/template/spec/requirements";
const TYPE: &str = "node.kubernetes.io/instance-type";

fn pool(fields: &[(&str, Value)]) -> World {
    World::empty().pool("default", fields)
}

fn within(key: &str, values: &[&str]) -> Value {
    json!({ "key": key, "operator": "In", "values": values })
}

/// Conformance: SURGE-12
#[test]
fn a_budget_of_zero_without_a_window_never_opens() {
    let budgets = |budgets: Value| pool(&[("/spec/disruption/budgets", budgets)]);
    let found = budgets(json!([{ "nodes": "0" }])).one_about(
        "BudgetNeverOpens",
        "NodePool default never allows a disruption for Drifted, Empty, Underutilized",
    );
    assert!(blocks(&found));
    let drift = budgets(json!([{ "nodes": "0", "reasons": ["Drifted"] }, { "nodes": "10%" }]));
    let found = drift.one("BudgetNeverOpens");
    assert!(!blocks(&found), "nodes are removed, only not updated");
    // Every day for 24 hours, and the hours that two windows share between them.
    budgets(json!([{ "nodes": "0", "schedule": "@daily", "duration": "24h" }]))
        .one("BudgetNeverOpens");
    budgets(json!([
        { "nodes": "0", "schedule": "0 0 * * *", "duration": "12h" }, { "nodes": "0", "schedule": "0 12 * * *", "duration": "12h" },
    ]))
    .one("BudgetNeverOpens");
    // Near misses: an hour a day is open, an hour a month, and 1 % of a small pool is one node.
    budgets(json!([{ "nodes": "0", "schedule": "@daily", "duration": "23h" }]))
        .none("BudgetNeverOpens");
    budgets(json!([{ "nodes": "0", "schedule": "0 1 1 * *", "duration": "743h" }]))
        .none("BudgetNeverOpens");
    budgets(json!([{ "nodes": "1%" }])).none("BudgetNeverOpens");
}

/// Conformance: SURGE-12
#[test]
fn requirements_that_exclude_each_other_are_reported_with_their_key() {
    let zones = |a: &str, b: &str| {
        pool(&[(
            REQUIREMENTS,
            json!([within(ZONE, &[a]), within(ZONE, &[b, "test-zone-3"])]),
        )])
    };
    let found = zones("test-zone-1", "test-zone-2").one_about(
        "ContradictoryRequirements",
        "NodePool default has requirements on topology.kubernetes.io/zone that exclude each other",
    );
    assert!(blocks(&found));
    assert_eq!(
        zones("test-zone-1", "test-zone-2").found("NoInstanceTypes"),
        [],
        "reported once"
    );
    zones("test-zone-1", "test-zone-1").none("ContradictoryRequirements");
    let absent = json!([{ "key": "example.com/gpu", "operator": "DoesNotExist" }]);
    pool(&[(REQUIREMENTS, absent)]).none("ContradictoryRequirements");
}

/// Conformance: SURGE-12
#[test]
fn a_node_pool_without_an_instance_type_can_never_launch() {
    let arch = |arch: &str| pool(&[(REQUIREMENTS, json!([within("kubernetes.io/arch", &[arch])]))]);
    let found = arch("arm64").one("NoInstanceTypes");
    assert!(blocks(&found));
    says(&found, "all 4 instance types");
    arch("amd64").none("NoInstanceTypes");
    let failing = World::empty().pool_of("default", &[], Err("no credentials"));
    says(&failing.one("NoInstanceTypes"), "no credentials");
}

/// Conformance: SURGE-12
#[test]
fn a_limit_is_nearly_reached_at_95_percent() {
    let world =
        |limit: &str| pool(&[("/spec/limits", json!({ "cpu": limit }))]).node("a", "m-4", vec![]);
    let found = world("4200m").one_about(
        "LimitNearlyReached",
        "NodePool default uses 4 of 4.2 cpu, its limit",
    );
    assert!(!blocks(&found));
    assert!(
        blocks(&world("4").one("LimitNearlyReached")),
        "nothing is left"
    );
    world("4300m").none("LimitNearlyReached");
}

/// Conformance: SURGE-12
#[test]
fn node_pools_of_equal_weight_overlap_unless_something_tells_them_apart() {
    let two = |fields: &[(&str, Value)]| World::new().pool("other", fields);
    two(&[]).one_about(
        "OverlappingNodePools",
        "NodePools other, default accept the same pods and have the same weight",
    );
    two(&[("/spec/weight", json!(10))]).none("OverlappingNodePools");
    let taints = json!([{ "key": "team", "value": "search", "effect": "NoSchedule" }]);
    two(&[("/spec/template/spec/taints", taints)]).none("OverlappingNodePools");
    let zones = |zone: &str| [(REQUIREMENTS, json!([within(ZONE, &[zone])]))];
    let apart = World::empty()
        .pool("a", &zones("test-zone-1"))
        .pool("b", &zones("test-zone-2"));
    apart.none("OverlappingNodePools");
}

/// Conformance: SURGE-12
#[test]
fn min_values_are_unreachable_with_fewer_values() {
    let world = |count: u32| {
        let mut requirement = within(TYPE, &["m-2", "m-4", "m-8", "x-9"]);
        requirement["minValues"] = json!(count);
        pool(&[(REQUIREMENTS, json!([requirement]))])
    };
    let found = world(4).one_about(
        "MinValuesUnreachable",
        "NodePool default requires 4 values of node.kubernetes.io/instance-type, and there are 3",
    );
    assert!(blocks(&found));
    world(3).none("MinValuesUnreachable");
}

/// Conformance: SURGE-12
#[test]
fn a_node_pool_that_never_consolidates_is_reported() {
    let after = |after: &str| pool(&[("/spec/disruption/consolidateAfter", json!(after))]);
    after("Never").one("ConsolidationNever");
    after("720h").none("ConsolidationNever");
}

/// Conformance: SURGE-12
#[test]
fn nodes_that_expire_before_they_have_drained_are_reported() {
    let world = |expire: &str, grace: Option<&str>| {
        let grace = grace.map_or(Value::Null, |grace| json!(grace));
        let fields = [
            ("/spec/template/spec/expireAfter", json!(expire)),
            ("/spec/template/spec/terminationGracePeriod", grace),
        ];
        // The node took a minute to start.
        pool(&fields).node("a", "m-4", vec![])
    };
    let found = world("1h", Some("2h")).one("ExpireAfterShort");
    says(&found, "the terminationGracePeriod (2h");
    world("2h", Some("1h")).none("ExpireAfterShort");
    world("9m", None).one("ExpireAfterShort");
    world("10m", None).none("ExpireAfterShort");
}

fn daemon_set(cpu: &str, selector: Value) -> Value {
    json!({
        "metadata": { "name": "agent", "namespace": "kube-system", "uid": "agent" },
        "spec": { "selector": {}, "template": { "spec": {
            "nodeSelector": selector,
            "containers": [{ "name": "c", "resources": { "requests": { "cpu": cpu } } }],
        } } },
    })
}

/// Conformance: SURGE-12
#[test]
fn daemon_sets_over_30_percent_of_the_smallest_type_are_reported() {
    let world = |cpu: &str, selector: Value| {
        let mut world = World::new();
        world
            .cluster
            .apply_daemon_set(&read(daemon_set(cpu, selector)));
        world
    };
    // The smallest type has about two cores.
    let found = world("700m", json!({})).one("DaemonSetOverhead");
    assert!(found.what.contains("% of the cpu of m-2"), "{found:?}");
    says(&found, "kube-system/agent");
    world("500m", json!({})).none("DaemonSetOverhead");
    world("700m", json!({ "kubernetes.io/arch": "arm64" })).none("DaemonSetOverhead");
}

/// Conformance: SURGE-12
#[test]
fn a_node_class_that_is_not_ready_is_reported_with_its_message() {
    let world = |status: &str| {
        let conditions = json!([{
            "type": "NodeClassReady", "status": status, "reason": "x", "message": "SubnetsNotFound", "lastTransitionTime": "2026-01-05T00:00:00Z",
        }]);
        pool(&[("/status/conditions", conditions)])
    };
    let found = world("False").one_about(
        "NodeClassNotReady",
        "NodePool default cannot launch nodes: TestNodeClass default is not ready",
    );
    assert!(blocks(&found));
    says(&found, "SubnetsNotFound");
    assert_eq!(found.since.unwrap().to_string(), "2026-01-05T00:00:00Z");
    world("True").none("NodeClassNotReady");
}

/// Conformance: SURGE-12
#[test]
fn missing_permissions_and_resources_are_reported_if_looked_for() {
    let mut world = World::new();
    assert!(!world.report().ran.contains(&"PermissionMissing"));
    world.installation.missing_permissions = Some(vec![]);
    world.installation.missing_kinds = Some(vec![]);
    assert!(world.report().ran.contains(&"PermissionMissing"));
    world.none("PermissionMissing");
    world.none("CrdMissing");
    world.installation.missing_permissions = Some(vec![MissingPermission {
        verb: "create".to_owned(),
        resource: "pods/eviction".to_owned(),
    }]);
    world.installation.missing_kinds = Some(vec![MissingKind {
        gate: "NodeOverlay".to_owned(),
        crd: "nodeoverlays.karpenter.sh".to_owned(),
    }]);
    let what = "Karpenter may not create pods/eviction";
    world.one_about("PermissionMissing", what);
    let what = "feature gate NodeOverlay is on, but nodeoverlays.karpenter.sh is not installed";
    world.one_about("CrdMissing", what);
}

fn subnet(id: &str, zone: &str, free: u32) -> SubnetAddresses {
    SubnetAddresses {
        node_class: "default".to_owned(),
        zone: zone.to_owned(),
        subnet: id.to_owned(),
        free,
    }
}

/// Conformance: SURGE-12
#[test]
fn a_zone_has_addresses_for_five_nodes_of_the_smallest_type() {
    let mut world = World::new();
    assert!(!world.report().ran.contains(&"SubnetAddressesLow"));
    // 20 pods a node. The subnet with fewer addresses is not used.
    let mut in_zone = |free| {
        world.installation.subnets = Some(vec![
            subnet("subnet-1", "test-zone-1", 3),
            subnet("subnet-2", "test-zone-1", free),
            subnet("subnet-3", "test-zone-2", 4_000),
        ]);
        world.found("SubnetAddressesLow")
    };
    assert_eq!(in_zone(100), []);
    let found = in_zone(99).remove(0);
    assert_eq!(
        found.what,
        "NodeClass default has 99 addresses left in test-zone-1"
    );
    says(&found, "A node of m-2, the smallest");
    assert_eq!(found.subjects[0].name, "subnet-2");
    assert!(!blocks(&found));
    world.installation.subnets = Some(vec![subnet("subnet-1", "test-zone-1", 0)]);
    assert!(blocks(&world.one("SubnetAddressesLow")));
}

#[test]
fn addresses_matter_where_a_node_pool_launches_nodes_only() {
    let elsewhere = json!([within(ZONE, &["test-zone-2"])]);
    let mut world = pool(&[(REQUIREMENTS, elsewhere)]);
    world.installation.subnets = Some(vec![subnet("subnet-1", "test-zone-1", 0)]);
    world.none("SubnetAddressesLow");
    world.installation.subnets = Some(vec![subnet("subnet-1", "test-zone-2", 0)]);
    world.one("SubnetAddressesLow");
    let other = SubnetAddresses {
        node_class: "other".to_owned(),
        ..subnet("subnet-1", "test-zone-2", 0)
    };
    world.installation.subnets = Some(vec![other]);
    world.none("SubnetAddressesLow");
}

#[test]
fn a_healthy_cluster_has_no_finding() {
    let world = World::new().node("a", "m-4", vec![pod("p0", "web", "3")]);
    let report = world.report();
    assert_eq!(report.checks, []);
    assert_eq!((report.cost_per_day, report.ran.len()), (0.0, 21));
    // Nor has one whose instance types are not known yet.
    let mut unknown = World::new();
    unknown.cluster.forget_instance_types("default");
    assert_eq!(unknown.report().checks, []);
    // Or is not there at all.
    assert_eq!(World::empty().report().checks, []);
}
