//! DescribeInstanceStatus: status checks and scheduled events.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Ec2Call;
use super::filters::{Filterable, Filters, Tags};
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
        if self.instance.state != InstanceState::Running {
            "not-applicable"
        } else if impaired.is_some() {
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
            "initializing" => "initializing",
            _ => return json!({"status": status}),
        };
        json!({"status": status, "details": [
            {"name": "reachability", "status": detail, "impairedSince": impaired.map(rfc3339)}
        ]})
    }
}

impl Filterable for Checked<'_> {
    fn values(&self, name: &str) -> Vec<String> {
        let report = &self.instance.status;
        let reachability = |impaired| match self.check(impaired) {
            "ok" => vec!["passed".to_owned()],
            "impaired" => vec!["failed".to_owned()],
            other => vec![other.to_owned()],
        };
        match name {
            "availability-zone" => vec![self.instance.zone.clone()],
            "availability-zone-id" => vec![self.instance.zone_id.clone()],
            "event.code" => report.events.iter().map(|e| e.code.clone()).collect(),
            "event.description" => report
                .events
                .iter()
                .map(|e| e.description.clone())
                .collect(),
            "instance-state-name" | "instance-state-code" => self.instance.values(name),
            "instance-status.status" => vec![self.check(report.instance_impaired_since).to_owned()],
            "system-status.status" => vec![self.check(report.system_impaired_since).to_owned()],
            "attached-ebs-status.status" => vec![self.check(report.ebs_impaired_since).to_owned()],
            "instance-status.reachability" => reachability(report.instance_impaired_since),
            "system-status.reachability" => reachability(report.system_impaired_since),
            _ => vec![],
        }
    }

    fn tags(&self) -> &Tags {
        &self.instance.tags
    }
}

impl Ec2Call<'_> {
    pub(crate) fn describe_instance_status(&mut self, p: Params<'_>) -> Result<Reply, AwsError> {
        let filters = Filters::read(
            p,
            &[
                "availability-zone",
                "availability-zone-id",
                "event.code",
                "event.description",
                "instance-state-name",
                "instance-state-code",
                "instance-status.status",
                "instance-status.reachability",
                "system-status.status",
                "system-status.reachability",
                "attached-ebs-status.status",
            ],
        )?;
        let ids = p.texts("InstanceId");
        if !ids.is_empty() && p.has("MaxResults") {
            return Err(AwsError::combination(
                "The parameter instancesSet cannot be used with the parameter maxResults",
            ));
        }
        self.check_instances(&ids)?;
        let page = self.page(p, (5, 1000))?;
        let all = p.flag("IncludeAllInstances").unwrap_or(false);
        let rows = self
            .ec2
            .instances
            .all()
            .filter(|i| ids.is_empty() || ids.contains(&i.id.as_str()))
            .filter(|i| all || i.state == InstanceState::Running)
            .map(|instance| Checked {
                instance,
                now: self.now,
            })
            .filter(|checked| filters.matches(checked))
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
                "notAfter": rfc3339(later(e.not_before, Duration::from_secs(7200))),
            })
        })
        .collect();
    json!({
        "instanceId": i.id,
        "instanceState": i.state.wire(),
        "availabilityZone": i.zone,
        "availabilityZoneId": i.zone_id,
        "eventsSet": events,
        "systemStatus": c.wire(i.status.system_impaired_since),
        "instanceStatus": c.wire(i.status.instance_impaired_since),
        "attachedEbsStatus": c.wire(i.status.ebs_impaired_since),
    })
}
