//! Changes of pods, and the queue of the pending ones.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Class, ClassId, Engine, Order, PodEntry, PodInput, Uid};
use crate::loops::scheduler::shape::Shape;

impl Engine {
    /// Returns the shape of a pod, shared with pods of equal shape.
    fn shape(&mut self, pod: &PodInput<'_>) -> Arc<Shape> {
        let resources = &mut self.resources;
        let shape = Shape::new(pod.name, pod.namespace, pod.labels, pod.spec, resources);
        if let Some(known) = self.shapes.get(&shape) {
            return known.clone();
        }
        // Shapes of pods that are gone must not pile up.
        if self.shapes.len() > 4096 {
            self.shapes.clear();
        }
        let shape = Arc::new(shape);
        self.shapes.insert(shape.clone());
        shape
    }

    /// Updates a pod that is not terminal.
    pub(crate) fn apply_pod(&mut self, pod: &PodInput<'_>) {
        let uid: Uid = pod.uid.into();
        if let Some(entry) = self.pods.get_mut(&uid) {
            // A stale state of a pod that is being bound has no new information.
            if entry.assumed && pod.node.is_none() && !pod.terminating {
                return;
            }
            let same_node = entry.node.as_deref() == pod.node;
            if same_node && entry.shape.labels == *pod.labels && entry.node.is_some() {
                entry.assumed = false;
                if entry.terminating != pod.terminating {
                    entry.terminating = pod.terminating;
                    self.count_spread_of(&uid, -1);
                }
                return;
            }
            if same_node
                && entry.node.is_none()
                && pod.ours
                && entry.pending.is_some()
                && !pod.terminating
            {
                entry.nominated = pod.nominated.map(str::to_owned);
                if entry.message.as_deref() != pod.message && pod.message.is_some() {
                    entry.message = pod.message.map(Arc::from);
                }
                if entry.shape.labels == *pod.labels {
                    return;
                }
            }
            self.remove_pod(pod.uid);
        }
        let shape = self.shape(pod);
        let entry = PodEntry {
            shape: shape.clone(),
            node: pod.node.map(Arc::from),
            assumed: false,
            claims: Vec::new(),
            volumes: Vec::new(),
            terminating: pod.terminating,
            pending: None,
            nominated: pod.nominated.map(str::to_owned),
            message: pod.message.map(Arc::from),
            reported_at: None,
        };
        self.pods.insert(uid.clone(), entry);
        if pod.node.is_some() {
            self.mount(&uid);
            self.account(&uid, 1);
            self.placed += 1;
        } else if pod.ours && !pod.terminating {
            self.enqueue(&uid, shape);
        }
    }

    fn mount(&mut self, uid: &Uid) {
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        if !entry.shape.claims.is_empty()
            && let Ok(needs) = self.volumes.needs(&entry.shape)
        {
            entry.volumes = self.volumes.attachments(&needs);
        }
    }

    fn enqueue(&mut self, uid: &Uid, shape: Arc<Shape>) {
        let class_id = match self.class_of.get(&shape) {
            Some(id) => *id,
            None => {
                let id = self.next_class;
                self.next_class += 1;
                self.class_of.insert(shape.clone(), id);
                let class = Class {
                    shape: shape.clone(),
                    pending: BTreeMap::new(),
                    queued: None,
                    unreported: Vec::new(),
                    refusal: None,
                    counters: None,
                };
                self.classes.insert(id, class);
                id
            }
        };
        let order = (Reverse(shape.priority), self.next_order);
        self.next_order += 1;
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.pending = Some((class_id, order));
        }
        if let Some(class) = self.classes.get_mut(&class_id) {
            class.pending.insert(order, uid.clone());
            if class.refusal.is_some() {
                class.unreported.push(uid.clone());
            }
        }
        self.parked.remove(&class_id);
        self.activate(class_id);
    }

    /// Queues the class by its first pending pod.
    pub(super) fn activate(&mut self, class_id: ClassId) {
        if let Some(class) = self.classes.get_mut(&class_id) {
            let first = class.pending.first_key_value().map(|(order, _)| *order);
            if let Some(old) = class.queued.take() {
                self.active.remove(&(old, class_id));
            }
            if let Some(order) = first {
                class.queued = Some(order);
                self.active.insert((order, class_id));
            }
        }
    }

    /// Removes a pod that is deleted or terminal.
    pub(crate) fn remove_pod(&mut self, uid: &str) {
        let Some((uid, entry)) = self.pods.get_key_value(uid) else {
            return;
        };
        let uid = uid.clone();
        if let Some((class_id, order)) = entry.pending {
            self.dequeue(class_id, order);
        }
        if self.pods.get(&uid).is_some_and(|e| e.node.is_some()) {
            self.account(&uid, -1);
            self.freed += 1;
        }
        if let Some(entry) = self.pods.remove(&uid)
            && entry.assumed
        {
            self.volumes.forget(&entry.claims);
        }
    }

    /// Removes a pending pod from its class, and the class if it was the last.
    pub(super) fn dequeue(&mut self, class_id: ClassId, order: Order) {
        let Some(class) = self.classes.get_mut(&class_id) else {
            return;
        };
        class.pending.remove(&order);
        if class.pending.is_empty() {
            let shape = class.shape.clone();
            if let Some(old) = class.queued {
                self.active.remove(&(old, class_id));
            }
            self.classes.remove(&class_id);
            self.counting.remove(&class_id);
            self.class_of.remove(&shape);
            self.parked.remove(&class_id);
        } else if !self.parked.contains(&class_id) {
            self.activate(class_id);
        }
    }

    /// Makes the pod pending again after a failed binding.
    pub(crate) fn bind_failed(&mut self, uid: &str) {
        let Some((uid, entry)) = self.pods.get_key_value(uid) else {
            return;
        };
        if !entry.assumed {
            return;
        }
        let uid = uid.clone();
        self.account(&uid, -1);
        self.freed += 1;
        let Some(entry) = self.pods.get_mut(&uid) else {
            return;
        };
        entry.assumed = false;
        entry.node = None;
        entry.volumes.clear();
        let claims = std::mem::take(&mut entry.claims);
        let shape = entry.shape.clone();
        self.volumes.forget(&claims);
        self.enqueue(&uid, shape);
    }

    /// Reports to the pod again after its condition could not be written.
    pub(crate) fn report_failed(&mut self, uid: &str) {
        let Some((uid, entry)) = self.pods.get_key_value(uid) else {
            return;
        };
        let (uid, pending) = (uid.clone(), entry.pending);
        if let Some(entry) = self.pods.get_mut(&uid) {
            entry.message = None;
        }
        if let Some((id, _)) = pending
            && let Some(class) = self.classes.get_mut(&id)
        {
            class.unreported.push(uid);
            self.parked.remove(&id);
            self.activate(id);
        }
    }
}
