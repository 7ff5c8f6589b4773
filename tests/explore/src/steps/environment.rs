//! What everyone else does: kube-scheduler, kubelets, the provider, the workloads' controllers, users.

use std::sync::Arc;

use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels::{REGISTERED, taints};
use karpenter_core::lifecycle::after;
use karpenter_core::pod::{Phase, Pod};
use karpenter_core::resources::Resources;

use super::Step;
use crate::world::World;
use crate::world::change::Change;
use crate::world::view::has_ready;

impl World {
    pub(super) fn steps_of_environment(&self, steps: &mut Vec<Step>) {
        let ended = self.api.pods.iter().filter(|(_, pod)| {
            let node = pod.value.node_name.as_deref();
            pod.value.deleted_at.is_some()
                || node.is_some_and(|node| !self.api.nodes.contains_key(node))
        });
        steps.extend(ended.map(|(name, _)| Step::PodEnds(name.clone())));
        for (name, instance) in &self.instances {
            if self
                .api
                .nodes
                .get(name)
                .is_some_and(|node| has_ready(&node.value, "False"))
            {
                steps.push(Step::Ready(name.clone()));
            }
            if instance.is_terminating {
                steps.push(Step::InstanceEnds(name.clone()));
                continue;
            }
            let claim = self.api.claims.get(name);
            let is_launched = claim.is_some_and(|claim| claim.value.status.provider_id.is_some());
            if is_launched
                && !instance.is_silent
                && !self.api.nodes.contains_key(name)
                && !self.has_joined(name)
            {
                steps.push(Step::Join(name.clone()));
            }
        }
        let lost = self.api.nodes.iter().filter(|(name, node)| {
            !self.instances.contains_key(*name) && node.value.metadata.deletion_timestamp.is_none()
        });
        steps.extend(lost.map(|(name, _)| Step::NodeLost(name.clone())));
    }

    /// A kubelet registers its Node once.
    fn has_joined(&self, name: &str) -> bool {
        let claim = self.api.claims.get(name);
        claim.is_some_and(|claim| claim.value.status.node_name.is_some())
    }

    /// Adds the Nodes to which kube-scheduler may bind each pod; it tries every pod at once.
    pub(super) fn steps_of_scheduler(&self, steps: &mut Vec<Step>) {
        for (name, pod) in self.api.pods.iter() {
            let pod = &pod.value;
            if pod.node_name.is_some() || !pod.is_active() {
                continue;
            }
            let nodes = self.api.nodes.keys();
            let fitting: Vec<&String> = nodes.filter(|node| self.fits(pod, node)).collect();
            if fitting.is_empty() && !pod.unschedulable {
                steps.push(Step::NoNode(name.clone()));
            }
            steps.extend(
                fitting
                    .into_iter()
                    .map(|node| Step::Bind(name.clone(), node.clone())),
            );
        }
    }

    /// Returns whether kube-scheduler can bind a pod to a Node.
    pub fn fits(&self, pod: &Pod, name: &str) -> bool {
        let Some(stored) = self.api.nodes.get(name) else {
            return false;
        };
        let node = &stored.value;
        let present = node
            .spec
            .iter()
            .flat_map(|spec| spec.taints.iter().flatten());
        let keeps_away = present
            .into_iter()
            .any(|taint| taint.key == taints::DISRUPTED || taint.key == taints::UNREGISTERED);
        let has = |key: &str, value: &str| {
            node.metadata
                .labels
                .as_ref()
                .and_then(|all| all.get(key))
                .is_some_and(|it| it == value)
        };
        let selected = pod
            .shape
            .node_selector
            .iter()
            .all(|(key, value)| has(key, value));
        if keeps_away || !selected || !has_ready(node, "True") || !has(REGISTERED, "true") {
            return false;
        }
        let total = node
            .status
            .as_ref()
            .and_then(|status| status.allocatable.as_ref());
        let Ok(mut left) = Resources::allocatable_from(&total.cloned().unwrap_or_default()) else {
            return false;
        };
        for other in self
            .api
            .pods
            .values()
            .filter(|other| other.value.node_name.as_deref() == Some(name))
        {
            left.sub_assign(&other.value.shape.requests);
        }
        pod.shape
            .requests
            .iter()
            .all(|(resource, asked)| asked <= left.get(resource))
    }

    pub(super) fn step_of_environment(&mut self, step: &Step) {
        match step {
            Step::PodEnds(name) => self.remove_pod(name),
            Step::Join(name) => self.join(name),
            Step::Ready(name) => self.set_ready(name, "True"),
            Step::InstanceEnds(name) => self.instance_gone(name),
            Step::NodeLost(name) => self.delete_node(name),
            Step::Bind(name, node) => {
                let Some(mut pod) = self.api.pods.get(name).map(|it| Pod::clone(&it.value)) else {
                    return;
                };
                pod.node_name = Some(node.as_str().into());
                pod.unschedulable = false;
                pod.phase = Phase::Running;
                pod.ready = true;
                pod.started_at = Some(self.now.into());
                pod.scheduled_since = Some(self.now.into());
                self.ghosts.promised.remove(name);
                self.ghosts.planned.remove(name);
                self.put_pod(pod);
            }
            Step::NoNode(name) => {
                let Some(mut pod) = self.api.pods.get(name).map(|it| Pod::clone(&it.value)) else {
                    return;
                };
                pod.unschedulable = true;
                self.put_pod(pod);
            }
            _ => {}
        }
    }

    /// Adds a pod like another that kube-scheduler has not tried.
    pub fn add_pod(&mut self, like: &Pod) -> String {
        let name = format!("pd-{:04}", self.number(1));
        let mut pod = like.clone();
        pod.key.name.clone_from(&name);
        pod.key.uid.clone_from(&name);
        pod.created_at = Some(self.now.into());
        (pod.deleted_at, pod.started_at, pod.node_name) = (None, None, None);
        (pod.scheduled_since, pod.ready, pod.unschedulable) = (None, false, false);
        pod.phase = Phase::Pending;
        self.put_pod(pod);
        name
    }

    /// Deletes a pod; its workload's controller creates another at once.
    pub(super) fn delete_pod(&mut self, name: &str) {
        let Some(pod) = self.api.pods.get(name).map(|it| Arc::clone(&it.value)) else {
            return;
        };
        let mut ending = Pod::clone(&pod);
        let grace = std::time::Duration::from_secs(30);
        ending.deleted_at = Some(after(self.now, grace).into());
        ending.ready = false;
        if pod.node_name.is_none() {
            self.remove_pod(name);
        } else {
            self.put_pod(ending);
        }
        if pod.shape.controller.is_some() {
            let new = self.add_pod(&pod);
            self.tell(|| format!("pod {new} is created in place of pod {name}"));
        }
    }

    /// Returns the first pod of a workload.
    fn pod_of(&self, app: &str) -> Option<Arc<Pod>> {
        let is_its = |pod: &&Arc<Pod>| {
            pod.is_active() && pod.shape.labels.get("app").is_some_and(|of| of == app)
        };
        self.api
            .pods
            .values()
            .map(|it| &it.value)
            .find(is_its)
            .cloned()
    }

    pub(super) fn may_change(&self, change: &Change) -> bool {
        match change {
            Change::Protect(app) | Change::RemovePod(app) | Change::AddPodLike(app) => {
                self.pod_of(app).is_some()
            }
            Change::DeleteNodeOf(app) => {
                self.pod_of(app).is_some_and(|pod| pod.node_name.is_some())
            }
            _ => true,
        }
    }

    pub(super) fn change(&mut self, index: usize) {
        let setting = Arc::clone(&self.setting);
        let Some(change) = setting.changes.get(index) else {
            return;
        };
        self.changed |= 1 << index;
        self.faults.changes = self.faults.changes.saturating_sub(1);
        self.tell(|| format!("{change}"));
        self.apply_change(change);
    }

    /// Makes a change of a user.
    pub fn apply_change(&mut self, change: &Change) {
        match change {
            Change::Protect(app) => {
                if let Some(pod) = self.pod_of(app) {
                    let mut pod = Pod::clone(&pod);
                    pod.annotations
                        .insert("karpenter.sh/do-not-disrupt".to_owned(), "true".to_owned());
                    self.put_pod(pod);
                }
            }
            Change::RemovePod(app) => {
                if let Some(pod) = self.pod_of(app) {
                    self.remove_pod(&pod.key.name);
                }
            }
            Change::AddPodLike(app) => {
                if let Some(pod) = self.pod_of(app) {
                    self.add_pod(&pod);
                }
            }
            Change::AddPod(pod) => drop(self.add_pod(pod)),
            Change::DeleteNodeOf(app) => {
                if let Some(node) = self.pod_of(app).and_then(|pod| pod.node_name.clone()) {
                    self.delete_claim(&node);
                }
            }
            Change::PutPod(pod) => {
                let name = &pod.key.name;
                let known = self.api.pods.get(name).map(|it| Arc::clone(&it.value));
                let fits = pod
                    .node_name
                    .as_deref()
                    .is_none_or(|node| self.fits(pod, node));
                if known
                    .as_ref()
                    .is_some_and(|known| known.node_name.is_some())
                    || !fits
                {
                    return;
                }
                let mut pod = Pod::clone(pod);
                pod.created_at = known.map_or(Some(self.now.into()), |known| known.created_at);
                if pod.node_name.is_some() {
                    (pod.phase, pod.ready, pod.started_at) =
                        (Phase::Running, true, Some(self.now.into()));
                }
                self.put_pod(pod);
            }
            Change::EndPod(name) => self.remove_pod(name),
            Change::DeleteClaim(name) => self.delete_claim(name),
            Change::DeleteNode(name) => self.delete_node(name),
            Change::SetClassReady(ready) => {
                self.is_class_ready = *ready;
                let pools: Vec<_> = self
                    .api
                    .pools
                    .iter()
                    .map(|(name, it)| (name.clone(), Arc::clone(&it.value)))
                    .collect();
                for (name, pool) in pools {
                    let mut pool = karpenter_api::v1::NodePool::clone(&pool);
                    match ready {
                        true => pool.set_true(types::READY, self.now),
                        false => pool.set_false(types::READY, "NodeClassNotReady", "", self.now),
                    };
                    self.api.pools.insert(name.clone(), pool.into());
                    self.deliver(crate::world::objects::Kind::NodePool, &name);
                }
            }
            Change::PutPool(pool) => {
                let name = pool.name().to_owned();
                self.api.pools.insert(
                    name.clone(),
                    karpenter_api::v1::NodePool::clone(pool).into(),
                );
                self.deliver(crate::world::objects::Kind::NodePool, &name);
            }
        }
    }
}
