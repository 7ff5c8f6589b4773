//! Writes to the API server, and what the controllers' watches deliver of them.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels::taints;
use karpenter_api::v1::NodeClaim;
use karpenter_core::cluster::Cluster;
use karpenter_core::lifecycle::after;
use karpenter_core::lifecycle::pod_events::event_node;
use karpenter_core::pod::Pod;
use rustc_hash::FxHasher;

pub use super::objects::is_guarded;
use super::objects::{Kind, Stored};
use super::{Halt, World};

/// How often the time of the last pod event of a node is written.
const POD_EVENTS: std::time::Duration = std::time::Duration::from_secs(10);

/// Returns whether a Node has the taint of nodes that are being disrupted.
pub fn is_disrupted(node: &Node) -> bool {
    has_taint(node, taints::DISRUPTED)
}

/// Returns whether a Node has a taint with this key.
pub fn has_taint(node: &Node, key: &str) -> bool {
    let present = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    present.is_some_and(|all| all.iter().any(|taint| taint.key == key))
}

/// Returns whether a Node's condition Ready has this status.
pub fn has_ready(node: &Node, status: &str) -> bool {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| {
        all.iter()
            .any(|it| it.type_ == "Ready" && it.status == status)
    })
}

/// Returns whether an object's finalizers hold it.
pub fn is_held(finalizers: Option<&Vec<String>>) -> bool {
    finalizers.is_some_and(|all| !all.is_empty())
}

impl World {
    /// Counts a write of the controllers.
    ///
    /// # Errors
    /// Fails if the process ends before it.
    pub fn write(&mut self) -> Result<(), Halt> {
        if let Some(left) = &mut self.writes_left {
            *left = left.checked_sub(1).ok_or(Halt::Crashed)?;
        }
        self.writes += 1;
        Ok(())
    }

    /// Changes the model, whose epoch is the hash of its content: the same content has the same epoch.
    pub fn change_model(&mut self, change: impl FnOnce(&mut Cluster)) {
        let mut cluster = Cluster::from(self.model.fork());
        change(&mut cluster);
        let snapshot = cluster.snapshot();
        let mut hasher = FxHasher::default();
        self.seen.exact().hash(&mut hasher);
        for mark in snapshot.marks() {
            (
                mark.name,
                mark.for_deletion,
                mark.nominated_until.map(|at| at.as_second()),
            )
                .hash(&mut hasher);
        }
        self.model = cluster.with_epoch(hasher.finish() | 1 << 63).snapshot();
    }

    /// Writes a pod.
    pub fn put_pod(&mut self, pod: Pod) {
        let name = pod.key.name.clone();
        let before = self.api.pods.insert(name.clone(), pod.into());
        let after = self.api.pods.get(&name).map(|it| Arc::clone(&it.value));
        let node = event_node(before.as_ref().map(|it| &*it.value), after.as_deref());
        if let Some(node) = node.map(str::to_owned) {
            self.pod_event(&node);
        }
        self.deliver(Kind::Pod, &name);
    }

    /// Removes a pod.
    pub fn remove_pod(&mut self, name: &str) {
        let removed = self.api.pods.remove(name);
        let node = removed.and_then(|pod| pod.value.node_name.clone());
        if let Some(node) = node {
            self.ghosts.moved.remove(&*node);
        }
        self.ghosts.planned.remove(name);
        self.deliver(Kind::Pod, name);
    }

    /// Writes a Node.
    pub fn put_node(&mut self, node: Node) {
        let name = node.metadata.name.clone().unwrap_or_default();
        if self
            .api
            .nodes
            .get(&name)
            .is_some_and(|known| *known.value == node)
        {
            return;
        }
        let stored = Stored::from(node);
        if self.stale == Some(Kind::Node) {
            self.own.nodes.insert(name.clone(), stored.clone());
        }
        self.api.nodes.insert(name.clone(), stored);
        self.deliver(Kind::Node, &name);
    }

    /// Writes a NodeClaim.
    pub fn put_claim(&mut self, claim: NodeClaim) {
        let name = claim.name().to_owned();
        if self
            .api
            .claims
            .get(&name)
            .is_some_and(|known| *known.value == claim)
        {
            return;
        }
        let stored = Stored::from(claim);
        if self.stale == Some(Kind::NodeClaim) {
            self.own.claims.insert(name.clone(), stored.clone());
        }
        self.api.claims.insert(name.clone(), stored);
        self.deliver(Kind::NodeClaim, &name);
    }

    /// Changes a NodeClaim as the API server has it; does nothing if it has none.
    pub fn change_claim(&mut self, name: &str, change: impl FnOnce(&mut NodeClaim)) {
        if let Some(stored) = self.api.claims.get(name) {
            let mut claim = NodeClaim::clone(&stored.value);
            change(&mut claim);
            self.put_claim(claim);
        }
    }

    /// Deletes a NodeClaim, which its finalizer may hold.
    pub fn delete_claim(&mut self, name: &str) {
        let Some(stored) = self.api.claims.get(name) else {
            return;
        };
        if is_held(stored.value.metadata.finalizers.as_ref()) {
            if !stored.value.is_deleting() {
                let now = self.now;
                self.change_claim(name, |claim| {
                    claim.metadata.deletion_timestamp = Some(Time(now))
                });
            }
        } else {
            self.api.claims.remove(name);
            self.own.claims.remove(name);
            self.deliver(Kind::NodeClaim, name);
        }
    }

    /// Deletes a Node, which its finalizer may hold.
    pub fn delete_node(&mut self, name: &str) {
        let Some(stored) = self.api.nodes.get(name) else {
            return;
        };
        if is_held(stored.value.metadata.finalizers.as_ref()) {
            if stored.value.metadata.deletion_timestamp.is_none() {
                let mut node = Node::clone(&stored.value);
                node.metadata.deletion_timestamp = Some(Time(self.now));
                self.put_node(node);
            }
        } else {
            self.api.nodes.remove(name);
            self.own.nodes.remove(name);
            self.deliver(Kind::Node, name);
        }
    }

    /// Returns a NodeClaim as the controllers know it: what they wrote themselves, or what the watch delivered.
    pub fn view_claim(&self, name: &str) -> Option<Arc<NodeClaim>> {
        let own = self
            .own
            .claims
            .get(name)
            .or_else(|| self.seen.claims.get(name));
        own.map(|it| Arc::clone(&it.value))
    }

    /// Returns a Node as the controllers know it.
    pub fn view_node(&self, name: &str) -> Option<Arc<Node>> {
        let own = self
            .own
            .nodes
            .get(name)
            .or_else(|| self.seen.nodes.get(name));
        own.map(|it| Arc::clone(&it.value))
    }

    /// Delivers the API server's version of an object, unless the watch of its kind is interrupted.
    pub fn deliver(&mut self, kind: Kind, name: &str) {
        if self.stale == Some(kind) {
            return;
        }
        match kind {
            Kind::Pod => self.deliver_pod(name),
            Kind::Node => self.deliver_node(name),
            Kind::NodeClaim => self.deliver_claim(name),
            Kind::NodePool => self.deliver_pool(name),
        }
    }

    /// Delivers all objects of a kind: its watch is connected again.
    pub fn catch_up(&mut self, kind: Kind) {
        self.stale = None;
        self.own = Default::default();
        let names: BTreeSet<String> = match kind {
            Kind::Pod => self
                .api
                .pods
                .keys()
                .chain(self.seen.pods.keys())
                .cloned()
                .collect(),
            Kind::Node => self
                .api
                .nodes
                .keys()
                .chain(self.seen.nodes.keys())
                .cloned()
                .collect(),
            Kind::NodeClaim => self
                .api
                .claims
                .keys()
                .chain(self.seen.claims.keys())
                .cloned()
                .collect(),
            Kind::NodePool => self
                .api
                .pools
                .keys()
                .chain(self.seen.pools.keys())
                .cloned()
                .collect(),
        };
        names.iter().for_each(|name| self.deliver(kind, name));
    }

    fn deliver_pod(&mut self, name: &str) {
        let after = self.api.pods.get(name).cloned();
        let before = match &after {
            Some(pod) => self.seen.pods.insert(name.to_owned(), pod.clone()),
            None => self.seen.pods.remove(name),
        };
        let budget = self.pdb();
        self.change_model(|cluster| {
            match &after {
                Some(pod) => drop(cluster.insert_pod(Pod::clone(&pod.value))),
                None => drop(cluster.remove_pod("default", name)),
            }
            if let Some(budget) = &budget {
                cluster.apply_pdb(budget);
            }
        });
        let (before, after) = (before.map(|it| it.value), after.map(|it| it.value));
        let now = self.now;
        let process = self.provisioning_mut();
        match &after {
            None => {
                process.forget(name);
                self.evictions.remove(name);
            }
            Some(pod) => {
                if pod.node_name.is_some() || !pod.is_active() {
                    process.forget(name);
                }
                let waited =
                    |before: &Arc<Pod>| before.is_provisionable() && before.shape == pod.shape;
                if pod.is_provisionable() && !before.as_ref().is_some_and(waited) {
                    process.trigger(name, now);
                }
            }
        }
    }

    fn deliver_node(&mut self, name: &str) {
        let after = self.api.nodes.get(name).cloned();
        let before = match &after {
            Some(node) => self.seen.nodes.insert(name.to_owned(), node.clone()),
            None => self.seen.nodes.remove(name),
        };
        self.change_model(|cluster| match &after {
            Some(node) => drop(cluster.insert_node(Arc::clone(&node.value))),
            None => drop(cluster.remove_node(name)),
        });
        let was = before.is_some_and(|node| is_disrupted(&node.value));
        if !was && after.is_some_and(|node| is_disrupted(&node.value)) {
            self.trigger(name, true);
        }
    }

    fn deliver_claim(&mut self, name: &str) {
        let after = self.api.claims.get(name).cloned();
        let before = match &after {
            Some(claim) => self.seen.claims.insert(name.to_owned(), claim.clone()),
            None => self.seen.claims.remove(name),
        };
        self.change_model(|cluster| match &after {
            Some(claim) => drop(cluster.insert_node_claim(Arc::clone(&claim.value))),
            None => drop(cluster.remove_node_claim(name)),
        });
        let leaves = |claim: &Stored<NodeClaim>| claim.value.is_deleting();
        if after.as_ref().is_none_or(leaves) && !before.as_ref().is_some_and(leaves) {
            let last = after.or(before);
            if last.is_some_and(|claim| !claim.value.is_true(types::REGISTERED)) {
                self.provisioning_mut().release(name);
            }
            self.trigger(name, false);
        }
    }

    fn deliver_pool(&mut self, name: &str) {
        let after = self.api.pools.get(name).cloned();
        match &after {
            Some(pool) => drop(self.seen.pools.insert(name.to_owned(), pool.clone())),
            None => drop(self.seen.pools.remove(name)),
        }
        let types = Arc::clone(&self.setting.types);
        self.change_model(|cluster| match &after {
            Some(pool) => {
                cluster.apply_node_pool(&pool.value);
                cluster.set_instance_types(name, Ok(types));
            }
            None => drop(cluster.remove_node_pool(name)),
        });
        self.trigger(name, false);
    }

    /// Triggers a batch for a change that is not one of a pod.
    pub fn trigger(&mut self, uid: &str, always: bool) {
        if always
            || self.model.pending_pods().next().is_some()
            || !self.setting.buffer_pods.is_empty()
        {
            let now = self.now;
            self.provisioning_mut().trigger(uid, now);
        }
    }

    /// Writes the time of the last pod event of a node.
    fn pod_event(&mut self, node: &str) {
        let Some(claim) = self.api.claims.get(node) else {
            return;
        };
        let known = claim.value.status.last_pod_event_time.as_ref();
        if claim.value.is_deleting()
            || known.is_some_and(|known| self.now < after(known.0, POD_EVENTS))
        {
            return;
        }
        let now = self.now;
        self.change_claim(node, |claim| {
            claim.status.last_pod_event_time = Some(Time(now))
        });
    }

    /// Returns the PodDisruptionBudget of the pods with label `app: guarded`, of which one may be missing, with its status.
    fn pdb(&self) -> Option<PodDisruptionBudget> {
        let (covered, healthy) = self.api.guarded();
        let budget = karpenter_fixtures::pdb("guarded")
            .of(("app", "guarded"))
            .max_unavailable(1);
        let missing = covered.saturating_sub(healthy);
        let mut budget = budget
            .allows(
                1_i32
                    .saturating_sub(i32::try_from(missing).unwrap_or(1))
                    .max(0),
            )
            .build();
        let status = budget.status.get_or_insert_default();
        status.current_healthy = i32::try_from(healthy).ok();
        status.expected_pods = i32::try_from(covered).ok();
        (covered > 0).then_some(budget)
    }
}
