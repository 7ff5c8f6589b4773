//! Metrics about the progress of a scheduling run.
//!
//! UPSTREAM: pkg/controllers/provisioning/scheduling/scheduler.go (queue depth, unfinished work)

use std::sync::Arc;

use karpenter_core::schedule::Progress;
use tokio::time::Instant;

use crate::metrics::Metrics;

const CONTROLLER: &str = "provisioner";

/// The series of one scheduling run; removed when dropped.
#[derive(Debug)]
pub(super) struct SchedulingSeries {
    metrics: Metrics,
    id: String,
}

impl SchedulingSeries {
    /// Creates the series of the run `id`, and the callback for the scheduler.
    pub(super) fn new(metrics: &Metrics, id: String) -> (Self, Progress) {
        let series = Self {
            metrics: metrics.clone(),
            id: id.clone(),
        };
        let (metrics, started) = (metrics.clone(), Instant::now());
        let progress = move |left: usize| {
            let labels = [CONTROLLER, id.as_str()];
            let age = started.elapsed().as_secs_f64();
            metrics.scheduler_queue_depth.set(&labels, left as f64);
            metrics.scheduler_unfinished_work_seconds.set(&labels, age);
        };
        (series, Arc::new(progress))
    }
}

impl Drop for SchedulingSeries {
    fn drop(&mut self) {
        let run = [("scheduling_id", self.id.as_str())];
        self.metrics.scheduler_queue_depth.remove_matching(&run);
        self.metrics
            .scheduler_unfinished_work_seconds
            .remove_matching(&run);
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use karpenter_core::cluster::{Cluster, ClusterConfig};
    use karpenter_core::schedule::{Plan, PodSet, Policy, Query, schedule};
    use karpenter_fixtures::{EPOCH, bare_node, pod};
    use parking_lot::Mutex;

    use super::*;
    use crate::metrics::Registry;
    use crate::provisioning::PodLedger;
    use crate::provisioning::ledger::Decided;

    /// Returns a cluster without NodePools, with 300 pending pods and one pod of a node that is being deleted.
    fn cluster() -> Cluster {
        let mut cluster = Cluster::new(ClusterConfig::default());
        let leaving = bare_node("old").pool("p").deleted(EPOCH);
        cluster.apply_node(&leaving.build());
        for index in 0..300 {
            cluster.apply_pod(&pod(&format!("pod-{index}")).build());
        }
        cluster.apply_pod(&pod("bound").on("old").build());
        cluster
    }

    /// Records the result `what` for every pod of a plan.
    fn decide(ledger: &PodLedger, plan: &Plan, what: Decided, metrics: &Metrics) {
        for unplaced in &plan.unplaced {
            ledger.decided(&unplaced.pod.uid, what, Timestamp::UNIX_EPOCH, metrics);
        }
    }

    /// Conformance: SCH-165, API-209, SCH-004
    #[test]
    fn a_run_reports_its_queue_and_every_pending_pod_gets_one_decision() {
        let metrics = Metrics::new(&Registry::new());
        let (ledger, cluster) = (PodLedger::default(), cluster());
        let snapshot = cluster.snapshot();
        for pod in snapshot.pending_pods() {
            ledger.seen(&pod.key.uid, Timestamp::UNIX_EPOCH);
        }
        let seen: Arc<Mutex<Vec<f64>>> = Arc::default();
        let (series, progress) = SchedulingSeries::new(&metrics, "run".into());
        // Called in the middle of the run, as by a scrape.
        let scrape = {
            let (metrics, seen) = (metrics.clone(), Arc::clone(&seen));
            move || {
                let depth = metrics.scheduler_queue_depth.get(&["provisioner", "run"]);
                seen.lock().push(depth);
                false
            }
        };
        let query = Query::new(PodSet::Waiting)
            .with_progress(progress)
            .with_cancel(Arc::new(scrape));
        let plan = schedule(&snapshot, &Policy::at(Timestamp::UNIX_EPOCH), &query);
        assert_eq!(plan.unplaced.len(), 301);
        let seen = seen.lock();
        assert_eq!(seen[0], 301.0);
        assert!(seen.iter().all(|depth| *depth > 0.0), "{seen:?}");
        drop(series);
        let series = metrics.registry.render();
        assert!(!series.contains("scheduling_id=\"run\""), "{series}");

        decide(&ledger, &plan, Decided::Unplaced, &metrics);
        let placed = Decided::Placed { healthy: true };
        decide(&ledger, &plan, placed, &metrics);
        let decisions = &metrics.pods_scheduling_decision_duration_seconds;
        assert_eq!(decisions.count(&[]), 300.0);
        assert!(ledger.schedulable_since("pod-0").is_some());
        assert_eq!(ledger.schedulable_since("bound"), None);
    }
}
