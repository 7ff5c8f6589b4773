//! Answers to questions, from the model and the history.

use std::sync::Arc;

use karpenter_core::cluster::Snapshot;
use karpenter_core::disruption::DisruptionRequest;
use karpenter_core::schedule::{Cancel, Policy};
use karpenter_decisions::blocking::Prepared;
use karpenter_decisions::change::{self, Change, InvalidChange};
use karpenter_decisions::explain::{
    Question, explain_node, explain_node_claim, explain_node_pool, explain_pod,
};
use karpenter_decisions::groups;
use karpenter_decisions::history::History;
use karpenter_decisions::record::DecisionRecord;
use karpenter_decisions::what_if::WhatIf;
use serde_json::{Value, json};

use super::kept::Kept;
use super::query::{Ask, Select, Subject};
use super::status::{Failure, value};
use crate::model::View;

/// The version of the engine in answers.
pub(super) const ENGINE: &str = env!("CARGO_PKG_VERSION");

/// The settings with which questions are run: those of the last passes.
pub(super) struct Requests {
    /// Absent before the first scheduling pass.
    pub(super) scheduling: Option<Policy>,
    pub(super) disruption: DisruptionRequest,
    /// Ends a search early.
    pub(super) cancel: Cancel,
    /// What earlier questions compiled.
    pub(super) kept: Arc<Kept>,
}

impl Requests {
    /// Returns the snapshot prepared for questions about nodes.
    fn what_if(&self, snapshot: &Snapshot) -> WhatIf {
        let request = self.disruption.clone();
        let policy = self.scheduling.as_ref().unwrap_or(&request.policy).clone();
        self.kept.what_if(snapshot, &policy, request)
    }
}

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
        Ask::PodsByReason => {
            let observed = question.observed(history.pods().left_out() > 0);
            value(&groups::of_pods(&view.snapshot, history, observed))
        }
        Ask::NodesByReason => {
            let observed = question.observed(history.nodes().left_out() > 0);
            let groups = groups::of_nodes(&view.snapshot, history, observed);
            let what_if = requests.what_if(&view.snapshot);
            value(&groups.with_releasable(&view.snapshot, history, &what_if))
        }
        // The server answers it: it reviews the installation first.
        Ask::Blockers { .. } => Err(Failure::unknown_path()),
        Ask::Explain {
            subject,
            uid,
            changes,
            ..
        } => {
            let (kind, name) = match subject {
                Subject::Pod { name, .. } => ("Pod", name),
                Subject::Node(name) => ("Node", name),
                Subject::NodeClaim(name) => ("NodeClaim", name),
                Subject::NodePool(name) => ("NodePool", name),
            };
            let missing = || match subject {
                Subject::Pod { namespace, name } => Failure::not_found_in(kind, namespace, name),
                _ => Failure::not_found(kind, name),
            };
            let answer = explain(&question, view, subject, changes, requests)?;
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

/// Explains an object; `None` if it does not exist.
fn explain(
    question: &Question<'_>,
    view: &View,
    subject: &Subject,
    changes: &[Change],
    requests: Requests,
) -> Result<Option<Value>, Failure> {
    let explanation = match subject {
        Subject::Pod { namespace, name } => {
            return explain_pod_after(question, namespace, name, changes, requests);
        }
        Subject::Node(name) => {
            return explain_node_after(question, view, name, changes, &requests);
        }
        Subject::NodeClaim(name) => {
            explain_node_claim(question, name).map(|explanation| value(&explanation))
        }
        Subject::NodePool(name) => {
            explain_node_pool(question, name).map(|explanation| value(&explanation))
        }
    };
    explanation.transpose()
}

/// Reports whether a change concerns the pod alone that is asked about.
fn of_pods(change: &Change) -> bool {
    matches!(change, Change::Tolerate(_) | Change::Drop(_))
}

fn invalid(error: InvalidChange) -> Failure {
    Failure::bad_request(error.to_string())
}

fn explain_pod_after(
    question: &Question<'_>,
    namespace: &str,
    name: &str,
    changes: &[Change],
    requests: Requests,
) -> Result<Option<Value>, Failure> {
    let Some(mut explanation) = explain_pod(question, namespace, name) else {
        return Ok(None);
    };
    let searched = explanation.is_unschedulable() || !changes.is_empty();
    if let (Some(policy), Some(pod)) = (requests.scheduling, question.snapshot.pod(namespace, name))
        && explanation.state == "Pending"
        && searched
    {
        let cancel = Some(requests.cancel);
        let found = if changes.is_empty() {
            let prepared = requests.kept.prepared(question.snapshot, &policy);
            prepared.blocking(cancel, pod)
        } else {
            let changed = change::apply(changes, question.snapshot, &requests.disruption);
            let changed = changed.map_err(invalid)?;
            let prepared = match changes.iter().all(of_pods) {
                true => requests.kept.prepared(question.snapshot, &policy),
                false => {
                    let policy = policy.with_now(changed.request.now());
                    Arc::new(Prepared::new(&changed.snapshot, &policy))
                }
            };
            let found = prepared.blocking_after(&changed, cancel, pod);
            found.map_err(invalid)?
        };
        explanation = explanation.with_blocking(found);
    }
    value(&explanation.with_changes(changes)).map(Some)
}

fn explain_node_after(
    question: &Question<'_>,
    view: &View,
    name: &str,
    changes: &[Change],
    requests: &Requests,
) -> Result<Option<Value>, Failure> {
    let Some(mut explanation) = explain_node(question, name) else {
        return Ok(None);
    };
    let node = view.node(name);
    explanation.metadata.uid = node.and_then(|node| node.metadata.uid.clone());
    if let Some(change) = changes.iter().find(|change| of_pods(change)) {
        let change = change.to_string();
        let only = "pods";
        return Err(invalid(InvalidChange::NotApplicable { change, only }));
    }
    let asked = requests.what_if(question.snapshot);
    let told = if changes.is_empty() {
        asked.node(name)
    } else {
        let changed = change::apply(changes, question.snapshot, &requests.disruption);
        asked.of(changed.map_err(invalid)?).node(name)
    };
    let explanation = explanation.with_what_if(told.unwrap_or_default(), changes);
    value(&explanation).map(Some)
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
