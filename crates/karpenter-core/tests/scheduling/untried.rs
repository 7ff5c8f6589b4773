//! Pods that kube-scheduler is behind with: a burst is planned as a whole.

use jiff::SignedDuration;
use karpenter_api::k8s_openapi::api::core::v1::Pod;
use karpenter_core::lifecycle::provisioning::Event;
use karpenter_fixtures::Object;
use serde_json::json;

use crate::fixture::{Applied, World};
use crate::process::Stage;

/// A pod that was created this many seconds before the first plan, and that kube-scheduler found no node for.
fn tried(name: &str, seconds: i64) -> Object<Pod> {
    let created = crate::fixture::now() - SignedDuration::from_secs(seconds);
    let pod = crate::fixture::pod(name).cpu("1");
    pod.set("/metadata/creationTimestamp", created.to_string())
}

/// Such a pod that kube-scheduler has not tried.
fn untried(name: &str, seconds: i64) -> Object<Pod> {
    tried(name, seconds).set("/status/conditions", json!([]))
}

fn planned(pods: impl Applied) -> String {
    let mut stage = Stage::new(World::new().with(pods));
    stage.plan().swap_remove(0)
}

#[test]
fn pods_that_kube_scheduler_has_not_come_to_are_planned_after_two_seconds() {
    // The batch closes five seconds after the test begins.
    for (created, plan) in [(10, "plan 2"), (-2, "plan 2"), (-4, "plan 1")] {
        let pods = [tried("tried", 10), untried("untried", created)];
        assert_eq!(planned(pods), plan, "created {created} s before");
    }
}

#[test]
fn a_pod_that_kube_scheduler_holds_back_is_not_planned() {
    // It has tried a later pod, or none for a long time.
    for created in [12, -70] {
        let mut stage =
            Stage::new(World::new().with([tried("tried", 10), untried("held", created)]));
        stage.now += SignedDuration::from_secs(120);
        assert_eq!(stage.plan()[0], "plan 1", "created {created} s before");
    }
    assert_eq!(
        Stage::new(World::new().with(untried("held", 100))).on(Event::Check),
        ["idle"]
    );
}

#[test]
fn gated_preempting_and_foreign_pods_are_not_planned_untried() {
    let gated = json!([{ "type": "PodScheduled", "status": "False", "reason": "SchedulingGated" }]);
    let changes = [
        ("/spec/schedulerName", json!("other")),
        ("/spec/priority", json!(1)),
        ("/status/conditions", gated),
    ];
    for (field, value) in changes {
        let untried = untried("untried", 10).set(field, value);
        let bound = crate::fixture::pod("bound").on("node-1");
        assert_eq!(
            planned([tried("tried", 10), untried, bound]),
            "plan 1",
            "{field}"
        );
    }
}

#[test]
fn an_untried_pod_is_not_planned_again_if_kube_scheduler_finds_no_node() {
    let mut stage = Stage::new(World::new().with([tried("tried", 10), untried("untried", 10)]));
    assert_eq!(stage.plan()[0], "plan 2");
    stage.world.cluster.apply_pod(&tried("untried", 10).build());
    assert_eq!(stage.plan(), [""; 0]);
}
