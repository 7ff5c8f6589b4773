//! The events and effects of the disruption process.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::v1::NodeClaim;

use crate::disruption::{
    Candidate, Command, CommandId, CommandInvalidated, DisruptionPlan, DisruptionRequest, Method,
};

/// What has happened.
#[derive(Debug)]
pub enum Event {
    /// A pass is due: see [`Disruption::is_due`](super::Disruption::is_due).
    Due,
    /// The cluster has changed, or time has passed: commands check their replacements.
    Changed,
    /// Answers [`Effect::Validate`] with the part of the command that is still valid.
    Validated(Result<Command, CommandInvalidated>),
    /// Answers [`Effect::Plan`].
    Planned(Arc<DisruptionPlan>),
    /// Answers [`Effect::Plan`] and [`Effect::Validate`]: the engine failed or was interrupted.
    Unanswered,
    /// Answers [`Effect::Reserve`]: all of it, or nothing.
    Reserved(bool),
    /// Answers [`Effect::Taint`].
    Tainted {
        /// The NodeClaims of the nodes for which it failed; they may be tainted all the same.
        failed: BTreeSet<String>,
    },
    /// Answers [`Effect::Taint`]: commands are not executed here.
    Refused,
    /// Answers [`Effect::Launch`] with the NodeClaims that were created.
    Launched(Vec<Arc<NodeClaim>>),
    /// Answers [`Effect::Mark`] of nodes of a command that starts.
    Marked,
    /// Answers [`Effect::Untaint`] with the nodes that may still be tainted.
    Untainted(Vec<TaintedNode>),
    /// Answers [`Effect::Delete`].
    Deleted {
        /// The command.
        command: CommandId,
        /// The NodeClaim.
        claim: String,
        /// Whether it is deleted.
        deleted: bool,
    },
}

/// What is to be done. Except for [`Mark`](Self::Mark), [`Nominate`](Self::Nominate) and [`Release`](Self::Release), which come
/// before the next effect, effects may be executed at the same time.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Plan on the snapshot of the event.
    Plan(Inputs),
    /// Validate a command on the snapshot of the event.
    Validate(Command, Inputs),
    /// Reserve headroom below the limits of static NodePools for this many nodes.
    Reserve(BTreeMap<String, u32>),
    /// Release it: the model counts the NodeClaims, or there are none.
    Release(BTreeMap<String, u32>),
    /// Taint the nodes and set the condition DisruptionReason on their NodeClaims.
    Taint(Arc<Command>),
    /// Revert it. An object that does not exist is not an error.
    Untaint(Vec<TaintedNode>),
    /// Create the NodeClaims of the replacements.
    Launch(Arc<Command>),
    /// Mark nodes for deletion in the model, or revert it; by provider id.
    Mark(Vec<String>, bool),
    /// Protect nodes from disruption, because pods are about to be bound to them.
    Nominate(BTreeSet<String>),
    /// Delete a candidate's NodeClaim; a failure is retried at least until a time.
    Delete {
        /// The command.
        command: Arc<Command>,
        /// One of its candidates.
        candidate: Candidate,
        /// The end of the command.
        until: Timestamp,
    },
    /// Report it, in any way.
    Report(Report),
}

/// What is to be reported.
#[derive(Clone, Debug)]
pub enum Report {
    /// A command was proposed, and will be validated.
    Proposed(Command),
    /// The nodes of a command are tainted.
    Starting(Arc<Command>),
    /// The replacements of a command are created, and its nodes are marked for deletion.
    Started(Arc<Command>, Vec<Arc<NodeClaim>>),
    /// A command waits for a replacement.
    Waiting(Arc<NodeClaim>, Method),
    /// The NodeClaim of a candidate was deleted.
    Terminating(Arc<Command>, Candidate),
    /// A command has ended, or was not started.
    Ended(Arc<Command>, CommandEnd),
}

/// How a command ended. [`fmt::Display`] says why it failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandEnd {
    /// All of its nodes are deleted.
    Succeeded,
    /// Its nodes could not be tainted, or a replacement could not be created.
    NotStarted,
    /// A replacement was deleted; the command was rolled back.
    ReplacementDeleted {
        /// Name of the NodeClaim.
        name: String,
        /// Number of replacements that were not initialized.
        unready: usize,
    },
    /// Replacements were not initialized in time; the command was rolled back.
    TimedOut {
        /// Number of replacements that were not initialized.
        unready: usize,
        /// Number of all replacements.
        replacements: usize,
    },
    /// NodeClaims could not be deleted; the command was rolled back for these nodes.
    NotDeleted {
        /// Number of nodes.
        nodes: usize,
    },
}

impl CommandEnd {
    /// Returns the number of replacements that were not initialized.
    pub fn unready(&self) -> usize {
        match self {
            Self::ReplacementDeleted { unready, .. } | Self::TimedOut { unready, .. } => *unready,
            Self::Succeeded | Self::NotStarted | Self::NotDeleted { .. } => 0,
        }
    }
}

impl fmt::Display for CommandEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Succeeded => f.write_str("succeeded"),
            Self::NotStarted => f.write_str("not started"),
            Self::ReplacementDeleted { name, .. } => write!(f, "replacement was deleted, {name}"),
            Self::TimedOut {
                unready,
                replacements,
            } => write!(
                f,
                "command reached timeout, {unready} of {replacements} replacements not initialized"
            ),
            Self::NotDeleted { nodes } => write!(f, "failed to delete {nodes} nodes"),
        }
    }
}

/// A node that may be tainted for disruption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaintedNode {
    /// Name of the Node, if there is one.
    pub node: Option<String>,
    /// Name of the NodeClaim.
    pub claim: String,
}

impl TaintedNode {
    pub(super) fn of(candidate: &Candidate) -> Self {
        Self {
            node: Some(candidate.name().to_owned()),
            claim: candidate.claim_name().to_owned(),
        }
    }
}

/// What the process adds to a request to the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inputs {
    /// The NodeClaims of commands, and for a plan those of proposals.
    pub in_flight: BTreeSet<String>,
    /// NodeClaims that consolidation launched recently.
    pub recent_replacements: BTreeSet<String>,
    /// NodePools whose candidates the last pass did not reach.
    pub unseen_pools: BTreeSet<String>,
    /// NodePools whose replacements failed.
    pub cooling_down_pools: BTreeSet<String>,
    /// Whether nodes with pods are consolidated. They are not while such a proposal waits for its validation, which changes what
    /// the next would find.
    pub consolidates: bool,
    /// The method whose proposal was invalid: only those after it are tried.
    pub after: Option<Method>,
}

impl Inputs {
    /// Completes a request.
    pub fn complete(&self, request: &mut DisruptionRequest) {
        let surroundings = &mut request.surroundings;
        surroundings.in_flight.clone_from(&self.in_flight);
        match request.policy.behavior.replacements_are_kept_ten_minutes {
            true => surroundings
                .recent_replacements
                .clone_from(&self.recent_replacements),
            false => surroundings.recent_replacements.clear(),
        }
        request.unseen_pools.clone_from(&self.unseen_pools);
        request
            .cooling_down_pools
            .clone_from(&self.cooling_down_pools);
        request.after = self.after;
        if !self.consolidates {
            request.multi_node.cancel = Some(Arc::new(|| true));
            request.single_node_cancel = Some(Arc::new(|| true));
        }
    }
}
