//! How many nodes of a NodePool may be disrupted voluntarily at a time.
//!
//! The strictest active budget that covers the reason applies; without one there is no limit. A percentage is of the pool's
//! managed and initialized nodes that are not terminating, rounded up. Budgets limit emptiness, drift and consolidation, not
//! expiration, repair, interruption and deletion by a user.
//!
//! DIFFERS: an invalid budget allows no disruption for the reasons *it covers*; upstream then allows nothing for any
//! reason. An empty list of reasons covers every reason; upstream's covers none. A schedule that never matches (the
//! 30th of February) is never active; upstream's is always.
//!
//! UPSTREAM: pkg/apis/v1/nodepool.go, GetAllowedDisruptionsByReason, pkg/controllers/disruption/helpers.go

use jiff::{SignedDuration, Timestamp};

use crate::cron::{InvalidSchedule, Schedule};
use crate::v1::{Budget, DisruptionReason, NodePool};

/// The number of allowed disruptions where no budget applies.
pub const UNBOUNDED: u32 = i32::MAX as u32;

/// An invalid budget. The schema rejects most of these.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidBudget {
    /// The schedule is not a valid cron expression.
    #[error(transparent)]
    Schedule(#[from] InvalidSchedule),
    /// The number of nodes is neither a number nor a percentage.
    #[error("invalid number of nodes `{nodes}`")]
    Nodes {
        /// The value of the field `nodes`.
        nodes: String,
    },
}

impl Budget {
    /// Returns whether the budget applies to disruption for this reason.
    pub fn covers(&self, reason: &DisruptionReason) -> bool {
        self.reasons
            .as_ref()
            .is_none_or(|reasons| reasons.is_empty() || reasons.contains(reason))
    }

    /// Returns whether the budget is active: always without schedule and duration, else from each time of the schedule on for the
    /// duration, its end excluded.
    pub fn is_active(&self, now: Timestamp) -> Result<bool, InvalidBudget> {
        let (schedule, duration) = match (&self.schedule, &self.duration) {
            (None, None) => return Ok(true),
            (schedule, duration) => (
                schedule.as_deref().unwrap_or_default(),
                duration
                    .as_ref()
                    .map_or(SignedDuration::ZERO, |d| d.value()),
            ),
        };
        let schedule: Schedule = schedule.parse()?;
        let window_start = now.saturating_sub(duration).unwrap_or(Timestamp::MIN);
        Ok(schedule.next(window_start).is_some_and(|hit| hit <= now))
    }

    /// Returns how many of `nodes` nodes may be disrupted while the budget is active.
    pub fn value(&self, nodes: u32) -> Result<u32, InvalidBudget> {
        let invalid = || InvalidBudget::Nodes {
            nodes: self.nodes.clone(),
        };
        let digits = self.nodes.strip_suffix('%').unwrap_or(&self.nodes);
        if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(invalid());
        }
        // A number with too many digits saturates; it is not invalid.
        let number = digits.parse::<u64>().unwrap_or(u64::MAX);
        let value = if self.nodes.ends_with('%') {
            u64::from(nodes).saturating_mul(number).div_ceil(100)
        } else {
            number
        };
        Ok(u32::try_from(value).unwrap_or(UNBOUNDED).min(UNBOUNDED))
    }

    fn limit(&self, nodes: u32, now: Timestamp) -> Result<Option<u32>, InvalidBudget> {
        Ok(if self.is_active(now)? {
            Some(self.value(nodes)?)
        } else {
            None
        })
    }

    /// Checks the schedule and the number of nodes.
    pub fn validate(&self) -> Result<(), InvalidBudget> {
        if let Some(schedule) = &self.schedule {
            schedule.parse::<Schedule>()?;
        }
        self.value(0).map(|_| ())
    }
}

/// Returns how many of `nodes` nodes of a pool may be disrupted at a time for a reason, or [`UNBOUNDED`] if no budget applies.
pub fn allowed(pool: &NodePool, reason: &DisruptionReason, nodes: u32, now: Timestamp) -> u32 {
    let budgets = pool
        .spec
        .disruption
        .budgets
        .iter()
        .filter(|budget| budget.covers(reason));
    budgets
        .filter_map(|budget| budget.limit(nodes, now).unwrap_or(Some(0)))
        .min()
        .unwrap_or(UNBOUNDED)
}

/// Returns how many more nodes may be disrupted if `disrupting` nodes are already not ready or marked for deletion.
pub fn remaining(allowed: u32, disrupting: u32) -> u32 {
    allowed.saturating_sub(disrupting)
}

#[cfg(test)]
mod tests {
    use DisruptionReason::{Drifted, Empty, Underutilized};
    use serde_json::{Value, json};

    use super::*;

    fn allowed_of(budgets: Value, reason: DisruptionReason, nodes: u32, now: &str) -> u32 {
        let mut pool = NodePool::default();
        pool.spec.disruption.budgets = serde_json::from_value(budgets).unwrap();
        allowed(&pool, &reason, nodes, now.parse().unwrap())
    }

    /// Returns what one budget allows at noon for empty nodes.
    fn allowed_by(budget: Value, nodes: u32) -> u32 {
        allowed_of(json!([budget]), Empty, nodes, NOON)
    }

    const NOON: &str = "2026-01-01T12:00:00Z";

    /// Conformance: API-040
    #[test]
    fn the_strictest_active_budget_counts() {
        let budgets = json!([
            { "nodes": "10" }, { "nodes": "50%" }, { "nodes": "1", "schedule": "0 0 * * *", "duration": "1h" },
            { "nodes": "2", "reasons": ["Drifted"] },
        ]);
        assert_eq!(allowed_of(budgets.clone(), Empty, 100, NOON), 10);
        assert_eq!(allowed_of(budgets.clone(), Empty, 8, NOON), 4);
        assert_eq!(allowed_of(budgets.clone(), Drifted, 100, NOON), 2);
        assert_eq!(allowed_of(budgets, Drifted, 100, "2026-01-01T00:30:00Z"), 1);
    }

    /// Conformance: API-041
    #[test]
    fn without_an_active_budget_there_is_no_limit() {
        assert_eq!(allowed_of(json!([]), Underutilized, 5, NOON), UNBOUNDED);
        assert_eq!(
            allowed_by(
                json!({ "nodes": "0", "schedule": "0 0 * * *", "duration": "1h" }),
                5
            ),
            2_147_483_647
        );
    }

    /// Conformance: API-042
    #[test]
    fn a_percentage_is_rounded_up() {
        for (nodes, expected) in [(0, 0), (1, 1), (10, 1), (11, 2), (15, 2), (100, 10)] {
            assert_eq!(allowed_by(json!({ "nodes": "10%" }), nodes), expected);
        }
        assert_eq!(allowed_by(json!({ "nodes": "0%" }), 5), 0);
        assert_eq!(allowed_by(json!({ "nodes": "100%" }), 5), 5);
        assert_eq!(
            allowed_by(json!({ "nodes": "99999999999999999999" }), 5),
            UNBOUNDED
        );
    }

    #[test]
    fn an_invalid_budget_allows_nothing_for_the_reasons_it_covers() {
        let budgets = json!([{ "nodes": "5" }, { "nodes": "3", "reasons": ["Empty"], "schedule": "@dailyx", "duration": "1h" }]);
        assert_eq!(allowed_of(budgets.clone(), Empty, 10, NOON), 0);
        assert_eq!(allowed_of(budgets, Drifted, 10, NOON), 5);
        assert_eq!(allowed_by(json!({ "nodes": "many" }), 10), 0);
    }

    #[test]
    fn an_empty_list_of_reasons_covers_every_reason() {
        assert_eq!(allowed_by(json!({ "nodes": "1", "reasons": [] }), 10), 1);
    }

    /// Conformance: API-043
    #[test]
    fn nodes_that_are_already_disrupted_count_against_the_budget() {
        assert_eq!(remaining(5, 2), 3);
        assert_eq!(remaining(1, 2), 0);
    }

    /// Conformance: API-045
    #[test]
    fn a_window_includes_its_start_and_excludes_its_end() {
        let budget = json!([{ "nodes": "1", "schedule": "0 9 * * *", "duration": "8h" }]);
        for (now, active) in [
            ("2026-01-01T08:59:59Z", false),
            ("2026-01-01T09:00:00Z", true),
            ("2026-01-01T16:59:59.999Z", true),
            ("2026-01-01T17:00:00Z", false),
        ] {
            let allowed = allowed_of(budget.clone(), Empty, 10, now);
            assert_eq!(allowed == 1, active, "{now}");
        }
    }

    /// Conformance: API-045
    #[test]
    fn overlapping_windows_merge_and_an_empty_window_is_never_active() {
        let merged = json!([{ "nodes": "1", "schedule": "@hourly", "duration": "90m" }]);
        assert_eq!(allowed_of(merged, Empty, 10, "2026-01-01T12:59:59Z"), 1);
        assert_eq!(
            allowed_by(
                json!({ "nodes": "1", "schedule": "* * * * *", "duration": "0m" }),
                10
            ),
            UNBOUNDED
        );
    }

    #[test]
    fn a_schedule_that_never_matches_is_never_active() {
        assert_eq!(
            allowed_by(
                json!({ "nodes": "0", "schedule": "0 0 30 2 *", "duration": "1h" }),
                10
            ),
            UNBOUNDED
        );
    }
}
