//! Recorded calls to the stand-in.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use crate::services::permissions::Permission;

#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// Time of arrival on the stand-in's clock.
    pub at: Timestamp,
    /// Service: `ec2`, `iam`, `sts`, `ssm`, `sqs`, `eks`, `pricing` or `arc-zonal-shift`.
    pub service: String,
    /// Action, such as `CreateFleet`.
    pub action: String,
    pub params: Value,
    /// Error code of the response; `None` for success.
    pub error: Option<String>,
    /// IAM permissions that the call needs.
    pub permissions: Vec<Permission>,
    pub user_agent: String,
}

pub(crate) fn counts(calls: &[Call]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for call in calls {
        *counts.entry(call.action.clone()).or_default() += 1;
    }
    counts
}
