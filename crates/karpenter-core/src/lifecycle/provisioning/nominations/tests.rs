//! The nominations of pods.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::labels;
use karpenter_api::v1::NodeClaim;
use serde_json::{Value, json};

use super::*;
use crate::cluster::{Cluster, ClusterConfig};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn pod(spec: Value) -> Pod {
    let mut pod = json!({
        "metadata": {"name": "a", "namespace": "default", "uid": "a"},
        "spec": {"containers": []},
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
    });
    let fields = spec.as_object().unwrap().clone();
    pod["spec"].as_object_mut().unwrap().extend(fields);
    Pod::parse(&serde_json::from_value(pod).unwrap())
}

/// Returns a cluster with a pending `pod`, and a NodeClaim `n` whose conditions became true at the given seconds.
fn cluster(pod: Pod, conditions: &[(&str, i64)], taints: Value) -> Cluster {
    let mut state = Cluster::new(ClusterConfig::default());
    state.insert_pod(pod);
    let met: Vec<Value> = conditions
        .iter()
        .map(|(condition, second)| {
            json!({"type": condition, "status": "True", "reason": condition, "message": "", "lastTransitionTime": at(*second)})
        })
        .collect();
    let claim = json!({
        "metadata": {"name": "n", "uid": "n"},
        "spec": {"requirements": [], "nodeClassRef": {"group": "g", "kind": "k", "name": "c"}},
        "status": {"providerID": "test://n", "conditions": met},
    });
    state.apply_node_claim(&serde_json::from_value::<NodeClaim>(claim).unwrap());
    let node_labels = [
        (types::REGISTERED, labels::REGISTERED),
        (types::INITIALIZED, labels::INITIALIZED),
    ];
    let is_met = |condition: &str| conditions.iter().any(|(met, _)| *met == condition);
    let node_labels: serde_json::Map<String, Value> = node_labels
        .into_iter()
        .filter(|(condition, _)| is_met(condition))
        .map(|(_, label)| (label.to_owned(), json!("true")))
        .collect();
    if !node_labels.is_empty() {
        let node = json!({"metadata": {"name": "node-of-n", "uid": "m", "labels": node_labels}, "spec": {"providerID": "test://n", "taints": taints}, "status": {"allocatable": {"cpu": "4", "pods": "10"}}});
        state.apply_node(&serde_json::from_value::<Node>(node).unwrap());
    }
    state
}

const READY: [(&str, i64); 2] = [(types::REGISTERED, 30), (types::INITIALIZED, 40)];

fn is_planned(nominations: &mut Nominations, state: &Cluster, second: i64) -> bool {
    let standing = nominations.standing(&state.snapshot(), at(second));
    let kept = standing.nominated.len() + standing.backing_off.len();
    assert_eq!(standing.unplaced.len() + kept, 1, "{standing:?}");
    standing.unplaced.len() == 1
}

#[test]
fn a_pod_without_a_nomination_is_planned() {
    let state = cluster(pod(json!({})), &READY, json!([]));
    assert!(is_planned(&mut Nominations::default(), &state, 0));
}

#[test]
fn a_pod_keeps_its_nomination_while_its_node_is_launching() {
    let mut nominations = Nominations::default();
    for conditions in [vec![], vec![(types::REGISTERED, 30)]] {
        let state = cluster(pod(json!({})), &conditions, json!([]));
        nominations.nominate(&pod(json!({})), "n", at(0));
        assert!(!is_planned(&mut nominations, &state, 800));
        let standing = nominations.standing(&state.snapshot(), at(800));
        assert_eq!(standing.nominated[0].1, "n");
        assert_eq!(standing.next, None);
    }
}

#[test]
fn the_back_off_starts_when_the_node_is_ready_and_doubles() {
    let mut nominations = Nominations::default();
    let state = cluster(pod(json!({})), &READY, json!([]));
    nominations.nominate(&pod(json!({})), "n", at(0));
    let standing = nominations.standing(&state.snapshot(), at(0));
    assert_eq!(
        standing.next,
        Some(at(50)),
        "ten seconds after it is initialized"
    );
    let mut second = 50;
    for wait in [20, 40, 80, 160, 300, 300] {
        assert!(
            !is_planned(&mut nominations, &state, second - 1),
            "{second}"
        );
        assert!(is_planned(&mut nominations, &state, second), "{second}");
        let overdue = nominations.standing(&state.snapshot(), at(second)).overdue;
        assert_eq!(overdue[0].target, "n");
        nominations.nominate(&pod(json!({})), "n", at(second));
        second += wait;
    }
}

#[test]
fn a_taint_of_a_registered_node_is_waited_for_ten_seconds() {
    let taint = |effect: &str| json!([{"key": "example.com/t", "effect": effect}]);
    let registered = [(types::REGISTERED, 30)];
    for (spec, effect, ends) in [
        (json!({}), "NoSchedule", true),
        (json!({}), "NoExecute", true),
        (json!({}), "PreferNoSchedule", false),
        (
            json!({"tolerations": [{"operator": "Exists"}]}),
            "NoSchedule",
            false,
        ),
    ] {
        let mut nominations = Nominations::default();
        let state = cluster(pod(spec.clone()), &registered, taint(effect));
        nominations.nominate(&pod(spec), "n", at(0));
        assert!(!is_planned(&mut nominations, &state, 39));
        assert_eq!(is_planned(&mut nominations, &state, 40), ends, "{effect}");
    }
}

#[test]
fn a_pod_whose_node_is_deleted_waits_unless_the_node_never_joined() {
    let mut nominations = Nominations::default();
    let mut state = cluster(pod(json!({})), &READY, json!([]));
    nominations.nominate(&pod(json!({})), "n", at(0));
    state.remove_node_claim("n");
    state.remove_node("node-of-n");
    assert!(!is_planned(&mut nominations, &state, 9));
    let standing = nominations.standing(&state.snapshot(), at(9));
    assert_eq!(standing.backing_off.len(), 1, "nothing is reserved");
    assert!(is_planned(&mut nominations, &state, 10));
    nominations.release("n");
    assert!(is_planned(&mut nominations, &state, 0));
}

#[test]
fn a_pod_whose_resources_other_pods_use_is_planned_without_back_off() {
    let mut nominations = Nominations::default();
    let mut state = cluster(pod(json!({})), &READY, json!([]));
    for _ in 0..3 {
        nominations.nominate(&pod(json!({})), "n", at(0));
    }
    assert!(!is_planned(&mut nominations, &state, 51));
    for index in 0..10 {
        let name = format!("other-{index}");
        let other = json!({
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"nodeName": "node-of-n", "containers": []}, "status": {"phase": "Running"},
        });
        state.insert_pod(Pod::parse(&serde_json::from_value(other).unwrap()));
    }
    assert!(is_planned(&mut nominations, &state, 51));
    nominations.nominate(&pod(json!({})), "deleted", at(51));
    assert!(!is_planned(&mut nominations, &state, 60));
    assert!(
        is_planned(&mut nominations, &state, 61),
        "ten seconds, not eighty"
    );
}

/// Returns a pending pod, or one that was bound to a node.
fn sized(name: &str, cpu: &str, node: Option<&str>) -> Pod {
    let pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
    });
    Pod::parse(&serde_json::from_value(pod).unwrap())
}

#[test]
fn of_pods_that_no_longer_fit_together_the_largest_keep_their_nominations() {
    let mut nominations = Nominations::default();
    let mut state = cluster(sized("large", "2", None), &READY, json!([]));
    nominations.nominate(&sized("large", "2", None), "n", at(0));
    for name in ["b", "c", "d"] {
        state.insert_pod(sized(name, "500m", None));
        nominations.nominate(&sized(name, "500m", None), "n", at(0));
    }
    let names = |pods: &[Arc<Pod>]| -> Vec<String> {
        pods.iter().map(|pod| pod.key.name.clone()).collect()
    };
    let standing = nominations.standing(&state.snapshot(), at(41));
    assert_eq!(names(&standing.unplaced), [""; 0], "3.5 of 4 cores");
    // kube-scheduler binds a pod here that was planned for another node.
    state.insert_pod(sized("other", "1500m", Some("node-of-n")));
    let standing = nominations.standing(&state.snapshot(), at(41));
    assert_eq!(names(&standing.unplaced), ["c", "d"]);
    let kept = standing.nominated.iter();
    let kept: Vec<&str> = kept.map(|(pod, _)| pod.key.name.as_str()).collect();
    assert_eq!(kept, ["b", "large"]);
}

#[test]
fn pods_that_lost_their_places_are_planned_onto_as_few_nodes_as_possible() {
    let mut nominations = Nominations::default();
    let mut state = cluster(sized("a", "2", None), &READY, json!([]));
    let packing = |nominations: &mut Nominations, state: &Cluster| {
        let snapshot = state.snapshot();
        let standing = nominations.standing(&snapshot, at(41));
        (
            standing.unplaced.len(),
            standing.question(&snapshot).1.packing,
        )
    };
    assert_eq!(packing(&mut nominations, &state), (1, None), "it is new");
    nominations.nominate(&sized("a", "2", None), "n", at(0));
    state.insert_pod(sized("other", "3", Some("node-of-n")));
    let fewest = Some(Packing::FewestNodes);
    assert_eq!(packing(&mut nominations, &state), (1, fewest));
    state.insert_pod(sized("b", "2", None));
    assert_eq!(packing(&mut nominations, &state), (2, None), "half are new");
    nominations.nominate(&sized("b", "2", None), "deleted", at(41));
    nominations.nominate(&sized("a", "2", None), "deleted", at(41));
    nominations.release("deleted");
    assert_eq!(
        packing(&mut nominations, &state),
        (2, None),
        "nothing was bound in their places"
    );
}

#[test]
fn beyond_a_number_of_pods_passes_take_turns_from_the_oldest() {
    let aged = |name: &str, second: i64| {
        let pod = json!({
            "metadata": {"name": name, "namespace": "default", "uid": name, "creationTimestamp": at(second)},
            "spec": {"containers": []},
            "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
        });
        Pod::parse(&serde_json::from_value(pod).unwrap())
    };
    let mut nominations = Nominations::default();
    let mut state = cluster(aged("a", 3), &READY, json!([]));
    for (name, second) in [("b", 2), ("c", 1), ("d", 2), ("late", 9)] {
        state.insert_pod(aged(name, second));
    }
    nominations.nominate(&aged("late", 9), "n", at(0));
    let names = |pods: &[Arc<Pod>]| -> Vec<String> {
        pods.iter().map(|pod| pod.key.name.clone()).collect()
    };
    let mut turn = None;
    for (planned, deferred, overdue, is_last) in [
        (vec!["c", "b", "d"], vec!["a", "late"], 0, false),
        (vec!["a", "late"], vec!["c", "b", "d"], 1, true),
        (vec!["c", "b", "d"], vec!["a", "late"], 0, false),
    ] {
        let mut standing = nominations.standing(&state.snapshot(), at(1000));
        assert_eq!(standing.overdue.len(), 1, "{standing:?}");
        turn = standing.defer_beyond(3, turn.as_ref());
        assert_eq!(turn.is_none(), is_last, "{turn:?}");
        assert_eq!(names(&standing.unplaced), planned);
        assert_eq!(names(&standing.deferred), deferred);
        assert_eq!(standing.overdue.len(), overdue, "{standing:?}");
        let (snapshot, _) = standing.question(&state.snapshot());
        let pending: BTreeSet<&str> = snapshot.pending_pods().map(|pod| &*pod.key.name).collect();
        assert_eq!(pending, planned.into_iter().collect());
    }
    // The pods of the last pass are gone: none comes after them.
    let gone = Turn(Some(at(99).into()), PodKey::default());
    let mut standing = nominations.standing(&state.snapshot(), at(1000));
    standing.defer_beyond(3, Some(&gone));
    assert_eq!(names(&standing.unplaced), ["c", "b", "d"]);
}

#[test]
fn a_pod_with_changed_requirements_is_planned() {
    let mut nominations = Nominations::default();
    nominations.nominate(&pod(json!({})), "n", at(0));
    let other = pod(json!({"nodeSelector": {"disk": "fast"}}));
    let state = cluster(other, &[], json!([]));
    assert!(is_planned(&mut nominations, &state, 1));
}

#[test]
fn pods_with_resource_claims_are_planned_every_time() {
    let mut nominations = Nominations::default();
    let claims = json!({"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]});
    nominations.nominate(&pod(claims.clone()), "n", at(0));
    assert!(is_planned(
        &mut nominations,
        &cluster(pod(claims), &[], json!([])),
        1
    ));
}
