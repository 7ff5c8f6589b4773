//! Changes of pods, and the classes of the pending ones.

use std::sync::Arc;

use super::{Engine, PodEntry, PodInput, Uid};
use crate::loops::scheduler::shape::Shape;

impl Engine {
    /// Updates a pod that is not terminal.
    pub(crate) fn apply_pod(&mut self, pod: &PodInput<'_>) {
        let uid: Uid = pod.uid.into();
        if let Some(entry) = self.pods.get_mut(&uid) {
            // A stale state of a pod that is being bound has no new information.
            if entry.assumed.is_some() && pod.node.is_none() && !pod.terminating {
                return;
            }
            let same = entry.node.as_deref() == pod.node && entry.shape.labels == *pod.labels;
            if same && entry.node.is_some() {
                entry.assumed = None;
                if entry.terminating != pod.terminating {
                    entry.terminating = pod.terminating;
                    self.freed += 1;
                }
                return;
            }
            if same && entry.pending.is_some() && pod.ours && !pod.terminating {
                entry.nominated = pod.nominated.map(str::to_owned);
                if pod.message.is_some() {
                    entry.message = pod.message.map(Arc::from);
                }
                return;
            }
            self.remove_pod(pod.uid);
        }
        let shape = Shape::new(pod.name, pod.namespace, pod.labels, pod.spec);
        let known = self.classes.get_key_value(&shape);
        let shape = known.map_or_else(|| Arc::new(shape), |(shape, _)| shape.clone());
        let mounted = match pod.node {
            Some(_) => self.volumes.needs(&shape).unwrap_or_default(),
            None => Vec::new(),
        };
        let entry = PodEntry {
            shape,
            node: pod.node.map(Arc::from),
            assumed: None,
            volumes: self.volumes.attachments(&mounted),
            terminating: pod.terminating,
            pending: None,
            nominated: pod.nominated.map(str::to_owned),
            message: pod.message.map(Arc::from),
            reported_at: None,
        };
        self.pods.insert(uid.clone(), entry);
        if pod.node.is_some() {
            self.count(&uid);
        } else if pod.ours && !pod.terminating {
            self.enqueue(&uid);
        }
    }

    /// Counts a pod on its node.
    pub(super) fn count(&mut self, uid: &str) {
        if let Some(entry) = self.pods.get(uid)
            && let Some(node) = entry.node.as_ref().and_then(|n| self.nodes.get_mut(n))
        {
            node.add(&entry.shape, &entry.volumes);
        }
        self.placed += 1;
    }

    /// Reverts [`Engine::count`].
    fn discount(&mut self, uid: &str) {
        if let Some(entry) = self.pods.get(uid)
            && let Some(node) = entry.node.as_ref().and_then(|n| self.nodes.get_mut(n))
        {
            node.remove(&entry.shape, &entry.volumes);
        }
        self.freed += 1;
    }

    /// Adds a pod to the class of its shape, which is tried again.
    fn enqueue(&mut self, uid: &Uid) {
        let number = self.number();
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.pending = Some(number);
            let class = self.classes.entry(entry.shape.clone()).or_default();
            class.pending.insert(number, uid.clone());
            class.refusal = None;
        }
    }

    /// Removes a pod from the class of its shape, and the class with its last pod.
    pub(super) fn dequeue(&mut self, uid: &str) {
        if let Some(entry) = self.pods.get_mut(uid)
            && let Some(number) = entry.pending.take()
            && let Some(class) = self.classes.get_mut(&entry.shape)
        {
            class.pending.remove(&number);
            if class.pending.is_empty() {
                self.classes.remove(&entry.shape);
            }
        }
    }

    /// Removes a pod that is deleted or terminal.
    pub(crate) fn remove_pod(&mut self, uid: &str) {
        self.dequeue(uid);
        if self.pods.get(uid).is_some_and(|e| e.node.is_some()) {
            self.discount(uid);
        }
        if let Some(entry) = self.pods.remove(uid) {
            self.volumes.forget(&entry.assumed.unwrap_or_default());
        }
    }

    /// Makes the pod pending again after a failed binding.
    pub(crate) fn bind_failed(&mut self, uid: &Uid) {
        if self.pods.get(uid).is_none_or(|e| e.assumed.is_none()) {
            return;
        }
        self.discount(uid);
        if let Some(entry) = self.pods.get_mut(uid) {
            self.volumes
                .forget(&entry.assumed.take().unwrap_or_default());
            entry.node = None;
            entry.volumes.clear();
        }
        self.enqueue(uid);
    }

    /// Reports to the pod again after its condition could not be written.
    pub(crate) fn report_failed(&mut self, uid: &str) {
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.message = None;
            if let Some(class) = self.classes.get_mut(&entry.shape) {
                class.refusal = None;
            }
        }
    }
}
