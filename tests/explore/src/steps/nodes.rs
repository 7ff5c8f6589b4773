//! Reconciles Nodes that are being deleted, evicts their pods, and collects garbage.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodeClaim;
use karpenter_core::lifecycle::drain::{self, Eviction};
use karpenter_core::lifecycle::termination::{
    NodeEffect, NodeEvent, TerminatingNode, deadline, on_node, taint,
};
use karpenter_core::pod::Pod;

use crate::world::cloud::{claim_of, provider_id};
use crate::world::objects::{Named as _, Stored, has_finalizer, has_ready, is_guarded};
use crate::world::{Halt, World};

/// How long an instance may exist without a NodeClaim, in seconds.
const GRACE: i64 = 30;

impl World {
    /// Returns the NodeClaim of a Node, as the controllers know it; `None` if there is not exactly one.
    fn claim_of_node(&self, node: &Node) -> Option<Arc<NodeClaim>> {
        let id = node.spec.as_ref()?.provider_id.as_deref()?;
        let mut claims = self.model.node_claims_by_provider_id(id);
        let (first, second) = (claims.next(), claims.next());
        if second.is_some() {
            return None;
        }
        if let Some(first) = first {
            return self.view(first.name());
        }
        // While the watch is interrupted, the model may lack the provider id. The controllers' own latest write has it.
        let owner = node.metadata.owner_references.iter().flatten().next()?;
        let claim: Arc<NodeClaim> = self.view(&owner.name)?;
        (claim.status.provider_id.as_deref() == Some(id)).then_some(claim)
    }

    pub(super) fn reconcile_node(&mut self, name: &str) -> Result<(), Halt> {
        let is_held = |node: &Arc<Node>| node.is_leaving() && has_finalizer(&**node);
        let Some(node) = self.view::<Node>(name).filter(is_held) else {
            return Ok(());
        };
        let (mut node, claim) = (Node::clone(&node), self.claim_of_node(&node));
        let mut claim = claim.map(|claim| NodeClaim::clone(&claim));
        let mut event = NodeEvent::Due;
        loop {
            let snapshot = self.model.fork();
            let of = TerminatingNode {
                snapshot: &snapshot,
                node: &node,
                claim: claim.as_ref(),
            };
            for effect in on_node(event, of, self.now) {
                match effect {
                    NodeEffect::DeleteNodeClaim => {
                        self.write()?;
                        self.tell(|| format!("NodeClaim {name} is deleted with its Node"));
                        self.delete::<NodeClaim>(name);
                    }
                    NodeEffect::FindInstance => {
                        let id = node.spec.as_ref().and_then(|it| it.provider_id.as_deref());
                        let found = self
                            .instances
                            .contains_key(claim_of(id.unwrap_or_default()));
                        event = NodeEvent::InstanceFound(found);
                    }
                    NodeEffect::Taint => {
                        let mut wanted = node.clone();
                        taint(&mut wanted);
                        if wanted != node {
                            self.replace(&node, wanted.clone())?;
                            node = wanted;
                        }
                    }
                    NodeEffect::Evict(pods) => {
                        let until = claim.as_ref().and_then(deadline);
                        // Those that are being deleted leave the queue at once, if time allows.
                        let now = self.now;
                        let stays = |pod: &&Arc<Pod>| {
                            pod.is_active() || drain::needs_force(pod, until, now)
                        };
                        for pod in pods.iter().filter(stays) {
                            let known = self.evictions.entry(pod.key.name.clone()).or_insert(until);
                            *known = [*known, until].into_iter().flatten().min();
                        }
                    }
                    NodeEffect::FindPods => {
                        let pods = self.api.pods_on(name).map(|it| Arc::clone(&it.value));
                        let pods: Vec<Arc<Pod>> = pods.collect();
                        let step = drain::plan(&pods, claim.as_ref().and_then(deadline), self.now);
                        event = NodeEvent::PodsFound(step.waiting > 0);
                    }
                    NodeEffect::Mark(progress) => {
                        if let Some(known) = &claim {
                            claim = Some(self.mark(known.name(), progress)?);
                        }
                    }
                    NodeEffect::Terminate => {
                        let Some(known) = &claim else { return Ok(()) };
                        event = NodeEvent::Terminated(self.terminate_instance(&known.clone())?);
                    }
                    NodeEffect::Release => {
                        let is_known = self.api.claim(name).is_some();
                        return self.release(&node, is_known);
                    }
                    NodeEffect::Wait(_) | NodeEffect::Poll(_) => return Ok(()),
                    NodeEffect::ReportDeadline(_)
                    | NodeEffect::ReportWaiting(_)
                    | NodeEffect::ReportAttached(_) => {}
                }
            }
        }
    }

    /// Evicts a pod of the eviction queue, if it and its budget allow that, or deletes it in time for the deadline.
    pub(super) fn evict(&mut self, name: &str) -> Result<(), Halt> {
        let Some(until) = self.evictions.get(name).copied() else {
            return Ok(());
        };
        let Some(pod) = self.seen.pod(name).map(|it| Arc::clone(&it.value)) else {
            self.evictions.remove(name);
            return Ok(());
        };
        let current = self.api.pod(name).map(|it| Arc::clone(&it.value));
        match drain::eviction(&self.model, &pod, until, self.now) {
            Eviction::Delete(_) => {
                let is_due = |it: &Arc<Pod>| drain::needs_force(it, until, self.now);
                if !current.as_ref().is_some_and(is_due) {
                    return Ok(());
                }
                self.evictions.remove(name);
                self.write()?;
                self.tell(|| format!("pod {name} is deleted in time for the deadline"));
                self.check_forced(&pod);
                self.delete_pod(name);
                return Ok(());
            }
            Eviction::Done => {
                self.evictions.remove(name);
                return Ok(());
            }
            Eviction::NotAllowed | Eviction::Refused(_) => return Ok(()),
            Eviction::Request => {}
        }
        let (covered, healthy) = self.api.guarded();
        // The API server asks the PodDisruptionBudget.
        let refuses = |pod: &Pod| is_guarded(pod) && pod.ready && covered > healthy;
        let is_evicted = |pod: &Arc<Pod>| pod.deleted_at.is_none() && !refuses(pod);
        if let Some(current) = current.filter(is_evicted) {
            self.write()?;
            self.tell(|| format!("pod {name} is evicted"));
            self.check_eviction(&pod, &current);
            self.delete_pod(name);
        }
        Ok(())
    }

    /// Collects NodeClaims without instances and instances without NodeClaims.
    pub(super) fn collect(&mut self) -> Result<(), Halt> {
        let claims: Vec<String> = self.seen.claims.keys().cloned().collect();
        for name in claims {
            let is_registered =
                |it: &Stored<NodeClaim>| !it.is_deleting() && it.is_true(types::REGISTERED);
            let is_ready = |node: &Stored<Node>| has_ready(node, "True");
            if self.seen.claim(&name).is_some_and(is_registered)
                && !self.is_running(&name)
                && !self.seen.node(&name).is_some_and(is_ready)
            {
                self.tell(|| format!("NodeClaim {name} is collected: it has no instance"));
                if self.delete_unchanged(&name) == Err(Halt::Crashed) {
                    return Err(Halt::Crashed);
                }
            }
        }
        let instances: Vec<String> = self.instances.keys().cloned().collect();
        for name in instances {
            let id = provider_id(&name);
            let is_its = |claim: &NodeClaim| {
                let of = claim.status.provider_id.as_deref();
                of.map_or(claim.name() == name, |of| of == id)
            };
            let is_claimed = self.model.node_claims_by_provider_id(&id).next().is_some()
                || self.api.claims.values().any(|claim| is_its(claim));
            let launched = self.instances.get(&name).map(|it| it.launched);
            let is_old = launched.is_some_and(|at| self.age(at) >= GRACE);
            if self.is_running(&name) && !is_claimed && is_old {
                self.write()?;
                self.tell(|| format!("instance {name} is collected: it has no NodeClaim"));
                self.terminate(&id);
                if self.api.node(&name).is_some() {
                    self.write()?;
                    self.delete::<Node>(&name);
                }
            }
        }
        Ok(())
    }

    fn is_running(&self, name: &str) -> bool {
        let instance = self.instances.get(name);
        instance.is_some_and(|it| !it.is_terminating)
    }
}
