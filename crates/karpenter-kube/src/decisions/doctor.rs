//! Reports of what blocks nodes: made on request, and every few minutes for the metrics.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use karpenter_core::schedule::Cancel;
use karpenter_decisions::doctor::{BlockerReport, Examination, Installation, examine};
use karpenter_decisions::explain::Observed;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::installation;
use super::state::{Decisions, Doctor, ENGINE};
use crate::context::Context;
use crate::controller::{ReconcileError, compute};
use crate::provisioning;

/// Time limit of a report; savings that were not computed by then are reported as a lower bound.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a report is cached while the cluster does not change: ages and budget windows still do.
const REPORT_TTL: SignedDuration = SignedDuration::from_secs(30);
/// How long the review of the installation is cached.
const REVIEW_TTL: SignedDuration = SignedDuration::from_mins(10);
/// Interval between reports for the metrics.
const INTERVAL: Duration = Duration::from_secs(300);

impl Doctor {
    /// Reports on the cluster, or on a namespace.
    pub(super) async fn report(
        &self,
        cx: &Arc<Context>,
        namespace: Option<String>,
    ) -> Result<Arc<BlockerReport>, ReconcileError> {
        let now = cx.clock.now();
        let known = self.reviewed.lock().clone();
        let installation = match known {
            Some((at, known)) if now.duration_since(at) < REVIEW_TTL => known,
            _ => {
                // A shadow needs none of the permissions to write.
                let installation = match cx.options.shadow {
                    true => Installation::default(),
                    false => installation::review(cx).await,
                };
                *self.reviewed.lock() = Some((now, installation.clone()));
                installation
            }
        };
        let installation = with_subnets(cx, installation);
        if namespace.is_none()
            && let Some(latest) = self.latest()
            && latest.observed.epoch == cx.view().snapshot.epoch()
            && now.duration_since(latest.observed.at) < REPORT_TTL
            && latest.ran.len() == installation.checks()
        {
            return Ok(latest);
        }
        self.examine(cx, installation, namespace).await
    }

    async fn examine(
        &self,
        cx: &Arc<Context>,
        installation: Installation,
        namespace: Option<String>,
    ) -> Result<Arc<BlockerReport>, ReconcileError> {
        let began = Instant::now();
        let policy = provisioning::policy(cx);
        let cancel: Cancel = Arc::new(move || began.elapsed() > SEARCH_TIMEOUT);
        let (view, spot_to_spot) = (
            cx.view(),
            cx.options.feature_gates.spot_to_spot_consolidation,
        );
        let of_all = namespace.is_none();
        let report = compute("the doctor", move || {
            let observed = Observed {
                at: policy.now,
                epoch: view.snapshot.epoch(),
                engine: ENGINE.to_owned(),
                truncated: false,
            };
            let examination = Examination {
                snapshot: &view.snapshot,
                policy: &policy,
                cancel: Some(cancel),
                spot_to_spot,
                installation: &installation,
            };
            Arc::new(examine(&examination, observed, namespace.as_deref()))
        })
        .await?;
        if of_all {
            *self.latest.lock() = Some(Arc::clone(&report));
        }
        Ok(report)
    }
}

/// Adds what the provider counts itself, as it is now.
fn with_subnets(cx: &Context, installation: Installation) -> Installation {
    Installation {
        subnets: cx.provider.subnet_addresses(),
        ..installation
    }
}

/// Reports for the metrics every few minutes. The installation is not reviewed for them: that takes requests to the API server.
pub async fn report_regularly(
    cx: Arc<Context>,
    decisions: Arc<Decisions>,
    stop: CancellationToken,
) {
    loop {
        tokio::select! {
            () = cx.clock.sleep(INTERVAL) => {}
            () = stop.cancelled() => return,
        }
        let doctor = &decisions.doctor;
        let installation = doctor.reviewed.lock().clone();
        let installation = installation.map(|(_, known)| known).unwrap_or_default();
        let installation = with_subnets(&cx, installation);
        let view = cx.view();
        let unchanged = doctor
            .latest()
            .is_some_and(|latest| latest.observed.epoch == view.snapshot.epoch());
        if unchanged || !view.is_synced() {
            continue;
        }
        if let Err(error) = doctor.examine(&cx, installation, None).await {
            tracing::error!(logger = "decisions", %error, "cannot report what blocks nodes");
        }
    }
}
