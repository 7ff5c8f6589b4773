//! The provisioner of a shadow: batches as the real one, plans for the pods of the comparison, and creates nothing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use karpenter_core::disruption::DisruptionRequest;
use karpenter_core::lifecycle::provisioning::{Effect, Event};
use karpenter_core::schedule::{Cancel, Plan, PodSet, Query, schedule};
use tokio::time::Instant;

use super::Shadow;
use crate::context::Context;
use crate::controller::{Periodic, ReconcileError, compute};
use crate::listener::Made;
use crate::model::View;
use crate::provisioning::{self, Due, SOLVE_DEADLINE};

/// Plans nodes for pods on the states of another Karpenter.
#[derive(Debug)]
pub struct Provisioning {
    cx: Arc<Context>,
    shadow: Arc<Shadow>,
}

impl Provisioning {
    /// Creates the controller of a shadow.
    #[must_use]
    pub fn new(cx: Arc<Context>, shadow: Arc<Shadow>) -> Self {
        Self { cx, shadow }
    }

    /// Hands an event to the process, and executes the effects.
    async fn on(&self, shadow: &Shadow, event: Event) -> Result<(), ReconcileError> {
        // Not only for pods that the process asks about: the other Karpenter may have bound some before the batch closed.
        let plan = match &event {
            Event::Closed { .. } => self.plan(shadow, &self.cx.view()).await?,
            _ => None,
        };
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let view = self.cx.view();
            for effect in shadow.triggers.on(event, &view.snapshot) {
                match effect {
                    Effect::Plan(_) => {
                        events.push_back(Event::Planned(plan.clone().unwrap_or_default()));
                    }
                    Effect::Launch(_, plan) => {
                        let none = vec![None; plan.new_node_claims.len()];
                        events.push_back(Event::Launched(none));
                    }
                    // In the model only: kube-scheduler is about to bind pods to these nodes.
                    Effect::Nominate(nodes) => {
                        let is_real = |node: &String| view.snapshot.node(node).is_some();
                        let nodes = nodes.into_iter().filter(is_real);
                        self.cx.nominate(nodes.collect()).await?;
                    }
                    Effect::NominatePods(_) | Effect::ReportIdle => {}
                }
            }
        }
        Ok(())
    }

    async fn plan(
        &self,
        shadow: &Shadow,
        view: &View,
    ) -> Result<Option<Arc<Plan>>, ReconcileError> {
        let cx = &self.cx;
        let (now, started) = (cx.clock.now(), Instant::now());
        let mut question = shadow.comparison().question(&view.snapshot, now);
        if question.new.is_empty() && view.snapshot.pending_pods().next().is_none() {
            return Ok(None);
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
        let made = Made {
            view,
            policy: &policy,
            took: started.elapsed(),
        };
        shadow.decisions.provisioned(made, &plan, &[]);
        Ok(Some(Arc::new(plan)))
    }
}

impl Periodic for Provisioning {
    const NAME: &'static str = "shadow.provisioner";

    async fn pass(&mut self) -> Result<Duration, ReconcileError> {
        let cx = Arc::clone(&self.cx);
        let shadow = &self.shadow;
        let event = match shadow.triggers.due().await {
            Due::Check => Event::Check,
            Due::Batch => {
                cx.model.synced().await;
                provisioning::refresh_instance_types(&cx).await?;
                Event::Closed {
                    memory: None,
                    buffer_pods: Vec::new(),
                }
            }
        };
        self.on(shadow, event).await.map(|()| Duration::ZERO)
    }
}
