//! DescribeInstanceStatus: status checks and scheduled events.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Ec2Call;
use super::filters::Filters;
use super::instances::{Instance, InstanceState};
use crate::clock::{later, rfc3339};
use crate::wire::Reply;
use crate::wire::error::AwsError;
use crate::wire::params::Params;

/// How long status checks take to pass after an instance has started.
const INITIALIZATION: Duration = Duration::from_secs(60);

/// Impairments of an instance.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StatusReport {
    /// Since when the system status check fails.
    pub system_impaired_since: Option<Timestamp>,
    /// Since when the instance status check fails.
    pub instance_impaired_since: Option<Timestamp>,
    /// Since when the EBS status check fails.
    pub ebs_impaired_since: Option<Timestamp>,
    pub events: Vec<ScheduledEvent>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduledEvent {
    /// Event code: `instance-stop`, `instance-retirement`, `system-reboot`, `system-maintenance` or `instance-reboot`.
    pub code: String,
    /// Description; completed events begin with `[Completed]`.
    pub description: String,
    /// The earliest time of the event.
    pub not_before: Timestamp,
}

/// An instance with the current results of its status checks.
struct Checked<'a> {
    instance: &'a Instance,
    now: Timestamp,
}

impl Checked<'_> {
    fn check(&self, impaired: Option<Timestamp>) -> &'static str {
        if impaired.is_some() {
            "impaired"
        } else if self
            .instance
            .up_since
            .is_some_and(|since| self.now < later(since, INITIALIZATION))
        {
            "initializing"
        } else {
            "ok"
        }
    }

    fn wire(&self, impaired: Option<Timestamp>) -> Value {
        let status = self.check(impaired);
        let detail = match status {
            "ok" => "passed",
            "impaired" => "failed",
            other => other,
        };
        json!({"status": status, "details": [
            {"name": "reachability", "status": detail, "impairedSince": impaired.map(rfc3339)}
        ]})
    }
}

impl Ec2Call<'_> {
    pub(crate) fn describe_instance_status(&mut self, p: Params<'_>) -> Result<Reply, AwsError> {
        let filters = Filters::read(
            p,
            &[
                "event.code",
                "instance-status.status",
                "system-status.status",
            ],
        )?;
        p.only(&["Filter", "MaxResults", "NextToken"])?;
        let page = self.page(p, (5, 1000))?;
        let rows = self
            .ec2
            .instances
            .all()
            .filter(|i| i.state == InstanceState::Running)
            .map(|instance| Checked {
                instance,
                now: self.now,
            })
            .filter(|c| {
                let report = &c.instance.status;
                filters.matches(&c.instance.tags, |name| match name {
                    "event.code" => report.events.iter().map(|e| e.code.as_str()).collect(),
                    "instance-status.status" => vec![c.check(report.instance_impaired_since)],
                    _ => vec![c.check(report.system_impaired_since)],
                })
            })
            .map(|c| (format!("{:020}", c.instance.sequence), row(&c)));
        let (rows, token) = page.cut(rows);
        Ok(Reply::Tree(
            json!({"instanceStatusSet": rows, "nextToken": token}),
        ))
    }
}

fn row(c: &Checked<'_>) -> Value {
    let i = c.instance;
    let events: Vec<Value> = i
        .status
        .events
        .iter()
        .zip(1..)
        .map(|(e, n)| {
            json!({
                "instanceEventId": format!("instance-event-{n:017x}"),
                "code": e.code,
                "description": e.description,
                "notBefore": rfc3339(e.not_before),
            })
        })
        .collect();
    json!({
        "instanceId": i.id,
        "eventsSet": events,
        "systemStatus": c.wire(i.status.system_impaired_since),
        "instanceStatus": c.wire(i.status.instance_impaired_since),
        "attachedEbsStatus": c.wire(i.status.ebs_impaired_since),
    })
}
