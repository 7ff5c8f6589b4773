//! Records of decisions, explanations and the shadow, as parts of the operator (cargo feature `decisions`).

use std::sync::Arc;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Builder, ControllerRegistry};
use crate::clock::Clock;
use crate::context::Context;
use crate::decisions::{self, Decisions};
use crate::lease::Elector;
use crate::listener::Listener;
use crate::options::Options;
use crate::shadow::{self, Refusals, Shadow};

/// What explains, and decides beside another Karpenter.
#[derive(Default)]
pub(super) struct Explanations {
    decisions: Option<Arc<Decisions>>,
    pub(super) shadow: Option<Arc<Shadow>>,
}

/// Takes the rights to act from a shadow: it has no lease, and needs records of decisions.
pub(super) fn restricted(mut builder: Builder) -> (Builder, Option<Refusals>) {
    if !builder.options.shadow {
        return (builder, None);
    }
    let refusals = Refusals::new(&builder.registry);
    builder.clients = builder.clients.read_only(&refusals);
    builder.options.disable_leader_election = true;
    builder.options.disable_cluster_state_observability = true;
    let gates = &mut builder.options.feature_gates;
    gates.decision_records = true;
    // Their controllers write status.
    gates.node_overlay = false;
    gates.capacity_buffer = false;
    gates.static_capacity = false;
    (builder, Some(refusals))
}

impl Explanations {
    pub(super) fn new(
        options: &Options,
        clock: Clock,
        elector: Option<&Elector>,
        refusals: Option<Refusals>,
    ) -> Self {
        let decisions = options.feature_gates.decision_records.then(|| {
            let holder = elector.map(Elector::holder).unwrap_or_default();
            Arc::new(Decisions::new(options, clock, holder))
        });
        let shadow = decisions
            .clone()
            .zip(refusals)
            .map(|(decisions, refusals)| {
                Arc::new(Shadow::new(options, clock, refusals, decisions))
            });
        Self { decisions, shadow }
    }

    pub(super) fn listener(&self) -> Option<Arc<dyn Listener>> {
        let decisions = self.decisions.clone()?;
        Some(decisions)
    }

    pub(super) fn register(&self, cx: &Arc<Context>) {
        if let Some(decisions) = &self.decisions {
            decisions::register(cx, decisions);
        }
        if let Some(shadow) = &self.shadow {
            shadow::register(cx, shadow);
        }
    }

    /// Adds what runs in a shadow in place of all controllers, else what runs beside them.
    pub(super) fn start(&self, controllers: &mut ControllerRegistry) {
        let cx = Arc::clone(controllers.context());
        match (&self.shadow, &self.decisions) {
            (Some(shadow), _) => {
                let (observing, observed) = (Arc::clone(shadow), Arc::clone(&cx));
                controllers.observe(move |change, view| observing.observe(&observed, change, view));
                controllers.periodic(shadow::Provisioning::new(
                    Arc::clone(&cx),
                    Arc::clone(shadow),
                ));
                controllers.periodic(shadow::Disruption::new(cx, Arc::clone(shadow)));
            }
            (None, Some(decisions)) => {
                let decisions = Arc::clone(decisions);
                controllers.task(move |stop| decisions::report_regularly(cx, decisions, stop));
            }
            (None, None) => {}
        }
    }

    /// This replica leads from now on.
    pub(super) fn begin(&self, now: Timestamp) {
        if let Some(shadow) = &self.shadow {
            shadow.begin(now);
        }
    }

    /// Serves answers until `stop`.
    pub(super) async fn serve(
        &self,
        cx: &Arc<Context>,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) {
        if let Some(decisions) = &self.decisions {
            let shadow = self.shadow.clone();
            let report = shadow.map(|shadow| -> decisions::ShadowReports {
                Box::new(move |since, now| shadow.report(since, now))
            });
            decisions::serve(cx, decisions, report, tasks, stop).await;
        }
    }
}
