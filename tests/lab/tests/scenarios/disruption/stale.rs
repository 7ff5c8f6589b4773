//! Taints and conditions of disruption that belong to no command: they are removed, and other commands wait for that.

use karpenter_fixtures::Object;
use karpenter_testbed::faults::{Fault, Rule};

use super::*;
use crate::lines::Lines;
use crate::world::deployment;

const DISRUPTED: &str = "karpenter.sh/disrupted";

async fn taint(world: &World, node: &str, key: &str) {
    let taints = json!([{"key": key, "effect": "NoSchedule"}]);
    world
        .patch::<Node>(node, json!({"spec": {"taints": taints}}))
        .await;
}

/// Two nodes with one pod each, of the Deployments `one` and `two`; returns their names.
async fn two_nodes(
    change: impl FnOnce(Object<NodePool>) -> Object<NodePool>,
) -> (World, [String; 2]) {
    let world = on_demand(&["c-2x-amd64-linux"], change).await;
    for name in ["one", "two"] {
        world.add(deployment(name, 1)).await;
    }
    world.until_running(2, 60).await;
    world.pass(20).await;
    let pods = world.pods().await;
    let node_of = |name: &str| {
        let of = |pod: &&k8s_openapi::api::core::v1::Pod| {
            pod.metadata.name.as_deref().unwrap().starts_with(name)
        };
        let pod = pods.iter().find(of).unwrap();
        pod.spec.as_ref().unwrap().node_name.clone().unwrap()
    };
    let nodes = ["one", "two"].map(node_of);
    assert_ne!(nodes[0], nodes[1]);
    (world, nodes)
}

async fn claim_on(world: &World, node: &str) -> NodeClaim {
    let claims = world.claims().await.into_iter();
    let mut own = claims.filter(|claim| claim.status.node_name.as_deref() == Some(node));
    own.next().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_taint_and_a_condition_of_no_command_are_removed_and_other_taints_stay() {
    let never = |pool: Object<NodePool>| pool.consolidate_after("Never");
    let (world, [one, two]) = two_nodes(never).await;
    let mut marked = claim_on(&world, &two).await;
    let now = world.cluster.clock.now();
    marked.set_true_with_reason(types::DISRUPTION_REASON, "Drifted", "Drifted", now);
    let conditions = json!({"status": {"conditions": marked.status.conditions}});
    let api = world.api::<NodeClaim>();
    let conditions = Patch::Merge(conditions);
    api.patch_status(marked.name(), &PatchParams::default(), &conditions)
        .await
        .unwrap();
    taint(&world, &one, DISRUPTED).await;
    taint(&world, &two, "example.com/kept").await;
    world
        .until(30, "the taint and the condition are removed", async |w| {
            let marked = claim(w, marked.name()).await.unwrap();
            tainted(w).await == 0 && marked.condition(types::DISRUPTION_REASON).is_none()
        })
        .await;
    let other = world.api::<Node>().get(&two).await.unwrap();
    let taints = other.spec.unwrap().taints.unwrap_or_default();
    let keys: Vec<_> = taints.iter().map(|taint| &*taint.key).collect();
    assert_eq!(keys, ["example.com/kept"]);
}

#[tokio::test(start_paused = true)]
async fn a_taint_of_its_pool_and_a_node_that_terminates_keep_no_other_from_being_disrupted() {
    let own = |pool: Object<NodePool>| {
        let pool = pool.consolidation_policy("WhenEmpty");
        pool.taint("example.com/team", "a", "PreferNoSchedule")
    };
    let (world, [one, two]) = two_nodes(own).await;
    let protected = json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}});
    for pod in world.pods().await {
        let api: kube::Api<k8s_openapi::api::core::v1::Pod> =
            kube::Api::namespaced(world.client.clone(), "default");
        let name = pod.metadata.name.unwrap();
        api.patch(&name, &PatchParams::default(), &Patch::Merge(&protected))
            .await
            .unwrap();
    }
    world.pass(5).await;
    world.delete::<Node>(&one).await;
    world.pass(10).await;
    world.delete_deployments(&["two"]).await;
    world
        .until(90, "the empty node is deleted", async |w| {
            let nodes = w.nodes().await;
            nodes.iter().all(|n| n.metadata.name.as_ref() != Some(&two))
        })
        .await;
    let terminating = world.api::<Node>().get(&one).await.unwrap();
    assert!(is_tainted(&terminating));
}

#[tokio::test(start_paused = true)]
async fn no_command_starts_before_the_taints_of_an_earlier_process_are_removed() {
    let shut = |pool: Object<NodePool>| pool.consolidate_after("Never").budgets(&["0"]);
    let (mut world, [one, two]) = two_nodes(shut).await;
    let other = json!({"metadata": {"annotations": {"karpenter.sh/nodepool-hash": "0"}}});
    let drifts = claim_on(&world, &two).await;
    world.patch::<NodeClaim>(drifts.name(), other).await;
    world
        .until(30, "a node has drifted", async |w| {
            claim(w, drifts.name())
                .await
                .unwrap()
                .is_true(types::DRIFTED)
        })
        .await;
    world.cluster.stop_controllers().await;
    taint(&world, &one, DISRUPTED).await;
    let open = json!({"spec": {"disruption": {"budgets": [{"nodes": "1"}]}}});
    world.patch::<NodePool>("default", open).await;
    let conflict = Rule::new(Fault::Conflict).verb("patch").resource("nodes");
    world.cluster.testbed.faults().add(conflict.times(4));
    world.cluster.start_controllers();
    let most = std::cell::Cell::new(0);
    world
        .until(120, "the drifted node is replaced", async |w| {
            most.set(most.get().max(tainted(w).await));
            claim(w, drifts.name()).await.is_none()
        })
        .await;
    assert_eq!(most.get(), 1, "as many at a time as the budget allows");
    let errors = "controller_runtime_reconcile_errors_total{controller=\"disruption\"}";
    assert_eq!(
        world.metric(errors).unwrap_or_default(),
        0.0,
        "a conflict is expected"
    );
}

#[tokio::test(start_paused = true)]
async fn a_taint_that_cannot_be_removed_is_an_error_and_is_removed_later() {
    let never = |pool: Object<NodePool>| pool.consolidate_after("Never");
    let (world, [one, _]) = two_nodes(never).await;
    let refused = Fault::Error(403);
    let rule = Rule::new(refused).verb("patch").resource("nodes");
    world.cluster.testbed.faults().add(rule.times(1));
    taint(&world, &one, DISRUPTED).await;
    let errors = "controller_runtime_reconcile_errors_total{controller=\"disruption\"}";
    world
        .until(60, "the error is counted", async |w| {
            w.metric(errors).is_some_and(|count| count > 0.0)
        })
        .await;
    world
        .until(60, "the taint is removed", async |w| tainted(w).await == 0)
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_gone_when_its_command_is_rolled_back_has_no_taint_to_remove() {
    let (world, old) = oversized().await;
    let lines = Lines::taken();
    world.cluster.cloud.never_register(true);
    world.scale("app", 2).await;
    world
        .until(60, "the node is tainted", async |w| tainted(w).await == 1)
        .await;
    world.delete::<NodeClaim>(old.name()).await;
    let failures = "karpenter_voluntary_disruption_queue_failures_total{decision=\"replace\",reason=\"underutilized\",consolidation_type=\"single\"}";
    world
        .until(700, "the command is rolled back", async |w| {
            count(w, failures) == 1.0
        })
        .await;
    world.pass(5).await;
    assert!(claim(&world, old.name()).await.is_none());
    let errors = lines.of("ERROR");
    let said = |text: &str| errors.iter().any(|line| line["message"] == text);
    assert!(said(
        "failed terminating nodes while executing a disruption command"
    ));
    assert!(!said("failed to remove the taint of a disruption"));
}
