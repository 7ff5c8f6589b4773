//! Writes to the API server, and what the controllers' watches deliver of them.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::cluster::Cluster;
use karpenter_core::lifecycle::pod_events::{event_node, recorded};
use karpenter_core::lifecycle::provisioning::Change;
use karpenter_core::pod::Pod;
use rustc_hash::FxHasher;

use super::objects::{Kind, Named, Object, Objects, Stored};
use super::{Halt, World};

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
            let until = mark.nominated_until.map(|at| at.as_second());
            (mark.name, mark.for_deletion, until).hash(&mut hasher);
        }
        self.model = cluster.with_epoch(hasher.finish() | 1 << 63).snapshot();
    }

    /// Removes a pod.
    pub fn remove_pod(&mut self, name: &str) {
        let removed = Pod::all_mut(&mut self.api).remove(name);
        let node = removed.and_then(|pod| pod.node_name.clone());
        if let Some(node) = node {
            self.ghosts.moved.remove(&*node);
        }
        self.ghosts.planned.remove(name);
        self.ghosts.places.remove(name);
        self.deliver(Kind::Pod, name);
    }

    /// Writes an object.
    pub fn put<T: Object>(&mut self, object: T) {
        let name = object.own_name().to_owned();
        let known = self.api.get::<T>(&name);
        if known.is_some_and(|it| *it.value == object) {
            return;
        }
        let stored = Stored::from(object);
        if self.stale == Some(T::KIND) && T::KIND != Kind::Pod {
            T::all_mut(&mut self.own).insert(name.clone(), stored.clone());
        }
        T::all_mut(&mut self.api).insert(name.clone(), stored);
        self.deliver(T::KIND, &name);
    }

    /// Changes an object as the API server has it; does nothing if it has none.
    pub fn change<T: Object>(&mut self, name: &str, change: impl FnOnce(&mut T)) {
        if let Some(stored) = self.api.get::<T>(name) {
            let mut object = T::clone(stored);
            change(&mut object);
            self.put(object);
        }
    }

    /// Writes an object that the controllers have read, unless it has changed since.
    ///
    /// # Errors
    /// Fails if the API server has another version, or if the process ends before.
    pub fn replace<T: Named>(&mut self, read: &T, wanted: T) -> Result<(), Halt> {
        let known = self.api.get::<T>(read.own_name());
        if known.is_none_or(|stored| *stored.value != *read) {
            return Err(Halt::Conflict);
        }
        if wanted != *read {
            self.write()?;
            self.put(wanted);
        }
        Ok(())
    }

    /// Deletes an object, which its finalizer may hold.
    pub fn delete<T: Named>(&mut self, name: &str) {
        let Some(stored) = self.api.get::<T>(name) else {
            return;
        };
        let held = stored.meta().finalizers.as_ref();
        if held.is_some_and(|all| !all.is_empty()) {
            let now = Time(self.now);
            self.change::<T>(name, |it| {
                it.meta_mut().deletion_timestamp.get_or_insert(now);
            });
        } else {
            T::all_mut(&mut self.api).remove(name);
            T::all_mut(&mut self.own).remove(name);
            self.deliver(T::KIND, name);
        }
    }

    /// Returns an object as the controllers know it: what they have written themselves, or what the watch delivered.
    pub fn view<T: Object>(&self, name: &str) -> Option<Arc<T>> {
        let own = self.own.get::<T>(name).or_else(|| self.seen.get::<T>(name));
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
        fn names<T: Object>(of: &World) -> BTreeSet<String> {
            let all = T::all(&of.api).keys().chain(T::all(&of.seen).keys());
            all.cloned().collect()
        }
        (self.stale, self.stale_until) = (None, self.now);
        self.own = Objects::default();
        let names = match kind {
            Kind::Pod => names::<Pod>(self),
            Kind::Node => names::<Node>(self),
            Kind::NodeClaim => names::<NodeClaim>(self),
            Kind::NodePool => names::<NodePool>(self),
        };
        names.iter().for_each(|name| self.deliver(kind, name));
    }

    /// Takes over the API server's version of an object; returns the versions before and after.
    fn see<T: Object>(&mut self, name: &str) -> [Option<Arc<T>>; 2] {
        let after = self.api.get::<T>(name).cloned();
        let seen = T::all_mut(&mut self.seen);
        let before = match &after {
            Some(object) => seen.insert(name.to_owned(), object.clone()),
            None => seen.remove(name),
        };
        [before, after].map(|it| it.map(|it| it.value))
    }

    fn deliver_pod(&mut self, name: &str) {
        let [before, after] = self.see::<Pod>(name);
        if let Some(node) = event_node(before.as_deref(), after.as_deref()) {
            self.pod_event(node);
        }
        let budget = self.pdb();
        self.change_model(|cluster| {
            match &after {
                Some(pod) => drop(cluster.insert_pod(Pod::clone(pod))),
                None => drop(cluster.remove_pod("default", name)),
            }
            if let Some(budget) = &budget {
                cluster.apply_pdb(budget);
            }
        });
        if after.is_none() {
            self.evictions.remove(name);
        }
        self.observe(Change::Pod(before.as_deref(), after.as_deref()));
    }

    fn deliver_node(&mut self, name: &str) {
        let [before, after] = self.see::<Node>(name);
        self.change_model(|cluster| match &after {
            Some(node) => drop(cluster.insert_node(Arc::clone(node))),
            None => drop(cluster.remove_node(name)),
        });
        self.observe(Change::Node(before.as_deref(), after.as_deref()));
    }

    fn deliver_claim(&mut self, name: &str) {
        let [before, after] = self.see::<NodeClaim>(name);
        self.change_model(|cluster| match &after {
            Some(claim) => drop(cluster.insert_node_claim(Arc::clone(claim))),
            None => drop(cluster.remove_node_claim(name)),
        });
        self.observe(Change::NodeClaim(before.as_deref(), after.as_deref()));
    }

    fn deliver_pool(&mut self, name: &str) {
        let [before, after] = self.see::<NodePool>(name);
        let types = Arc::clone(&self.setting.types);
        self.change_model(|cluster| match &after {
            Some(pool) => {
                cluster.apply_node_pool(pool);
                cluster.set_instance_types(name, Ok(types));
            }
            None => drop(cluster.remove_node_pool(name)),
        });
        self.observe(Change::NodePool(before.as_deref(), after.as_deref()));
    }

    /// Tells the provisioner of a change of the model.
    pub fn observe(&mut self, change: Change<'_>) {
        let (snapshot, now) = (self.model.fork(), self.now);
        let has_buffers = !self.setting.buffer_pods.is_empty();
        self.provisioning_mut()
            .observe(change, &snapshot, has_buffers, now);
    }

    /// Writes the time of the last pod event of a node.
    fn pod_event(&mut self, node: &str) {
        let now = self.now;
        self.change::<NodeClaim>(node, |claim| {
            if let Some(recorded) = recorded(claim, now) {
                *claim = recorded;
            }
        });
    }

    /// Returns the PodDisruptionBudget of the pods with label `app: guarded`, of which one may be missing, with its status.
    fn pdb(&self) -> Option<PodDisruptionBudget> {
        let (covered, healthy) = self.api.guarded();
        let mut budget = karpenter_fixtures::pdb("guarded")
            .of(("app", "guarded"))
            .max_unavailable(1)
            .allows(i32::from(covered == healthy))
            .build();
        let status = budget.status.get_or_insert_default();
        status.current_healthy = i32::try_from(healthy).ok();
        status.expected_pods = i32::try_from(covered).ok();
        (covered > 0).then_some(budget)
    }
}
