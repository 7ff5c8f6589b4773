//! Which broken machines are replaced, and when replacing has to stop.
//!
//! A provider names node conditions that mean a machine is broken, each with a time it may last. A machine is due when the
//! first of them has lasted that long. When more than a fifth of a NodePool's machines are broken, the cause is probably
//! not the machines: none is replaced.
//!
//! UPSTREAM: pkg/controllers/node/health/controller.go

use jiff::{SignedDuration, Timestamp};
use karpenter_api::k8s_openapi::api::core::v1::{Node, NodeCondition};

use crate::provider::RepairPolicy;

/// The share of a NodePool's machines that may be broken, in percent.
const TOLERATED_PERCENT: usize = 20;

/// A broken machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Broken<'a> {
    /// The condition that says so.
    pub condition: &'a NodeCondition,
    /// When it will have lasted too long.
    pub due: Timestamp,
}

impl Broken<'_> {
    /// How long it may still last; zero once it is due.
    pub fn left(&self, now: Timestamp) -> SignedDuration {
        self.due.duration_since(now).max(SignedDuration::ZERO)
    }
}

/// What is broken about a machine: of several conditions the one that is due first.
pub fn broken<'a>(node: &'a Node, policies: &[RepairPolicy]) -> Option<Broken<'a>> {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    let matches = policies.iter().filter_map(|policy| {
        let condition = conditions
            .iter()
            .find(|c| c.type_ == policy.condition_type && c.status == policy.condition_status)?;
        // A condition that does not say since when counts as old.
        let since = condition
            .last_transition_time
            .as_ref()
            .map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        Some(Broken {
            condition,
            due: since
                .saturating_add(policy.toleration)
                .unwrap_or(Timestamp::MAX),
        })
    });
    matches.min_by_key(|broken| broken.due)
}

/// Whether so many of `nodes` are broken, for however short a time, that none of them may be replaced.
pub fn is_blocked<'a>(
    nodes: impl IntoIterator<Item = &'a Node>,
    policies: &[RepairPolicy],
) -> bool {
    let (mut total, mut unhealthy) = (0_usize, 0_usize);
    for node in nodes {
        total += 1;
        unhealthy += usize::from(broken(node, policies).is_some());
    }
    unhealthy > (total * TOLERATED_PERCENT).div_ceil(100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn policy(condition_type: &str, condition_status: &str, minutes: i64) -> RepairPolicy {
        RepairPolicy {
            condition_type: condition_type.to_owned(),
            condition_status: condition_status.to_owned(),
            toleration: SignedDuration::from_mins(minutes),
        }
    }

    fn node(conditions: &[(&str, &str, &str)]) -> Node {
        let conditions: Vec<_> = conditions
            .iter()
            .map(|(type_, status, since)| json!({ "type": type_, "status": status, "lastTransitionTime": since }))
            .collect();
        serde_json::from_value(
            json!({ "metadata": { "name": "n" }, "status": { "conditions": conditions } }),
        )
        .unwrap()
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    /// Conformance: DIS-079
    #[test]
    fn a_machine_is_broken_by_type_and_status_and_due_after_the_toleration() {
        let policies = [policy("BadNode", "False", 30)];
        assert_eq!(
            broken(
                &node(&[("BadNode", "True", "2026-01-01T00:00:00Z")]),
                &policies
            ),
            None
        );
        assert_eq!(
            broken(
                &node(&[("Other", "False", "2026-01-01T00:00:00Z")]),
                &policies
            ),
            None
        );
        let bad = node(&[("BadNode", "False", "2026-01-01T00:00:00Z")]);
        let found = broken(&bad, &policies).unwrap();
        assert_eq!(
            found.left(at("2026-01-01T00:10:00Z")),
            SignedDuration::from_mins(20)
        );
        assert_eq!(found.left(at("2026-01-01T00:30:00Z")), SignedDuration::ZERO);
        assert_eq!(found.left(at("2026-01-01T09:00:00Z")), SignedDuration::ZERO);
    }

    /// Conformance: DIS-080
    #[test]
    fn of_several_conditions_the_first_due_counts() {
        let policies = [policy("Slow", "False", 60), policy("Quick", "False", 5)];
        let both = node(&[
            ("Slow", "False", "2026-01-01T00:00:00Z"),
            ("Quick", "False", "2026-01-01T00:50:00Z"),
        ]);
        let found = broken(&both, &policies).unwrap();
        assert_eq!(
            (found.condition.type_.as_str(), found.due),
            ("Quick", at("2026-01-01T00:55:00Z"))
        );
    }

    /// Conformance: DIS-081
    #[test]
    fn more_than_a_fifth_broken_blocks_repair() {
        let policies = [policy("BadNode", "False", 30)];
        let nodes = |bad: usize, total: usize| -> Vec<Node> {
            let status = |index| if index < bad { "False" } else { "True" };
            (0..total)
                .map(|index| node(&[("BadNode", status(index), "2026-01-01T00:00:00Z")]))
                .collect()
        };
        assert!(is_blocked(&nodes(3, 10), &policies));
        assert!(!is_blocked(&nodes(2, 10), &policies));
        assert!(!is_blocked(&nodes(1, 3), &policies));
        assert!(is_blocked(&nodes(2, 3), &policies));
        assert!(!is_blocked(&[], &policies));
    }
}
