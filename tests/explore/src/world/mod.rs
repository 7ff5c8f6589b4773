//! The state of a small cluster: the API server, the provider, what the controllers read, and the processes.

pub mod change;
pub mod cloud;
pub mod objects;
pub mod print;
pub mod tasks;
pub(crate) mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use karpenter_core::cluster::Snapshot;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::lifecycle::disruption::{Disruption, Settings};
use karpenter_core::lifecycle::provisioning::{BatchWindow, Provisioning};
use karpenter_core::pod::Pod;
use rustc_hash::FxHasher;

use change::Change;
use cloud::Instance;
use objects::{Kind, Objects};
use print::{Print, Ranks, number_of};
use tasks::Task;

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
    /// Number of deadlines that are reached before all that could have happened has.
    pub early: u8,
    /// Number of all of these.
    pub all: u8,
    /// Number of changes of users.
    pub changes: u8,
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
}

/// A command that was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// Its NodeClaims.
    pub claims: BTreeSet<String>,
    /// When it was started.
    pub at: Timestamp,
    /// The NodeClaims that replace them.
    pub replacements: Vec<String>,
}

/// What only the checks ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ghosts {
    /// The NodeClaim that was created for each pod.
    pub promised: BTreeMap<String, String>,
    /// The commands that run.
    pub commands: Vec<Started>,
    /// The node on which each pod was planned, and when.
    pub planned: BTreeMap<String, (String, Timestamp)>,
    /// When a command for each NodeClaim was proposed, and whether it was validated since.
    pub proposed: BTreeMap<String, (Timestamp, bool)>,
    /// Until when no drifted node of a NodePool is replaced.
    pub cooling: BTreeMap<String, Timestamp>,
    /// When consolidation launched each NodeClaim that no pod has left.
    pub moved: BTreeMap<String, Timestamp>,
}

/// The state.
#[derive(Clone)]
pub struct World {
    /// What never changes.
    pub setting: Arc<Setting>,
    /// The time.
    pub now: Timestamp,
    /// The objects of the API server.
    pub api: Objects,
    /// The objects that the watches have delivered.
    pub seen: Objects,
    /// The kind whose watch is interrupted.
    pub stale: Option<Kind>,
    /// What the controllers have written of this kind.
    pub own: Objects,
    /// The controllers' model of what the watches have delivered.
    pub model: Snapshot,
    /// The provider's instances, by NodeClaim.
    pub instances: BTreeMap<String, Instance>,
    /// The provisioning process.
    pub provisioning: Arc<Provisioning>,
    /// The disruption process.
    pub disruption: Arc<Disruption>,
    /// Requests that are not answered.
    pub tasks: Vec<Task>,
    /// The pods to evict, with the deadline of their nodes.
    pub evictions: BTreeMap<String, Option<Timestamp>>,
    /// The number of buffer pods by NodeClaim.
    pub buffers: BTreeMap<String, usize>,
    /// The NodeClaims whose instance the provider cannot launch, and when it was asked last.
    pub stuck: BTreeMap<String, Timestamp>,
    /// What may still happen.
    pub faults: Faults,
    /// The changes of users that have happened.
    pub changed: u32,
    /// Whether the NodeClass is ready.
    pub is_class_ready: bool,
    /// What the checks ask for.
    pub ghosts: Ghosts,
    /// Number of writes before the process ends.
    pub writes_left: Option<u32>,
    /// Number of writes of the controllers in this step.
    pub writes: u32,
    /// The last numbers of NodeClaims and pods.
    pub numbers: [u32; 2],
    /// What is violated.
    pub violations: Vec<String>,
    /// What has happened in this step, if it is told.
    pub log: Option<Vec<String>>,
    prints: [Option<Arc<Print>>; 2],
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World")
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

impl World {
    /// Returns an empty cluster.
    pub fn new(setting: Setting, model: Snapshot, now: Timestamp) -> Self {
        let mut world = Self {
            setting: Arc::new(setting),
            now,
            api: Objects::default(),
            seen: Objects::default(),
            stale: None,
            own: Objects::default(),
            model,
            instances: BTreeMap::new(),
            provisioning: Arc::new(Provisioning::new(WINDOW, now)),
            disruption: Arc::new(Disruption::new(Settings::default(), now)),
            tasks: Vec::new(),
            evictions: BTreeMap::new(),
            buffers: BTreeMap::new(),
            stuck: BTreeMap::new(),
            faults: Faults::default(),
            changed: 0,
            is_class_ready: true,
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

    /// Returns the provisioning process, to change it.
    pub fn provisioning_mut(&mut self) -> &mut Provisioning {
        self.prints[0] = None;
        Arc::make_mut(&mut self.provisioning)
    }

    /// Returns the disruption process, to change it.
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

    /// Notes what happens, if it is told.
    pub fn tell(&mut self, what: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(what());
        }
    }

    /// Notes that a rule is violated.
    pub fn violated(&mut self, what: String) {
        self.violations.push(what);
    }

    /// Returns a number for a NodeClaim (0) or a pod (1).
    pub fn number(&mut self, of: usize) -> u32 {
        self.numbers[of] += 1;
        self.numbers[of]
    }

    fn ranks(&self) -> Ranks {
        let mut ranks = Ranks {
            now: self.now.as_second(),
            epoch: self.model.epoch(),
            ..Ranks::default()
        };
        let names = self
            .api
            .claims
            .keys()
            .chain(self.seen.claims.keys())
            .chain(self.api.nodes.keys());
        let names = names
            .chain(self.seen.nodes.keys())
            .chain(self.instances.keys());
        let numbers: BTreeSet<u32> = names.map(|name| number_of(name)).collect();
        ranks.claims = numbers.into_iter().zip(0..).collect();
        let mut pods: BTreeMap<u32, u64> = BTreeMap::new();
        for (name, pod) in self.seen.pods.iter().chain(self.api.pods.iter()) {
            pods.insert(number_of(name), pod.print.rank(&ranks));
        }
        let mut pods: Vec<(u64, u32)> = pods
            .into_iter()
            .map(|(number, rank)| (rank, number))
            .collect();
        pods.sort_unstable();
        ranks.pods = pods
            .into_iter()
            .map(|(_, number)| number)
            .zip(0..)
            .collect();
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
        let mut marks: Vec<_> = self
            .model
            .marks()
            .map(|mark| {
                let until = mark
                    .nominated_until
                    .map(|until| (until.as_second() - ranks.now).max(0));
                (
                    ranks.claims.get(&number_of(&mark.name)).copied(),
                    mark.for_deletion,
                    until,
                )
            })
            .filter(|(_, marked, until)| *marked || until.is_some_and(|until| until > 0))
            .collect();
        marks.sort_unstable();
        marks.hash(hasher);
    }

    /// Returns the hash of the state, without what may still happen to it.
    pub fn hash_of_state(&self) -> u64 {
        let (ranks, mut hasher) = (self.ranks(), FxHasher::default());
        self.hash_view(&ranks, &mut hasher);
        if let Some(kind) = self.stale {
            kind.hash(&mut hasher);
            self.api.hash_into(&ranks, &mut hasher);
            self.own.hash_into(&ranks, &mut hasher);
        }
        for print in self.prints.iter().flatten() {
            print.hash_into(&ranks, &mut hasher);
        }
        self.is_class_ready.hash(&mut hasher);
        let mut tasks: Vec<u64> = self
            .tasks
            .iter()
            .map(|task| {
                let mut hasher = FxHasher::default();
                task.print.hash_into(&ranks, &mut hasher);
                task.view.hash(&mut hasher);
                hasher.finish()
            })
            .collect();
        tasks.sort_unstable();
        tasks.hash(&mut hasher);
        let claim = |name: &str| ranks.claims.get(&number_of(name)).copied();
        let pod = |name: &str| ranks.pods.get(&number_of(name)).copied();
        let age = |time: Timestamp| (ranks.now - time.as_second()).min(1200);
        for (name, instance) in &self.instances {
            let flags = (instance.is_terminating, instance.is_silent);
            (claim(name), flags, age(instance.launched)).hash(&mut hasher);
        }
        for (name, at) in &self.stuck {
            (claim(name), *at == self.now).hash(&mut hasher);
        }
        for (name, (to, at)) in &self.ghosts.planned {
            (pod(name), claim(to), age(*at).min(BINDING)).hash(&mut hasher);
        }
        for (pool, until) in &self.ghosts.cooling {
            (pool, age(*until).min(0)).hash(&mut hasher);
        }
        for (name, at) in &self.ghosts.moved {
            (claim(name), age(*at).min(PROTECTION)).hash(&mut hasher);
        }
        let mut evictions: Vec<_> = self
            .evictions
            .iter()
            .map(|(name, until)| (pod(name), until.map(age)))
            .collect();
        evictions.sort_unstable();
        evictions.hash(&mut hasher);
        for (name, count) in &self.buffers {
            (claim(name), count).hash(&mut hasher);
        }
        let mut promised: Vec<_> = self
            .ghosts
            .promised
            .iter()
            .map(|(name, to)| (pod(name), claim(to)))
            .filter(|(pod, claim)| pod.is_some() && claim.is_some())
            .collect();
        promised.sort_unstable();
        promised.hash(&mut hasher);
        for command in &self.ghosts.commands {
            age(command.at).hash(&mut hasher);
            let names = command.claims.iter().chain(&command.replacements);
            names.for_each(|name| claim(name).hash(&mut hasher));
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
