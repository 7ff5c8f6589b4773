//! What both Karpenters did so far: fed with the changes of the cluster and with our decisions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use jiff::Timestamp;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels::taints;
use karpenter_api::v1::NodeClaim;
use karpenter_core::cluster::pdb::leaving_pods;
use karpenter_core::cluster::{Cluster, NodeState, Snapshot};
use karpenter_core::disruption::{Command, DisruptionPlan};
use karpenter_core::pod::PodKey;
use karpenter_core::schedule::Plan;
use rustc_hash::FxHashMap;

use super::action::Launch;
use super::moves::{Kept, Move, Moves};
use super::window::{Theirs, Window};
use crate::prices::Prices;

/// How many windows are stored.
const MAX_WINDOWS: usize = 2048;
/// How many launches the windows may have together.
const MAX_LAUNCHES: usize = 20_000;

/// A pod that needed a node since the comparison began.
#[derive(Clone, Copy, Debug)]
struct Seen {
    window: u64,
    /// Whether we decided about it.
    decided: bool,
    /// Whether we found no place for it; while its window is open, we decide again.
    unplaced: bool,
}

/// A NodeClaim of the other Karpenter that probably replaces nodes; certain once it is initialized.
#[derive(Debug)]
struct Replacement {
    /// The NodeClaims of the nodes.
    replaces: Vec<String>,
    /// When it was created.
    created: Timestamp,
    /// The window that was open then.
    window: Option<u64>,
    /// Its price in dollars per hour, once it is launched.
    price: Option<f64>,
}

/// A state to decide on, and the pods to decide about.
#[derive(Clone, Debug)]
pub struct Question {
    /// The state of the other Karpenter, with our own decisions of the open window.
    pub snapshot: Snapshot,
    /// The pods that we have not decided about yet, by uid.
    pub new: BTreeSet<String>,
}

/// What both Karpenters did since a time.
#[derive(Debug, Default)]
pub struct Comparison {
    pub(super) began: Timestamp,
    pub(super) open: Option<Window>,
    /// Closed windows, oldest first.
    pub(super) windows: VecDeque<Window>,
    /// The number of the first window in `windows`.
    first: u64,
    pub(super) moves: Moves,
    /// The pods of the windows that are neither bound nor deleted, by uid.
    pods: FxHashMap<String, Seen>,
    /// The windows of NodeClaims, by name.
    claims: BTreeMap<String, u64>,
    /// The replacements that are not initialized yet, by name.
    replacements: BTreeMap<String, Replacement>,
}

impl Comparison {
    /// Begins a comparison at `now`.
    pub fn new(now: Timestamp) -> Self {
        Self {
            began: now,
            ..Self::default()
        }
    }

    /// Records a pod that needs a node.
    pub fn pod_waits(&mut self, pod: &PodKey, now: Timestamp) {
        if self.pods.contains_key(&pod.uid) {
            return;
        }
        let (number, window) = self.window(now);
        window.see(pod, now);
        let seen = Seen {
            window: number,
            decided: false,
            unplaced: false,
        };
        self.pods.insert(pod.uid.clone(), seen);
    }

    /// Records that a pod was bound to a node, or deleted.
    pub fn pod_left(&mut self, uid: &str) {
        if let Some(seen) = self.pods.remove(uid)
            && let Some(window) = self.numbered(seen.window)
        {
            window.bound(uid);
        }
    }

    /// Records a change of a NodeClaim by the other Karpenter.
    pub fn claim_changed(
        &mut self,
        name: &str,
        before: Option<&NodeClaim>,
        after: Option<&NodeClaim>,
        snapshot: &Snapshot,
        now: Timestamp,
    ) {
        match (before, after) {
            (None, Some(after)) => self.created(name, after, snapshot, now),
            (Some(before), Some(after)) => {
                self.observed(name, after, snapshot);
                if disruption_reason(before).is_none()
                    && let Some(reason) = disruption_reason(after)
                {
                    self.disrupts(name, reason, snapshot, now);
                }
                if after.is_deleting() && !before.is_deleting() {
                    self.deletes(name, snapshot, now);
                }
            }
            (_, None) => self.deleted(name, now),
        }
    }

    fn created(&mut self, name: &str, claim: &NodeClaim, snapshot: &Snapshot, now: Timestamp) {
        let created = claim.metadata.creation_timestamp.as_ref();
        let is_old = created.is_some_and(|time| time.0.as_second() < self.began.as_second());
        let pool = claim.node_pool().and_then(|pool| snapshot.node_pool(pool));
        // Nodes of static NodePools are not launched for pods.
        if is_old || pool.is_some_and(|pool| pool.is_static()) {
            return;
        }
        match self.moves.take_replacement(now) {
            Some(replaces) => {
                let open = self.first + self.windows.len() as u64;
                let replacement = Replacement {
                    replaces,
                    created: now,
                    window: self.open.is_some().then_some(open),
                    price: None,
                };
                self.replacements.insert(name.to_owned(), replacement);
            }
            None => {
                let (number, _) = self.window(now);
                self.launches(name, number, now);
            }
        }
        self.observed(name, claim, snapshot);
    }

    /// Adds a NodeClaim that was created at `created` to a window.
    fn launches(&mut self, name: &str, number: u64, created: Timestamp) {
        if let Some(window) = self.numbered(number) {
            let theirs = Theirs {
                created,
                launch: None,
                registered: false,
                gone: None,
            };
            window.theirs.insert(name.to_owned(), theirs);
            self.claims.insert(name.to_owned(), number);
        }
    }

    /// Records that a NodeClaim is being deleted. If a node is deleted before its supposed replacements are initialized, those
    /// NodeClaims were launched for pending pods instead.
    fn deletes(&mut self, name: &str, snapshot: &Snapshot, now: Timestamp) {
        self.moves.deletes(name);
        let of_command = |_: &String, it: &mut Replacement| it.replaces.iter().any(|it| it == name);
        let none: Vec<(String, Replacement)> =
            self.replacements.extract_if(.., of_command).collect();
        for (name, replacement) in none {
            let price = replacement.price.unwrap_or_default();
            self.moves.not_replaced(&replacement.replaces, price);
            let window = replacement.window;
            let number = window.filter(|number| self.numbered(*number).is_some());
            let number = number.unwrap_or_else(|| self.window(now).0);
            self.launches(&name, number, replacement.created);
            if let Some(claim) = snapshot.node_claim(&name) {
                self.observed(&name, claim, snapshot);
            }
        }
    }

    fn observed(&mut self, name: &str, claim: &NodeClaim, snapshot: &Snapshot) {
        if let Some(number) = self.claims.get(name).copied()
            && let Some(window) = self.numbered(number)
        {
            window.observe(name, claim, snapshot);
        }
        if let Some(replacement) = self.replacements.get_mut(name)
            && replacement.price.is_none()
            && let Some(launch) = Launch::observed(claim, snapshot)
        {
            replacement.price = Some(launch.price_per_hour);
            let replaces = &replacement.replaces;
            self.moves.replaced(replaces, launch.price_per_hour);
        }
        if claim.is_true(types::INITIALIZED) {
            self.replacements.remove(name);
        }
    }

    fn disrupts(&mut self, name: &str, reason: &'static str, snapshot: &Snapshot, now: Timestamp) {
        let Some(state) = snapshot.node(name) else {
            return;
        };
        let pods = snapshot.pods_on(state.name()).iter();
        let decided = Move {
            node_pool: state.node_pool().unwrap_or_default().to_owned(),
            reason,
            at: now,
            evictions: pods.filter(|pod| pod.is_reschedulable()).count(),
            savings_per_hour: Prices::of_one(snapshot, state),
            replacements: 0.0,
        };
        self.moves.theirs(name, state.name(), decided);
    }

    fn deleted(&mut self, name: &str, now: Timestamp) {
        self.replacements.remove(name);
        let Some(number) = self.claims.remove(name) else {
            return;
        };
        let Some(window) = self.numbered(number) else {
            return;
        };
        let Some(theirs) = window.theirs.get_mut(name) else {
            return;
        };
        theirs.gone = Some(now);
        if theirs.registered {
            return;
        }
        // The launch failed: the other decides about its pods once more, and so do we.
        theirs.launch = None;
        let again: Vec<PodKey> = window.pods().cloned().collect();
        for pod in again {
            self.pods.remove(&pod.uid);
            self.pod_waits(&pod, now);
        }
    }

    /// Returns the state to decide on and the pods to decide about: pods that need a node, and pods of nodes that are deleted.
    pub fn question(&mut self, snapshot: &Snapshot, now: Timestamp) -> Question {
        for pod in leaving_pods(snapshot, now) {
            self.pod_waits(&pod.key, now);
        }
        self.advance(now);
        let Some(window) = &self.open else {
            return Question {
                snapshot: snapshot.fork(),
                new: BTreeSet::new(),
            };
        };
        let new = window.pods().filter(|pod| {
            let seen = self.pods.get(&pod.uid);
            seen.is_some_and(|seen| !seen.decided)
        });
        Question {
            new: new.map(|pod| pod.uid.clone()).collect(),
            snapshot: window.state(snapshot),
        }
    }

    /// Records our plan for a question.
    pub fn provisioned(&mut self, question: &Question, plan: &Plan, now: Timestamp) {
        let mut new = question.new.clone();
        for pod in &plan.undecided {
            new.remove(&pod.uid);
        }
        let unplaced = plan.unplaced.iter().map(|it| it.pod.uid.as_str());
        let unplaced: BTreeSet<&str> = unplaced.collect();
        for uid in &new {
            if let Some(seen) = self.pods.get_mut(uid) {
                seen.unplaced = unplaced.contains(uid.as_str());
                seen.decided = !seen.unplaced;
            }
        }
        if let Some(window) = &mut self.open
            && !new.is_empty()
        {
            window.decide(plan, &question.snapshot, &new, now);
        }
    }

    /// Records our decision to execute a command.
    pub fn disrupted(&mut self, command: &Command, now: Timestamp) {
        self.moves.ours(command, now);
    }

    /// Records why we keep nodes that the other disrupts, by a plan on the state before.
    pub fn keeps(&mut self, plan: &DisruptionPlan) {
        for verdict in &plan.verdicts {
            let name = verdict.node.claim_name().unwrap_or_default();
            if self.moves.is_theirs(name)
                && let Some(kept) = Kept::of(&verdict.kind)
            {
                self.moves.kept(name, kept);
            }
        }
    }

    /// Reports whether the other began to disrupt a node of the command: then it is confirmed, whatever the state is by now.
    pub fn is_confirmed(&self, command: &Command) -> bool {
        let mut names = command.candidates.iter().map(|it| it.claim_name());
        names.any(|name| self.moves.is_theirs(name))
    }

    /// Reports whether we decided about a node within the last minutes.
    pub fn is_ours(&self, claim: &str) -> bool {
        self.moves.is_ours(claim)
    }

    /// Closes windows and comparisons that are over.
    pub fn advance(&mut self, now: Timestamp) {
        self.moves.expire(now);
        let undecided = |window: &Window| {
            window.pods().any(|pod| {
                let seen = self.pods.get(&pod.uid);
                seen.is_some_and(|seen| !seen.decided && !seen.unplaced)
            })
        };
        let Some(window) = &self.open else { return };
        let age = now.duration_since(window.opened);
        if !window.is_over(now) || (undecided(window) && age < super::window::LAUNCH_TIMEOUT) {
            return;
        }
        if let Some(mut window) = self.open.take() {
            window.close();
            self.windows.push_back(window);
        }
        let launches = |window: &Window| window.ours.len() + window.theirs.len();
        let mut all: usize = self.windows.iter().map(launches).sum();
        while self.windows.len() > 1 && (self.windows.len() > MAX_WINDOWS || all > MAX_LAUNCHES) {
            if let Some(old) = self.windows.pop_front() {
                all -= launches(&old);
                self.first += 1;
                old.theirs.keys().for_each(|name| {
                    self.claims.remove(name);
                });
                for pod in old.pods() {
                    // It still waits, and counts as decided.
                    if let Some(seen) = self.pods.get_mut(&pod.uid) {
                        seen.decided = true;
                    }
                }
            }
        }
    }

    /// Returns the open window with its number; opens one if there is none.
    fn window(&mut self, now: Timestamp) -> (u64, &mut Window) {
        self.advance(now);
        let number = self.first + self.windows.len() as u64;
        let window = self.open.get_or_insert_with(|| Window::open(now));
        (number, window)
    }

    fn numbered(&mut self, number: u64) -> Option<&mut Window> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        match self.windows.len() {
            closed if at == closed => self.open.as_mut(),
            _ => self.windows.get_mut(at),
        }
    }
}

/// Returns why a NodeClaim is being disrupted, as in records.
fn disruption_reason(claim: &NodeClaim) -> Option<&'static str> {
    let condition = claim.condition(types::DISRUPTION_REASON)?;
    match condition.reason.as_str() {
        _ if condition.status != "True" => None,
        "Empty" => Some("empty"),
        "Drifted" => Some("drifted"),
        "Underutilized" => Some("underutilized"),
        _ => None,
    }
}

/// Reports whether the other Karpenter disrupts a node: by the condition of its NodeClaim, or the taint of its Node.
pub fn is_disrupted(state: &NodeState) -> bool {
    let claim = state.claim.as_deref();
    let tainted = state.node.as_ref().is_some_and(|node| {
        let disrupted = taints::disrupted();
        node.taints.iter().any(|it| taints::same(it, &disrupted))
    });
    tainted || claim.is_some_and(|claim| claim.is_true(types::DISRUPTION_REASON))
}

/// Returns the NodeClaims that the other Karpenter disrupts, and a copy of the snapshot in which they count as being deleted.
pub fn in_flight(snapshot: &Snapshot) -> (BTreeSet<String>, Snapshot) {
    let disrupted = snapshot.nodes().filter(|state| is_disrupted(state));
    let (mut names, mut ids) = (BTreeSet::new(), Vec::new());
    for state in disrupted {
        names.extend(state.claim_name().map(str::to_owned));
        ids.extend(state.provider_id());
    }
    if ids.is_empty() {
        return (names, snapshot.fork());
    }
    let mut cluster = Cluster::from(snapshot.fork());
    cluster.mark_for_deletion(&ids);
    (names, cluster.snapshot())
}
