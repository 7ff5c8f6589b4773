//! What must hold where a fair course ends.

use std::collections::BTreeSet;

use karpenter_api::budget;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodeClaim;
use karpenter_core::disruption::Method;
use karpenter_core::lifecycle::provisioning::nominations::Nominations;
use karpenter_core::pod::{Pod, PodKey};
use karpenter_core::schedule::{Policy, schedule};

use crate::checks::{expiry, is_protected};
use crate::world::World;
use crate::world::view::is_disrupted;

/// How long a command waits for its replacements, in seconds.
const PATIENCE: i64 = 600;

impl World {
    /// Checks that commands end that wait for what will never come, when nothing else happens.
    pub(crate) fn check_waiting_commands(&mut self) {
        let mut found = Vec::new();
        for command in &self.ghosts.commands {
            let claims = command
                .claims
                .iter()
                .cloned()
                .collect::<Vec<_>>()
                .join(" and ");
            let is_gone = |name: &&String| {
                !self.api.claims.contains_key(*name) && !self.seen.claims.contains_key(*name)
            };
            if let Some(gone) = command.replacements.iter().find(is_gone) {
                found.push(format!(
                    "the command for {claims} waits for NodeClaim {gone}, which is gone"
                ));
            }
            if self.now.duration_since(command.at).as_secs() > PATIENCE {
                found.push(format!("the command for {claims} never ends"));
            }
        }
        self.violations.extend(found);
    }

    /// Returns what is wrong with a state in which nothing happens any more.
    pub fn unfinished(&self) -> Vec<String> {
        let mut found = Vec::new();
        if let Some(task) = self.tasks.first() {
            found.push(format!("a request is never answered: {:?}", task.print));
        }
        for (name, stored) in self.api.claims.iter() {
            let claim = &stored.value;
            let holds =
                |pod: &Pod| pod.node_name.as_deref() == Some(name.as_str()) && is_protected(pod);
            let is_held = claim.spec.termination_grace_period.is_none()
                && self.api.pods.values().any(|pod| holds(&pod.value));
            if claim.is_deleting() {
                if !is_held {
                    found.push(format!("NodeClaim {name} is being deleted forever"));
                }
                continue;
            }
            if expiry(claim).is_some_and(|at| at <= self.now) {
                found.push(format!("NodeClaim {name} has expired and stays"));
            }
            if !claim.is_true(types::INITIALIZED) {
                found.push(format!("NodeClaim {name} is never initialized"));
            }
            let tainted = self
                .api
                .nodes
                .get(name)
                .is_some_and(|node| is_disrupted(&node.value));
            if tainted || claim.condition(types::DISRUPTION_REASON).is_some() {
                found.push(format!(
                    "Node {name} stays tainted, although no command holds it"
                ));
            }
            if self
                .model
                .node(name)
                .is_some_and(|node| node.marked_for_deletion)
            {
                found.push(format!("Node {name} stays marked for deletion"));
            }
            if !self.instances.contains_key(name) {
                found.push(format!("NodeClaim {name} has no instance"));
            }
            found.extend(self.idle(name, claim));
        }
        for name in self
            .instances
            .keys()
            .filter(|name| !self.api.claims.contains_key(*name))
        {
            found.push(format!("instance {name} has no NodeClaim"));
        }
        for name in self
            .api
            .nodes
            .keys()
            .filter(|name| !self.api.claims.contains_key(*name))
        {
            found.push(format!("Node {name} has no NodeClaim"));
        }
        found.extend(
            self.waiting()
                .map(|pod| format!("pod {} waits forever, although it fits", pod.name)),
        );
        found
    }

    /// Returns that a node is empty and stays, although its NodePool consolidates.
    fn idle(&self, name: &str, claim: &NodeClaim) -> Option<String> {
        let pool = &self.api.pools.get(claim.node_pool()?)?.value;
        let consolidates = pool.spec.disruption.consolidate_after.value().is_some();
        let pods = self.api.pods.values();
        let is_busy = pods
            .into_iter()
            .any(|pod| pod.value.node_name.as_deref() == Some(name));
        let leaving = self.api.claims.values().filter(|it| it.value.is_deleting());
        let (all, leaving) = (self.api.claims.len(), leaving.count());
        let all = u32::try_from(all).unwrap_or(u32::MAX);
        let allowed = budget::allowed(pool, &Method::Emptiness.reason(), all, self.now);
        let may_leave = usize::try_from(allowed).is_ok_and(|allowed| allowed > leaving);
        let holds_buffer = !self.setting.buffer_pods.is_empty();
        (consolidates && !is_busy && may_leave && !holds_buffer)
            .then(|| format!("Node {name} stays, although it is empty"))
    }

    /// Returns the pods that wait although there is a place for them.
    fn waiting(&self) -> impl Iterator<Item = PodKey> {
        let snapshot = &self.model;
        let mut waiting: BTreeSet<PodKey> = self
            .api
            .pods
            .values()
            .filter(|pod| pod.value.node_name.is_none() && pod.value.is_active())
            .map(|pod| pod.value.key.clone())
            .collect();
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
