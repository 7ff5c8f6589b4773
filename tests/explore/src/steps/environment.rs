//! What everyone else does: kube-scheduler, kubelets, the provider, the workloads' controllers, users.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels::{REGISTERED, annotations, taints};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::lifecycle::after;
use karpenter_core::pod::{Phase, Pod};
use karpenter_core::resources::Resources;

use super::Step;
use crate::world::World;
use crate::world::change::Change;
use crate::world::objects::{Kind, Named as _, Stored, has_ready, has_taint, is_disrupted};
use crate::world::tasks::Answer;

impl World {
    pub(super) fn steps_of_environment(&self, steps: &mut Vec<Step>) {
        let is_lost = |node: &str| self.api.node(node).is_none();
        let ended = self.api.pods.iter().filter(|(_, pod)| {
            pod.deleted_at.is_some() || pod.node_name.as_deref().is_some_and(is_lost)
        });
        steps.extend(ended.map(|(name, _)| Step::PodEnds(name.clone())));
        for (name, instance) in &self.instances {
            let node = self.api.node(name);
            let is_up = instance.ready_from() <= self.now;
            if is_up && node.is_some_and(|node| has_ready(node, "False")) {
                steps.push(Step::Ready(name.clone()));
            }
            if instance.is_terminating {
                steps.push(Step::InstanceEnds(name.clone()));
                continue;
            }
            // A kubelet registers its Node once.
            let is_launched = self.api.claim(name).is_some_and(|claim| {
                claim.status.provider_id.is_some() && claim.status.node_name.is_none()
            });
            let is_started = instance.joins() <= self.now && instance.kubelet != Answer::Silent;
            if is_launched && is_started && node.is_none() {
                steps.push(Step::Join(name.clone()));
            }
        }
        let lost = self.api.nodes.iter();
        let lost =
            lost.filter(|(name, it)| !self.instances.contains_key(*name) && !it.is_leaving());
        steps.extend(lost.map(|(name, _)| Step::NodeLost(name.clone())));
    }

    /// Adds the Nodes to which kube-scheduler may bind each pod; it tries every pod at once.
    pub(super) fn steps_of_scheduler(&self, steps: &mut Vec<Step>) {
        if self.now < self.busy {
            return;
        }
        let waiting = self.api.pods.iter();
        for (name, pod) in waiting.filter(|(name, _)| self.api.waits(name)) {
            let known = steps.len();
            let fits = |node: &&String| self.fits(pod, node);
            let nominated = pod.nominated_node.iter().filter(fits);
            let nodes: Vec<&String> = match nominated.clone().next() {
                Some(_) => nominated.collect(),
                None => self.api.nodes.keys().filter(fits).collect(),
            };
            let bind = |node: &String| Step::Bind(name.clone(), node.clone());
            steps.extend(nodes.into_iter().map(bind));
            let is_tried = pod.unschedulable && pod.nominated_node.is_none();
            if steps.len() == known && !is_tried {
                steps.push(Step::NoNode(name.clone()));
            }
        }
    }

    /// Returns whether kube-scheduler can bind a pod to a Node.
    pub fn fits(&self, pod: &Pod, name: &str) -> bool {
        let Some(node) = self.api.node(name) else {
            return false;
        };
        let labels = node.metadata.labels.as_ref();
        let has = |key: &str, value: &str| {
            let found = labels.and_then(|all| all.get(key));
            found.is_some_and(|it| it == value)
        };
        let mut selector = pod.shape.node_selector.iter();
        let is_open = !is_disrupted(node)
            && !has_taint(node, taints::UNREGISTERED)
            && has_ready(node, "True")
            && has(REGISTERED, "true")
            && selector.all(|(key, value)| has(key, value));
        let total = node.status.as_ref().and_then(|it| it.allocatable.clone());
        let Ok(mut left) = Resources::allocatable_from(&total.unwrap_or_default()) else {
            return false;
        };
        let nominated = self.api.pods.values().filter(|it| {
            let node = it.nominated_node.as_deref();
            node == Some(name) && it.node_name.is_none() && it.key != pod.key
        });
        for other in self.api.pods_on(name).chain(nominated) {
            left.sub_assign(&other.shape.requests);
        }
        is_open && Resources::fits(&pod.shape.requests, &left)
    }

    pub(super) fn step_of_environment(&mut self, step: &Step) {
        match step {
            Step::PodEnds(name) => self.remove_pod(name),
            Step::Join(name) => self.join(name),
            Step::Ready(name) => self.set_ready(name, "True"),
            Step::InstanceEnds(name) => self.instance_gone(name),
            Step::NodeLost(name) => self.delete::<Node>(name),
            Step::Detach(node) => {
                self.change_model(|cluster| drop(cluster.remove_volume_attachment(node)));
            }
            Step::Bind(name, node) => {
                let now = self.now;
                self.ghosts.promised.remove(name);
                self.ghosts.planned.remove(name);
                self.ghosts.places.remove(name);
                self.note_pod_event(node);
                self.change::<Pod>(name, |pod| {
                    pod.node_name = Some(node.as_str().into());
                    (pod.unschedulable, pod.nominated_node) = (false, None);
                    pod.scheduled_since = Some(now.into());
                    run(pod, now);
                });
            }
            Step::NoNode(name) => self.change::<Pod>(name, |pod| {
                (pod.unschedulable, pod.nominated_node) = (true, None);
            }),
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
        pod.nominated_node = None;
        pod.phase = Phase::Pending;
        self.put(pod);
        name
    }

    /// Notes when a pod of a node was bound or deleted; a pod that is gone when the watch is back was no event [DIS-144].
    fn note_pod_event(&mut self, node: &str) {
        if self.stale != Some(Kind::Pod) {
            self.ghosts.events.insert(node.to_owned(), self.now);
        }
    }

    /// Deletes a pod.
    fn end_pod(&mut self, name: &str) {
        let Some(pod) = self.api.pod(name) else {
            return;
        };
        let Some(node) = pod.node_name.clone() else {
            return self.remove_pod(name);
        };
        self.note_pod_event(&node);
        let due = after(self.now, Duration::from_secs(30));
        self.change::<Pod>(name, |pod| {
            (pod.deleted_at, pod.ready) = (Some(due.into()), false);
        });
    }

    /// Deletes a pod; its workload's controller creates another at once.
    pub(super) fn delete_pod(&mut self, name: &str) {
        let pod = self.api.pod(name).map(|it| Arc::clone(&it.value));
        self.end_pod(name);
        if let Some(pod) = pod.filter(|pod| pod.shape.controller.is_some()) {
            let new = self.add_pod(&pod);
            self.tell(|| format!("pod {new} is created in place of pod {name}"));
        }
    }

    /// Returns the first pod of a workload.
    fn pod_of(&self, app: &str) -> Option<Arc<Pod>> {
        let is_its = |pod: &&Stored<Pod>| {
            pod.is_active() && pod.shape.labels.get("app").is_some_and(|of| of == app)
        };
        let found = self.api.pods.values().find(is_its);
        found.map(|it| Arc::clone(&it.value))
    }

    pub(super) fn may_change(&self, change: &Change) -> bool {
        match change {
            Change::Protect(app) | Change::RemovePod(app) => self.pod_of(app).is_some(),
            Change::DeleteNodeOf(app) => {
                self.pod_of(app).is_some_and(|pod| pod.node_name.is_some())
            }
            _ => true,
        }
    }

    pub(super) fn change_by_user(&mut self, index: usize) {
        let setting = Arc::clone(&self.setting);
        let Some(change) = setting.changes.get(index) else {
            return;
        };
        self.changed |= 1 << index;
        self.faults.changes = self.faults.changes.saturating_sub(1);
        self.tell(|| match change {
            Change::PutPool(pool) => format!("NodePool {} is written", pool.name()),
            Change::AddPod(pod) | Change::PutPod(pod) => format!("pod {} is written", pod.key.name),
            change => format!("{change:?}"),
        });
        self.apply_change(change);
    }

    /// Makes a change of a user.
    pub fn apply_change(&mut self, change: &Change) {
        let of = |app: &str| self.pod_of(app);
        let name_of = |app: &str| of(app).map(|pod| pod.key.name.clone()).unwrap_or_default();
        match change {
            Change::Protect(app) => self.change::<Pod>(&name_of(app), |pod| {
                let key = annotations::DO_NOT_DISRUPT.to_owned();
                pod.annotations.insert(key, "true".to_owned());
            }),
            Change::RemovePod(app) => self.end_pod(&name_of(app)),
            Change::AddPod(pod) => drop(self.add_pod(pod)),
            Change::DeleteNodeOf(app) => {
                let node = of(app).and_then(|pod| pod.node_name.clone());
                self.delete::<NodeClaim>(&node.unwrap_or_default());
            }
            Change::PutPod(pod) => {
                let known = self.api.pod(&pod.key.name);
                let node = pod.node_name.as_deref();
                let fits = node.is_none_or(|node| self.fits(pod, node));
                if known.is_some_and(|known| known.node_name.is_some()) || !fits {
                    return;
                }
                let mut pod = Pod::clone(pod);
                pod.created_at = known.map_or(Some(self.now.into()), |known| known.created_at);
                if let Some(node) = pod.node_name.clone() {
                    self.note_pod_event(&node);
                    run(&mut pod, self.now);
                }
                self.put(pod);
            }
            Change::EndPod(name) => self.remove_pod(name),
            Change::DeleteClaim(name) => self.delete::<NodeClaim>(name),
            Change::DeleteNode(name) => self.delete::<Node>(name),
            Change::SetClassReady(ready) => {
                let now = self.now;
                self.is_class_ready = *ready;
                let pools: Vec<String> = self.api.pools.keys().cloned().collect();
                for name in pools {
                    self.change::<NodePool>(&name, |pool| {
                        match ready {
                            true => pool.set_true(types::READY, now),
                            false => pool.set_false(types::READY, "NodeClassNotReady", "", now),
                        };
                    });
                }
            }
            Change::PutPool(pool) => self.put(NodePool::clone(pool)),
        }
    }
}

/// Lets a pod run.
fn run(pod: &mut Pod, now: Timestamp) {
    (pod.phase, pod.ready, pod.started_at) = (Phase::Running, true, Some(now.into()));
}
