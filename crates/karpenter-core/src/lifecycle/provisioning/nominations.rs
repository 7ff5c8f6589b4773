//! The node that each pending pod is nominated to, until kube-scheduler binds it.
//!
//! A nominated pod is not planned again while kube-scheduler may still bind it: its resources on the node are reserved, and
//! later pods are planned into the rest. Otherwise every plan would include pods again that kube-scheduler is about to
//! bind, some of them on other nodes than before, and launch nodes for the others.
//!
//! A nomination ends when the pod is bound, when its node is deleted or other pods that kube-scheduler bound use its
//! resources, and when the node could have run the pod for longer than a back-off that starts at upstream's ten seconds and
//! doubles: kube-scheduler then has a reason that the engine does not know, and launching a node for every plan would never
//! end.
//! A pod whose back-off is over is planned again, and gets the same place unless the engine knows a reason against it:
//! kube-scheduler may only be slow.
//!
//! DIFFERS: upstream plans every pending pod again every ten seconds and with every batch, forever.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::slice;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::conditions::{HasConditions, types};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::cluster::{NodeState, Snapshot};
use crate::pod::{Pod, PodKey, Shape, UnixSecond};
use crate::schedule::{Plan, PodSet, Query};
use crate::taints::{Effect, Taint, untolerated};

/// How long kube-scheduler has to bind a pod to its first node that is ready for it; each further nomination doubles it.
const FIRST_BACK_OFF: SignedDuration = SignedDuration::from_secs(10);

const LONGEST_BACK_OFF: SignedDuration = SignedDuration::from_secs(300);

/// The nomination of a pod.
#[derive(Debug, Clone)]
struct Nomination {
    /// The requirements and requests of the pod at the time.
    shape: Arc<Shape>,
    /// Node of the pod: name of the NodeClaim, or of the Node if it has no NodeClaim.
    target: String,
    decided_at: Timestamp,
    /// Number of nominations of the pod, including this one.
    attempts: u32,
}

impl Nomination {
    fn back_off(&self) -> SignedDuration {
        let doublings = self.attempts.saturating_sub(1).min(5);
        (FIRST_BACK_OFF * (1 << doublings)).min(LONGEST_BACK_OFF)
    }

    /// Returns when the pod is to be planned again; `None` while its node is launching.
    fn due(&self, node: Option<&NodeState>) -> Option<Timestamp> {
        let since = match node {
            Some(node) => could_run_since(node, &self.shape)?.max(self.decided_at),
            None => self.decided_at,
        };
        Some(
            since
                .saturating_add(self.back_off())
                .unwrap_or(Timestamp::MAX),
        )
    }
}

/// Returns since when kube-scheduler can bind such a pod to the node: since it is initialized, or since it registered with
/// a taint that the pod does not tolerate. Temporary taints of a starting node do not count.
fn could_run_since(node: &NodeState, shape: &Shape) -> Option<Timestamp> {
    let keeps_away = |taint: &Taint| {
        taint.effect != Some(Effect::PreferNoSchedule)
            && untolerated(slice::from_ref(taint), &shape.tolerations).is_some()
    };
    let condition = if node.is_initialized() {
        types::INITIALIZED
    } else if node.is_registered() && node.taints().iter().any(keeps_away) {
        types::REGISTERED
    } else {
        return None;
    };
    let Some(claim) = &node.claim else {
        return Some(Timestamp::MIN);
    };
    let condition = claim.condition(condition).filter(|c| c.status == "True")?;
    Some(condition.last_transition_time.0)
}

/// Returns the uids of pods that were nominated to initialized nodes and that no longer fit there beside the bound pods:
/// kube-scheduler binds pods to other nodes than planned. They have capacity elsewhere, and need not wait.
///
/// The largest pods of a node keep their nominations: the others are easier to place.
fn without_room<'a>(
    nominated: impl IntoIterator<Item = (&'a Arc<Pod>, &'a Arc<NodeState>)>,
    snapshot: &Snapshot,
) -> FxHashSet<&'a str> {
    let mut by_node: BTreeMap<&str, (&NodeState, Vec<&Pod>)> = BTreeMap::new();
    for (pod, node) in nominated {
        if node.is_initialized() {
            let (_, pods) = by_node.entry(node.name()).or_insert((node, Vec::new()));
            pods.push(pod);
        }
    }
    let mut without = FxHashSet::default();
    for (name, (node, mut pods)) in by_node {
        let mut left = node.allocatable();
        if let Some(bound) = snapshot.node_pods(name) {
            left.sub_assign(bound.requests());
        }
        pods.sort_by_cached_key(|pod| {
            let asked = |name| Reverse(pod.shape.requests.get(name));
            (asked("cpu"), asked("memory"), &pod.key.uid)
        });
        for pod in pods {
            let requests = &pod.shape.requests;
            if requests.iter().any(|(name, asked)| asked > left.get(name)) {
                without.insert(pod.key.uid.as_str());
            } else {
                left.sub_assign(requests);
            }
        }
    }
    without
}

/// A pod that kube-scheduler did not bind to the node it was nominated to.
#[derive(Debug, Clone)]
pub struct Overdue {
    /// The pod.
    pub pod: Arc<Pod>,
    /// Name of the node: see [`Nomination::target`].
    pub target: String,
    /// Number of nominations.
    pub attempts: u32,
}

impl Overdue {
    /// Returns the pod with its node.
    pub fn place(&self) -> (PodKey, String) {
        (self.pod.key.clone(), self.target.clone())
    }
}

/// The last pod of a pass that did not plan all pods.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn(Option<UnixSecond>, PodKey);

/// The pending pods, by whether they are to be planned.
#[derive(Debug, Default)]
pub struct Standing {
    /// Pods to plan: those without a nomination, and `overdue` ones.
    pub unplaced: Vec<Arc<Pod>>,
    /// Pods that keep their nomination, with their node.
    pub nominated: Vec<(Arc<Pod>, String)>,
    /// Pods whose node was deleted and whose back-off is not over.
    pub backing_off: Vec<Arc<Pod>>,
    /// Pods whose back-off is over, on nodes that could have run them.
    pub overdue: Vec<Overdue>,
    /// Pods that a later pass plans: see [`Standing::defer_beyond`].
    pub deferred: Vec<Arc<Pod>>,
    /// When the next back-off ends.
    pub next: Option<Timestamp>,
}

impl Standing {
    /// Leaves all but `most` of the pods to plan to later passes, because a pass with all of them would need too much memory.
    ///
    /// Passes take turns, so that pods without a place anywhere do not keep the others from being planned: this one has the oldest
    /// pods after `turn`, the last pod of the pass before. Returns the last pod of this one; `None` if every pod has had its turn, and
    /// the next pass begins with the oldest again.
    pub fn defer_beyond(&mut self, most: usize, turn: Option<&Turn>) -> Option<Turn> {
        let turn_of = |pod: &Arc<Pod>| Turn(pod.created_at, pod.key.clone());
        self.unplaced.sort_by_cached_key(turn_of);
        let had = |turn: &Turn| self.unplaced.partition_point(|pod| turn_of(pod) <= *turn);
        let first = turn.map_or(0, had) % self.unplaced.len().max(1);
        let mut planned = self.unplaced.split_off(first);
        let later = planned.split_off(most.min(planned.len()));
        let last = planned.last().filter(|_| !later.is_empty()).map(turn_of);
        self.deferred = std::mem::replace(&mut self.unplaced, planned);
        self.deferred.extend(later);
        let deferred: FxHashSet<&str> = self.deferred.iter().map(|pod| &*pod.key.uid).collect();
        self.overdue
            .retain(|overdue| !deferred.contains(&*overdue.pod.key.uid));
        last
    }

    /// Returns the snapshot and the query of the scheduling pass that places the pods to plan: nominated pods use their resources,
    /// and pods that are backing off or deferred take no part.
    pub fn question(&self, snapshot: &Snapshot) -> (Snapshot, Query) {
        let snapshot = snapshot
            .without_pods(&self.backing_off)
            .without_pods(&self.deferred)
            .with_nominated(&self.nominated);
        let overdue = self.overdue.iter().map(Overdue::place).collect();
        (
            snapshot,
            Query::new(PodSet::Waiting).with_nominated(overdue),
        )
    }
}

/// The nominations of all pending pods, by uid.
#[derive(Clone, Debug, Default)]
pub struct Nominations {
    pods: FxHashMap<String, Nomination>,
}

impl Nominations {
    /// Records that `pod` was nominated to `target`, the name of a NodeClaim, or of a Node without one.
    ///
    /// Pods with resource claims are not recorded: until kube-scheduler binds a pod, its devices are not known, and only
    /// planning it again reserves them.
    pub fn nominate(&mut self, pod: &Pod, target: &str, now: Timestamp) {
        if pod.node_name.is_some() || !pod.shape.resource_claims.is_empty() {
            return;
        }
        let attempts = self
            .pods
            .get(&pod.key.uid)
            .map_or(0, |known| known.attempts);
        let nomination = Nomination {
            shape: Arc::clone(&pod.shape),
            target: target.to_owned(),
            decided_at: now,
            attempts: attempts.saturating_add(1),
        };
        self.pods.insert(pod.key.uid.clone(), nomination);
    }

    /// Records the nominations of a plan. `claims` are the names of the NodeClaims of the plan's new nodes.
    pub fn nominate_planned<'a>(
        &mut self,
        snapshot: &Snapshot,
        plan: &Plan,
        claims: impl IntoIterator<Item = Option<&'a str>>,
        now: Timestamp,
    ) {
        let mut nominate = |key: &PodKey, target: &str| {
            let pod = snapshot.pod(&key.namespace, &key.name);
            if let Some(pod) = pod.filter(|pod| pod.key.uid == key.uid) {
                self.nominate(pod, target, now);
            }
        };
        for placement in plan.existing.iter().filter(|p| !p.buffer) {
            let node = snapshot.node(&placement.node);
            let claim = node.and_then(|node| node.claim_name());
            nominate(&placement.pod, claim.unwrap_or(&placement.node));
        }
        for (draft, claim) in plan.new_node_claims.iter().zip(claims) {
            let Some(claim) = claim else { continue };
            for pod in &draft.pods {
                nominate(pod, claim);
            }
        }
    }

    /// Removes the nomination of a pod that is bound, deleted or whose requirements have changed.
    pub fn forget(&mut self, uid: &str) {
        self.pods.remove(uid);
    }

    /// Removes the nominations to a NodeClaim that is deleted before its node could run a pod: its pods are planned again
    /// at once.
    pub fn release(&mut self, claim: &str) {
        self.pods.retain(|_, nomination| nomination.target != claim);
    }

    /// Sorts the pending pods of a snapshot; removes nominations without room.
    pub fn standing(&mut self, snapshot: &Snapshot, now: Timestamp) -> Standing {
        let pods = &mut self.pods;
        let mut standing = Standing::default();
        let node_of = |nomination: &Nomination| {
            let node = snapshot.node(&nomination.target);
            node.filter(|node| !node.is_deleting())
        };
        let nominated = snapshot.pending_pods().filter_map(|pod| {
            let known = pods.get(&pod.key.uid)?;
            Some((pod, node_of(known)?))
        });
        let without_room = without_room(nominated, snapshot);
        for pod in snapshot.pending_pods() {
            let known = pods.get(&pod.key.uid);
            let Some(known) = known.filter(|known| known.shape == pod.shape) else {
                standing.unplaced.push(Arc::clone(pod));
                continue;
            };
            let node = node_of(known);
            if without_room.contains(pod.key.uid.as_str()) {
                pods.remove(&pod.key.uid);
                standing.unplaced.push(Arc::clone(pod));
                continue;
            }
            let due = known.due(node.map(AsRef::as_ref));
            if due.is_some_and(|due| due <= now) {
                standing.unplaced.push(Arc::clone(pod));
                if node.is_some() {
                    standing.overdue.push(Overdue {
                        pod: Arc::clone(pod),
                        target: known.target.clone(),
                        attempts: known.attempts,
                    });
                }
                continue;
            }
            standing.next = standing.next.into_iter().chain(due).min();
            if node.is_some() {
                let place = (Arc::clone(pod), known.target.clone());
                standing.nominated.push(place);
            } else {
                standing.backing_off.push(Arc::clone(pod));
            }
        }
        standing
    }
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn of_pods_that_no_longer_fit_together_the_largest_keep_their_nominations() {
        let sized = |name: &str, cpu: &str, node: Option<&str>| {
            let pod = json!({
                "metadata": {"name": name, "namespace": "default", "uid": name},
                "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
                "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
            });
            Pod::parse(&serde_json::from_value(pod).unwrap())
        };
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
            let pending: BTreeSet<&str> =
                snapshot.pending_pods().map(|pod| &*pod.key.name).collect();
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
}
