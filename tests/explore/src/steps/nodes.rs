//! Reconciles Nodes that are being deleted, evicts their pods, and collects garbage.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodeClaim;
use karpenter_core::cluster::pdb;
use karpenter_core::lifecycle::drain;
use karpenter_core::lifecycle::termination::{
    NodeEffect, NodeEvent, TerminatingNode, deadline, on_node, taint,
};
use karpenter_core::pod::Pod;

use super::claims::has_finalizer;
use crate::world::cloud::{claim_of, provider_id};
use crate::world::view::{has_ready, is_guarded};
use crate::world::{Halt, World};

/// How long an instance may exist without a NodeClaim, in seconds.
const GRACE: i64 = 30;

impl World {
    /// Returns the NodeClaim of a Node, as the controllers know it; `None` if there is not exactly one.
    fn claim_of_node(&self, node: &Node) -> Option<Arc<NodeClaim>> {
        let id = node.spec.as_ref()?.provider_id.as_deref()?;
        let mut claims = self.model.node_claims_by_provider_id(id);
        let (first, second) = (claims.next()?, claims.next());
        if second.is_some() {
            return None;
        }
        self.view_claim(first.name())
    }

    pub(super) fn reconcile_node(&mut self, name: &str) -> Result<(), Halt> {
        let Some(node) = self.view_node(name) else {
            return Ok(());
        };
        if node.metadata.deletion_timestamp.is_none()
            || !has_finalizer(node.metadata.finalizers.as_ref())
        {
            return Ok(());
        }
        let mut node = Node::clone(&node);
        let mut claim = self
            .claim_of_node(&node)
            .map(|claim| NodeClaim::clone(&claim));
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
                        self.delete_claim(name);
                    }
                    NodeEffect::FindInstance => {
                        let id = node
                            .spec
                            .as_ref()
                            .and_then(|spec| spec.provider_id.as_deref());
                        let found = self
                            .instances
                            .contains_key(claim_of(id.unwrap_or_default()));
                        event = NodeEvent::InstanceFound(found);
                    }
                    NodeEffect::Taint => {
                        let mut wanted = node.clone();
                        taint(&mut wanted);
                        if wanted != node {
                            if self
                                .api
                                .nodes
                                .get(name)
                                .is_none_or(|stored| *stored.value != node)
                            {
                                return Err(Halt::Conflict);
                            }
                            self.write()?;
                            self.put_node(wanted.clone());
                            node = wanted;
                        }
                    }
                    NodeEffect::Evict(pods) => {
                        let until = claim.as_ref().and_then(deadline);
                        for pod in pods {
                            let known = self.evictions.entry(pod.key.name.clone()).or_insert(until);
                            *known = [*known, until].into_iter().flatten().min();
                        }
                    }
                    NodeEffect::FindPods => {
                        let pods = self.api.pods.values().map(|it| &it.value);
                        let pods = pods.filter(|pod| pod.node_name.as_deref() == Some(name));
                        let pods: Vec<Arc<Pod>> = pods.cloned().collect();
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
                    NodeEffect::Release => return self.release_node(&node),
                    NodeEffect::Wait(_) | NodeEffect::Poll(_) => return Ok(()),
                    NodeEffect::ReportDeadline(_)
                    | NodeEffect::ReportWaiting(_)
                    | NodeEffect::ReportAttached(_) => {}
                }
            }
        }
    }

    fn release_node(&mut self, node: &Node) -> Result<(), Halt> {
        let name = node.metadata.name.clone().unwrap_or_default();
        if self
            .api
            .nodes
            .get(&name)
            .is_none_or(|stored| *stored.value != *node)
        {
            return Err(Halt::Conflict);
        }
        self.write()?;
        self.check_node_release(&name);
        self.tell(|| format!("Node {name} is released"));
        let mut released = node.clone();
        released.metadata.finalizers = None;
        self.put_node(released);
        self.delete_node(&name);
        Ok(())
    }

    /// Evicts a pod of the eviction queue, if it and its budget allow that, or deletes it in time for the deadline.
    pub(super) fn evict(&mut self, name: &str) -> Result<(), Halt> {
        let Some(until) = self.evictions.get(name).copied() else {
            return Ok(());
        };
        let Some(pod) = self.seen.pods.get(name).map(|it| Arc::clone(&it.value)) else {
            self.evictions.remove(name);
            return Ok(());
        };
        if until.is_some_and(|_| drain::needs_force(&pod, until, self.now)) {
            self.evictions.remove(name);
            self.write()?;
            self.tell(|| format!("pod {name} is deleted in time for the deadline"));
            self.check_forced(&pod);
            self.delete_pod(name);
            return Ok(());
        }
        if !pod.is_active() {
            self.evictions.remove(name);
            return Ok(());
        }
        if !drain::is_evictable(&pod, self.now) || pdb::refuses(&self.model, &pod).is_some() {
            return Ok(());
        }
        let Some(current) = self.api.pods.get(name).map(|it| Arc::clone(&it.value)) else {
            return Ok(());
        };
        if current.deleted_at.is_some() || !self.budget_allows(&current) {
            return Ok(());
        }
        self.write()?;
        self.tell(|| format!("pod {name} is evicted"));
        self.check_eviction(&pod, &current);
        self.delete_pod(name);
        Ok(())
    }

    /// Returns whether the API server accepts the eviction of a pod.
    fn budget_allows(&self, pod: &Pod) -> bool {
        let (covered, healthy) = self.api.guarded();
        !is_guarded(pod) || !pod.ready || covered - healthy == 0
    }

    /// Collects NodeClaims without instances and instances without NodeClaims.
    pub(super) fn collect(&mut self) -> Result<(), Halt> {
        let is_ready = |world: &Self, name: &str| {
            world
                .seen
                .nodes
                .get(name)
                .is_some_and(|node| has_ready(&node.value, "True"))
        };
        let running = |world: &Self, name: &str| {
            world
                .instances
                .get(name)
                .is_some_and(|it| !it.is_terminating)
        };
        let claims: Vec<(String, Arc<NodeClaim>)> = self
            .seen
            .claims
            .iter()
            .map(|(name, it)| (name.clone(), Arc::clone(&it.value)))
            .collect();
        for (name, claim) in claims {
            let lost = !claim.is_deleting()
                && claim.is_true(types::REGISTERED)
                && !running(self, &name)
                && !is_ready(self, &name);
            if lost {
                self.tell(|| format!("NodeClaim {name} is collected: it has no instance"));
                match self.delete_unchanged(&name) {
                    Err(Halt::Crashed) => return Err(Halt::Crashed),
                    _ => continue,
                }
            }
        }
        let instances: Vec<String> = self.instances.keys().cloned().collect();
        for name in instances {
            let id = provider_id(&name);
            let claimed = |claim: &NodeClaim| claim.status.provider_id.as_deref() == Some(&id);
            let known = self.model.node_claims_by_provider_id(&id).next().is_some();
            let launching = self
                .api
                .claims
                .get(&name)
                .is_some_and(|it| it.value.status.provider_id.is_none());
            let listed = self.api.claims.values().any(|it| claimed(&it.value));
            let is_old = self
                .instances
                .get(&name)
                .is_some_and(|it| self.now.duration_since(it.launched).as_secs() >= GRACE);
            if running(self, &name) && !known && !listed && !launching && is_old {
                self.write()?;
                self.tell(|| format!("instance {name} is collected: it has no NodeClaim"));
                self.terminate(&id);
                if self.api.nodes.contains_key(&name) {
                    self.write()?;
                    self.delete_node(&name);
                }
            }
        }
        Ok(())
    }
}
