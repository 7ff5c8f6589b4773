//! Listeners are notified of what passes decided, once they have acted. A listener never changes a decision.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use karpenter_api::v1::NodeClaim;
use karpenter_core::disruption::{
    Command, CommandId, CommandInvalidated, DisruptionPlan, DisruptionRequest,
};
use karpenter_core::lifecycle::disruption::CommandEnd;
use karpenter_core::lifecycle::provisioning::Question;
use karpenter_core::schedule::{Plan, PlannedNodeClaim, Policy, Query};

use crate::model::View;

/// How a pass was made.
#[derive(Debug, Clone, Copy)]
pub struct Made<'a> {
    /// The view that it decided on.
    pub view: &'a View,
    /// The policy of the pass.
    pub policy: &'a Policy,
    /// How long it took.
    pub took: Duration,
}

/// What a pass decided.
pub enum Decided<'a> {
    /// A scheduling pass, and the NodeClaims of its planned nodes.
    Provisioned {
        /// What was asked.
        question: &'a Question,
        /// What the engine was asked.
        query: &'a Query,
        /// The answer.
        plan: &'a Plan,
        /// The NodeClaim of each planned node; `None` if it could not be created.
        claims: &'a [Option<Arc<NodeClaim>>],
    },
    /// A disruption pass.
    Disrupted {
        /// What was asked.
        request: &'a DisruptionRequest,
        /// Whether it looked for consolidation.
        consolidates: bool,
        /// The answer.
        plan: &'a DisruptionPlan,
    },
    /// A proposed command was not started.
    Rejected {
        /// The command.
        command: &'a Command,
        /// Why its validation failed.
        why: &'a CommandInvalidated,
    },
    /// A static NodePool lacked nodes.
    Grew {
        /// The nodes that its limit allowed.
        planned: &'a [PlannedNodeClaim],
        /// The NodeClaim of each; `None` if it could not be created.
        claims: &'a [Option<String>],
        /// The NodePool, if its limit allowed none.
        at_limit: Option<&'a str>,
    },
    /// A static NodePool had too many nodes; the names of the deleted NodeClaims.
    Shrank(&'a [&'a str]),
    /// An unhealthy node is deleted.
    Repaired {
        /// The node.
        node: &'a str,
        /// The condition that makes it unhealthy.
        condition: &'a str,
    },
}

/// Is notified of what passes decided, on the pass's own thread: long work belongs on another one.
pub trait Listener: Debug + Send + Sync {
    /// This replica leads from now on.
    fn leads(&self, now: Timestamp);
    /// A pass has decided, and acted.
    fn decided(&self, made: Made<'_>, decided: Decided<'_>);
    /// A command was started, with its replacements.
    fn started(&self, view: &View, command: &Command, replacements: &[Arc<NodeClaim>]);
    /// A command has ended.
    fn ended(&self, command: &CommandId, end: &CommandEnd);
}
