//! The nominations of pods.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Node, Pod as Wire};
use karpenter_api::labels;
use karpenter_fixtures::{Object, bare_node, node_claim};
use serde_json::json;

use super::*;
use crate::cluster::{Cluster, ClusterConfig};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn parsed(pod: Object<Wire>) -> Pod {
    Pod::parse(&pod.build())
}

fn pod() -> Pod {
    parsed(karpenter_fixtures::pod("a"))
}

/// Returns the Node of the NodeClaim `n`, with these labels.
fn joined(labels: &[&str]) -> Object<Node> {
    let node = bare_node("node-of-n").set("/spec/providerID", "test://n");
    let node = node.set("/status/allocatable", json!({"cpu": "4", "pods": "10"}));
    labels
        .iter()
        .fold(node, |node, label| node.label(label, "true"))
}

/// Returns a cluster with a pending `pod`, and a NodeClaim `n` whose conditions became true at the given seconds.
fn cluster(pod: Pod, conditions: &[(&str, i64)]) -> Cluster {
    let mut state = Cluster::new(ClusterConfig::default());
    state.insert_pod(pod);
    let claim = conditions.iter().fold(
        node_claim("n").set("/status/providerID", "test://n"),
        |claim, (condition, second)| claim.is_since(condition, &at(*second).to_string()),
    );
    state.apply_node_claim(&claim.build());
    let labels = [labels::REGISTERED, labels::INITIALIZED];
    if !conditions.is_empty() {
        state.apply_node(&joined(&labels[..conditions.len()]).build());
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
    let state = cluster(pod(), &READY);
    assert!(is_planned(&mut Nominations::default(), &state, 0));
}

#[test]
fn a_pod_keeps_its_nomination_while_its_node_is_launching() {
    let mut nominations = Nominations::default();
    for conditions in [vec![], vec![(types::REGISTERED, 30)]] {
        let state = cluster(pod(), &conditions);
        nominations.nominate(&pod(), "n", at(0));
        assert!(!is_planned(&mut nominations, &state, 800));
        let standing = nominations.standing(&state.snapshot(), at(800));
        assert_eq!(standing.nominated[0].1, "n");
        assert_eq!(standing.next, None);
    }
}

#[test]
fn the_back_off_starts_when_the_node_is_ready_and_doubles() {
    let mut nominations = Nominations::default();
    let state = cluster(pod(), &READY);
    nominations.nominate(&pod(), "n", at(0));
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
        nominations.nominate(&pod(), "n", at(second));
        second += wait;
    }
}

#[test]
fn a_taint_of_a_registered_node_is_waited_for_ten_seconds() {
    let tolerating = karpenter_fixtures::pod("a").tolerate(json!({"operator": "Exists"}));
    let registered = [(types::REGISTERED, 30)];
    for (pod, effect, ends) in [
        (pod(), "NoSchedule", true),
        (pod(), "NoExecute", true),
        (pod(), "PreferNoSchedule", false),
        (parsed(tolerating), "NoSchedule", false),
    ] {
        let mut nominations = Nominations::default();
        let mut state = cluster(pod.clone(), &registered);
        let tainted = joined(&[labels::REGISTERED]).taint("example.com/t", "", effect);
        state.apply_node(&tainted.build());
        nominations.nominate(&pod, "n", at(0));
        assert!(!is_planned(&mut nominations, &state, 39));
        assert_eq!(is_planned(&mut nominations, &state, 40), ends, "{effect}");
    }
}

#[test]
fn a_pod_whose_node_is_deleted_waits_unless_the_node_never_joined() {
    let mut nominations = Nominations::default();
    let mut state = cluster(pod(), &READY);
    nominations.nominate(&pod(), "n", at(0));
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
    let mut state = cluster(pod(), &READY);
    for _ in 0..3 {
        nominations.nominate(&pod(), "n", at(0));
    }
    assert!(!is_planned(&mut nominations, &state, 51));
    for index in 0..10 {
        let name = format!("other-{index}");
        state.insert_pod(parsed(karpenter_fixtures::pod(&name).on("node-of-n")));
    }
    assert!(is_planned(&mut nominations, &state, 51));
    nominations.nominate(&pod(), "deleted", at(51));
    assert!(!is_planned(&mut nominations, &state, 60));
    assert!(
        is_planned(&mut nominations, &state, 61),
        "ten seconds, not eighty"
    );
}

/// Returns a pending pod.
fn sized(name: &str, cpu: &str) -> Pod {
    parsed(karpenter_fixtures::pod(name).cpu(cpu))
}

/// Returns a pod that runs on the Node of `n`.
fn other(cpu: &str) -> Pod {
    parsed(karpenter_fixtures::pod("other").cpu(cpu).on("node-of-n"))
}

fn names(pods: &[Arc<Pod>]) -> Vec<&str> {
    pods.iter().map(|pod| &*pod.key.name).collect()
}

#[test]
fn of_pods_that_no_longer_fit_together_the_largest_keep_their_nominations() {
    let mut nominations = Nominations::default();
    let mut state = cluster(sized("large", "2"), &READY);
    nominations.nominate(&sized("large", "2"), "n", at(0));
    for name in ["b", "c", "d"] {
        state.insert_pod(sized(name, "500m"));
        nominations.nominate(&sized(name, "500m"), "n", at(0));
    }
    let standing = nominations.standing(&state.snapshot(), at(41));
    assert_eq!(names(&standing.unplaced), [""; 0], "3.5 of 4 cores");
    // kube-scheduler binds a pod here that was planned for another node.
    state.insert_pod(other("1500m"));
    let standing = nominations.standing(&state.snapshot(), at(41));
    assert_eq!(names(&standing.unplaced), ["c", "d"]);
    let kept = standing.nominated.iter();
    let kept: Vec<&str> = kept.map(|(pod, _)| pod.key.name.as_str()).collect();
    assert_eq!(kept, ["b", "large"]);
}

#[test]
fn pods_that_lost_their_places_are_planned_onto_as_few_nodes_as_possible() {
    let mut nominations = Nominations::default();
    let mut state = cluster(sized("a", "2"), &READY);
    let packing = |nominations: &mut Nominations, state: &Cluster| {
        let snapshot = state.snapshot();
        let standing = nominations.standing(&snapshot, at(41));
        (
            standing.unplaced.len(),
            standing.question(&snapshot).1.packing,
        )
    };
    assert_eq!(packing(&mut nominations, &state), (1, None), "it is new");
    nominations.nominate(&sized("a", "2"), "n", at(0));
    state.insert_pod(other("3"));
    let fewest = Some(Packing::FewestNodes);
    assert_eq!(packing(&mut nominations, &state), (1, fewest));
    state.insert_pod(sized("b", "2"));
    assert_eq!(packing(&mut nominations, &state), (2, None), "half are new");
    nominations.nominate(&sized("b", "2"), "deleted", at(41));
    nominations.nominate(&sized("a", "2"), "deleted", at(41));
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
        parsed(karpenter_fixtures::pod(name).created(&at(second).to_string()))
    };
    let mut nominations = Nominations::default();
    let mut state = cluster(aged("a", 3), &READY);
    for (name, second) in [("b", 2), ("c", 1), ("d", 2), ("late", 9)] {
        state.insert_pod(aged(name, second));
    }
    nominations.nominate(&aged("late", 9), "n", at(0));
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
    nominations.nominate(&pod(), "n", at(0));
    let other = karpenter_fixtures::pod("a").select("disk", "fast");
    let state = cluster(parsed(other), &[]);
    assert!(is_planned(&mut nominations, &state, 1));
}

#[test]
fn pods_with_resource_claims_are_planned_every_time() {
    let mut nominations = Nominations::default();
    let claim = json!({"name": "gpu", "resourceClaimName": "gpu"});
    let claiming = parsed(karpenter_fixtures::pod("a").push("/spec/resourceClaims", claim));
    nominations.nominate(&claiming, "n", at(0));
    assert!(is_planned(&mut nominations, &cluster(claiming, &[]), 1));
}
