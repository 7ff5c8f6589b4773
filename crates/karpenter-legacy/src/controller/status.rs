//! The status of legacy objects.

use jiff::Timestamp;
use karpenter_api::conditions::{Condition, HasConditions, Status, types};

use crate::finding::{Finding, Severity};
use crate::v1alpha5::condition_types::{CONVERTED, LOSSLESS, PROJECTION_READY};

/// The longest message that the schema allows.
const MAX_MESSAGE: usize = 32_000;

mod reasons {
    pub(super) const INVALID: &str = "CannotBeConverted";
    pub(super) const NO_EQUIVALENT: &str = "NoEquivalent";
    pub(super) const NAME_TAKEN: &str = "NameTaken";
    pub(super) const NOT_CONVERTED: &str = "NotConverted";
    pub(super) const NOT_OBSERVED: &str = "NotObserved";
}

/// The result of converting a legacy object.
pub(super) enum Fate {
    /// It is projected into this object.
    Projected(String),
    /// It cannot be converted.
    Refused,
    /// An object of another owner has the name.
    NameTaken(String),
}

/// Sets the conditions; `ready` is the Ready condition of the projected object.
pub(super) fn set<K: HasConditions>(
    object: &mut K,
    fate: &Fate,
    findings: &[&Finding],
    ready: Option<&Condition>,
    now: Timestamp,
) {
    match fate {
        Fate::Projected(into) => {
            object.set_true_with_reason(CONVERTED, CONVERTED, into, now);
        }
        Fate::Refused => {
            let message = texts(findings, Severity::Error);
            object.set_false(CONVERTED, reasons::INVALID, &message, now);
        }
        Fate::NameTaken(message) => {
            object.set_false(CONVERTED, reasons::NAME_TAKEN, message, now);
        }
    }
    let lost = texts(findings, Severity::Loss);
    if lost.is_empty() {
        object.set_true(LOSSLESS, now);
    } else {
        object.set_false(LOSSLESS, reasons::NO_EQUIVALENT, &lost, now);
    }
    let (status, reason, message) = match (fate, ready) {
        (Fate::Projected(_), Some(ready)) => (
            Status::of(ready),
            ready.reason.clone(),
            ready.message.clone(),
        ),
        (Fate::Projected(_), None) => (
            Status::Unknown,
            reasons::NOT_OBSERVED.to_owned(),
            format!("the projected object has no condition {} yet", types::READY),
        ),
        (Fate::Refused | Fate::NameTaken(_), _) => (
            Status::False,
            reasons::NOT_CONVERTED.to_owned(),
            format!("see condition {CONVERTED}"),
        ),
    };
    object.set_condition(PROJECTION_READY, status, &reason, &message, now);
}

/// Returns the findings of a severity as one message.
fn texts(findings: &[&Finding], severity: Severity) -> String {
    let all = findings.iter().filter(|f| f.severity == severity);
    let mut message = all.map(|f| f.text()).collect::<Vec<_>>().join(". ");
    if message.len() > MAX_MESSAGE {
        let cut = message.floor_char_boundary(MAX_MESSAGE);
        message.truncate(cut);
        message.push_str("...");
    }
    message
}
