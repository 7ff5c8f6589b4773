//! The question: which changes, from when, for how long, and what is assumed.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::churn::Churn;
use super::{InvalidPlan, LENGTH, MAX_LENGTH};

/// The largest number of changes of a request.
pub const MAX_CHANGES: usize = 1_000;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlanRequest {
    /// Group and version, if they are given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// `PlanRequest`, if it is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The time at which the rehearsal starts; now if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// How long is rehearsed, as `1h`; `0s` is one pass. At most a day.
    #[serde(rename = "for", default, skip_serializing_if = "Option::is_none")]
    pub length: Option<String>,
    /// The changes, which are made in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Intent>,
    /// The versions of Karpenter that are rehearsed beside each other, both with the changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versions: Option<VersionPair>,
    /// An assumed churn, as `40%/1h`: that share of the replicas of all Deployments goes in the first half of each period and comes
    /// back in the second, one pod at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub churn: Option<String>,
    /// What is assumed about times and launches.
    #[serde(default, skip_serializing_if = "Assume::is_default")]
    pub assume: Assume,
    /// What the rehearsal is compared with.
    #[serde(default)]
    pub compare_with: Compare,
}

/// Two versions by name: one of [`Behavior::VERSIONS`](karpenter_core::behavior::Behavior::VERSIONS).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VersionPair {
    pub from: String,
    pub to: String,
    /// Whether each difference is rehearsed alone to the end, not only up to the first step that the versions do not share.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub each_rule: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Intent {
    /// The object is created or replaced, as by `kubectl apply`.
    Apply(Value),
    Delete(ObjectReference),
    Scale(Scale),
    RemoveNode(String),
    /// A change in the language of `kubectl karpenter why --if`.
    If(String),
    /// YAML documents, for clients without a parser: the server replaces it by a change `apply` for each of them.
    Manifest(String),
}

/// An object to delete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ObjectReference {
    pub kind: String,
    /// The namespace, if the kind has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub name: String,
}

/// A new number of replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scale {
    /// `Deployment`, `StatefulSet` or `ReplicaSet`.
    pub kind: String,
    /// The namespace; `default` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub name: String,
    pub replicas: u32,
}

/// What the rehearsal is compared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compare {
    /// The same cluster without the changes.
    #[default]
    Unchanged,
    /// Nothing: half the work.
    #[serde(rename = "none")]
    Nothing,
}

/// How a NodeClaim gets its offering.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LaunchChoice {
    /// The cheapest offering of its instance types.
    #[default]
    Cheapest,
    Worst,
}

/// What is assumed about times and launches; durations as `45s`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Assume {
    /// How long a node takes from its NodeClaim to its initialization; otherwise the median of its NodePool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
    /// How long an evicted pod takes to end; otherwise its termination grace period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<String>,
    /// How a NodeClaim gets its offering.
    #[serde(default)]
    pub launch: LaunchChoice,
}

impl Assume {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns `boot`.
    ///
    /// # Errors
    /// If it is not a duration.
    pub fn boot(&self) -> Result<Option<Duration>, InvalidPlan> {
        duration("assume.boot", self.boot.as_deref())
    }

    /// Returns `drain`.
    ///
    /// # Errors
    /// If it is not a duration.
    pub fn drain(&self) -> Result<Option<Duration>, InvalidPlan> {
        duration("assume.drain", self.drain.as_deref())
    }
}

pub(super) fn duration(field: &str, text: Option<&str>) -> Result<Option<Duration>, InvalidPlan> {
    let invalid = || InvalidPlan::field("request", field, "must be a duration of at most 24h");
    text.map(|text| {
        let parsed = karpenter_api::duration::parse(text).map_err(|_| invalid())?;
        let duration = Duration::try_from(parsed).map_err(|_| invalid())?;
        let fits = parsed <= MAX_LENGTH;
        fits.then_some(duration).ok_or_else(invalid)
    })
    .transpose()
}

impl PlanRequest {
    /// Returns how long is rehearsed.
    ///
    /// # Errors
    /// If `for` is not a duration of at most a day.
    pub fn length(&self) -> Result<SignedDuration, InvalidPlan> {
        let length = duration("for", self.length.as_deref())?;
        Ok(length.map_or(LENGTH, |length| {
            SignedDuration::try_from(length).unwrap_or(LENGTH)
        }))
    }

    /// Checks what does not depend on a cluster.
    ///
    /// # Errors
    /// If a field is invalid.
    pub fn check(&self) -> Result<(), InvalidPlan> {
        self.length()?;
        self.assume.boot()?;
        self.assume.drain()?;
        self.churn.as_deref().map(Churn::parse).transpose()?;
        let known = |given: &Option<String>, expected: &str, field: &str| match given {
            Some(given) if given != expected => Err(InvalidPlan::field(
                "request",
                field,
                format!("must be {expected}"),
            )),
            _ => Ok(()),
        };
        known(&self.api_version, crate::API_VERSION, "apiVersion")?;
        known(&self.kind, "PlanRequest", "kind")?;
        if self.changes.len() > MAX_CHANGES {
            let why = format!("at most {MAX_CHANGES} changes are allowed");
            return Err(InvalidPlan::field("request", "changes", why));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<PlanRequest, serde_json::Error> {
        serde_json::from_value(value)
    }

    #[test]
    fn a_request_is_read_from_what_it_writes() {
        let value = json!({
            "at": "2026-11-27T02:00:00Z", "for": "2h",
            "changes": [
                { "apply": { "kind": "NodePool" } },
                { "delete": { "kind": "NodePool", "name": "old" } },
                { "scale": { "kind": "Deployment", "namespace": "shop", "name": "web", "replicas": 200 } },
                { "removeNode": "n1" },
                { "if": "budget.default=20%" },
            ],
            "assume": { "boot": "90s", "launch": "Worst" },
            "compareWith": "none",
        });
        let request = read(value.clone()).unwrap();
        assert_eq!(serde_json::to_value(&request).unwrap(), value);
        assert_eq!(request.length().unwrap(), SignedDuration::from_hours(2));
        assert_eq!(request.check(), Ok(()));
    }

    #[test]
    fn an_empty_request_is_an_hour_without_changes() {
        let request = read(json!({})).unwrap();
        assert_eq!(request, PlanRequest::default());
        assert_eq!(request.length().unwrap(), LENGTH);
    }

    #[test]
    fn invalid_fields_are_refused_by_name() {
        for (value, field) in [
            (json!({ "for": "soon" }), "for"),
            (json!({ "for": "25h" }), "for"),
            (json!({ "for": "-1s" }), "for"),
            (json!({ "assume": { "boot": "x" } }), "assume.boot"),
            (json!({ "churn": "40%" }), "churn"),
            (json!({ "churn": "101%/1h" }), "churn"),
            (json!({ "churn": "NaN%/1h" }), "churn"),
            (json!({ "churn": "40%/1s" }), "churn"),
            (json!({ "churn": "40%/-1h" }), "churn"),
            (json!({ "kind": "Plan" }), "kind"),
        ] {
            let error = read(value).unwrap().check().unwrap_err();
            assert_eq!(error.field_path(), Some(field), "{error}");
        }
        for value in [
            json!({ "changs": [] }),
            json!({ "changes": [{ "scale": { "kind": "Deployment", "name": "web", "replicas": -1 } }] }),
            json!({ "changes": [{ "grow": {} }] }),
        ] {
            assert!(read(value.clone()).is_err(), "{value}");
        }
    }
}
