//! What must hold at each effect, and where a fair course must end.
//!
//! The rules are written down again here, not taken from the core: it is what is checked.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::budget;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels::{self, annotations, taints};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::cluster::{NodeState, Snapshot};
use karpenter_core::disruption::{Candidate, Command, DisruptionRequest, Method};
use karpenter_core::pod::Pod;
use karpenter_core::resources::Resources;
use karpenter_core::schedule::Plan;

use crate::world::objects::Kind;
use crate::world::view::{has_ready, has_taint, is_disrupted, is_guarded};
use crate::world::{BINDING, PROTECTION, World};

/// How long a NodePool whose replacement failed has no other, at least.
pub(crate) const COOLDOWN: Duration = Duration::from_secs(30);

/// How long a proposal waits for its validation, in seconds.
const VALIDATION: i64 = 15;

/// Returns what a command does.
pub(crate) fn disruption_name(command: &Command) -> String {
    let claims = command.id().claims().join(" and ");
    let count = command.replacements.len();
    match count {
        0 => format!("{:?}: delete {claims}", command.method),
        _ => format!("{:?}: replace {claims} by {count} new", command.method),
    }
}

/// Returns when a NodeClaim expires.
pub(crate) fn expiry(claim: &NodeClaim) -> Option<Timestamp> {
    let created = claim.metadata.creation_timestamp.as_ref()?.0;
    created.checked_add(claim.spec.expire_after.value()?).ok()
}

/// Returns whether a node's pods are not to be planned on it any more.
fn leaves(node: &NodeState) -> bool {
    node.marked_for_deletion
        || node.claim.as_ref().is_some_and(|claim| claim.is_deleting())
        || node
            .node
            .as_ref()
            .is_some_and(|node| node.taints.iter().any(|it| it.key == taints::DISRUPTED))
}

/// Returns the pods that a disruption of a node moves.
fn movable<'a>(snapshot: &'a Snapshot, node: &str) -> impl Iterator<Item = &'a Arc<Pod>> {
    snapshot.pods_on(node).iter().filter(|pod| pod.is_active())
}

/// Returns whether a pod's annotation forbids its disruption. The clusters have no durations.
pub(crate) fn is_protected(pod: &Pod) -> bool {
    pod.deleted_at.is_none()
        && pod
            .annotations
            .get(annotations::DO_NOT_DISRUPT)
            .is_some_and(|it| it == "true")
}

/// Returns whether pods find room, by trying all places.
fn fit(pods: &[&Resources], rooms: &mut [Resources]) -> bool {
    let Some((first, rest)) = pods.split_first() else {
        return true;
    };
    for index in 0..rooms.len() {
        let Some(room) = rooms.get(index) else {
            continue;
        };
        if first.iter().any(|(name, asked)| asked > room.get(name)) {
            continue;
        }
        let before = room.clone();
        rooms[index].sub_assign(first);
        let fits = fit(rest, rooms);
        rooms[index] = before;
        if fits {
            return true;
        }
    }
    false
}

impl World {
    /// Checks a command at the moment its nodes are to be tainted, by what the controllers know then.
    pub(crate) fn check_command(&mut self, command: &Command) {
        let mut found = Vec::new();
        let what = disruption_name(command);
        for candidate in &command.candidates {
            let (node, claim) = (candidate.name(), candidate.claim_name());
            let is_eventual = command.method.is_eventual()
                && candidate.claim.spec.termination_grace_period.is_some();
            for pod in self.model.pods_on(node) {
                if is_protected(pod) && !is_eventual {
                    found.push(format!("{what} begins, although pod {} on Node {node} is protected by do-not-disrupt", pod.key.name));
                }
            }
            if self
                .seen
                .claims
                .get(claim)
                .is_none_or(|claim| claim.value.is_deleting())
            {
                found.push(format!(
                    "{what} begins, although NodeClaim {claim} is being deleted"
                ));
            }
            if self
                .ghosts
                .commands
                .iter()
                .any(|it| it.claims.contains(claim))
            {
                found.push(format!(
                    "{what} begins, although another command holds NodeClaim {claim}"
                ));
            }
            if command.method == Method::Emptiness {
                let busy = self.model.pods_on(node).iter().find(|pod| pod.is_active());
                found.extend(busy.map(|pod| {
                    format!(
                        "{what} begins, although pod {} runs on Node {node}",
                        pod.key.name
                    )
                }));
            }
            let initialized = candidate.claim.condition(types::INITIALIZED);
            let since = initialized.map(|it| it.last_transition_time.0);
            let is_recent = |at: Timestamp| self.now.duration_since(at).as_secs() < BINDING;
            let is_new = since.is_some_and(is_recent);
            let initialized = self.seen.claims.get(claim);
            if !initialized.is_some_and(|claim| claim.value.is_true(types::INITIALIZED)) {
                found.push(format!(
                    "{what} begins, although Node {node} is not initialized"
                ));
            }
            let guarded = self.model.pods_on(node).iter();
            let guarded =
                guarded.filter(|pod| pod.ready && pod.deleted_at.is_none() && is_guarded(pod));
            let (covered, healthy) = self.seen.guarded();
            if let Some(pod) = guarded
                .take(usize::from(covered > healthy && !is_eventual))
                .next()
            {
                let pod = &pod.key.name;
                found.push(format!("{what} begins, although the PodDisruptionBudget of pod {pod} on Node {node} allows no eviction"));
            }
            if command.method.is_validated() {
                let (at, is_validated) = self
                    .ghosts
                    .proposed
                    .get(claim)
                    .copied()
                    .unwrap_or((self.now, false));
                if !is_validated {
                    found.push(format!("{what} begins, although it was not validated"));
                }
                if self.now.duration_since(at).as_secs() < VALIDATION {
                    found.push(format!("{what} begins before the time of its validation"));
                }
            } else if self
                .ghosts
                .cooling
                .get(candidate.pool_name())
                .is_some_and(|at| self.now < *at)
            {
                let pool = candidate.pool_name();
                found.push(format!(
                    "{what} begins, although NodePool {pool} cools down after a failure"
                ));
            }
            let is_moved = self.ghosts.moved.get(claim);
            let is_fresh = |at: &Timestamp| self.now.duration_since(*at).as_secs() < PROTECTION;
            if matches!(command.method, Method::MultiNode | Method::SingleNode)
                && is_moved.is_some_and(is_fresh)
            {
                found.push(format!(
                    "{what} begins, although consolidation has launched Node {node} itself"
                ));
            }
            for (pod, _) in self
                .ghosts
                .planned
                .iter()
                .filter(|(_, (to, at))| to == node && is_recent(*at))
            {
                let pod = self.seen.pods.get(pod).map(|it| &it.value);
                let pod = pod.filter(|pod| pod.node_name.is_none() && pod.is_active());
                found.extend(pod.map(|pod| format!("{what} begins, although pod {} was planned on Node {node} and is about to be bound", pod.key.name)));
            }
            for (pod, _) in self
                .ghosts
                .promised
                .iter()
                .filter(|(_, to)| to.as_str() == claim && is_new)
            {
                let waits = self
                    .api
                    .pods
                    .get(pod)
                    .is_some_and(|it| it.value.node_name.is_none() && it.value.is_active());
                if waits {
                    found.push(format!("{what} begins, although Node {node} was launched for pod {pod}, which is about to be bound"));
                }
            }
        }
        found.extend(self.exceeded_budgets(command));
        self.violations.extend(found);
    }

    /// Returns the NodePools of a command whose budgets it exceeds.
    fn exceeded_budgets(&self, command: &Command) -> Vec<String> {
        let (mut found, reason) = (Vec::new(), command.method.reason());
        let pools: BTreeSet<&str> = command
            .candidates
            .iter()
            .map(Candidate::pool_name)
            .collect();
        for name in pools {
            let Some(pool) = self.seen.pools.get(name) else {
                continue;
            };
            let counts = |claim: &NodeClaim| {
                let node = claim.status.node_name.as_deref();
                claim.node_pool() == Some(name)
                    && claim.is_true(types::INITIALIZED)
                    && !claim.is_true(types::INSTANCE_TERMINATING)
                    && node.is_some_and(|node| self.seen.nodes.contains_key(node))
            };
            let claims: Vec<&NodeClaim> = self
                .seen
                .claims
                .values()
                .map(|it| &*it.value)
                .filter(|claim| counts(claim))
                .collect();
            let is_held = |claim: &str| {
                self.ghosts
                    .commands
                    .iter()
                    .any(|it| it.claims.contains(claim))
            };
            let is_its = |name: &str| command.candidates.iter().any(|it| it.claim_name() == name);
            let leaving = claims.iter().filter(|claim| {
                claim.is_deleting() || is_held(claim.name()) || is_its(claim.name())
            });
            let (leaving, total) = (
                leaving.count(),
                u32::try_from(claims.len()).unwrap_or(u32::MAX),
            );
            let allowed = budget::allowed(&pool.value, &reason, total, self.now);
            if leaving > usize::try_from(allowed).unwrap_or(usize::MAX) {
                let what = disruption_name(command);
                found.push(format!("{what} begins: {leaving} of {total} nodes of NodePool {name} leave, its budget allows {allowed}"));
            }
        }
        found
    }

    /// Checks that all replacements of a command are initialized before its first NodeClaim is deleted.
    pub(crate) fn check_deletion(&mut self, command: &Command, candidate: &Candidate) {
        let (claim, what) = (candidate.claim_name(), disruption_name(command));
        let node = self.api.nodes.get(candidate.name());
        if node.is_some_and(|node| !is_disrupted(&node.value)) {
            let node = candidate.name();
            self.violations.push(format!(
                "{what}: NodeClaim {claim} is deleted, although Node {node} is not tainted"
            ));
        }
        let mut commands = self.ghosts.commands.iter();
        let Some(started) = commands.find(|it| it.claims.contains(claim)) else {
            return;
        };
        let is_ready = |name: &String| {
            let known = self.api.claims.get(name);
            known.is_none_or(|it| it.value.is_true(types::INITIALIZED))
        };
        let mut found = Vec::new();
        if let Some(late) = started.replacements.iter().find(|name| !is_ready(name)) {
            found.push(format!(
                "{what}: NodeClaim {claim} is deleted before its replacement {late} is initialized"
            ));
        }
        if started.replacements.len() < command.replacements.len() {
            found.push(format!(
                "{what}: NodeClaim {claim} is deleted without its replacements"
            ));
        }
        self.violations.extend(found);
    }

    /// Checks that no other command holds one of the NodeClaims.
    pub(crate) fn check_overlap(&mut self, command: &Command, claims: &BTreeSet<String>) {
        if self
            .ghosts
            .commands
            .iter()
            .any(|it| !it.claims.is_disjoint(claims))
        {
            let what = disruption_name(command);
            self.violated(format!(
                "{what} is started, although another command holds one of its NodeClaims"
            ));
        }
    }

    /// Checks the limits of a NodePool after a NodeClaim was created; those that are being deleted or replaced do not count.
    pub(crate) fn check_limits(&mut self, pool: &str, replaced: &BTreeSet<String>) {
        let Some(stored) = self.seen.pools.get(pool) else {
            return;
        };
        let limits = Resources::allocatable_from(&stored.value.spec.limits).unwrap_or_default();
        let leaves = |name: &str| {
            replaced.contains(name)
                || self
                    .ghosts
                    .commands
                    .iter()
                    .any(|it| it.claims.contains(name))
        };
        let mut used = Resources::new();
        let mut nodes = 0;
        for claim in self.api.claims.values().map(|it| &it.value) {
            if claim.node_pool() != Some(pool) || claim.is_deleting() || leaves(claim.name()) {
                continue;
            }
            nodes += 1;
            match claim.status.provider_id {
                Some(_) => used.add_assign(
                    &Resources::allocatable_from(&claim.status.capacity).unwrap_or_default(),
                ),
                None => {
                    let named = claim
                        .spec
                        .requirements
                        .iter()
                        .filter(|it| it.key == karpenter_api::labels::INSTANCE_TYPE);
                    let named: Vec<&String> = named.flat_map(|it| &it.values).collect();
                    let types = self
                        .setting
                        .types
                        .iter()
                        .filter(|it| named.contains(&&it.name));
                    let mut largest = Resources::new();
                    types.for_each(|it| largest.max_assign(&it.capacity));
                    used.add_assign(&largest);
                }
            }
        }
        used.set("nodes", nodes);
        let exceeded = limits.iter().find(|(name, limit)| used.get(name) > *limit);
        if let Some((name, limit)) = exceeded {
            let used = used.get(name);
            self.violated(format!(
                "NodePool {pool} has {used} of {name}, its limit is {limit}"
            ));
        }
    }

    /// Checks an instance at the moment of its termination.
    pub(crate) fn check_termination(&mut self, claim: &NodeClaim) {
        let name = claim.name();
        if self
            .instances
            .get(name)
            .is_none_or(|instance| instance.is_terminating)
        {
            return;
        }
        if self
            .api
            .claims
            .get(name)
            .is_some_and(|it| !it.value.is_deleting())
        {
            self.violated(format!(
                "instance {name} is terminated, although its NodeClaim is not being deleted"
            ));
        }
        let node = self.api.nodes.get(name);
        let unregistered = labels::taints::UNREGISTERED;
        if node.is_some_and(|it| !is_disrupted(&it.value) && !has_taint(&it.value, unregistered)) {
            self.violated(format!(
                "instance {name} is terminated, although its Node is not tainted"
            ));
        }
        let deadline = claim.annotation(annotations::TERMINATION_TIMESTAMP);
        let deadline = deadline.and_then(|text| text.parse::<jiff::Timestamp>().ok());
        if deadline.is_some_and(|at| at <= self.now) {
            return;
        }
        let is_stuck = |pod: &Pod| {
            pod.deleted_at
                .is_some_and(|due| self.now.duration_since(due.time()).as_secs() > 60)
        };
        let mut pods = self.api.pods.values().map(|it| &it.value);
        let left = pods.find(|pod| {
            pod.node_name.as_deref() == Some(name) && !is_stuck(pod) && !pod.is_terminal()
        });
        if let Some(pod) = left.map(|pod| pod.key.name.clone()) {
            self.violated(format!(
                "instance {name} is terminated, although pod {pod} is on it"
            ));
        }
    }

    /// Checks that a NodeClaim that is released has no instance.
    pub(crate) fn check_release(&mut self, claim: &NodeClaim) {
        if claim.status.provider_id.is_some() && self.instances.contains_key(claim.name()) {
            self.violated(format!(
                "NodeClaim {} is released, although its instance exists",
                claim.name()
            ));
        }
    }

    /// Checks that a Node that is released has no instance.
    pub(crate) fn check_node_release(&mut self, name: &str) {
        if self.instances.contains_key(name) && self.api.claims.contains_key(name) {
            self.violated(format!(
                "Node {name} is released, although its instance exists"
            ));
        }
    }

    /// Checks that an evicted pod is not protected, and that its node is being deleted.
    pub(crate) fn check_eviction(&mut self, known: &Pod, current: &Pod) {
        let name = &known.key.name;
        if is_protected(known) || (is_protected(current) && self.stale != Some(Kind::Pod)) {
            self.violated(format!(
                "pod {name} is evicted, although do-not-disrupt protects it"
            ));
        }
        let node = current.node_name.as_deref().unwrap_or_default();
        let leaves = self
            .api
            .nodes
            .get(node)
            .is_none_or(|it| it.value.metadata.deletion_timestamp.is_some());
        if !leaves {
            self.violated(format!(
                "pod {name} is evicted, although its Node {node} is not being deleted"
            ));
        }
    }

    /// Checks that a pod is deleted without regard to its budget only in time for its node's deadline.
    pub(crate) fn check_forced(&mut self, pod: &Pod) {
        let claim = pod
            .node_name
            .as_deref()
            .and_then(|node| self.api.claims.get(node));
        let deadline = claim.and_then(|it| {
            it.value
                .annotation(annotations::TERMINATION_TIMESTAMP)?
                .parse::<jiff::Timestamp>()
                .ok()
        });
        let grace = pod.termination_grace_seconds.unwrap_or(30);
        let is_due = deadline.is_some_and(|at| at.duration_since(self.now).as_secs() <= grace);
        if !is_due {
            self.violated(format!(
                "pod {} is deleted by force before its node's deadline",
                pod.key.name
            ));
        }
    }

    /// Checks that places for pods are not on nodes that leave, nor in NodePools that are not ready.
    pub(crate) fn check_plan(&mut self, snapshot: &Snapshot, plan: &Plan) {
        for place in plan.existing.iter().filter(|it| !it.buffer) {
            let (pod, name) = (&place.pod.name, &place.node);
            let Some(node) = snapshot.node(name) else {
                continue;
            };
            if leaves(node) {
                self.violations.push(format!(
                    "pod {pod} is planned on Node {name}, which is being disrupted"
                ));
            }
            let claim = node.claim_name().unwrap_or(name).to_owned();
            self.ghosts.planned.insert(pod.clone(), (claim, self.now));
        }
        for planned in &plan.new_node_claims {
            let pool = snapshot.node_pool(&planned.node_pool);
            if pool.is_none_or(|pool| pool.is_deleting() || pool.is_false(types::READY)) {
                let pool = &planned.node_pool;
                self.violations.push(format!(
                    "a node of NodePool {pool} is planned, which is not ready"
                ));
            }
        }
    }

    /// Checks a command that was planned or validated on a snapshot: nodes are consolidated once they were quiet, without their buffer
    /// pods only if they have none, and their pods fit elsewhere.
    pub(crate) fn check_planned(
        &mut self,
        command: &Command,
        snapshot: &Snapshot,
        request: &DisruptionRequest,
    ) {
        let what = disruption_name(command);
        if command.method.is_eventual() {
            return;
        }
        for candidate in &command.candidates {
            let name = candidate.name();
            let claim = snapshot.node_claim(candidate.claim_name());
            if !claim.is_some_and(|claim| claim.is_true(types::CONSOLIDATABLE)) {
                self.violations.push(format!(
                    "{what} is planned, although Node {name} is not consolidatable"
                ));
            }
            let holds = request
                .surroundings
                .buffer_pods
                .get(name)
                .is_some_and(|count| *count > 0);
            if command.method == Method::Emptiness && holds {
                self.violations.push(format!(
                    "{what} is planned, although Node {name} holds buffer pods"
                ));
            }
        }
        if command.method == Method::Emptiness {
            return;
        }
        let is_candidate = |name: &str| command.candidates.iter().any(|it| it.name() == name);
        let staying = snapshot
            .nodes()
            .filter(|node| !leaves(node) && !is_candidate(node.name()));
        let mut rooms: Vec<Resources> = staying
            .map(|node| {
                let mut left = node.allocatable();
                let pods = snapshot.pods_on(node.name()).iter();
                pods.for_each(|pod| left.sub_assign(&pod.shape.requests));
                left
            })
            .collect();
        for planned in &command.replacements {
            let types = self.setting.types.iter();
            let mut largest = Resources::new();
            types
                .filter(|it| planned.instance_types.contains(&it.name))
                .for_each(|it| largest.max_assign(&it.allocatable()));
            rooms.push(largest);
        }
        let mut pods: Vec<&Resources> = Vec::new();
        for candidate in &command.candidates {
            pods.extend(movable(snapshot, candidate.name()).map(|pod| &pod.shape.requests));
        }
        if !fit(&pods, &mut rooms) {
            self.violations.push(format!(
                "{what} is planned, although its pods do not fit elsewhere"
            ));
        }
    }

    /// Checks that an initialized Node is ready.
    pub(crate) fn check_initialization(&mut self, node: &Node) {
        if !has_ready(node, "True") {
            let name = node.metadata.name.clone().unwrap_or_default();
            self.violated(format!(
                "Node {name} is initialized, although it is not ready"
            ));
        }
    }

    /// Checks that a node that becomes consolidatable was quiet for long enough.
    pub(crate) fn check_consolidatable(&mut self, claim: &NodeClaim, pool: &NodePool) {
        let initialized = claim
            .condition(types::INITIALIZED)
            .map(|it| it.last_transition_time.0);
        let last = claim.status.last_pod_event_time.as_ref().map(|it| it.0);
        let wanted = pool.spec.disruption.consolidate_after.value();
        let is_early = wanted
            .zip(last.or(initialized))
            .is_none_or(|(wanted, since)| self.now.duration_since(since) < wanted);
        if claim.is_true(types::CONSOLIDATABLE) && is_early {
            self.violated(format!(
                "NodeClaim {} becomes consolidatable before its consolidateAfter",
                claim.name()
            ));
        }
    }
}
