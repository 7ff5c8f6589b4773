//! Status conditions: their types and reasons, and the rules by which they change.
//!
//! 1. Every write first ensures that the root and its dependents exist: Unknown, reason `AwaitingReconciliation`, since
//!    the object's creation.
//! 2. Setting a condition stamps the object's generation; its transition time moves only when the *status* changes.
//! 3. Each change updates the root: True when every dependent is True at the current generation, False when one is
//!    False at the current generation, else Unknown. Its message lists the others, newest transition first.
//! 4. Conditions are ordered by transition time, the root last.
//!
//! Times are cut to whole seconds, as they are written, so that a condition read back equals the one set.
//!
//! UPSTREAM: awslabs/operatorpkg status/condition_set.go

pub mod reasons;
pub mod types;

use jiff::Timestamp;
pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_core::Resource;

/// A condition's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// The condition is met.
    True,
    /// The condition is not met.
    False,
    /// It is not known whether the condition is met.
    Unknown,
}

impl Status {
    /// Returns the status as in the API: `True`, `False` or `Unknown`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }

    /// Returns the status of a condition; any value but `True` and `False` is unknown.
    pub fn of(condition: &Condition) -> Self {
        match condition.status.as_str() {
            "True" => Self::True,
            "False" => Self::False,
            _ => Self::Unknown,
        }
    }
}

/// The conditions that a kind always has: a root and its dependents.
#[derive(Clone, Copy, Debug)]
pub struct ConditionTypes {
    /// The summary of the dependents.
    pub root: &'static str,
    /// The conditions on which the root depends.
    pub dependents: &'static [&'static str],
}

impl ConditionTypes {
    /// Returns whether the kind always has this condition.
    pub fn contains(&self, condition_type: &str) -> bool {
        self.root == condition_type || self.dependents.contains(&condition_type)
    }
}

/// The error of clearing a condition that the kind always has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("condition `{condition_type}` cannot be cleared")]
pub struct NotClearable {
    condition_type: String,
}

/// An object with a condition set. `now` is the time of the change; the methods that change
/// conditions return whether they did.
pub trait HasConditions: Resource {
    /// The conditions that the kind always has.
    const TYPES: ConditionTypes;

    /// Returns the conditions of the status.
    fn conditions(&self) -> &[Condition];

    /// Returns the conditions for the `set_` methods, which callers use instead.
    fn conditions_mut(&mut self) -> &mut Vec<Condition>;

    /// Returns the condition of this type.
    fn condition(&self, condition_type: &str) -> Option<&Condition> {
        self.conditions()
            .iter()
            .find(|condition| condition.type_ == condition_type)
    }

    /// Returns the status of the condition of this type; a missing one is unknown.
    fn condition_status(&self, condition_type: &str) -> Status {
        self.condition(condition_type)
            .map_or(Status::Unknown, Status::of)
    }

    /// Returns whether the condition exists and is True.
    fn is_true(&self, condition_type: &str) -> bool {
        self.condition_status(condition_type) == Status::True
    }

    /// Returns whether the condition exists and is False.
    fn is_false(&self, condition_type: &str) -> bool {
        self.condition_status(condition_type) == Status::False
    }

    /// Adds the root and its dependents if they are missing.
    fn initialize_conditions(&mut self, now: Timestamp) -> bool {
        let mut changed = false;
        for condition_type in
            std::iter::once(Self::TYPES.root).chain(Self::TYPES.dependents.iter().copied())
        {
            if self.condition(condition_type).is_none() {
                changed |= put(
                    self,
                    condition_type,
                    Status::Unknown,
                    reasons::AWAITING_RECONCILIATION,
                    AWAITING_MESSAGE,
                    now,
                );
            }
        }
        changed
    }

    /// Sets a condition and updates the root.
    fn set_condition(
        &mut self,
        condition_type: &str,
        status: Status,
        reason: &str,
        message: &str,
        now: Timestamp,
    ) -> bool {
        let initialized = self.initialize_conditions(now);
        put(self, condition_type, status, reason, message, now) || initialized
    }

    /// Sets a condition True, with its type as reason.
    fn set_true(&mut self, condition_type: &str, now: Timestamp) -> bool {
        self.set_condition(condition_type, Status::True, condition_type, "", now)
    }

    /// Sets a condition True.
    fn set_true_with_reason(
        &mut self,
        condition_type: &str,
        reason: &str,
        message: &str,
        now: Timestamp,
    ) -> bool {
        self.set_condition(condition_type, Status::True, reason, message, now)
    }

    /// Sets a condition False.
    fn set_false(
        &mut self,
        condition_type: &str,
        reason: &str,
        message: &str,
        now: Timestamp,
    ) -> bool {
        self.set_condition(condition_type, Status::False, reason, message, now)
    }

    /// Sets a condition Unknown with the reason `AwaitingReconciliation`.
    fn set_unknown(&mut self, condition_type: &str, now: Timestamp) -> bool {
        self.set_condition(
            condition_type,
            Status::Unknown,
            reasons::AWAITING_RECONCILIATION,
            AWAITING_MESSAGE,
            now,
        )
    }

    /// Sets a condition Unknown.
    fn set_unknown_with_reason(
        &mut self,
        condition_type: &str,
        reason: &str,
        message: &str,
        now: Timestamp,
    ) -> bool {
        self.set_condition(condition_type, Status::Unknown, reason, message, now)
    }

    /// Removes a condition that the kind does not always have.
    fn clear_condition(&mut self, condition_type: &str) -> Result<bool, NotClearable> {
        if Self::TYPES.contains(condition_type) {
            return Err(NotClearable {
                condition_type: condition_type.to_owned(),
            });
        }
        let before = self.conditions().len();
        self.conditions_mut()
            .retain(|condition| condition.type_ != condition_type);
        Ok(self.conditions().len() != before)
    }
}

const AWAITING_MESSAGE: &str = "object is awaiting reconciliation";

/// Truncates a time to whole seconds, as Kubernetes writes it.
fn whole_seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

/// Sets one condition and recomputes the root, unless the condition is the root or is unchanged.
fn put<T: HasConditions + ?Sized>(
    object: &mut T,
    condition_type: &str,
    status: Status,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> bool {
    let generation = object.meta().generation;
    let existing = object.condition(condition_type);
    let last_transition_time = match existing {
        Some(existing) if existing.status == status.as_str() => {
            existing.last_transition_time.clone()
        }
        Some(_) => whole_seconds(now),
        None => match &object.meta().creation_timestamp {
            Some(created) if T::TYPES.contains(condition_type) => created.clone(),
            _ => whole_seconds(now),
        },
    };
    let condition = Condition {
        type_: condition_type.to_owned(),
        status: status.as_str().to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: generation,
        last_transition_time,
    };
    if existing == Some(&condition) {
        return false;
    }
    let deleting = object.meta().deletion_timestamp.is_some();
    let conditions = object.conditions_mut();
    conditions.retain(|other| other.type_ != condition_type);
    if deleting {
        for other in conditions.iter_mut() {
            other.observed_generation = generation;
        }
    }
    conditions.push(condition);
    conditions.sort_by(|a, b| {
        let is_root = |condition: &Condition| condition.type_ == T::TYPES.root;
        is_root(a)
            .cmp(&is_root(b))
            .then_with(|| a.last_transition_time.0.cmp(&b.last_transition_time.0))
    });
    if condition_type != T::TYPES.root {
        recompute_root(object, now);
    }
    true
}

fn recompute_root<T: HasConditions + ?Sized>(object: &mut T, now: Timestamp) {
    let root = T::TYPES.root;
    let generation = object.meta().generation;
    let current = |condition: &Condition| condition.observed_generation == generation;
    let mut unhealthy: Vec<&Condition> = object
        .conditions()
        .iter()
        .filter(|condition| T::TYPES.dependents.contains(&condition.type_.as_str()))
        .filter(|condition| Status::of(condition) != Status::True || !current(condition))
        .collect();
    if unhealthy.is_empty() {
        put(object, root, Status::True, root, "", now);
        return;
    }
    unhealthy.sort_by_key(|condition| std::cmp::Reverse(condition.last_transition_time.0));
    let failed = unhealthy
        .iter()
        .any(|condition| Status::of(condition) == Status::False && current(condition));
    let message = unhealthy
        .iter()
        .map(|condition| format!("{}={}", condition.type_, condition.status))
        .collect::<Vec<_>>()
        .join(", ");
    let (status, reason) = if failed {
        (Status::False, reasons::UNHEALTHY_DEPENDENTS)
    } else {
        (Status::Unknown, reasons::RECONCILING_DEPENDENTS)
    };
    put(object, root, status, reason, &message, now);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::{NodeClaim, NodePool};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn claim() -> NodeClaim {
        let mut claim = NodeClaim::new("a", Default::default());
        claim.metadata.creation_timestamp = Some(Time(at(100)));
        claim.metadata.generation = Some(1);
        claim
    }

    /// Returns a condition as a text: status, reason, transition time, generation and message.
    fn summary(object: &impl HasConditions, type_: &str) -> String {
        let c = object.condition(type_).unwrap();
        let (since, generation) = (c.last_transition_time.0.as_second(), c.observed_generation);
        let generation = generation.unwrap_or_default();
        format!(
            "{} {} @{since} g{generation} {}",
            c.status, c.reason, c.message
        )
    }

    fn since(object: &impl HasConditions, type_: &str) -> i64 {
        let condition = object.condition(type_).unwrap();
        condition.last_transition_time.0.as_second()
    }

    /// Conformance: API-011
    #[test]
    fn missing_conditions_start_unknown_at_the_object_s_creation() {
        let mut claim = claim();
        assert!(claim.initialize_conditions(at(200)));
        for dependent in ["Launched", "Registered", "Initialized"] {
            let expected = "Unknown AwaitingReconciliation @100 g1";
            assert!(
                summary(&claim, dependent).starts_with(expected),
                "{dependent}"
            );
        }
        assert_eq!(
            summary(&claim, "Ready"),
            "Unknown ReconcilingDependents @100 g1 Launched=Unknown, Registered=Unknown, Initialized=Unknown"
        );
        assert_eq!(claim.conditions().len(), 4);
        let again = claim.initialize_conditions(at(300));
        assert!(!again, "the second call changes nothing");
    }

    /// Conformance: API-011
    #[test]
    fn a_condition_that_is_not_a_dependent_starts_now() {
        let mut claim = claim();
        claim.set_true("Drifted", at(200));
        assert_eq!(since(&claim, "Drifted"), 200);
    }

    /// Conformance: API-012
    #[test]
    fn the_transition_time_moves_with_the_status_only() {
        let mut claim = claim();
        for (second, message) in [(200, "one"), (300, "two")] {
            claim.set_unknown_with_reason("Launched", "LaunchFailed", message, at(second));
            assert_eq!(since(&claim, "Launched"), 100);
        }
        claim.set_true("Launched", at(400));
        assert_eq!(since(&claim, "Launched"), 400);
        assert!(!claim.set_true("Launched", at(500)), "no change");
    }

    /// Conformance: API-013
    #[test]
    fn true_without_a_reason_has_its_type_as_reason_and_no_message() {
        let mut claim = claim();
        claim.set_true("Launched", at(200));
        assert_eq!(summary(&claim, "Launched"), "True Launched @200 g1 ");
    }

    #[test]
    fn setting_a_condition_says_whether_that_changed_it() {
        let mut claim = claim();
        let drift = |claim: &mut NodeClaim, second: i64| {
            claim.set_true_with_reason("Drifted", "NodePoolDrifted", "changed", at(second))
        };
        assert!(drift(&mut claim, 200));
        assert!(!drift(&mut claim, 300));
        assert!(claim.is_true("Drifted") && !claim.is_false("Drifted"));
        assert!(claim.set_false("Drifted", "Reverted", "", at(400)));
        assert!(claim.is_false("Drifted") && !claim.is_true("Drifted"));
    }

    /// Conformance: API-014
    #[test]
    fn the_root_is_true_when_every_dependent_is() {
        let mut claim = claim();
        claim.set_true("Launched", at(200));
        claim.set_true("Registered", at(300));
        assert_eq!(
            summary(&claim, "Ready"),
            "Unknown ReconcilingDependents @100 g1 Initialized=Unknown"
        );
        claim.set_true("Initialized", at(400));
        assert_eq!(summary(&claim, "Ready"), "True Ready @400 g1 ");
    }

    /// Conformance: API-015
    #[test]
    fn the_root_is_false_when_a_dependent_is_and_names_the_newest_first() {
        let mut claim = claim();
        claim.set_false("Registered", "MultipleNodesFound", "", at(200));
        assert_eq!(
            summary(&claim, "Ready"),
            "False UnhealthyDependents @200 g1 Registered=False, Launched=Unknown, Initialized=Unknown"
        );
    }

    /// Conformance: API-016
    #[test]
    fn the_root_is_unknown_until_every_dependent_has_the_new_generation() {
        let mut pool = NodePool::new("a", Default::default());
        pool.metadata.generation = Some(1);
        pool.set_true("ValidationSucceeded", at(200));
        pool.set_true("NodeClassReady", at(200));
        assert!(pool.is_true("Ready"));

        pool.metadata.generation = Some(2);
        let stamped = pool.set_true("ValidationSucceeded", at(300));
        assert!(stamped, "the generation is stamped");
        assert_eq!(
            summary(&pool, "Ready"),
            "Unknown ReconcilingDependents @300 g2 NodeClassReady=True"
        );
        pool.set_true("NodeClassReady", at(300));
        assert!(pool.is_true("Ready"));
    }

    #[test]
    fn a_false_dependent_of_an_older_generation_leaves_the_root_unknown() {
        let mut pool = NodePool::new("a", Default::default());
        pool.metadata.generation = Some(1);
        pool.set_false("NodeClassReady", "NodeClassNotFound", "", at(200));
        pool.metadata.generation = Some(2);
        pool.set_true("ValidationSucceeded", at(300));
        assert_eq!(pool.condition_status("Ready"), Status::Unknown);
    }

    /// Conformance: API-017
    #[test]
    fn while_deleting_any_change_stamps_every_condition() {
        let mut claim = claim();
        claim.set_true("Launched", at(200));
        claim.metadata.generation = Some(2);
        claim.metadata.deletion_timestamp = Some(Time(at(250)));
        claim.set_unknown_with_reason("Drained", "Draining", "", at(300));
        let mut conditions = claim.conditions().iter();
        assert!(conditions.all(|condition| condition.observed_generation == Some(2)));
    }

    /// Conformance: API-018
    #[test]
    fn conditions_are_ordered_by_transition_time_with_the_root_last() {
        let mut claim = claim();
        claim.set_true("Drifted", at(50));
        claim.set_true("Initialized", at(300));
        claim.set_true("Launched", at(200));
        let order = claim.conditions().iter().map(|it| it.type_.as_str());
        let expected = ["Drifted", "Registered", "Launched", "Initialized", "Ready"];
        assert_eq!(order.collect::<Vec<_>>(), expected);
    }

    /// Conformance: API-019
    #[test]
    fn only_a_condition_that_may_be_absent_can_be_cleared() {
        let mut claim = claim();
        claim.set_true("Drifted", at(200));
        assert_eq!(claim.clear_condition("Drifted"), Ok(true));
        assert_eq!(claim.clear_condition("Drifted"), Ok(false));
        let refused = claim.clear_condition("Launched").unwrap_err().to_string();
        assert_eq!(refused, "condition `Launched` cannot be cleared");
        assert!(claim.clear_condition("Ready").is_err());
    }

    #[test]
    fn a_condition_equals_itself_after_it_was_written_and_read() {
        let mut claim = claim();
        claim.set_true("Launched", Timestamp::from_millisecond(200_999).unwrap());
        let read: NodeClaim =
            serde_json::from_value(serde_json::to_value(&claim).unwrap()).unwrap();
        assert_eq!(read, claim);
    }
}
