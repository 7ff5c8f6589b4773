//! Controller for instances that fail EC2's status checks or have a scheduled event.
//!
//! UPSTREAM: pkg/controllers/interruption/instancestatus
//! DIFFERS: events that are over are ignored; after a denied call the controller retries after ten minutes instead of
//! never.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_ec2::types as ec2;
use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use karpenter_core::provider::CloudProviderError;
use karpenter_kube::context::Context;
use karpenter_kube::controller::{Doing, Periodic, ReconcileError};
use karpenter_kube::metrics::{Counter, Registry};

use crate::controllers::interruption::handler::claims_of;
use crate::controllers::interruption::{Handler, Kind};
use crate::sdk::pages::list_all;
use crate::sdk::terms::filter;
use crate::sdk::{Aws, AwsError};

const INTERVAL: Duration = Duration::from_secs(60);
/// Delay of a pass while the model is not synced.
const SYNC_RETRY: Duration = Duration::from_secs(1);
/// Delay after a denied call.
const DENIED_RETRY: Duration = Duration::from_secs(10 * 60);
/// How long a status check may fail before the instance counts as impaired: a reboot takes that long.
const IMPAIRED_AFTER: SignedDuration = SignedDuration::from_secs(120);
const PAGE: i32 = 1000;
/// Codes of the scheduled events that are handled.
const EVENTS: [&str; 5] = [
    "instance-reboot",
    "system-reboot",
    "system-maintenance",
    "instance-retirement",
    "instance-stop",
];

/// Finds impaired instances with DescribeInstanceStatus.
#[derive(Debug)]
pub struct InstanceStatus {
    cx: Arc<Context>,
    aws: Aws,
    handler: Handler,
    unhealthy: Counter,
    /// Instances and kinds that the last pass found, so that each is counted once.
    found: BTreeSet<(String, Kind)>,
}

impl InstanceStatus {
    #[must_use]
    pub fn new(cx: Arc<Context>, aws: Aws, handler: Handler) -> Self {
        Self {
            unhealthy: unhealthy(&cx.metrics.registry),
            cx,
            aws,
            handler,
            found: BTreeSet::new(),
        }
    }

    /// Returns what is wrong with the account's instances, by instance ID.
    async fn ask(&self, now: Timestamp) -> Result<BTreeMap<String, BTreeSet<Kind>>, AwsError> {
        // Filters of different names are ANDed, so each needs its own call.
        let questions = [
            ("instance-status.status", &["impaired"][..]),
            ("system-status.status", &["impaired"][..]),
            ("event.code", &EVENTS[..]),
        ];
        let asked = questions.map(|(name, values)| self.pages(name, values));
        let mut wrong: BTreeMap<String, BTreeSet<Kind>> = BTreeMap::new();
        for statuses in join_all(asked).await {
            for status in statuses? {
                let kinds = kinds(&status, now);
                if let Some(id) = status.instance_id().filter(|_| !kinds.is_empty()) {
                    wrong.entry(id.to_owned()).or_default().extend(kinds);
                }
            }
        }
        Ok(wrong)
    }

    async fn pages(
        &self,
        name: &str,
        values: &[&str],
    ) -> Result<Vec<ec2::InstanceStatus>, AwsError> {
        let ask = |token: Option<String>| {
            self.aws.ec2("DescribeInstanceStatus", move |client| {
                client
                    .describe_instance_status()
                    .filters(filter(name, values.iter().copied()))
                    .max_results(PAGE)
                    .set_next_token(token.clone())
                    .send()
            })
        };
        list_all(ask, |page| page.instance_statuses.unwrap_or_default()).await
    }
}

fn unhealthy(registry: &Registry) -> Counter {
    registry.counter(
        "karpenter_interruption_instance_status_unhealthy_total",
        "Count of unique unhealthy instance statuses detected from EC2 DescribeInstanceStatus. Broken down by status check category.",
        &["category"],
    )
}

/// Returns what is wrong with an instance. Impaired volumes are ignored, and so is a check that began to fail recently,
/// which may be a reboot.
fn kinds(status: &ec2::InstanceStatus, now: Timestamp) -> BTreeSet<Kind> {
    let fails = |summary: Option<&ec2::InstanceStatusSummary>| {
        summary.is_some_and(|summary| {
            summary.details().iter().any(|detail| {
                let since = detail.impaired_since();
                let since = since.and_then(|at| Timestamp::from_second(at.secs()).ok());
                detail.status() == Some(&ec2::StatusType::Failed)
                    && since.is_some_and(|since| now.duration_since(since) >= IMPAIRED_AFTER)
            })
        })
    };
    let mut kinds = BTreeSet::new();
    if fails(status.instance_status()) {
        kinds.insert(Kind::InstanceStatus);
    }
    if fails(status.system_status()) {
        kinds.insert(Kind::SystemStatus);
    }
    let ahead = |event: &ec2::InstanceStatusEvent| {
        let known = event.code().is_some_and(|c| EVENTS.contains(&c.as_str()));
        let text = event.description().unwrap_or_default();
        known && !text.starts_with("[Completed]") && !text.starts_with("[Canceled]")
    };
    if status.events().iter().any(ahead) {
        kinds.insert(Kind::EventStatus);
    }
    kinds
}

impl Periodic for InstanceStatus {
    const NAME: &'static str = "interruption.instancestatus";

    async fn pass(&mut self) -> Result<Duration, ReconcileError> {
        let view = self.cx.view();
        if !view.is_synced() {
            return Ok(SYNC_RETRY);
        }
        if view.snapshot.node_claims().next().is_none() {
            return Ok(INTERVAL);
        }
        let wrong = match self.ask(self.cx.clock.now()).await {
            Ok(wrong) => wrong,
            Err(error) if error.is_unauthorized() => {
                tracing::error!(
                    logger = "interruption.instancestatus",
                    error = %error, "aws-error-code" = error.code.as_deref(),
                    "failed to find impaired instances, allow ec2:DescribeInstanceStatus"
                );
                return Ok(DENIED_RETRY);
            }
            Err(error) => {
                let source = CloudProviderError::other(error);
                return Err(source).doing("describing instance status");
            }
        };
        let instances: BTreeSet<&str> = wrong.keys().map(String::as_str).collect();
        let claims = claims_of(&self.cx, &view, &instances);
        let mut found = BTreeSet::new();
        let mut handled = Vec::new();
        for (id, claims) in &claims {
            for kind in wrong.get(id).into_iter().flatten() {
                if !self.found.contains(&(id.clone(), *kind)) {
                    self.unhealthy.inc(&[kind.category()]);
                }
                found.insert((id.clone(), *kind));
                handled.extend(claims.iter().map(|claim| self.handler.handle(*kind, claim)));
            }
        }
        let outcomes = join_all(handled).await;
        self.found = found;
        ReconcileError::collect(outcomes.into_iter().filter_map(Result::err).collect())?;
        Ok(INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use aws_smithy_types::DateTime;

    use super::*;

    fn check(since: i64) -> ec2::InstanceStatusSummary {
        let detail = ec2::InstanceStatusDetails::builder()
            .status(ec2::StatusType::Failed)
            .impaired_since(DateTime::from_secs(since))
            .build();
        ec2::InstanceStatusSummary::builder()
            .status(ec2::SummaryStatus::Impaired)
            .details(detail)
            .build()
    }

    fn event(description: &str) -> ec2::InstanceStatus {
        let event = ec2::InstanceStatusEvent::builder()
            .code(ec2::EventCode::InstanceStop)
            .description(description)
            .build();
        ec2::InstanceStatus::builder().events(event).build()
    }

    /// Conformance: AWS-interruption-14
    #[test]
    fn a_check_counts_after_it_failed_for_two_minutes() {
        let status = ec2::InstanceStatus::builder()
            .system_status(check(0))
            .instance_status(check(30))
            .build();
        let at = |second| kinds(&status, Timestamp::from_second(second).unwrap());
        assert_eq!(at(119), BTreeSet::new());
        assert_eq!(at(120), BTreeSet::from([Kind::SystemStatus]));
        assert_eq!(
            at(150),
            BTreeSet::from([Kind::InstanceStatus, Kind::SystemStatus])
        );
    }

    /// Conformance: AWS-interruption-14
    #[test]
    fn volumes_and_events_that_are_over_do_not_count() {
        let volumes = ec2::EbsStatusSummary::builder()
            .status(ec2::SummaryStatus::Impaired)
            .build();
        let status = ec2::InstanceStatus::builder()
            .attached_ebs_status(volumes)
            .build();
        let now = Timestamp::from_second(1000).unwrap();
        assert_eq!(kinds(&status, now), BTreeSet::new());
        assert_eq!(
            kinds(&event("The instance runs on degraded hardware"), now),
            BTreeSet::from([Kind::EventStatus])
        );
        assert_eq!(
            kinds(&event("[Completed] it was stopped"), now),
            BTreeSet::new()
        );
        assert_eq!(kinds(&event("[Canceled] never mind"), now), BTreeSet::new());
    }
}
