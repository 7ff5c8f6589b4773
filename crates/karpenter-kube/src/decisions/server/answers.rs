//! Answers to questions, from the model and the history.

use karpenter_decisions::answer::{self, Unanswerable};
use karpenter_decisions::explain::Question;
use karpenter_decisions::history::History;
use karpenter_decisions::record::DecisionRecord;
use serde_json::{Value, json};

pub(super) use karpenter_decisions::answer::Requests;

use super::query::{Ask, Select, Subject};
use super::status::{Failure, value};
use crate::decisions::state::ENGINE;
use crate::model::View;

/// Answers a question at `now`.
pub(super) fn answer(
    ask: &Ask,
    view: &View,
    history: &History,
    requests: Requests,
    now: jiff::Timestamp,
) -> Result<Value, Failure> {
    let messages = |uid: &str| view.scheduler_message(uid).map(str::to_owned);
    let question = Question {
        snapshot: &view.snapshot,
        history,
        messages: &messages,
        now,
        engine: ENGINE,
    };
    match ask {
        Ask::Decisions(select) => decisions(select, history),
        // The overview is shared by all clients.
        Ask::Overview { .. } => Err(Failure::unknown_path()),
        Ask::PodsByReason => answer::pods_by_reason(&question).map_err(unanswerable),
        Ask::NodesByReason => answer::nodes_by_reason(&question, &requests).map_err(unanswerable),
        // The server answers them: it reviews the installation first, reads a body, or asks the shadow.
        Ask::Blockers { .. } | Ask::Bundle { .. } | Ask::Plan { .. } | Ask::Shadow { .. } => {
            Err(Failure::unknown_path())
        }
        Ask::Explain {
            subject,
            uid,
            changes,
            ..
        } => {
            let (kind, name) = (subject.kind(), subject.name());
            let missing = || match subject {
                Subject::Pod { namespace, name } => Failure::not_found_in(kind, namespace, name),
                _ => Failure::not_found(kind, name),
            };
            let answer = answer::explain(&question, subject, changes, requests);
            let answer = answer.map_err(unanswerable)?;
            let answer = answer.ok_or_else(missing)?;
            match uid {
                Some(uid) if answer["metadata"]["uid"] != *uid => {
                    Err(Failure::conflict(kind, name))
                }
                _ => Ok(answer),
            }
        }
    }
}

fn unanswerable(error: Unanswerable) -> Failure {
    match error {
        Unanswerable::Change(error) => Failure::bad_request(error.to_string()),
        other => Failure::internal(&other),
    }
}

/// Returns a list of records, oldest first.
fn decisions(select: &Select, history: &History) -> Result<Value, Failure> {
    let ring = history.ring();
    if let Some(after) = select.after {
        let known = ring.get(after.number);
        if known.is_none_or(|record| record.id != after) {
            return Err(Failure::gone());
        }
    }
    let after = select.after.map_or(0, |id| id.number);
    let mut matching = ring
        .iter()
        .filter(|record| record.id.number > after && select.matches(record));
    let items: Vec<&DecisionRecord> = matching
        .by_ref()
        .take(select.limit)
        .map(AsRef::as_ref)
        .collect();
    let remaining = matching.count();
    let mut metadata = json!({});
    if let Some(last) = items.last().filter(|_| remaining > 0) {
        metadata["continue"] = json!(last.id);
        metadata["remainingItemCount"] = json!(remaining);
    }
    Ok(json!({
        "apiVersion": karpenter_decisions::API_VERSION, "kind": "DecisionRecordList",
        "metadata": metadata, "items": value(&items)?,
    }))
}
