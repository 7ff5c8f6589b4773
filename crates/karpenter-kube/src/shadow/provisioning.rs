//! The provisioner of a shadow: batches and plans as the real one, and creates nothing.

use std::sync::Arc;
use std::time::Duration;

use karpenter_core::disruption::DisruptionRequest;
use karpenter_core::schedule::{Cancel, PodSet, Query, schedule};
use tokio::time::Instant;

use crate::context::Context;
use crate::controller::{Periodic, ReconcileError, compute};
use crate::decisions::Made;
use crate::provisioning;

/// Time limit of one plan; the remaining pods are planned by the next.
const SOLVE_DEADLINE: Duration = Duration::from_secs(60);
/// Interval between plans while pods are pending: their nodes are protected from our disruption meanwhile.
const AGAIN: Duration = Duration::from_secs(10);

/// Plans nodes for pods on the states of another Karpenter.
#[derive(Debug)]
pub struct Provisioning {
    cx: Arc<Context>,
}

impl Provisioning {
    /// Creates the controller of a shadow.
    #[must_use]
    pub fn new(cx: Arc<Context>) -> Self {
        Self { cx }
    }

    async fn wait(&self) {
        let Some(shadow) = &self.cx.shadow else {
            return std::future::pending().await;
        };
        let options = &self.cx.options;
        let batch = shadow.batcher.batch(
            &self.cx.clock,
            options.batch_idle_duration,
            options.batch_max_duration,
        );
        tokio::pin!(batch);
        loop {
            tokio::select! {
                biased;
                () = &mut batch => return,
                () = self.cx.clock.sleep(AGAIN) => {}
            }
            if self.cx.view().snapshot.pending_pods().next().is_some() {
                shadow.batcher.trigger("again");
            }
        }
    }

    async fn decide(&self) -> Result<(), ReconcileError> {
        let cx = &self.cx;
        let Some(shadow) = &cx.shadow else {
            return Ok(());
        };
        provisioning::refresh_instance_types(cx).await?;
        let (view, now, started) = (cx.view(), cx.clock.now(), Instant::now());
        let mut question = shadow.comparison().question(&view.snapshot, now);
        if question.new.is_empty() && view.snapshot.pending_pods().next().is_none() {
            return Ok(());
        }
        let policy = provisioning::policy(cx);
        let mut request = DisruptionRequest::at(now).with_policy(policy);
        question.snapshot = shadow.changed(question.snapshot, &mut request);
        let policy = request.policy;
        let deadline = cx.clock.instant_after(SOLVE_DEADLINE);
        let cancel: Cancel = Arc::new(move || Instant::now() >= deadline);
        let query = Query::new(PodSet::Waiting).with_cancel(cancel);
        let (snapshot, asked) = (question.snapshot.fork(), policy.clone());
        let plan = compute("the scheduler", move || schedule(&snapshot, &asked, &query)).await?;
        shadow
            .comparison()
            .provisioned(&question, &plan, cx.clock.now());
        if !plan.undecided.is_empty() {
            shadow.batcher.trigger("undecided");
        }
        // In the model only: kube-scheduler is about to bind pods to these nodes.
        let places = plan.existing.iter().map(|placement| placement.node.clone());
        let real = places.filter(|node| view.snapshot.node(node).is_some());
        cx.nominate(real.collect()).await?;
        if let Some(decisions) = &cx.decisions {
            let made = Made {
                view: &view,
                policy: &policy,
                took: started.elapsed(),
            };
            decisions.provisioned(cx, made, &plan, &[]);
        }
        Ok(())
    }
}

impl Periodic for Provisioning {
    fn name(&self) -> &'static str {
        "shadow.provisioner"
    }

    async fn pass(&mut self) -> Result<Duration, ReconcileError> {
        self.wait().await;
        self.cx.model.synced().await;
        let outcome = self.decide().await;
        if let (Err(_), Some(shadow)) = (&outcome, &self.cx.shadow) {
            // The triggers of the failed batch are still to be handled.
            shadow.batcher.trigger("failed");
        }
        outcome.map(|()| Duration::ZERO)
    }
}
