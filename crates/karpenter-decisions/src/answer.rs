//! Answers to questions as values: the same from a live cluster and from a bundle.

use std::sync::Arc;

use karpenter_core::cluster::Snapshot;
use karpenter_core::disruption::DisruptionRequest;
use karpenter_core::schedule::{Cancel, Policy};
use serde::Serialize;
use serde_json::Value;

use crate::blocking::Prepared;
use crate::change::{self, Change, InvalidChange};
use crate::explain::{Question, explain_node, explain_node_claim, explain_node_pool, explain_pod};
use crate::groups;
use crate::what_if::WhatIf;

/// The settings with which questions are run: those of the last passes.
#[derive(Clone)]
pub struct Requests {
    /// Absent before the first scheduling pass.
    pub scheduling: Option<Policy>,
    pub disruption: DisruptionRequest,
    /// Ends a search early.
    pub cancel: Cancel,
    /// Compiles the cluster, which is most of what a question costs.
    pub compiled: Arc<dyn Compile>,
}

/// Compiles the cluster for questions, perhaps once for several.
pub trait Compile: Send + Sync {
    /// Returns the snapshot prepared for questions about pods.
    fn prepared(&self, snapshot: &Snapshot, policy: &Policy) -> Arc<Prepared>;

    /// Returns the snapshot prepared for questions about nodes; `policy` is that of questions about pods.
    fn what_if(&self, snapshot: &Snapshot, policy: &Policy, request: DisruptionRequest) -> WhatIf;
}

/// Compiles the cluster for each question.
#[derive(Clone, Copy, Debug, Default)]
pub struct EachTime;

impl Compile for EachTime {
    fn prepared(&self, snapshot: &Snapshot, policy: &Policy) -> Arc<Prepared> {
        Arc::new(Prepared::new(snapshot, policy))
    }

    fn what_if(&self, snapshot: &Snapshot, _: &Policy, request: DisruptionRequest) -> WhatIf {
        WhatIf::new(snapshot, request)
    }
}

impl Requests {
    fn what_if(&self, snapshot: &Snapshot) -> WhatIf {
        let request = self.disruption.clone();
        let policy = self.scheduling.as_ref().unwrap_or(&request.policy).clone();
        self.compiled.what_if(snapshot, &policy, request)
    }
}

impl std::fmt::Debug for Requests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Requests")
            .field("scheduling", &self.scheduling)
            .finish_non_exhaustive()
    }
}

/// An object that can be explained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    Pod { namespace: String, name: String },
    Node(String),
    NodeClaim(String),
    NodePool(String),
}

impl Subject {
    /// Returns the kind of the object.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Pod { .. } => "Pod",
            Self::Node(_) => "Node",
            Self::NodeClaim(_) => "NodeClaim",
            Self::NodePool(_) => "NodePool",
        }
    }

    /// Returns the name of the object.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Pod { name, .. }
            | Self::Node(name)
            | Self::NodeClaim(name)
            | Self::NodePool(name) => name,
        }
    }
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unanswerable {
    /// A change cannot be made.
    #[error(transparent)]
    Change(#[from] InvalidChange),
    /// The answer cannot be written.
    #[error("cannot write the answer: {0}")]
    Json(#[from] serde_json::Error),
}

fn value(answer: &impl Serialize) -> Result<Value, Unanswerable> {
    Ok(serde_json::to_value(answer)?)
}

/// Explains an object after changes; `None` if it does not exist.
///
/// # Errors
/// Fails if a change cannot be made.
pub fn explain(
    question: &Question<'_>,
    subject: &Subject,
    changes: &[Change],
    requests: Requests,
) -> Result<Option<Value>, Unanswerable> {
    let explanation = match subject {
        Subject::Pod { namespace, name } => {
            return explain_pod_after(question, namespace, name, changes, requests);
        }
        Subject::Node(name) => {
            return explain_node_after(question, name, changes, &requests);
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

/// Counts pending pods by reason.
///
/// # Errors
/// Fails if the answer cannot be written.
pub fn pods_by_reason(question: &Question<'_>) -> Result<Value, Unanswerable> {
    let history = question.history;
    let observed = question.observed(history.pods().left_out() > 0);
    value(&groups::of_pods(question.snapshot, history, observed))
}

/// Counts nodes by reason, with what each group would save.
///
/// # Errors
/// Fails if the answer cannot be written.
pub fn nodes_by_reason(
    question: &Question<'_>,
    requests: &Requests,
) -> Result<Value, Unanswerable> {
    let (snapshot, history) = (question.snapshot, question.history);
    let observed = question.observed(history.nodes().left_out() > 0);
    let groups = groups::of_nodes(snapshot, history, observed);
    let what_if = requests.what_if(snapshot);
    value(&groups.with_releasable(snapshot, history, &what_if))
}

fn explain_pod_after(
    question: &Question<'_>,
    namespace: &str,
    name: &str,
    changes: &[Change],
    requests: Requests,
) -> Result<Option<Value>, Unanswerable> {
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
            let prepared = requests.compiled.prepared(question.snapshot, &policy);
            prepared.blocking(cancel, pod)
        } else {
            let changed = change::apply(changes, question.snapshot, &requests.disruption)?;
            let prepared = match changes.iter().all(of_pods) {
                true => requests.compiled.prepared(question.snapshot, &policy),
                false => {
                    let policy = policy.with_now(changed.request.now());
                    Arc::new(Prepared::new(&changed.snapshot, &policy))
                }
            };
            prepared.blocking_after(&changed, cancel, pod)?
        };
        explanation = explanation.with_blocking(found);
    }
    value(&explanation.with_changes(changes)).map(Some)
}

/// Reports whether a change concerns the pod alone that is asked about.
fn of_pods(change: &Change) -> bool {
    matches!(change, Change::Tolerate(_) | Change::Drop(_))
}

fn explain_node_after(
    question: &Question<'_>,
    name: &str,
    changes: &[Change],
    requests: &Requests,
) -> Result<Option<Value>, Unanswerable> {
    let Some(mut explanation) = explain_node(question, name) else {
        return Ok(None);
    };
    let node = question.snapshot.node_object(name);
    explanation.metadata.uid = node.and_then(|node| node.metadata.uid.clone());
    if let Some(change) = changes.iter().find(|change| of_pods(change)) {
        let change = change.to_string();
        let only = "pods";
        return Err(InvalidChange::NotApplicable { change, only }.into());
    }
    let asked = requests.what_if(question.snapshot);
    let what_if = if changes.is_empty() {
        asked.node(name)
    } else {
        let changed = change::apply(changes, question.snapshot, &requests.disruption)?;
        asked.of(changed).node(name)
    };
    let explanation = explanation.with_what_if(what_if.unwrap_or_default(), changes);
    value(&explanation).map(Some)
}
