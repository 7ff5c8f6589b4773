//! The reason of an object in an answer.

use jiff::Timestamp;
use karpenter_core::reason::Reason;
use serde::Serialize;
use serde_json::Value;

/// A reason, with the time since when it holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CurrentReason {
    pub id: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Whether `since` is a time of the object, which may have had another reason at first.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub at_least: bool,
    /// The parameters; absent if only the id is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Value>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
}

impl CurrentReason {
    /// Returns a reason without its age.
    pub fn of(reason: &Reason) -> Self {
        Self::with_id(reason.id(), Some(reason), None, false)
    }

    pub(super) fn with_id(
        id: &'static str,
        reason: Option<&Reason>,
        since: Option<Timestamp>,
        at_least: bool,
    ) -> Self {
        let parameters = reason.and_then(|reason| {
            let mut value = serde_json::to_value(reason).ok()?;
            value.get_mut("parameters").map(Value::take)
        });
        Self {
            id,
            since,
            at_least,
            parameters,
            text: reason.map(ToString::to_string).unwrap_or_default(),
        }
    }
}
