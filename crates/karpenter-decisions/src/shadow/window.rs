//! Provisioning in windows of a minute: the pods that need a node, and the nodes that each Karpenter launches for them.
//!
//! A window opens with the first pod. NodeClaims that the other Karpenter creates until it closes belong to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels;
use karpenter_api::v1::NodeClaim;
use karpenter_core::cluster::{Cluster, Snapshot};
use karpenter_core::pod::{Pod, PodKey};
use karpenter_core::schedule::{Plan, PlannedNodeClaim};

use super::action::{Agreement, Launch, instance_type};
use crate::passes::named;

/// How long a window takes pods.
pub const LENGTH: SignedDuration = SignedDuration::from_secs(60);
/// How long a window waits after its last pod: for the batch of the other Karpenter, and its requests.
pub const IDLE_TIME: SignedDuration = SignedDuration::from_secs(15);
/// When a window closes at the latest.
pub const MAX_LENGTH: SignedDuration = SignedDuration::from_secs(90);
/// How long the NodeClaims of a window may take to launch; the others count as launched without a known instance type.
pub const LAUNCH_TIMEOUT: SignedDuration = SignedDuration::from_secs(600);

/// A NodeClaim of the other Karpenter.
#[derive(Clone, Debug, PartialEq)]
pub struct Theirs {
    /// When it was seen first.
    pub created: Timestamp,
    /// Its instance, once it is launched.
    pub launch: Option<Launch>,
    /// Whether its node has registered.
    pub registered: bool,
    /// When it was deleted.
    pub gone: Option<Timestamp>,
}

/// A window: what both Karpenters did for the pods that were seen in it.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// When its first pod was seen.
    pub opened: Timestamp,
    /// When its last pod was seen.
    last_seen: Timestamp,
    /// When our first pass decided.
    pub decided: Option<Timestamp>,
    /// The pods that were neither bound nor deleted since, by uid.
    pods: BTreeMap<String, PodKey>,
    /// The number of pods.
    pub seen: usize,
    pub names: Vec<String>,
    /// The nodes that we would launch.
    pub ours: Vec<Launch>,
    /// The number of pods that we have a place for.
    pub placed: usize,
    /// The number of pods that we have no place for.
    pub unplaced: usize,
    /// The NodeClaims that the other created, by name.
    pub theirs: BTreeMap<String, Theirs>,
    /// The number of pods that kube-scheduler has bound, or that were deleted, since.
    pub bound: usize,
    /// Our planned nodes as NodeClaims.
    stand_ins: Vec<Arc<NodeClaim>>,
    /// Our places of pods.
    places: Vec<(Arc<Pod>, String)>,
}

impl Window {
    pub fn open(now: Timestamp) -> Self {
        Self {
            opened: now,
            last_seen: now,
            ..Self::default()
        }
    }

    /// Adds a pod that needs a node.
    pub fn see(&mut self, pod: &PodKey, now: Timestamp) {
        if self.pods.insert(pod.uid.clone(), pod.clone()).is_none() {
            self.last_seen = now;
            self.seen += 1;
            if self.names.len() < crate::record::NAMED {
                self.names.extend(named([pod]));
            }
        }
    }

    /// Iterates over the pods that were neither bound nor deleted since.
    pub fn pods(&self) -> impl Iterator<Item = &PodKey> {
        self.pods.values()
    }

    /// Counts a pod that was bound or deleted.
    pub fn bound(&mut self, uid: &str) {
        self.bound += usize::from(self.pods.remove(uid).is_some());
    }

    /// Reports whether the window is over.
    pub fn is_over(&self, now: Timestamp) -> bool {
        let age = now.duration_since(self.opened);
        let quiet = now.duration_since(self.last_seen) >= IDLE_TIME;
        age >= MAX_LENGTH || (age >= LENGTH && quiet)
    }

    /// Forgets what only an open window needs.
    pub fn close(&mut self) {
        self.stand_ins = Vec::new();
        self.places = Vec::new();
    }

    /// Reports whether all NodeClaims of the window are launched, deleted or too slow: it can be compared.
    pub fn is_settled(&self, now: Timestamp) -> bool {
        let done = |theirs: &Theirs| theirs.launch.is_some() || theirs.gone.is_some();
        self.theirs.values().all(done) || now.duration_since(self.opened) >= LAUNCH_TIMEOUT
    }

    /// Returns the launches of the other Karpenter. A NodeClaim that was deleted before it was launched is not one.
    pub fn launches(&self) -> impl Iterator<Item = &Launch> {
        self.theirs
            .values()
            .filter_map(|theirs| theirs.launch.as_ref())
    }

    /// Returns how far both agree.
    pub fn agreement(&self) -> Agreement {
        let ours: Vec<_> = self.ours.iter().map(Launch::action).collect();
        let theirs: Vec<_> = self.launches().map(Launch::action).collect();
        Agreement::of(&ours, &theirs)
    }

    /// Returns the prices of our nodes and of the other's in dollars per hour.
    pub fn prices(&self) -> (f64, f64) {
        let ours = self.ours.iter().map(|launch| launch.price_per_hour).sum();
        let theirs = self.launches().map(|launch| launch.price_per_hour).sum();
        (ours, theirs)
    }

    /// Returns what following us would have saved until `now`, in dollars: the difference of the prices for as long as the nodes
    /// of the other exist; for the length of a window, if it launched none.
    pub fn dollars(&self, now: Timestamp) -> f64 {
        let (ours, theirs) = self.prices();
        let hours = |from: Timestamp, until: Timestamp| {
            until.duration_since(from).as_secs_f64().max(0.0) / 3600.0
        };
        if theirs == 0.0 {
            let until = now.min(self.opened + LENGTH);
            return (theirs - ours) * hours(self.opened, until);
        }
        let lived: f64 = self
            .theirs
            .values()
            .filter_map(|claim| {
                let price = claim.launch.as_ref()?.price_per_hour;
                Some(price * hours(claim.created, claim.gone.unwrap_or(now)))
            })
            .sum();
        (theirs - ours) * lived / theirs
    }

    /// Returns how long it took from the first pod to our decision, and to the other's first NodeClaim, in seconds.
    pub fn latencies(&self) -> (Option<f64>, Option<f64>) {
        let since = |at: Timestamp| at.duration_since(self.opened).as_secs_f64().max(0.0);
        let first = self.theirs.values().map(|theirs| theirs.created).min();
        (self.decided.map(since), first.map(since))
    }

    /// Records a change of a NodeClaim of the window.
    pub fn observe(&mut self, name: &str, claim: &NodeClaim, snapshot: &Snapshot) {
        if let Some(theirs) = self.theirs.get_mut(name) {
            theirs.registered |= claim.is_true(types::REGISTERED);
            if theirs.launch.is_none() {
                theirs.launch = Launch::observed(claim, snapshot);
            }
        }
    }

    /// Returns the NodeClaims of the other that are like our planned nodes, by the number of the planned node.
    fn alike(&self) -> BTreeMap<usize, &str> {
        let mut alike = BTreeMap::new();
        for (name, theirs) in &self.theirs {
            let Some(launch) = &theirs.launch else {
                continue;
            };
            let is_same =
                |(at, ours): &(usize, &Launch)| !alike.contains_key(at) && ours.is_like(launch);
            if let Some((at, _)) = self.ours.iter().enumerate().find(is_same) {
                alike.insert(at, name.as_str());
            }
        }
        alike
    }

    /// Returns the state to decide on: the snapshot without the NodeClaims of the window, and with our planned nodes and places in
    /// their stead. A NodeClaim that is like one of our planned nodes stays: kube-scheduler may have bound other pods there.
    pub fn state(&self, snapshot: &Snapshot) -> Snapshot {
        if self.theirs.is_empty() && self.stand_ins.is_empty() && self.places.is_empty() {
            return snapshot.fork();
        }
        let mut cluster = Cluster::from(snapshot.fork());
        let mut hidden = BTreeSet::new();
        let alike = self.alike();
        let stays: BTreeSet<&str> = alike.values().copied().collect();
        for name in self.theirs.keys().map(String::as_str) {
            if stays.contains(name) {
                continue;
            }
            hidden.insert(name.to_owned());
            let node = snapshot.node(name).and_then(|state| state.node.as_ref());
            if let Some(node) = node {
                cluster.remove_node(&node.name);
                hidden.insert(node.name.clone());
            }
            cluster.remove_node_claim(name);
        }
        let mut targets = BTreeMap::new();
        for (at, stand_in) in self.stand_ins.iter().enumerate() {
            match alike.get(&at) {
                Some(theirs) => {
                    targets.insert(stand_in.name(), *theirs);
                }
                None => {
                    cluster.insert_node_claim(Arc::clone(stand_in));
                }
            }
        }
        let mut places = Vec::new();
        for (pod, target) in &self.places {
            let PodKey {
                namespace,
                name,
                uid,
            } = &pod.key;
            let current = snapshot.pod(namespace, name);
            let Some(current) = current.filter(|current| current.key.uid == *uid) else {
                continue;
            };
            let target = targets.get(target.as_str()).copied().unwrap_or(target);
            match &current.node_name {
                None => places.push((Arc::clone(current), target.to_owned())),
                // It runs on a node that we would not have launched.
                Some(node) if hidden.contains(&**node) => {
                    cluster.remove_pod(namespace, name);
                    cluster.insert_pod(Pod::clone(pod));
                    places.push((Arc::clone(pod), target.to_owned()));
                }
                Some(_) => {}
            }
        }
        cluster.snapshot().with_nominated(&places)
    }

    /// Records our plan on the window's state. Only planned nodes with a pod of `new`, by uid, count: the other Karpenter has
    /// decided about the other pods before.
    pub fn decide(
        &mut self,
        plan: &Plan,
        snapshot: &Snapshot,
        new: &BTreeSet<String>,
        now: Timestamp,
    ) {
        self.decided.get_or_insert(now);
        let is_new = |key: &PodKey| new.contains(&key.uid);
        let pending = |key: &PodKey| {
            let pod = snapshot.pod(&key.namespace, &key.name)?;
            let waits = pod.key.uid == key.uid && pod.node_name.is_none();
            waits.then(|| Arc::clone(pod))
        };
        for planned in &plan.new_node_claims {
            if !planned.pods.iter().any(is_new) {
                continue;
            }
            self.placed += planned.pods.iter().filter(|key| is_new(key)).count();
            let launch = Launch::planned(planned, snapshot);
            let name = format!("shadow:{}", self.ours.len());
            let claim = stand_in(planned, &launch, snapshot, &name);
            self.stand_ins.push(Arc::new(claim));
            self.ours.push(launch);
            let pods = planned.pods.iter().filter_map(pending);
            self.places.extend(pods.map(|pod| (pod, name.clone())));
        }
        for placement in plan.existing.iter().filter(|p| is_new(&p.pod)) {
            self.placed += 1;
            if let Some(pod) = pending(&placement.pod) {
                self.places.push((pod, placement.node.clone()));
            }
        }
        let unplaced = plan.unplaced.iter().filter(|u| is_new(&u.pod));
        // Those of earlier passes are new again.
        self.unplaced = unplaced.count();
    }
}

/// Returns a planned node as the NodeClaim of an instance that was just launched. Its name is not one that Kubernetes allows.
fn stand_in(
    planned: &PlannedNodeClaim,
    launch: &Launch,
    snapshot: &Snapshot,
    name: &str,
) -> NodeClaim {
    let mut claim = planned.to_node_claim();
    claim.metadata.name = Some(name.to_owned());
    claim.metadata.generate_name = None;
    claim.metadata.uid = Some(name.to_owned());
    claim.status.provider_id = Some(name.to_owned());
    let labels = claim.metadata.labels.get_or_insert_default();
    if let Some(found) = instance_type(snapshot, &planned.node_pool, &launch.instance_type) {
        claim.status.capacity = found.capacity.to_quantities();
        claim.status.allocatable = found.allocatable().to_quantities();
        for (key, value) in found.requirements.labels(|_| true) {
            labels.entry(key).or_insert(value);
        }
    }
    labels.insert(
        labels::INSTANCE_TYPE.to_owned(),
        launch.instance_type.clone(),
    );
    if !launch.capacity_type.is_empty() {
        let capacity_type = launch.capacity_type.clone();
        labels.insert(labels::CAPACITY_TYPE.to_owned(), capacity_type);
    }
    let cheapest = planned
        .cheapest()
        .and_then(|cheapest| cheapest.zone.clone());
    if let Some(zone) = cheapest.or_else(|| planned.zones().into_iter().next()) {
        labels.insert(labels::ZONE.to_owned(), zone);
    }
    claim
}
