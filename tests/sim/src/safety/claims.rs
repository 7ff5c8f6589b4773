//! Invariants of NodeClaims: which are launched, disrupted and protected, and how many of a NodePool at a time.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::{NodeClaim, NodePool};
use kube::Api;
use kube::api::ListParams;

use super::{DISRUPTION, REPLACEMENT_PROTECTION, Safety, allowed, is_active, is_protected};

impl Safety {
    /// Records the new NodeClaims; if other controllers are creating NodeClaims, too, the creator is not known.
    pub(super) async fn after_claim_made(&self, controller: &str) {
        let claims = self.claims().await;
        let now = self.clock.now();
        let mut state = self.state.lock();
        let [others, disruption] = state.making;
        let launched = (controller == DISRUPTION && others == 0).then_some(now);
        for claim in claims {
            if disruption > 0 && !state.launched.contains_key(claim.uid()) {
                state.replacements.insert(claim.uid().to_owned(), now);
            }
            state
                .launched
                .entry(claim.uid().to_owned())
                .or_insert(launched);
        }
        state.making = if controller == DISRUPTION {
            [others, disruption.saturating_sub(1)]
        } else {
            [others.saturating_sub(1), disruption]
        };
    }

    /// Checks that consolidation does not consolidate a node that it has just launched, without a disturbance.
    fn check_undone_move(&self, claim: &NodeClaim) {
        let now = self.clock.now();
        let reason = claim.condition(types::DISRUPTION_REASON);
        let consolidated = reason.is_some_and(|r| r.reason == "Underutilized");
        let mut state = self.state.lock();
        let launched = state.launched.get(claim.uid()).copied().flatten();
        let age = |since: Timestamp| now.duration_since(since).unsigned_abs();
        let quiet = state
            .last_disturbance
            .is_none_or(|at| age(at) > self.aftermath);
        if let Some(launched) =
            launched.filter(|at| consolidated && quiet && age(*at) < REPLACEMENT_PROTECTION)
        {
            let seconds = age(launched).as_secs();
            let name = claim.name();
            state.undone.push(format!(
                "nodeclaim {name} is consolidated {seconds} s after consolidation launched it"
            ));
        }
    }

    pub(super) async fn after_claim_status(&self, name: &str) {
        let api: Api<NodeClaim> = Api::all(self.client.clone());
        let Ok(Some(claim)) = api.get_opt(name).await else {
            return;
        };
        let uid = claim.uid().to_owned();
        if !claim.is_true(types::DISRUPTION_REASON) {
            self.state.lock().disrupted.remove(&uid);
            return;
        }
        if self.state.lock().disrupted.contains(&uid) {
            return;
        }
        let claims = self.claims().await;
        let pool = claim.node_pool().unwrap_or_default().to_owned();
        {
            let mut state = self.state.lock();
            let alive: BTreeSet<&str> = claims.iter().map(|c| c.uid()).collect();
            state.disrupted.retain(|uid| alive.contains(uid.as_str()));
            state.disrupted.insert(uid);
        }
        self.check_undone_move(&claim);
        self.check_protection(&claim).await;
        self.check_budgets(&claim, &pool, &claims).await;
    }

    async fn check_protection(&self, claim: &NodeClaim) {
        let reason = claim
            .condition(types::DISRUPTION_REASON)
            .map(|c| c.reason.clone())
            .unwrap_or_default();
        let Some(node) = claim.status.node_name.as_deref() else {
            return;
        };
        let since = self
            .state
            .lock()
            .protected
            .get(&format!("node/{node}"))
            .copied();
        if since.is_some_and(|since| self.is_old(since)) {
            self.violated(format!(
                "node {node} is disrupted ({reason}) despite its annotation do-not-disrupt"
            ));
        }
        let eventual = reason == "Drifted" && claim.spec.termination_grace_period.is_some();
        if eventual {
            return;
        }
        let pods = self.pods_on(node).await;
        let now = self.clock.now();
        for pod in pods.iter().filter(|p| is_active(p) && is_protected(p, now)) {
            let started = pod.status.as_ref().and_then(|s| s.start_time.as_ref());
            if started.is_some_and(|at| self.is_old(at.0)) {
                let name = pod.metadata.name.as_deref().unwrap_or_default();
                self.violated(format!(
                    "node {node} is disrupted ({reason}) despite the annotation do-not-disrupt of its pod {name}"
                ));
            }
        }
    }

    async fn check_budgets(&self, claim: &NodeClaim, name: &str, claims: &[NodeClaim]) {
        let changed = self.state.lock().budgets_changed.get(name).copied();
        if changed.is_some_and(|at| !self.is_old(at)) {
            return;
        }
        let pools: Api<NodePool> = Api::all(self.client.clone());
        let Ok(Some(pool)) = pools.get_opt(name).await else {
            return;
        };
        let reason = claim
            .condition(types::DISRUPTION_REASON)
            .map(|c| c.reason.clone())
            .unwrap_or_default();
        let nodes: Api<Node> = Api::all(self.client.clone());
        let Ok(nodes) = nodes.list(&ListParams::default()).await else {
            return;
        };
        let names = nodes.items.into_iter().filter_map(|n| n.metadata.name);
        let nodes: BTreeSet<String> = names.collect();
        // A terminating instance, or one whose Node is deleted, does not count in budgets any more, as upstream.
        let is_counted = |claim: &&NodeClaim| {
            claim.node_pool() == Some(name)
                && !claim.is_true(types::INSTANCE_TERMINATING)
                && claim
                    .status
                    .node_name
                    .as_ref()
                    .is_some_and(|node| nodes.contains(node))
        };
        let counted: Vec<&NodeClaim> = claims.iter().filter(is_counted).collect();
        let total = counted
            .iter()
            .filter(|c| c.is_true(types::REGISTERED))
            .count();
        let disrupted = {
            let state = self.state.lock();
            let disrupted = counted.iter().filter(|c| state.disrupted.contains(c.uid()));
            disrupted.count()
        };
        for budget in &pool.spec.disruption.budgets {
            let concerned = budget
                .reasons
                .as_ref()
                .is_none_or(|r| r.iter().any(|r| r.as_str() == reason));
            if concerned && budget.schedule.is_none() && disrupted > allowed(&budget.nodes, total) {
                self.violated(format!(
                    "{disrupted} of {total} nodes of pool {name} are disrupted ({reason}), which the budget {} forbids",
                    budget.nodes
                ));
            }
        }
    }
}
