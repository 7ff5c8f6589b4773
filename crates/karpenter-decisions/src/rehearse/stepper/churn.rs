//! Assumed churn in a rehearsal.

use std::collections::VecDeque;
use std::sync::Arc;

use karpenter_core::cluster::Snapshot;
use karpenter_core::lifecycle::after;
use karpenter_core::pod::Pod;

use crate::rehearse::churn::{Churn, Churning};
use crate::rehearse::stepper::Stepper;
use crate::rehearse::stepper::queue::Event;
use crate::workload::Workload;

impl Stepper {
    /// Begins an assumed churn.
    pub(super) fn begin_churn(&mut self, churn: Churn) {
        let replicas = self.replicas();
        self.churning = Some(Churning {
            churn,
            start: self.now,
            pods: churn.pods(replicas.len()),
            changes: 0,
            replicas,
            chosen: 0,
            gone: VecDeque::new(),
        });
        self.await_churn();
    }

    fn await_churn(&mut self) {
        let Some(churning) = self.churning.as_ref().filter(|it| it.pods > 0) else {
            return;
        };
        let at = churning.churn.at(churning.changes, churning.pods);
        self.queue.add(after(churning.start, at), Event::Churn);
    }

    /// Lets the next pod go or come back.
    pub(super) fn churn(&mut self) {
        let Some(mut churning) = self.churning.take() else {
            return;
        };
        let in_period = churning.changes % (2 * churning.pods);
        churning.changes += 1;
        if in_period >= churning.pods {
            if let Some(pod) = churning.gone.pop_front() {
                self.succeed(&pod, "churn");
            }
        } else {
            if in_period == 0 {
                churning.replicas = self.replicas();
            }
            if let Some(pod) = churning.choose(&self.cluster.snapshot()) {
                self.end_pod(&pod.key.namespace, &pod.key.name);
                churning.gone.push_back(pod);
            }
        }
        self.churning = Some(churning);
        self.await_churn();
    }

    /// Returns the running pods of Deployments, by name.
    fn replicas(&self) -> Vec<Arc<Pod>> {
        let snapshot = self.cluster.snapshot();
        let pods = snapshot.pods().filter(|pod| runs(pod));
        let pods = pods.filter(|pod| Workload::of(pod).kind == "Deployment");
        let mut pods: Vec<Arc<Pod>> = pods.cloned().collect();
        pods.sort_by(|a, b| a.key.cmp(&b.key));
        pods
    }
}

impl Churning {
    /// Chooses the next pod that goes.
    fn choose(&mut self, snapshot: &Snapshot) -> Option<Arc<Pod>> {
        for _ in 0..self.replicas.len() {
            // Multiples of the golden ratio: any few of them in a row are spread over all pods.
            let place = (self.chosen as f64 * 0.618_033_988_749_894_9).fract();
            self.chosen += 1;
            let index = (place * self.replicas.len() as f64) as usize;
            let pod = self.replicas.get(index);
            let pod = pod.and_then(|pod| snapshot.pod(&pod.key.namespace, &pod.key.name));
            if let Some(pod) = pod.filter(|pod| runs(pod)) {
                return Some(Arc::clone(pod));
            }
        }
        None
    }
}

fn runs(pod: &Pod) -> bool {
    pod.is_active() && pod.node_name.is_some() && pod.deleted_at.is_none()
}
