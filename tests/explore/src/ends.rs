//! What must hold where a fair course ends.

use std::collections::BTreeSet;

use karpenter_api::budget;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodeClaim;
use karpenter_core::disruption::Method;
use karpenter_core::lifecycle::provisioning::nominations::Nominations;
use karpenter_core::pod::{Pod, PodKey};
use karpenter_core::schedule::{Policy, schedule};

use crate::checks::{expiry, is_protected, violated_if};
use crate::world::World;
use crate::world::objects::{is_disrupted, is_guarded};
use crate::world::print::Print;

/// How long a command waits for its replacements, in seconds.
const PATIENCE: i64 = 600;

impl World {
    /// Checks that commands end that wait for what will never come, when nothing else happens.
    pub(crate) fn check_waiting_commands(&mut self) {
        let mut found = Vec::new();
        for command in &self.ghosts.commands {
            let what = format!("the command for {:?}", command.claims);
            let is_gone =
                |name: &&String| self.api.claim(name).is_none() && self.seen.claim(name).is_none();
            let gone = command.waiting.iter().find(is_gone);
            found.extend(gone.map(|it| format!("{what} waits for NodeClaim {it}, which is gone")));
            let is_late = self.age(command.at) > PATIENCE;
            found.extend(is_late.then(|| format!("{what} never ends")));
        }
        self.violations.extend(found);
    }

    /// Returns what is wrong with a state in which nothing happens any more.
    pub fn unfinished(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (name, claim) in self.api.claims.iter() {
            if claim.is_deleting() {
                let (covered, healthy) = self.api.guarded();
                let holds = |pod: &Pod| is_protected(pod) || is_guarded(pod) && covered > healthy;
                let is_held = claim.spec.termination_grace_period.is_none()
                    && self.api.pods_on(name).any(|pod| holds(pod));
                violated_if!(found, !is_held => "NodeClaim {name} is being deleted forever");
                continue;
            }
            let has_reason = claim.condition(types::DISRUPTION_REASON).is_some();
            let is_tainted = self.api.node(name).is_some_and(|node| is_disrupted(node));
            let node = self.model.node(name);
            let is_marked = node.is_some_and(|node| node.marked_for_deletion);
            let has_expired = expiry(claim).is_some_and(|at| at <= self.now);
            violated_if!(found, has_expired => "NodeClaim {name} has expired and stays");
            violated_if!(found, !claim.is_true(types::INITIALIZED) => "NodeClaim {name} is never initialized");
            violated_if!(found, is_tainted || has_reason => "Node {name} stays tainted, although no command holds it");
            let has_node = self.api.node(name).is_some();
            violated_if!(found, !has_node => "NodeClaim {name} has no Node");
            violated_if!(found, is_marked => "Node {name} stays marked for deletion");
            violated_if!(found, !self.instances.contains_key(name) => "NodeClaim {name} has no instance");
            violated_if!(found, self.is_idle(name, claim) => "Node {name} stays, although it is empty");
        }
        for name in self.instances.keys().chain(self.api.nodes.keys()) {
            violated_if!(found, self.api.claim(name).is_none() => "the instance or Node {name} has no NodeClaim");
        }
        let pods = self.api.pods.iter();
        for (name, pod) in pods.filter(|(name, _)| self.api.waits(name)) {
            let is_gone = |node: &&String| self.api.node(node).is_none();
            let gone = pod.nominated_node.as_ref().filter(is_gone);
            violated_if!(found, gone.is_some() => "pod {name} stays nominated to {gone:?}, which is gone");
        }
        let known = [Print::of(&self.provisioning), Print::of(&self.disruption)];
        for name in known.iter().flat_map(Print::pods) {
            let is_gone = !self.api.waits(&name);
            violated_if!(found, is_gone => "a process still knows pod {name}");
        }
        for pod in self.waiting() {
            let name = &pod.name;
            violated_if!(found, true => "pod {name} waits forever, although it fits");
        }
        found
    }

    /// Returns whether a node is empty and stays, although its NodePool consolidates.
    fn is_idle(&self, name: &str, claim: &NodeClaim) -> bool {
        let pool = claim.node_pool().and_then(|it| self.api.pools.get(it));
        pool.is_some_and(|pool| {
            let leaving = self.api.claims.values().filter(|it| it.is_deleting());
            let leaving = leaving.count();
            // Pods of a node that cannot be drained keep a place on another.
            let node = self.model.node(name);
            let is_promised = leaving > 0 && node.is_some_and(|it| it.is_nominated(self.now));
            let all = u32::try_from(self.api.claims.len()).unwrap_or(u32::MAX);
            let allowed = budget::allowed(pool, &Method::Emptiness.reason(), all, self.now);
            pool.spec.disruption.consolidate_after.value().is_some()
                && self.api.pods_on(name).next().is_none()
                && !is_promised
                && usize::try_from(allowed).is_ok_and(|it| it > leaving)
                && self.setting.buffer_pods.is_empty()
        })
    }

    /// Returns the pods that wait although there is a place for them.
    fn waiting(&self) -> impl Iterator<Item = PodKey> {
        let snapshot = &self.model;
        let pods = self.api.pods.iter();
        let pods = pods.filter(|(name, _)| self.api.waits(name));
        let mut waiting: BTreeSet<PodKey> = pods.map(|(_, pod)| pod.key.clone()).collect();
        if !waiting.is_empty() {
            let standing = Nominations::default().standing(snapshot, self.now);
            let (snapshot, query) = standing.question(snapshot);
            let plan = schedule(&snapshot, &Policy::at(self.now), &query);
            for unplaced in &plan.unplaced {
                waiting.remove(&unplaced.pod);
            }
        }
        waiting.into_iter()
    }
}
