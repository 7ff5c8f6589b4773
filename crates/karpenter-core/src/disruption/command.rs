//! Disruption commands, and the verdict for each node.

use std::fmt;
use std::sync::Arc;

use karpenter_api::v1::DisruptionReason;

use super::candidate::{Candidate, NotConsolidatable, NotDisruptable};
use crate::disruption::consolidation::balanced::PoolScore;
use crate::disruption::consolidation::replacement::capacity_type;
use crate::pod::PodKey;
use crate::schedule::{Placement, PlannedNodeClaim};

/// Identifies a command by the names of its NodeClaims, sorted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommandId(Vec<String>);

impl CommandId {
    /// Returns the names of the NodeClaims, sorted.
    pub fn claims(&self) -> &[String] {
        &self.0
    }
}

/// The method that found a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Method {
    /// The node is empty.
    Emptiness,
    /// A node of a static NodePool has drifted.
    StaticDrift,
    /// A node of a dynamic NodePool has drifted.
    Drift,
    /// Several nodes can be deleted, with at most one replacement by default.
    MultiNode,
    /// One node can be deleted, or replaced by a cheaper one.
    SingleNode,
}

impl Method {
    /// Returns the reason used by budgets, conditions and events.
    pub fn reason(self) -> DisruptionReason {
        match self {
            Self::Emptiness => DisruptionReason::Empty,
            Self::StaticDrift | Self::Drift => DisruptionReason::Drifted,
            Self::MultiNode | Self::SingleNode => DisruptionReason::Underutilized,
        }
    }

    /// Returns the value of the metric label `consolidation_type`.
    pub fn consolidation_type(self) -> &'static str {
        match self {
            Self::Emptiness => "empty",
            Self::StaticDrift | Self::Drift => "",
            Self::MultiNode => "multi",
            Self::SingleNode => "single",
        }
    }

    /// Reports whether commands are validated again after a delay before they are started.
    pub fn is_validated(self) -> bool {
        !matches!(self, Self::StaticDrift | Self::Drift)
    }

    /// Reports whether the termination grace period overrides pods that block eviction.
    pub fn is_eventual(self) -> bool {
        matches!(self, Self::StaticDrift | Self::Drift)
    }
}

/// Whether a command launches replacements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// The nodes are deleted; their pods fit on other nodes.
    Delete,
    /// The nodes are deleted once their replacements are initialized.
    Replace,
}

impl Decision {
    /// Returns the value of the metric label `decision`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::Replace => "replace",
        }
    }
}

/// Nodes to delete, and replacements to launch first.
#[derive(Clone, Debug)]
pub struct Command {
    /// The method that found it.
    pub method: Method,
    /// The nodes to delete; never empty.
    pub candidates: Vec<Candidate>,
    /// NodeClaims to launch and wait for.
    pub replacements: Vec<PlannedNodeClaim>,
    /// Placements of pods that fit on existing nodes.
    pub placements: Vec<Placement>,
    /// Savings in dollars per hour: the price of the nodes less that of the replacements' cheapest offerings.
    pub savings: f64,
    /// The score by the Balanced policy, if a NodePool of the command has it.
    pub score: Option<f64>,
    /// The score in each Balanced NodePool; the lowest of them is `score`.
    pub scores: Vec<PoolScore>,
}

impl Command {
    /// Returns the identity of the command.
    pub fn id(&self) -> CommandId {
        let mut names: Vec<String> = self
            .candidates
            .iter()
            .map(|c| c.claim_name().to_owned())
            .collect();
        names.sort();
        CommandId(names)
    }

    /// Returns whether the command launches replacements.
    pub fn decision(&self) -> Decision {
        if self.replacements.is_empty() {
            Decision::Delete
        } else {
            Decision::Replace
        }
    }

    /// Returns the pods that must be rescheduled.
    pub fn pods(&self) -> impl Iterator<Item = &PodKey> {
        self.candidates
            .iter()
            .flat_map(Candidate::reschedulable)
            .map(|pod| &pod.key)
    }
}

impl fmt::Display for Command {
    /// Writes upstream's log line, without its method: `terminating 1 candidates n/m5.large/spot and replacing with …`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
        let names: Vec<String> = self
            .candidates
            .iter()
            .map(|c| {
                format!(
                    "{}/{}/{}",
                    c.name(),
                    text(c.instance_type_name()),
                    text(c.capacity_type())
                )
            })
            .collect();
        write!(
            f,
            "terminating {} candidates {}",
            names.len(),
            names.join(", ")
        )?;
        for (index, replacement) in self.replacements.iter().enumerate() {
            let shown: Vec<&str> = replacement
                .instance_types
                .iter()
                .take(5)
                .map(String::as_str)
                .collect();
            let capacity_type = capacity_type(replacement);
            let kind = if capacity_type.is_empty() {
                "node".to_owned()
            } else {
                format!("{capacity_type} node")
            };
            let joint = if index == 0 {
                "and replacing with"
            } else {
                ", and"
            };
            write!(f, " {joint} {kind} from types {}", shown.join(", "))?;
            let more = replacement.instance_types.len().saturating_sub(5);
            if more > 0 {
                write!(f, " and {more} other(s)")?;
            }
        }
        Ok(())
    }
}

/// The result of a pass for one node.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The node.
    pub node: Arc<crate::cluster::NodeState>,
    /// The decision, and why.
    pub kind: VerdictKind,
}

/// The decision about a node.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum VerdictKind {
    /// The node is not a candidate.
    NotDisruptable(NotDisruptable),
    /// The node is a candidate, but is kept.
    Kept(NotConsolidatable),
    /// A command deletes the node.
    Deleted {
        /// Savings of the command in dollars per hour.
        savings: f64,
        /// The number of pods that must be rescheduled from this node.
        pods_moved: usize,
    },
    /// A command deletes the node once its replacements are initialized.
    Replaced {
        /// Savings of the command in dollars per hour.
        savings: f64,
        /// The number of pods that must be rescheduled from this node.
        pods_moved: usize,
        /// Instance types of the replacements, cheapest first.
        with: Vec<String>,
    },
}
