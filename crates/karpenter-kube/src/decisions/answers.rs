//! Answers to questions, from the model and the history.

use karpenter_core::schedule::ScheduleRequest;
use karpenter_decisions::blocking::blocking;
use karpenter_decisions::explain::{
    Question, explain_node, explain_node_claim, explain_node_pool, explain_pod,
};
use karpenter_decisions::groups;
use karpenter_decisions::history::History;
use karpenter_decisions::record::DecisionRecord;
use serde_json::{Value, json};

use super::query::{Ask, Select, Subject};
use super::status::{Failure, value};
use crate::model::View;

/// The version of the engine in answers.
pub(super) const ENGINE: &str = env!("CARGO_PKG_VERSION");

/// Answers a question at `now`. What blocks a pod is searched for with the request of the last scheduling pass.
pub(super) fn answer(
    ask: &Ask,
    view: &View,
    history: &History,
    search: Option<&ScheduleRequest>,
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
        Ask::PodsByReason => {
            let observed = question.observed(history.pods().left_out() > 0);
            value(&groups::of_pods(&view.snapshot, history, observed))
        }
        Ask::NodesByReason => {
            let observed = question.observed(history.nodes().left_out() > 0);
            value(&groups::of_nodes(&view.snapshot, history, observed))
        }
        Ask::Explain { subject, uid, .. } => {
            explain(&question, view, subject, uid.as_deref(), search)
        }
    }
}

fn explain(
    question: &Question<'_>,
    view: &View,
    subject: &Subject,
    uid: Option<&str>,
    search: Option<&ScheduleRequest>,
) -> Result<Value, Failure> {
    let (kind, name, answer) = match subject {
        Subject::Pod { namespace, name } => {
            let mut answer = explain_pod(question, namespace, name);
            if let (Some(explanation), Some(request)) = (&answer, search)
                && explanation.is_unschedulable()
                && let Some(pod) = question.snapshot.pod(namespace, name)
            {
                let found = blocking(question.snapshot, request, pod);
                answer = answer.map(|answer| answer.with_blocking(found));
            }
            ("Pod", name, answer.map(|answer| value(&answer)))
        }
        Subject::Node(name) => {
            let mut answer = explain_node(question, name);
            if let Some(answer) = &mut answer {
                let node = view.node(name);
                answer.metadata.uid = node.and_then(|node| node.metadata.uid.clone());
            }
            ("Node", name, answer.map(|answer| value(&answer)))
        }
        Subject::NodeClaim(name) => {
            let answer = explain_node_claim(question, name);
            ("NodeClaim", name, answer.map(|answer| value(&answer)))
        }
        Subject::NodePool(name) => {
            let answer = explain_node_pool(question, name);
            ("NodePool", name, answer.map(|answer| value(&answer)))
        }
    };
    let answer = answer.ok_or_else(|| Failure::not_found(kind, name))??;
    match uid {
        Some(uid) if answer["metadata"]["uid"] != uid => Err(Failure::conflict(kind, name)),
        _ => Ok(answer),
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
