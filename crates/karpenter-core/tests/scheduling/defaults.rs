//! Default topology spread constraints and the virtual pods of capacity buffers.

use std::sync::Arc;

use karpenter_core::fake::instance_type;
use karpenter_core::schedule::{DefaultSpread, PreferencePolicy};
use serde_json::{Value, json};

use crate::fixture::*;

fn default(key: &str, hard: bool) -> DefaultSpread {
    DefaultSpread {
        topology_key: key.into(),
        max_skew: 1,
        min_domains: None,
        hard,
        honor_affinity: true,
        honor_taints: false,
    }
}

/// Adds a ReplicaSet of pods with a label `app`.
fn add_replica_set(world: &mut World, name: &str, app: &str) {
    world.cluster.apply_replica_set(&read(json!({
        "metadata": { "name": name, "namespace": "default" }, "spec": { "selector": { "matchLabels": { "app": app } } },
    })));
}

fn service(name: &str, namespace: &str, selector: Value) -> Value {
    json!({ "metadata": { "name": name, "namespace": namespace }, "spec": { "selector": selector } })
}

fn owned(name: &str) -> Object<Pod> {
    member(name).owned_by("apps/v1", "ReplicaSet", "rs")
}

fn world(defaults: Vec<DefaultSpread>) -> World {
    let mut world = World::new();
    world.policy.default_spread = defaults;
    add_replica_set(&mut world, "rs", "x");
    world
}

fn zones(mut world: World, pods: Vec<Object<Pod>>) -> Vec<usize> {
    world.add(pods);
    world.launch_and_bind();
    world.skew(ZONE, APP)
}

/// Returns the numbers of these pods per planned node where the default is to spread over hosts.
fn spread_by_default(pod: &Object<Pod>, number: usize) -> Vec<usize> {
    let world = world(vec![default(HOSTNAME, true)]);
    world.with(copies(pod, number)).sizes()
}

/// Conformance: SCH-143
#[test]
fn owned_pods_without_constraints_are_spread_by_default() {
    assert_eq!(
        zones(world(vec![default(ZONE, true)]), copies(&owned("p"), 4)),
        [2, 1, 1]
    );
    assert_eq!(spread_by_default(&owned("p"), 3), [1, 1, 1]);
    let own = owned("p").spread(HOSTNAME, 4, APP);
    assert_eq!(spread_by_default(&own, 3), [3]);
}

/// Conformance: SCH-144
#[test]
fn min_domains_and_softness_of_a_default_are_kept() {
    let single = |defaults: DefaultSpread| {
        let mut world = World::of(node_pool("default").requires(ZONE, "In", &[Z1]));
        world.policy.default_spread = vec![defaults];
        add_replica_set(&mut world, "rs", "x");
        world.with(copies(&owned("p"), 3)).plan()
    };
    let least = |hard: bool| DefaultSpread {
        min_domains: Some(2),
        ..default(ZONE, hard)
    };
    assert_eq!(single(least(true)).unplaced.len(), 2);
    assert_eq!(single(least(false)).unplaced.len(), 0);
}

/// Conformance: SCH-145
#[test]
fn without_a_selector_there_is_no_default() {
    assert_eq!(world(vec![]).with(copies(&owned("p"), 3)).sizes(), [3]);
    let unowned = member("p");
    assert_eq!(spread_by_default(&unowned, 3), [3]);
    let mut served = world(vec![default(HOSTNAME, true)]);
    served
        .cluster
        .apply_service(&read(service("s", "default", json!({ "app": "x" }))));
    let job = unowned.owned_by("batch/v1", "Job", "j");
    assert_eq!(served.with(copies(&job, 3)).sizes(), [1, 1, 1]);
}

/// Conformance: SCH-146
#[test]
fn a_default_counts_pods_that_run() {
    let mut all = world(vec![default(ZONE, true)]);
    let full =
        |name: &str| node(name).set("/status/allocatable", json!({ "cpu": "0", "pods": "9" }));
    all = all.with((full("n"), owned("a").on("n"), owned("b").on("n")));
    let asked = owned("p").cpu("1").require(ZONE, "In", &[Z1, Z2]);
    assert_eq!(zones(all, copies(&asked, 2)), [2, 2]);
    let mut two = world(vec![default(HOSTNAME, true)]);
    add_replica_set(&mut two, "other", "y");
    let other = pod("q")
        .label("app", "y")
        .owned_by("apps/v1", "ReplicaSet", "other");
    assert_eq!(
        two.with(copies(&owned("p"), 2))
            .with(copies(&other, 2))
            .sizes(),
        [2, 2]
    );
}

/// Conformance: SCH-147
#[test]
fn the_controller_s_selector_counts_not_the_pod_s_labels() {
    let volatile = |index: usize| {
        let name = format!("p-{index}");
        member(&name)
            .label("pod-name", &name)
            .owned_by("apps/v1", "StatefulSet", "set")
    };
    let mut all = world(vec![default(HOSTNAME, true)]);
    all.cluster.apply_stateful_set(&read(json!({
        "metadata": { "name": "set", "namespace": "default" },
        "spec": { "serviceName": "s", "template": {}, "selector": { "matchExpressions": [{ "key": "app", "operator": "In", "values": ["x"] }] } },
    })));
    assert_eq!(all.with((0..3).map(volatile)).sizes(), [1, 1, 1]);
}

/// Conformance: SCH-148
#[test]
fn services_that_do_not_select_the_pod_add_nothing() {
    let plain = member("p").label("tier", "web");
    let served = |services: &[Value]| {
        let mut all = world(vec![default(HOSTNAME, true)]);
        for service in services {
            all.cluster.apply_service(&read(service.clone()));
        }
        all.with(copies(&plain, 3)).sizes()
    };
    let nil = json!({ "metadata": { "name": "nil", "namespace": "default" }, "spec": {} });
    assert_eq!(served(&[nil, service("empty", "default", json!({}))]), [3]);
    let of = |name, namespace, key: &str, value| service(name, namespace, json!({ key: value }));
    let others = [of("s", "default", "app", "y"), of("t", "other", "app", "x")];
    assert_eq!(served(&others), [3]);
    let both = [
        of("s", "default", "app", "x"),
        of("t", "default", "tier", "web"),
    ];
    assert_eq!(served(&both), [1, 1, 1]);
}

/// Conformance: SCH-274
#[test]
fn a_default_spread_counts_by_the_labels_or_expressions_of_the_owner() {
    let of = |name: &str, version: &str, kind: &str| {
        member(name)
            .label("tier", name)
            .owned_by(version, kind, "c")
    };
    // Both pods have one spread by `app` alone, although their other labels differ.
    let mut all = world(vec![default(HOSTNAME, true)]);
    let selector = json!({ "app": "x" });
    all.cluster.apply_replication_controller(&read(json!({
        "metadata": { "name": "c", "namespace": "default" }, "spec": { "selector": selector },
    })));
    let pods = ["a", "b"].map(|name| of(name, "v1", "ReplicationController"));
    assert_eq!(all.with(pods).sizes(), [1, 1]);
    // A ReplicaSet's selector is required besides that of the Service; the two contradict each other, so nothing counts.
    let mut all = world(vec![default(HOSTNAME, true)]);
    all.cluster
        .apply_service(&read(service("s", "default", json!({ "app": "x" }))));
    let contradicting = json!({
        "metadata": { "name": "c", "namespace": "default" },
        "spec": { "selector": { "matchExpressions": [{ "key": "app", "operator": "NotIn", "values": ["x"] }] } },
    });
    all.cluster.apply_replica_set(&read(contradicting));
    let pods = ["a", "b"].map(|name| of(name, "apps/v1", "ReplicaSet"));
    assert_eq!(all.with(pods).sizes(), [2]);
}

fn buffer(name: &str, namespace: &str, cpu: &str) -> Arc<karpenter_core::pod::Pod> {
    buffer_pod(pod(name).namespace(namespace).cpu(cpu))
}

/// Conformance: SCH-166
#[test]
fn buffers_of_one_name_in_two_namespaces_are_kept_apart() {
    let mut world = World::new().with(pod("p").cpu("100m"));
    world.query.buffer_pods = vec![buffer("b-0", "one", "500"), buffer("b-0", "two", "1")];
    let plan = world.plan();
    let unplaced = plan.unplaced.iter();
    let unplaced: Vec<_> = unplaced.map(|it| (&*it.pod.namespace, it.buffer)).collect();
    assert_eq!(unplaced, [("one", true)]);
    let claims = plan.new_node_claims.iter();
    let (pods, buffers): (Vec<_>, Vec<_>) = claims
        .map(|draft| (draft.pods.len(), draft.buffer_pods.len()))
        .unzip();
    assert_eq!(
        pods.iter().sum::<usize>(),
        1,
        "virtual pods are listed apart"
    );
    assert_eq!(buffers.iter().sum::<usize>(), 1);
}

#[test]
fn a_preference_of_a_buffer_that_cannot_be_met_is_dropped() {
    let alone = pod("b-0")
        .cpu("1")
        .prefer_affinity(50, HOSTNAME, ("app", "none"));
    let mut world = World::new().with(pod("p").cpu("1"));
    world.query.buffer_pods = vec![buffer_pod(alone)];
    let plan = world.plan();
    assert!(all_placed(&plan));
    assert_eq!(plan.new_node_claims[0].buffer_pods.len(), 1);
}

/// Conformance: SCH-257
#[test]
fn a_buffer_does_not_take_a_node_from_a_real_pod() {
    let mut world = World::new().with((node("n"), pod("p").cpu("3")));
    world.query.buffer_pods = vec![buffer("b-0", "default", "4")];
    let plan = world.plan();
    assert_eq!(plan.existing[0].pod.name, "p");
}

/// Found by a property test: the affinity of `late` is met only once `friend` is placed, in the second round, and the buffer had
/// taken the rest of the only node by then.
///
/// Conformance: SCH-257
#[test]
fn a_buffer_does_not_take_the_place_of_a_pod_that_fits_in_a_later_round() {
    let types = [instance_type("t").cpu(4).gib(16)];
    let late = pod("late").cpu("2").affinity(HOSTNAME, ("app", "friend"));
    let friend = pod("friend").cpu("1").label("app", "friend");
    let mut world = World::of(node_pool("default").limit("nodes", "1"))
        .with_types(types)
        .with([late, friend]);
    world.query.buffer_pods = vec![buffer("b-0", "default", "1500m")];
    let plan = world.plan();
    assert_eq!(sizes(&plan), [2]);
    assert!(plan.unplaced.iter().all(|unplaced| unplaced.buffer));
}

/// Conformance: SCH-207
#[test]
fn ignored_preferences_include_soft_defaults() {
    let mut world = World::new();
    world.cluster.apply_service(&read(json!({
        "metadata": { "name": "s", "namespace": "default" }, "spec": { "selector": { "app": "x" } },
    })));
    world.policy.default_spread = vec![default(HOSTNAME, false)];
    let mut world = world.with(copies(&member("p"), 3));
    assert_eq!(world.sizes(), [1, 1, 1]);
    world.policy.preference_policy = PreferencePolicy::Ignore;
    assert_eq!(world.sizes(), [3]);
}

/// Conformance: SCH-230
#[test]
fn the_selector_of_a_controller_of_another_api_group_is_not_used() {
    let spread = |api_version: &str| {
        let mut world = World::new();
        world.cluster.apply_stateful_set(&read(json!({
            "metadata": { "name": "o", "namespace": "default" }, "spec": { "serviceName": "s", "selector": { "matchLabels": { "app": "x" } }, "template": {} },
        })));
        world.policy.default_spread = vec![default(HOSTNAME, true)];
        let owned = member("p").owned_by(api_version, "StatefulSet", "o");
        world.with(copies(&owned, 2)).sizes()
    };
    assert_eq!(spread("apps/v1"), [1, 1]);
    assert_eq!(spread("apps.kruise.io/v1beta1"), [2]);
}

/// Conformance: SCH-257
#[test]
fn buffers_come_after_smaller_pods_and_follow_their_own_rules() {
    let mut world = World::new().with((node("n"), pod("p").cpu("2")));
    world.query.buffer_pods = vec![
        buffer_pod(pod("near").cpu("3").select(ZONE, Z3)),
        buffer_pod(pod("nowhere").cpu("3").select(ZONE, "mars")),
    ];
    let plan = world.plan();
    assert_eq!(plan.existing[0].pod.name, "p");
    assert_eq!(first_values(&plan, ZONE), [Z3]);
    assert_eq!(plan.new_node_claims[0].buffer_pods.len(), 1);
    assert!(plan.new_node_claims[0].pods.is_empty());
    assert!(plan.unplaced[0].buffer);
}
