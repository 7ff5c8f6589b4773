//! The problems that validation finds.

use super::{InvalidName, RestrictedLabel};
use crate::budget::InvalidBudget;
use crate::v1::Operator;

/// A problem with a field that a user wrote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The key is reserved.
    #[error(transparent)]
    Restricted(#[from] RestrictedLabel),
    /// The key is set by Karpenter alone.
    #[error("label key `{key}` is set by Karpenter alone")]
    OwnedByKarpenter {
        /// The key.
        key: String,
    },
    /// The key is not a valid label key.
    #[error("key `{key}` is not a qualified name: {problem}")]
    Key {
        /// The key.
        key: String,
        /// The problem.
        problem: InvalidName,
    },
    /// The value is not a valid label value.
    #[error("invalid value `{value}` for key `{key}`: {problem}")]
    Value {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// The problem.
        problem: InvalidName,
    },
    /// The operator is unknown.
    #[error("key `{key}` has an unknown operator `{operator}`")]
    UnknownOperator {
        /// The key.
        key: String,
        /// The operator.
        operator: String,
    },
    /// In without values, or NotIn without values in a NodeOverlay.
    #[error("key `{key}` with operator {operator} must have a value")]
    NoValues {
        /// The key.
        key: String,
        /// The operator.
        operator: Operator,
    },
    /// In with fewer values than minValues.
    #[error("key `{key}` has {values} values, fewer than its minValues of {min_values}")]
    FewerThanMinValues {
        /// The key.
        key: String,
        /// The number of values.
        values: usize,
        /// The value of minValues.
        min_values: i64,
    },
    /// A bound that is not one non-negative integer.
    #[error("key `{key}` with operator {operator} must have a single positive integer value")]
    Bound {
        /// The key.
        key: String,
        /// The operator.
        operator: Operator,
    },
    /// None of the values of a key with known values is known.
    #[error("no value of key `{key}` is valid: {values:?} not in {known:?}")]
    NoKnownValue {
        /// The key.
        key: String,
        /// The values of the requirement.
        values: Vec<String>,
        /// The valid values.
        known: Vec<String>,
    },
    /// Some of the values of a key with known values are not known.
    #[error("invalid values of key `{key}` are ignored: {values:?} not in {known:?}")]
    UnknownValues {
        /// The key.
        key: String,
        /// The unknown values.
        values: Vec<String>,
        /// The valid values.
        known: Vec<String>,
    },
    /// A taint with an effect that does not exist.
    #[error("taint `{key}` has an unknown effect `{effect}`")]
    TaintEffect {
        /// The taint's key.
        key: String,
        /// Its effect.
        effect: String,
    },
    /// An invalid taint value.
    #[error("invalid value `{value}` of taint `{key}`: {problem}")]
    TaintValue {
        /// The taint's key.
        key: String,
        /// Its value.
        value: String,
        /// The problem.
        problem: InvalidName,
    },
    /// The same taint twice, within or across taints and startupTaints.
    #[error("duplicate taint `{key}:{effect}`")]
    DuplicateTaint {
        /// The taint's key.
        key: String,
        /// Its effect.
        effect: String,
    },
    /// A NodeOverlay that changes a resource of the provider.
    #[error("capacity of resource `{resource}` cannot be changed")]
    RestrictedResource {
        /// The resource.
        resource: String,
    },
    /// An invalid disruption budget.
    #[error("budget {index} allows no disruption: {problem}")]
    Budget {
        /// Its index in the list.
        index: usize,
        /// The problem.
        problem: InvalidBudget,
    },
}

/// The result of validation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Problems that make the object unusable.
    pub errors: Vec<Problem>,
    /// Problems that do not make the object unusable.
    pub warnings: Vec<Problem>,
}

impl Findings {
    /// Returns whether the object is usable.
    pub fn is_ok(&self) -> bool {
        self.errors.is_empty()
    }

    /// Returns the errors as one text, for the message of a condition.
    pub fn message(&self) -> String {
        self.errors
            .iter()
            .map(Problem::to_string)
            .collect::<Vec<_>>()
            .join("; ")
    }
}
