//! Assumed churn in a rehearsal.

use std::collections::VecDeque;
use std::sync::Arc;

use karpenter_core::lifecycle::after;
use karpenter_core::pod::Pod;

use crate::rehearse::churn::{Churn, Churning};
use crate::rehearse::stepper::Stepper;
use crate::rehearse::stepper::queue::Event;
use crate::workload::Workload;

impl Stepper {
    /// Begins an assumed churn.
    pub(super) fn begin_churn(&mut self, churn: Churn) {
        let pods = churn.pods(self.replicas().len());
        self.churning = Some(Churning {
            churn,
            start: self.now,
            pods,
            changes: 0,
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
        let replicas = self.replicas();
        let Some(churning) = &mut self.churning else {
            return;
        };
        let number = churning.changes;
        churning.changes += 1;
        if number % (2 * churning.pods) >= churning.pods {
            if let Some(pod) = churning.gone.pop_front() {
                self.succeed(&pod, "churn");
            }
        } else if !replicas.is_empty() {
            // Multiples of the golden ratio: any few of them in a row are spread over all pods.
            let place = (number as f64 * 0.618_033_988_749_894_9).fract() * replicas.len() as f64;
            let pod = Arc::clone(&replicas[(place as usize).min(replicas.len() - 1)]);
            self.end_pod(&pod.key.namespace, &pod.key.name);
            if let Some(churning) = &mut self.churning {
                churning.gone.push_back(pod);
            }
        }
        self.await_churn();
    }

    /// Returns the running pods of Deployments, by name.
    fn replicas(&self) -> Vec<Arc<Pod>> {
        let snapshot = self.cluster.snapshot();
        let counts = |pod: &&Arc<Pod>| {
            pod.is_active() && pod.node_name.is_some() && pod.deleted_at.is_none()
        };
        let pods = snapshot.pods().filter(counts);
        let pods = pods.filter(|pod| Workload::of(pod).kind == "Deployment");
        let mut pods: Vec<Arc<Pod>> = pods.cloned().collect();
        pods.sort_by(|a, b| a.key.cmp(&b.key));
        pods
    }
}
