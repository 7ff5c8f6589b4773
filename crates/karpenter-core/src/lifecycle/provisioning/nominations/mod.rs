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
use crate::schedule::{Packing, Plan, PodSet, Query};
use crate::taints::{Effect, Taint, untolerated};

/// How long kube-scheduler has to bind a pod to its first node that is ready for it; each further nomination doubles it.
const FIRST_BACK_OFF: SignedDuration = SignedDuration::from_secs(10);

const MAX_BACK_OFF: SignedDuration = SignedDuration::from_secs(300);

/// The shortest back-off of a pod whose `status.nominatedNodeName` stands: an attempt that fails clears it, so that kube-scheduler has
/// most likely not come to the pod yet.
const UNTRIED_BACK_OFF: SignedDuration = SignedDuration::from_secs(60);

/// The nomination of a pod.
#[derive(Debug, Clone)]
struct Nomination {
    pod: PodKey,
    /// The requirements and requests of the pod at the time.
    shape: Arc<Shape>,
    /// Node of the pod: name of the NodeClaim, or of the Node if it has no NodeClaim.
    target: String,
    decided_at: Timestamp,
    /// Number of nominations of the pod, including this one.
    attempts: u32,
    /// Its place in the order in which plans placed pods.
    order: u64,
}

impl Nomination {
    fn back_off(&self, pod: &Pod) -> SignedDuration {
        let doublings = self.attempts.saturating_sub(1).min(5);
        let back_off = (FIRST_BACK_OFF * (1 << doublings)).min(MAX_BACK_OFF);
        match pod.is_nominated_by_plan() {
            true => back_off.max(UNTRIED_BACK_OFF),
            false => back_off,
        }
    }

    /// Returns when the pod is to be planned again; `None` while its node is launching.
    fn due(&self, pod: &Pod, node: Option<&NodeState>) -> Option<Timestamp> {
        let since = match node {
            Some(node) => could_run_since(node, &self.shape)?.max(self.decided_at),
            None => self.decided_at,
        };
        Some(
            since
                .saturating_add(self.back_off(pod))
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

/// Where kube-scheduler bound a nominated pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    /// Whether it is the node of the nomination.
    pub as_planned: bool,
    /// Number of plans that placed the pod.
    pub plans: u32,
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
    /// Whether most of the pods to plan have lost their places to pods that kube-scheduler bound there.
    pub are_displaced: bool,
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
    ///
    /// Pods that have lost their places are planned onto as few nodes as possible. On one node they have room in whichever order they
    /// are bound; on several small ones, which cost less, some of them lose their places again.
    pub fn question(&self, snapshot: &Snapshot) -> (Snapshot, Query) {
        let snapshot = snapshot
            .without_pods(&self.backing_off)
            .without_pods(&self.deferred)
            .with_nominated(&self.nominated);
        let overdue = self.overdue.iter().map(Overdue::place).collect();
        let mut query = Query::new(PodSet::Waiting).with_nominated(overdue);
        if self.are_displaced {
            query = query.with_packing(Packing::FewestNodes);
        }
        (snapshot, query)
    }
}

/// The nominations of all pending pods, by uid.
#[derive(Clone, Debug, Default)]
pub struct Nominations {
    pods: FxHashMap<String, Nomination>,
    /// Number of plans that placed a pod that is still pending, by uid.
    plans: FxHashMap<String, u32>,
    /// Uids of pods that have lost their places to other pods, until they are planned again.
    displaced: FxHashSet<String>,
    /// Number of nominations so far.
    nominated: u64,
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
        self.nominated += 1;
        *self.plans.entry(pod.key.uid.clone()).or_default() += 1;
        let nomination = Nomination {
            pod: pod.key.clone(),
            shape: Arc::clone(&pod.shape),
            target: target.to_owned(),
            decided_at: now,
            attempts: attempts.saturating_add(1),
            order: self.nominated,
        };
        self.displaced.remove(&pod.key.uid);
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
        for (planned, claim) in plan.new_node_claims.iter().zip(claims) {
            let Some(claim) = claim else { continue };
            for pod in &planned.pods {
                nominate(pod, claim);
            }
        }
    }

    /// Removes the nomination of a pod that is bound, deleted or whose requirements have changed.
    pub fn forget(&mut self, uid: &str) {
        self.pods.remove(uid);
        self.plans.remove(uid);
        self.displaced.remove(uid);
    }

    /// Removes the nominations to a NodeClaim that is deleted before its node could run a pod: its pods are planned again
    /// at once.
    pub fn release(&mut self, claim: &str) {
        self.pods.retain(|_, nomination| nomination.target != claim);
    }

    /// Returns the nominated pods with the name of their NodeClaim, or of their Node without one, in the order in which plans placed
    /// them.
    pub(super) fn in_order(&self) -> impl Iterator<Item = (&PodKey, &str)> {
        let mut all: Vec<&Nomination> = self.pods.values().collect();
        all.sort_unstable_by_key(|nomination| nomination.order);
        all.into_iter().map(|it| (&it.pod, it.target.as_str()))
    }

    /// Returns how the place of a pod that was bound to a node compares with its nomination; `None` without one.
    pub(super) fn bound(&self, uid: &str, node: &NodeState) -> Option<Bound> {
        let nomination = self.pods.get(uid)?;
        let names = [Some(node.name()), node.claim_name()];
        Some(Bound {
            as_planned: names.contains(&Some(&nomination.target)),
            plans: self.plans.get(uid).copied().unwrap_or_default(),
        })
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
                self.displaced.insert(pod.key.uid.clone());
                standing.unplaced.push(Arc::clone(pod));
                continue;
            }
            let due = known.due(pod, node.map(AsRef::as_ref));
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
        let is_displaced = |pod: &&Arc<Pod>| self.displaced.contains(&pod.key.uid);
        let displaced = standing.unplaced.iter().filter(is_displaced).count();
        standing.are_displaced = 2 * displaced > standing.unplaced.len();
        standing
    }
}

#[cfg(test)]
mod tests;
