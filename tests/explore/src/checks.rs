//! What must hold at each effect, and where a fair course must end.
//!
//! The rules are written down again here, not taken from the core: it is what is checked.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use karpenter_api::budget;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels::{self, annotations, taints};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::cluster::{NodeState, Snapshot};
use karpenter_core::disruption::{Candidate, Command, DisruptionRequest, Method};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::lifecycle::provisioning::PodNomination;
use karpenter_core::pod::Pod;
use karpenter_core::resources::Resources;
use karpenter_core::schedule::Plan;

use crate::world::objects::{Kind, Named as _, Stored, has_taint, is_disrupted, is_guarded};
use crate::world::{BINDING, PROTECTION, World};

/// Notes what is violated.
macro_rules! violated_if {
    ($found:expr, $is_violated:expr => $($text:tt)+) => {
        if $is_violated {
            $found.push(format!($($text)+));
        }
    };
}
pub(crate) use violated_if;

/// How long a NodePool whose replacement failed has no other, at least.
pub(crate) const COOLDOWN: Duration = Duration::from_secs(30);

/// How long a proposal waits for its validation, in seconds.
const VALIDATION: i64 = 15;

/// How long a drain lasts at least, in seconds.
const DRAIN: i64 = 5;

/// Returns what a command does.
pub(crate) fn disruption_name(command: &Command) -> String {
    let claims = command.id().claims().join(" and ");
    let count = command.replacements.len();
    match count {
        0 => format!("{:?}: delete {claims}", command.method),
        _ => format!("{:?}: replace {claims} by {count} new", command.method),
    }
}

/// Returns the time by which a NodeClaim's instance is terminated at the latest.
fn deadline(claim: &NodeClaim) -> Option<Timestamp> {
    let text = claim.annotation(annotations::TERMINATION_TIMESTAMP)?;
    text.parse().ok()
}

fn number<T>(of: impl Iterator<Item = T>) -> u32 {
    u32::try_from(of.count()).unwrap_or(u32::MAX)
}

/// Returns when a NodeClaim expires.
pub(crate) fn expiry(claim: &NodeClaim) -> Option<Timestamp> {
    let created = claim.metadata.creation_timestamp.as_ref()?.0;
    created.checked_add(claim.spec.expire_after.value()?).ok()
}

/// Returns whether a node's pods are not to be planned on it any more.
fn leaves(node: &NodeState) -> bool {
    let taints = node.node.iter().flat_map(|it| &it.taints);
    node.marked_for_deletion
        || node.claim.as_ref().is_some_and(|it| it.is_deleting())
        || taints.into_iter().any(|it| it.key == taints::DISRUPTED)
}

/// Returns whether a pod's annotation forbids its disruption. The clusters have no durations.
pub(crate) fn is_protected(pod: &Pod) -> bool {
    let value = pod.annotations.get(annotations::DO_NOT_DISRUPT);
    pod.deleted_at.is_none() && value.is_some_and(|it| it == "true")
}

/// Returns whether pods find room, by trying all places.
fn fit(pods: &[&Resources], rooms: &mut [Resources]) -> bool {
    let Some((first, rest)) = pods.split_first() else {
        return true;
    };
    (0..rooms.len()).any(|index| {
        let before = rooms[index].clone();
        let has_room = first.iter().all(|(name, asked)| asked <= before.get(name));
        rooms[index].sub_assign(first);
        let fits = has_room && fit(rest, rooms);
        rooms[index] = before;
        fits
    })
}

impl World {
    /// Checks a command at the moment its nodes are to be tainted, by what the controllers know then.
    pub(crate) fn check_command(&mut self, command: &Command) {
        let mut found = Vec::new();
        for candidate in &command.candidates {
            self.check_candidate(command, candidate, &mut found);
        }
        found.extend(self.exceeded_budgets(command));
        let what = disruption_name(command);
        let found = found.into_iter();
        self.violations
            .extend(found.map(|why| format!("{what} begins, although {why}")));
    }

    fn check_candidate(&self, command: &Command, candidate: &Candidate, found: &mut Vec<String>) {
        let (node, claim) = (candidate.name(), candidate.claim_name());
        let (pool, method) = (candidate.pool_name(), command.method);
        let grace = candidate.claim.spec.termination_grace_period.as_ref();
        let is_forceful = method.is_eventual() && grace.is_some();
        let is_recent = |at: Timestamp| self.age(at) < BINDING;
        let known = self.model.node_claim(claim);
        violated_if!(found, known.is_none_or(|it| it.is_deleting()) => "NodeClaim {claim} is being deleted");
        violated_if!(found, method == Method::Drift && !known.is_some_and(|it| it.is_true(types::DRIFTED)) => "Node {node} has not drifted");
        let labels = self
            .seen
            .node(node)
            .and_then(|it| it.metadata.labels.as_ref());
        let is_initialized = labels.is_some_and(|it| it.contains_key(labels::INITIALIZED));
        violated_if!(found, !is_initialized => "Node {node} is not initialized");
        violated_if!(found, self.ghosts.holds(claim) => "another command holds NodeClaim {claim}");
        let (covered, healthy) = self.seen.guarded();
        for pod in self.model.pods_on(node) {
            let name = &pod.key.name;
            violated_if!(found, is_protected(pod) && !is_forceful => "do-not-disrupt protects pod {name} on Node {node}");
            violated_if!(found, method == Method::Emptiness && pod.is_active() => "pod {name} runs on Node {node}");
            let is_healthy = pod.ready && pod.deleted_at.is_none();
            violated_if!(found, is_healthy && is_guarded(pod) && covered > healthy && !is_forceful => "the PodDisruptionBudget of pod {name} on Node {node} allows no eviction");
        }
        if method.is_validated() {
            let proposed = self.ghosts.proposed.get(claim).copied();
            let (at, is_validated) = proposed.unwrap_or((self.now, false));
            violated_if!(found, !is_validated => "it was not validated");
            violated_if!(found, self.age(at) < VALIDATION => "the time of its validation has not come");
        } else {
            let until = self.ghosts.cooling.get(pool);
            violated_if!(found, until.is_some_and(|at| self.now < *at) => "NodePool {pool} cools down after a failure");
        }
        let moved = self.ghosts.moved.get(claim);
        violated_if!(found, matches!(method, Method::MultiNode | Method::SingleNode) && moved.is_some_and(|at| self.age(*at) < PROTECTION) => "consolidation has launched Node {node} itself");
        for (pod, (to, at)) in &self.ghosts.planned {
            violated_if!(found, to == node && is_recent(*at) && self.seen.waits(pod) => "pod {pod} was planned on Node {node} and is about to be bound");
        }
        let since = candidate.claim.condition(types::INITIALIZED);
        let is_new = since.is_some_and(|it| is_recent(it.last_transition_time.0));
        let is_new = is_new && self.busy < self.now;
        for pod in self.ghosts.promised_on(claim) {
            violated_if!(found, is_new && self.api.waits(pod) => "Node {node} was launched for pod {pod}, which is about to be bound");
        }
    }

    /// Returns the NodePools of a command whose budgets it exceeds.
    fn exceeded_budgets(&self, command: &Command) -> Vec<String> {
        let (mut found, reason) = (Vec::new(), command.method.reason());
        let candidates = &command.candidates;
        let pools: BTreeSet<&str> = candidates.iter().map(Candidate::pool_name).collect();
        for name in pools {
            let Some(pool) = self.seen.pools.get(name) else {
                continue;
            };
            let counts = |claim: &&Stored<NodeClaim>| {
                let node = claim.status.node_name.as_deref();
                claim.node_pool() == Some(name)
                    && claim.is_true(types::INITIALIZED)
                    && !claim.is_true(types::INSTANCE_TERMINATING)
                    && node.is_some_and(|node| self.seen.node(node).is_some())
            };
            let leaves = |claim: &&Stored<NodeClaim>| {
                let is_its = |it: &Candidate| it.claim_name() == claim.name();
                claim.is_deleting()
                    || self.ghosts.holds(claim.name())
                    || candidates.iter().any(is_its)
            };
            let claims = || self.seen.claims.values().filter(counts);
            let (leaving, total) = (number(claims().filter(leaves)), number(claims()));
            let allowed = budget::allowed(pool, &reason, total, self.now);
            if leaving > allowed {
                found.push(format!("{leaving} of {total} nodes of NodePool {name} leave, its budget allows {allowed}"));
            }
        }
        found
    }

    /// Checks that all replacements of a command are initialized before its first NodeClaim is deleted.
    pub(crate) fn check_deletion(&mut self, command: &Command, candidate: &Candidate) {
        let (claim, node) = (candidate.claim_name(), candidate.name());
        let is_open = self.api.node(node).is_some_and(|it| !is_disrupted(it));
        let why = disruption_name(command);
        violated_if!(self.violations, is_open => "{why}: NodeClaim {claim} is deleted, although Node {node} is not tainted");
        let mut commands = self.ghosts.commands.iter();
        let Some(started) = commands.find(|it| it.claims.contains(claim)) else {
            return;
        };
        let is_late = |name: &&String| {
            let known = self.api.claim(name);
            known.is_some_and(|it| !it.is_true(types::INITIALIZED))
        };
        let late = started.replacements.iter().find(is_late).cloned();
        let lacks = late.is_some() || started.replacements.len() < command.replacements.len();
        violated_if!(self.violations, lacks => "{why}: NodeClaim {claim} is deleted before its replacements are initialized: {late:?}");
    }

    /// Checks that no other proposal holds one of the NodeClaims.
    pub(crate) fn check_proposal(&mut self, command: &Command) {
        let of = |it: &Command| it.id().claims().to_vec();
        let process = std::sync::Arc::clone(&self.disruption);
        let all: Vec<String> = process.proposals().flat_map(of).collect();
        let is_twice = |claim: &String| all.iter().filter(|it| *it == claim).count() > 1;
        let twice = of(command).into_iter().find(is_twice);
        let what = disruption_name(command);
        violated_if!(self.violations, twice.is_some() => "{what} is proposed, although another proposal holds {twice:?}");
    }

    /// Checks the limits of a NodePool after a NodeClaim was created; those that are being deleted or replaced do not count.
    pub(crate) fn check_limits(&mut self, pool: &str, replaced: &BTreeSet<String>) {
        let Some(stored) = self.seen.pools.get(pool) else {
            return;
        };
        let limits = Resources::allocatable_from(&stored.spec.limits).unwrap_or_default();
        let (mut used, mut nodes) = (Resources::new(), 0);
        for (name, claim) in self.api.claims.iter() {
            let leaves = claim.is_deleting() || replaced.contains(name) || self.ghosts.holds(name);
            if claim.node_pool() != Some(pool) || leaves {
                continue;
            }
            nodes += 1;
            if claim.status.provider_id.is_some() {
                let capacity = Resources::allocatable_from(&claim.status.capacity);
                used.add_assign(&capacity.unwrap_or_default());
                continue;
            }
            let named = claim.spec.requirements.iter();
            let named = named.filter(|it| it.key == labels::INSTANCE_TYPE);
            let named: Vec<&String> = named.flat_map(|it| &it.values).collect();
            used.add_assign(
                &self.largest(|it| named.contains(&&it.name), |it| it.capacity.clone()),
            );
        }
        used.set("nodes", nodes);
        let exceeded = limits.iter().find(|(name, limit)| used.get(name) > *limit);
        let exceeded = exceeded.map(|(name, limit)| (name.to_owned(), used.get(name), limit));
        if let Some((name, used, limit)) = exceeded {
            violated_if!(self.violations, true => "NodePool {pool} has {used} of {name}, its limit is {limit}");
        }
    }

    /// Returns the largest resources of some instance types.
    fn largest(
        &self,
        is_meant: impl Fn(&InstanceType) -> bool,
        of: impl Fn(&InstanceType) -> Resources,
    ) -> Resources {
        let mut largest = Resources::new();
        let types = self.setting.types.iter().filter(|it| is_meant(it));
        types.for_each(|it| largest.max_assign(&of(it)));
        largest
    }

    /// Checks an instance at the moment of its termination.
    pub(crate) fn check_termination(&mut self, claim: &NodeClaim) {
        let name = claim.name();
        let instance = self.instances.get(name);
        if instance.is_none_or(|instance| instance.is_terminating) {
            return;
        }
        let stays = self.api.claim(name).is_some_and(|it| !it.is_deleting());
        let node = self.api.node(name);
        let is_open =
            node.is_some_and(|node| !is_disrupted(node) && !has_taint(node, taints::UNREGISTERED));
        let is_stuck = |pod: &Pod| pod.deleted_at.is_some_and(|due| self.age(due.time()) > 60);
        let mut pods = self.api.pods_on(name);
        let left = pods.find(|pod| !is_stuck(pod) && !pod.is_terminal());
        let is_due = deadline(claim).is_some_and(|at| at <= self.now);
        let deleted = node.and_then(|it| it.metadata.deletion_timestamp.as_ref());
        let is_hasty = !is_due && deleted.is_some_and(|at| self.age(at.0) < DRAIN);
        let left = left.filter(|_| !is_due).map(|pod| pod.key.name.clone());
        let mut attached = self.model.volume_attachments_on(name);
        let is_attached = attached.next().is_some() && !is_due;
        let what = format!("instance {name} is terminated, although");
        violated_if!(self.violations, stays => "{what} its NodeClaim is not being deleted");
        violated_if!(self.violations, is_hasty => "{what} its Node has just been deleted");
        violated_if!(self.violations, is_open => "{what} its Node is not tainted");
        violated_if!(self.violations, left.is_some() => "{what} a pod is on it: {left:?}");
        violated_if!(self.violations, is_attached => "{what} a volume is attached to its Node");
    }

    /// Checks that an evicted pod is not protected, and that its node is being deleted.
    pub(crate) fn check_eviction(&mut self, known: &Pod, current: &Pod) {
        let name = &known.key.name;
        let is_protected =
            is_protected(known) || (is_protected(current) && self.stale != Some(Kind::Pod));
        violated_if!(self.violations, is_protected => "pod {name} is evicted, although do-not-disrupt protects it");
        let node = current.node_name.as_deref().unwrap_or_default();
        let stays = self.api.node(node).is_some_and(|it| !it.is_leaving());
        violated_if!(self.violations, stays => "pod {name} is evicted, although its Node {node} is not being deleted");
    }

    /// Checks that a pod is deleted without regard to its budget only in time for its node's deadline.
    pub(crate) fn check_forced(&mut self, pod: &Pod) {
        let node = pod.node_name.as_deref().unwrap_or_default();
        let until = self.api.claim(node).and_then(|it| deadline(it));
        let grace = pod.termination_grace_seconds.unwrap_or(30);
        let is_early = until.is_none_or(|at| -self.age(at) > grace);
        violated_if!(self.violations, is_early => "pod {} is deleted by force before its node's deadline", pod.key.name);
    }

    /// Checks that places for pods are not on nodes that leave, nor in NodePools that are not ready.
    pub(crate) fn check_plan(&mut self, snapshot: &Snapshot, plan: &Plan) {
        self.check_room(snapshot, plan);
        for place in plan.existing.iter().filter(|it| !it.buffer) {
            let (pod, name) = (&place.pod.name, &place.node);
            let Some(node) = snapshot.node(name) else {
                continue;
            };
            // See lib.rs: the deletion of a Node counts once that of its NodeClaim is reported.
            let is_late = !node.marked_for_deletion
                && snapshot
                    .node_claim(name)
                    .is_some_and(|it| !it.is_deleting())
                && node.node.as_ref().is_some_and(|it| it.deleted_at.is_some());
            violated_if!(self.violations, leaves(node) && !is_late => "pod {pod} is planned on Node {name}, which is being disrupted");
            let claim = node.claim_name().unwrap_or(name).to_owned();
            self.check_again(pod, &claim);
            self.ghosts.planned.insert(pod.clone(), (claim, self.now));
        }
        for name in plan.new_node_claims.iter().map(|it| &it.node_pool) {
            let pool = snapshot.node_pool(name);
            let is_closed = pool.is_none_or(|it| it.is_deleting() || it.is_false(types::READY));
            violated_if!(self.violations, is_closed => "a node of NodePool {name} is planned, which is not ready");
        }
    }

    /// Checks that pods that are planned on a node fit beside those that were planned there before and are about to be bound.
    fn check_room(&mut self, snapshot: &Snapshot, plan: &Plan) {
        for node in snapshot.nodes() {
            let (name, claim) = (node.name(), node.claim_name().unwrap_or(node.name()));
            let places = plan.existing.iter().filter(|it| !it.buffer);
            let new: Vec<&str> = places
                .filter(|it| it.node == name)
                .map(|it| &*it.pod.name)
                .collect();
            let is_starting = !node.is_initialized();
            let recent = self.ghosts.planned.iter();
            let recent = recent.filter(|(_, (to, at))| to == claim && self.age(*at) < BINDING);
            let promised = self.ghosts.promised_on(claim).filter(|_| is_starting);
            let kept = recent.map(|it| it.0).chain(promised);
            let kept = kept.filter(|pod| self.seen.waits(pod)).map(String::as_str);
            let bound = snapshot.pods_on(name).iter().map(|pod| &*pod.key.name);
            let mut pods: BTreeSet<&str> = bound.chain(kept).collect();
            pods.retain(|pod| !new.contains(pod));
            let asked = |pod: &&str| Some(self.seen.pod(pod)?.shape.requests.clone());
            let has_room = |pods: &mut dyn Iterator<Item = &&str>| {
                let mut left = node.allocatable();
                pods.filter_map(asked)
                    .for_each(|asked| left.sub_assign(&asked));
                Resources::fits(&Resources::new(), &left)
            };
            let is_full = has_room(&mut pods.iter()) && !has_room(&mut pods.iter().chain(&new));
            violated_if!(self.violations, is_full => "pods {new:?} are planned on Node {name} in the room of {pods:?}");
        }
    }

    /// Checks that only pods which kube-scheduler may bind are nominated, and only to Nodes that stay.
    pub(crate) fn check_nominations(&mut self, pods: &[PodNomination]) {
        for PodNomination { pod, node } in pods {
            let name = &pod.name;
            let known = self.seen.pod(name);
            let is_open = known.is_some_and(|pod| {
                let is_preempting = pod.nominated_node.is_some() && !pod.nominated_by_plan;
                let is_other = pod.gated || pod.scheduler_name.is_some() || is_preempting;
                pod.node_name.is_none() && pod.is_active() && !is_other
            });
            let (now, node) = (self.now, node.as_deref());
            let written = self.ghosts.nominated.entry(name.clone());
            let written = written.or_insert((now, 0));
            if now.duration_since(written.0).as_secs() >= BINDING {
                *written = (now, 0);
            }
            written.1 += 1;
            violated_if!(self.violations, written.1 > 5 => "pod {name} is nominated over and over");
            let leaves = |node: &str| {
                let is_deleted = self.seen.node(node).is_none_or(|it| it.is_leaving());
                is_deleted || self.model.node(node).is_none_or(|it| leaves(it))
            };
            let leaves = node.is_some_and(leaves);
            violated_if!(self.violations, !is_open => "pod {name} is nominated to {node:?}, although kube-scheduler is not to bind it");
            violated_if!(self.violations, leaves => "pod {name} is nominated to {node:?}, which leaves");
        }
    }

    /// Checks that the pods for which a Node was launched are nominated to it before pods can be bound there.
    pub(crate) fn check_registration(&mut self, claim: &str, node: &str) {
        let ghosts = &self.ghosts;
        let knows = self.setting.nominates_pods && !ghosts.is_forbidden;
        let promised = ghosts.promised_on(claim).filter(|_| knows);
        let is_open = |pod: &Stored<Pod>| pod.nominated_node.is_none();
        let late = promised.into_iter().find(|pod| {
            let known = self
                .seen
                .pod(pod)
                .filter(|it| is_open(it) && it.unschedulable);
            let is_late = known.is_some_and(|it| it.scheduler_name.is_none());
            is_late && self.api.waits(pod) && self.api.pod(pod).is_some_and(is_open)
        });
        violated_if!(self.violations, late.is_some() => "Node {node} registers before pod {late:?} is nominated to it");
    }

    /// Checks that kube-scheduler had time for a pod before it is planned on the same node again, each time twice as long.
    pub(crate) fn check_again(&mut self, pod: &str, claim: &str) {
        if !self.seen.waits(pod) {
            return;
        }
        let place = (claim.to_owned(), 0, self.now);
        let known = self.ghosts.places.entry(pod.to_owned());
        let known = known.or_insert_with(|| place.clone());
        if known.0 != claim {
            *known = place;
        }
        let (_, plans, at) = known.clone();
        (known.1, known.2) = (plans + 1, self.now);
        let is_early = plans > 0 && self.age(at) < BINDING << (plans - 1).min(5);
        violated_if!(self.violations, is_early => "pod {pod} is planned on {claim} again before its back-off is over");
    }

    /// Checks a command that was planned or validated on a snapshot: nodes are consolidated once they were quiet, without their buffer
    /// pods only if they have none, and their pods fit elsewhere.
    pub(crate) fn check_planned(
        &mut self,
        command: &Command,
        snapshot: &Snapshot,
        request: &DisruptionRequest,
    ) {
        if command.method.is_eventual() {
            return;
        }
        let what = format!("{} is planned, although", disruption_name(command));
        let is_empty = command.method == Method::Emptiness;
        let buffer_pods = &request.surroundings.buffer_pods;
        for candidate in &command.candidates {
            let name = candidate.name();
            let claim = snapshot.node_claim(candidate.claim_name());
            let is_quiet = claim.is_some_and(|claim| claim.is_true(types::CONSOLIDATABLE));
            violated_if!(self.violations, !is_quiet => "{what} Node {name} is not consolidatable");
            let holds = is_empty && buffer_pods.get(name).is_some_and(|count| *count > 0);
            violated_if!(self.violations, holds => "{what} Node {name} holds buffer pods");
        }
        let is_candidate = |name: &str| command.candidates.iter().any(|it| it.name() == name);
        let nodes = snapshot.nodes();
        let staying = nodes.filter(|node| !leaves(node) && !is_candidate(node.name()));
        let staying = staying.map(|node| {
            let (mut left, pods) = (node.allocatable(), snapshot.pods_on(node.name()).iter());
            pods.for_each(|pod| left.sub_assign(&pod.shape.requests));
            left
        });
        let new = command.replacements.iter();
        let new = new.map(|new| {
            self.largest(
                |it| new.instance_types.contains(&it.name),
                InstanceType::allocatable,
            )
        });
        let mut rooms: Vec<Resources> = staying.chain(new).collect();
        let pods = command.candidates.iter();
        let pods = pods.flat_map(|it| snapshot.pods_on(it.name()));
        let pods = pods.filter(|pod| pod.is_active());
        let pods: Vec<&Resources> = pods.map(|pod| &pod.shape.requests).collect();
        let fits = is_empty || fit(&pods, &mut rooms);
        violated_if!(self.violations, !fits => "{what} its pods do not fit elsewhere");
    }

    /// Checks that a NodeClaim that has drifted lacks a label that its NodePool asks for.
    pub(crate) fn check_drifted(&mut self, claim: &NodeClaim, pool: &NodePool) {
        let label = |key: &str| claim.metadata.labels.as_ref()?.get(key);
        let mut wanted = pool.spec.template.spec.requirements.iter();
        let fits = wanted.all(|it| label(&it.key).is_some_and(|value| it.values.contains(value)));
        let name = claim.name();
        violated_if!(self.violations, claim.is_true(types::DRIFTED) && fits => "NodeClaim {name} is called drifted, although it is not");
    }

    /// Checks that a node that is consolidatable was quiet for long enough.
    pub(crate) fn check_consolidatable(&mut self, claim: &NodeClaim, pool: &NodePool) {
        let initialized = claim.condition(types::INITIALIZED);
        let initialized = initialized.map(|it| it.last_transition_time.0);
        let last = claim.status.last_pod_event_time.as_ref().map(|it| it.0);
        let wanted = pool.spec.disruption.consolidate_after.value();
        let since = wanted.zip(last.or(initialized));
        let name = claim.name();
        // The time of a pod event is written at most every ten seconds.
        let event = self.ghosts.events.get(name).map(|at| self.age(*at) + 10);
        let is_early = since.is_none_or(|(wanted, at)| {
            let is_recent = |event| event < wanted.as_secs();
            self.now.duration_since(at) < wanted || event.is_some_and(is_recent)
        });
        violated_if!(self.violations, claim.is_true(types::CONSOLIDATABLE) && is_early => "NodeClaim {name} is consolidatable before its consolidateAfter");
    }
}
