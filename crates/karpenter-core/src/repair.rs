//! Node repair: which unhealthy nodes are replaced, and when repair is blocked.
//!
//! A provider defines node conditions of an unhealthy node, each with a toleration. A node is due for replacement when the first
//! of these conditions has lasted longer than its toleration. When more than a fifth of a NodePool's nodes are unhealthy, the
//! cause is probably not the nodes, and none is replaced.
//!
//! UPSTREAM: pkg/controllers/node/health/controller.go

use jiff::{SignedDuration, Timestamp};
use karpenter_api::k8s_openapi::api::core::v1::{Node, NodeCondition};

use crate::provider::RepairPolicy;

/// The percentage of a NodePool's nodes that may be unhealthy.
const TOLERATED_PERCENT: usize = 20;

/// An unhealthy node.
#[derive(Clone, Debug, PartialEq)]
pub struct Broken<'a> {
    /// The condition of a repair policy that the node has.
    pub condition: &'a NodeCondition,
    /// The time at which the node is due for replacement.
    pub due: Timestamp,
}

impl Broken<'_> {
    /// Returns the time left until the node is due; zero once it is due.
    pub fn left(&self, now: Timestamp) -> SignedDuration {
        self.due.duration_since(now).max(SignedDuration::ZERO)
    }
}

/// Returns the condition that makes a node unhealthy: of several the one that is due first.
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
        // A condition without a transition time counts as old.
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

/// Reports whether too many of `nodes` are unhealthy, due or not, for any of them to be replaced.
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

    fn policy(condition_type: &str, condition_status: &str, minutes: i64) -> RepairPolicy {
        RepairPolicy {
            condition_type: condition_type.to_owned(),
            condition_status: condition_status.to_owned(),
            toleration: SignedDuration::from_mins(minutes),
        }
    }

    /// Returns a Node with conditions, each with its status and since when.
    fn node(conditions: &[(&str, &str, &str)]) -> Node {
        let node = karpenter_fixtures::bare_node("n");
        let all = conditions.iter();
        all.fold(node, |node, (type_, status, since)| {
            node.condition(type_, status, "Reason", since)
        })
        .build()
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    /// Conformance: DIS-079
    #[test]
    fn a_node_is_unhealthy_by_condition_and_due_after_the_toleration() {
        let policies = [policy("BadNode", "False", 30)];
        for (condition, status) in [("BadNode", "True"), ("Other", "False")] {
            let healthy = node(&[(condition, status, "2026-01-01T00:00:00Z")]);
            assert_eq!(broken(&healthy, &policies), None, "{condition}");
        }
        let bad = node(&[("BadNode", "False", "2026-01-01T00:00:00Z")]);
        let found = broken(&bad, &policies).unwrap();
        for (time, minutes) in [("00:10", 20), ("00:30", 0), ("09:00", 0)] {
            let left = found.left(at(&format!("2026-01-01T{time}:00Z")));
            assert_eq!(left, SignedDuration::from_mins(minutes), "{time}");
        }
    }

    /// Conformance: DIS-080
    #[test]
    fn of_several_conditions_the_one_due_first_counts() {
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

    /// Conformance: API-211
    #[test]
    fn without_policies_no_node_is_unhealthy() {
        let dead = node(&[("Ready", "False", "2020-01-01T00:00:00Z")]);
        assert!(broken(&dead, &[policy("Ready", "False", 10)]).is_some());
        assert_eq!(broken(&dead, &[]), None);
        assert!(!is_blocked([&dead], &[]));
    }

    /// Conformance: DIS-081
    #[test]
    fn more_than_a_fifth_unhealthy_blocks_repair() {
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
