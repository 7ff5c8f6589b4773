//! The state of a small cluster: the API server, the provider, what the controllers read, and the processes.

pub mod change;
pub mod cloud;
pub mod objects;
pub mod print;
pub mod tasks;
pub(crate) mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use karpenter_core::cluster::{Cluster, Snapshot};
use karpenter_core::fake::cluster_config;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::lifecycle::disruption::{Disruption, Settings};
use karpenter_core::lifecycle::provisioning::{BatchWindow, PlacedBuffers, Provisioning};
use karpenter_core::pod::Pod;
use rustc_hash::FxHasher;

use change::Change;
use cloud::Instance;
use objects::{Kind, Objects};
use print::{Print, Ranks, number_of};
use tasks::Task;

/// Hashes what each item of some collections tells.
macro_rules! hash_each {
    ($hasher:expr; $($item:pat in $all:expr => $what:expr,)*) => {$(
        for $item in $all {
            $what.hash($hasher);
        }
    )*};
}

/// The batch window of the provisioner.
pub const WINDOW: BatchWindow = BatchWindow {
    idle: Duration::from_secs(1),
    max: Duration::from_secs(10),
};

/// How long a pod for which a node was launched may wait there for kube-scheduler, in seconds.
pub(crate) const BINDING: i64 = 10;

/// How long a node that consolidation launched stays, unless pods leave it, in seconds.
pub(crate) const PROTECTION: i64 = 600;

/// Why a step of the controllers did not reach its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    /// The process has ended.
    Crashed,
    /// The API server has another version, or no such object: the step is repeated.
    Conflict,
}

/// What may still happen that is not an ordinary step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// Number of interruptions of one kind's watch.
    pub stale: u8,
    /// Number of answers that are lost, doubled or refusals.
    pub answers: u8,
    /// Number of ends of the process.
    pub crashes: u8,
    /// Number of deadlines that are reached before all that could have happened has, and of delays of kube-scheduler.
    pub early: u8,
    /// Number of all of these.
    pub all: u8,
    /// Number of changes of users.
    pub changes: u8,
}

impl Faults {
    /// Returns one fault of each kind, but not more than `all`.
    pub fn one_of_each(all: u8, changes: u8) -> Self {
        Self {
            stale: 1,
            answers: 1,
            crashes: 1,
            early: 1,
            all,
            changes,
        }
    }
}

/// What never changes.
#[derive(Debug)]
pub struct Setting {
    /// The instance types of every NodePool.
    pub types: Arc<[InstanceType]>,
    /// The pods of capacity buffers.
    pub buffer_pods: Vec<Arc<Pod>>,
    /// What users do, each once and at any time.
    pub changes: Vec<Change>,
    /// The kinds whose watch may be interrupted.
    pub kinds: Vec<Kind>,
    /// Whether the changes happen in their order.
    pub in_order: bool,
    /// Whether the feature gate `PodNomination` is on.
    pub nominates_pods: bool,
}

/// A command that was started.
#[derive(Clone, Debug)]
pub struct Started {
    pub claims: BTreeSet<String>,
    pub at: Timestamp,
    /// The NodeClaims that replace them.
    pub replacements: Vec<String>,
    /// Those that have not been initialized.
    pub waiting: BTreeSet<String>,
}

/// What only the checks ask for.
#[derive(Clone, Debug, Default)]
pub struct Ghosts {
    /// The NodeClaim that was created for each pod.
    pub promised: BTreeMap<String, String>,
    /// The NodeClaims of which the process does not know for which pods they are: those of a process before, and one whose creation was
    /// not answered.
    pub unknown: BTreeSet<String>,
    /// The commands that run.
    pub commands: Vec<Started>,
    /// The node on which each pod was planned, and when.
    pub planned: BTreeMap<String, (String, Timestamp)>,
    /// The node on which each pod was planned last, how often in succession, and when.
    pub places: BTreeMap<String, (String, u32, Timestamp)>,
    /// When each pod was nominated to a Node, and how often in the ten seconds since.
    pub nominated: BTreeMap<String, (Timestamp, u32)>,
    /// When a pod was bound to each node, or deleted there.
    pub events: BTreeMap<String, Timestamp>,
    /// When a command for each NodeClaim was proposed, and whether it was validated since.
    pub proposed: BTreeMap<String, (Timestamp, bool)>,
    /// Until when no drifted node of a NodePool is replaced.
    pub cooling: BTreeMap<String, Timestamp>,
    /// When consolidation launched each NodeClaim that no pod has left.
    pub moved: BTreeMap<String, Timestamp>,
    /// Whether the process may not nominate pods.
    pub is_forbidden: bool,
}

impl Ghosts {
    /// Returns whether a command that runs holds a NodeClaim.
    pub fn holds(&self, claim: &str) -> bool {
        self.commands.iter().any(|it| it.claims.contains(claim))
    }

    /// Iterates over the pods for which a NodeClaim was created, if the process knows that.
    pub fn promised_on(&self, claim: &str) -> impl Iterator<Item = &String> {
        let is_known = !self.unknown.contains(claim);
        let pods = self.promised.iter();
        let pods = pods.filter(move |(_, to)| is_known && *to == claim);
        pods.map(|(pod, _)| pod)
    }
}

/// The state.
#[derive(Clone)]
pub struct World {
    pub setting: Arc<Setting>,
    pub now: Timestamp,
    /// The objects of the API server.
    pub api: Objects,
    /// The objects that the watches have delivered.
    pub seen: Objects,
    /// The kind whose watch is interrupted.
    pub stale: Option<Kind>,
    /// Until when.
    pub stale_until: Timestamp,
    /// What the controllers have written of this kind.
    pub own: Objects,
    /// The controllers' model of what the watches have delivered.
    pub model: Snapshot,
    /// The provider's instances, by NodeClaim.
    pub instances: BTreeMap<String, Instance>,
    pub provisioning: Arc<Provisioning>,
    pub disruption: Arc<Disruption>,
    /// Requests that are not answered.
    pub tasks: Vec<Task>,
    /// The pods to evict, with the deadline of their nodes.
    pub evictions: BTreeMap<String, Option<Timestamp>>,
    /// The number of buffer pods by NodeClaim.
    pub buffers: PlacedBuffers,
    /// The NodeClaims whose instance the provider cannot launch, and when it was asked last.
    pub stuck: BTreeMap<String, Timestamp>,
    /// Whether the creation of a NodeClaim was not answered, so that the model may lack one.
    pub is_unknown: bool,
    /// What may still happen.
    pub faults: Faults,
    /// The changes of users that have happened.
    pub changed: u32,
    pub is_class_ready: bool,
    /// Until when kube-scheduler is behind, or when the processes have been.
    pub busy: Timestamp,
    pub ghosts: Ghosts,
    /// Number of writes before the process ends.
    pub writes_left: Option<u32>,
    /// Number of writes of the controllers in this step.
    pub writes: u32,
    /// The last numbers of NodeClaims and pods.
    pub numbers: [u32; 2],
    /// What is violated.
    pub violations: Vec<String>,
    /// What has happened in this step, if it is printed.
    pub log: Option<Vec<String>>,
    prints: [Option<Arc<Print>>; 2],
}

impl World {
    /// Returns an empty cluster.
    pub fn new(setting: Setting, now: Timestamp) -> Self {
        let provisioning = provisioning(&setting, now);
        let mut world = Self {
            setting: Arc::new(setting),
            now,
            api: Objects::default(),
            seen: Objects::default(),
            stale: None,
            stale_until: now,
            own: Objects::default(),
            model: Cluster::new(cluster_config()).snapshot(),
            instances: BTreeMap::new(),
            provisioning: Arc::new(provisioning),
            disruption: Arc::new(Disruption::new(Settings::default(), now)),
            tasks: Vec::new(),
            evictions: BTreeMap::new(),
            buffers: PlacedBuffers::default(),
            stuck: BTreeMap::new(),
            is_unknown: false,
            faults: Faults::default(),
            changed: 0,
            is_class_ready: true,
            busy: now,
            ghosts: Ghosts::default(),
            writes_left: None,
            writes: 0,
            numbers: [0, 0],
            violations: Vec::new(),
            log: None,
            prints: Default::default(),
        };
        world.print_processes();
        world
    }

    pub fn provisioning_mut(&mut self) -> &mut Provisioning {
        self.prints[0] = None;
        Arc::make_mut(&mut self.provisioning)
    }

    pub fn disruption_mut(&mut self) -> &mut Disruption {
        self.prints[1] = None;
        Arc::make_mut(&mut self.disruption)
    }

    /// Notes what the processes look like, if they have changed.
    pub fn print_processes(&mut self) {
        let [provisioning, disruption] = &mut self.prints;
        provisioning.get_or_insert_with(|| Arc::new(Print::of(&self.provisioning)));
        disruption.get_or_insert_with(|| Arc::new(Print::of(&self.disruption)));
    }

    /// Notes what happens, if it is printed.
    pub fn tell(&mut self, what: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(what());
        }
    }

    /// Returns a number for a NodeClaim (0) or a pod (1).
    pub fn number(&mut self, of: usize) -> u32 {
        self.numbers[of] += 1;
        self.numbers[of]
    }

    /// Returns how many seconds ago something happened.
    pub fn age(&self, at: Timestamp) -> i64 {
        self.now.duration_since(at).as_secs()
    }

    fn ranks(&self) -> Ranks {
        let mut ranks = Ranks {
            now: self.now.as_second(),
            epoch: self.model.epoch(),
            ..Ranks::default()
        };
        let claims = self.api.claims.keys().chain(self.seen.claims.keys());
        let nodes = self.api.nodes.keys().chain(self.seen.nodes.keys());
        let names = claims.chain(nodes).chain(self.instances.keys());
        let numbers: BTreeSet<u32> = names.map(|name| number_of(name)).collect();
        ranks.claims = numbers.into_iter().zip(0..).collect();
        let pods = self.seen.pods.iter().chain(self.api.pods.iter());
        let pods: BTreeMap<u32, u64> = pods
            .map(|(name, pod)| (number_of(name), pod.print.rank(&ranks)))
            .collect();
        let mut pods: Vec<(u64, u32)> = pods.into_iter().map(|(it, rank)| (rank, it)).collect();
        pods.sort_unstable();
        ranks.pods = pods.into_iter().map(|(_, it)| it).zip(0..).collect();
        ranks
    }

    /// Returns the hash of what the controllers read, to tell questions apart.
    pub fn hash_of_view(&self) -> u64 {
        let (ranks, mut hasher) = (self.ranks(), FxHasher::default());
        self.hash_view(&ranks, &mut hasher);
        hasher.finish()
    }

    fn hash_view(&self, ranks: &Ranks, hasher: &mut FxHasher) {
        self.seen.hash_into(ranks, hasher);
        let marks = self.model.marks().map(|mark| {
            let until = mark.nominated_until.map(|until| -self.age(until));
            let until = until.filter(|until| *until > 0);
            (ranks.claim(&mark.name), mark.for_deletion, until)
        });
        let marks = marks.filter(|(_, marked, until)| *marked || until.is_some());
        hash_sorted(marks, hasher);
        for attachment in self.model.volume_attachments() {
            ranks.claim(&attachment.node).hash(hasher);
        }
    }

    /// Returns the hash of the state, without what may still happen to it.
    pub fn hash_of_state(&self) -> u64 {
        let (ranks, mut hasher) = (self.ranks(), FxHasher::default());
        let hasher = &mut hasher;
        self.hash_view(&ranks, hasher);
        if let Some(kind) = self.stale {
            (kind, ranks.now - self.stale_until.as_second()).hash(hasher);
            self.api.hash_into(&ranks, hasher);
            self.own.hash_into(&ranks, hasher);
        }
        for print in self.prints.iter().flatten() {
            print.hash_into(&ranks, hasher);
        }
        (self.is_class_ready, self.is_unknown).hash(hasher);
        (ranks.now - self.busy.as_second()).min(1).hash(hasher);
        let tasks = self.tasks.iter().map(|task| {
            let mut hasher = FxHasher::default();
            task.print.hash_into(&ranks, &mut hasher);
            task.view.hash(&mut hasher);
            (ranks.now - task.from.as_second()).min(0).hash(&mut hasher);
            hasher.finish()
        });
        hash_sorted(tasks, hasher);
        let (claim, pod) = (|name: &str| ranks.claim(name), |name: &str| ranks.pod(name));
        let age = |time: Timestamp| (ranks.now - time.as_second()).min(1200);
        let ghosts = &self.ghosts;
        let evictions = self.evictions.iter();
        let evictions = evictions.map(|(name, until)| (pod(name), until.map(age)));
        hash_sorted(evictions, hasher);
        hash_each! { hasher;
            (name, it) in &self.instances => (claim(name), it.is_terminating, it.kubelet, age(it.launched)),
            (name, at) in &self.stuck => (claim(name), *at == self.now),
            (name, count) in self.buffers.iter() => (claim(name), count),
            (name, (to, at)) in &ghosts.planned => (pod(name), claim(to), age(*at).min(BINDING)),
            (name, (to, plans, at)) in &ghosts.places => (pod(name), claim(to), plans, age(*at).min(320)),
            (name, (at, writes)) in &ghosts.nominated => (pod(name), age(*at).min(BINDING), writes),
            (pool, until) in &ghosts.cooling => (pool, age(*until).min(0)),
            (name, at) in &ghosts.moved => (claim(name), age(*at).min(PROTECTION)),
        }
        let promised = ghosts.promised.iter();
        let promised = promised.map(|(name, to)| (pod(name), claim(to)));
        let promised = promised.filter(|(pod, claim)| pod.is_some() && claim.is_some());
        hash_sorted(promised, hasher);
        hash_sorted(ghosts.unknown.iter().filter_map(|name| claim(name)), hasher);
        for command in &ghosts.commands {
            age(command.at).hash(hasher);
            let names = command.claims.iter().chain(&command.replacements);
            names.for_each(|name| claim(name).hash(hasher));
        }
        hasher.finish()
    }

    /// Returns the hash of the state, whose hash without what may still happen to it is `core`.
    pub fn hash_with(&self, core: u64) -> u64 {
        let mut hasher = FxHasher::default();
        core.hash(&mut hasher);
        self.faults.hash(&mut hasher);
        self.changed.hash(&mut hasher);
        hasher.finish()
    }
}

/// Returns the provisioning process as it begins.
pub(crate) fn provisioning(setting: &Setting, now: Timestamp) -> Provisioning {
    Provisioning::new(WINDOW, now).with_pod_nomination(setting.nominates_pods)
}

fn hash_sorted<T: Ord + Hash>(all: impl Iterator<Item = T>, hasher: &mut FxHasher) {
    let mut all: Vec<T> = all.collect();
    all.sort_unstable();
    all.hash(hasher);
}
