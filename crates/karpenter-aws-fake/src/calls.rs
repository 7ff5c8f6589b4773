//! What was asked of the stand-in.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::permissions::Permission;

/// One call as it was made and answered.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Call {
    /// When it arrived, on the stand-in's clock.
    pub at: Timestamp,
    /// `ec2`, `iam`, `sts`, `ssm`, `sqs`, `eks`, `pricing` or `arc-zonal-shift`.
    pub service: String,
    /// The action, such as `CreateFleet`.
    pub action: String,
    /// The region it was signed for.
    pub region: String,
    /// The typed parameters.
    pub params: Value,
    /// The error code it was answered with; `None` for success.
    pub error: Option<String>,
    /// The IAM permissions it needs.
    pub permissions: Vec<Permission>,
    /// The client's user agent.
    pub user_agent: String,
    /// The id of the answer.
    pub request_id: String,
}

/// How often each action was called.
pub(crate) fn counts(calls: &[Call]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for call in calls {
        *counts.entry(call.action.clone()).or_default() += 1;
    }
    counts
}
