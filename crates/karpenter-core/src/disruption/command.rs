//! What the planner wants done, and what it thought of each machine.

use std::{fmt, sync::Arc};

use karpenter_api::v1::DisruptionReason;

use super::{
    balanced::PoolScore,
    candidate::{Blocked, Candidate, Unconsolidatable},
};
use crate::{
    pod::PodKey,
    schedule::{ClaimDraft, Placement},
};

/// Identifies a command by the machines it is about: their NodeClaims, sorted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommandId(Vec<String>);

/// How a command was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Method {
    /// Nothing runs there.
    Emptiness,
    /// A machine of a static pool no longer matches its specification.
    StaticDrift,
    /// A machine no longer matches its specification.
    Drift,
    /// Several machines can do with at most one.
    MultiNode,
    /// A machine can go or be cheaper.
    SingleNode,
}

impl Method {
    /// The reason that budgets, conditions and events name.
    pub fn reason(self) -> DisruptionReason {
        match self {
            Self::Emptiness => DisruptionReason::Empty,
            Self::StaticDrift | Self::Drift => DisruptionReason::Drifted,
            Self::MultiNode | Self::SingleNode => DisruptionReason::Underutilized,
        }
    }

    /// The metric label `consolidation_type`.
    pub fn consolidation_type(self) -> &'static str {
        match self {
            Self::Emptiness => "empty",
            Self::StaticDrift | Self::Drift => "",
            Self::MultiNode => "multi",
            Self::SingleNode => "single",
        }
    }

    /// Whether commands are checked once more after a while before they are started.
    pub fn is_validated(self) -> bool {
        !matches!(self, Self::StaticDrift | Self::Drift)
    }

    /// Whether the termination grace period overrules pods that refuse.
    pub fn is_eventual(self) -> bool {
        matches!(self, Self::StaticDrift | Self::Drift)
    }
}

/// What is done with the machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decision {
    /// They go; their pods fit elsewhere.
    Delete,
    /// They go once their replacements are ready.
    Replace,
}

impl Decision {
    /// The metric label `decision`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::Replace => "replace",
        }
    }
}

/// Machines to give back, and what to launch first.
#[derive(Clone, Debug)]
pub struct Command {
    /// How it was found.
    pub method: Method,
    /// The machines; never empty.
    pub candidates: Vec<Candidate>,
    /// What to launch and wait for.
    pub replacements: Vec<ClaimDraft>,
    /// Where pods go that find room on machines that exist.
    pub placements: Vec<Placement>,
    /// Dollars an hour: the machines' prices less the replacements' cheapest offerings.
    pub savings: f64,
    /// The Balanced policy's score, if the policy was asked.
    pub score: Option<f64>,
    /// How it does in each Balanced pool; the least of them is the score.
    pub scores: Vec<PoolScore>,
}

impl Command {
    /// What identifies it.
    pub fn id(&self) -> CommandId {
        let mut names: Vec<String> = self
            .candidates
            .iter()
            .map(|c| c.claim_name().to_owned())
            .collect();
        names.sort();
        CommandId(names)
    }

    /// Whether machines are replaced.
    pub fn decision(&self) -> Decision {
        if self.replacements.is_empty() {
            Decision::Delete
        } else {
            Decision::Replace
        }
    }

    /// Pods that move.
    pub fn pods(&self) -> impl Iterator<Item = &PodKey> {
        self.candidates
            .iter()
            .flat_map(Candidate::reschedulable)
            .map(|pod| &pod.key)
    }
}

impl fmt::Display for Command {
    /// Upstream's log line, without its method: `terminating 1 candidates n/m5.large/spot and replacing with …`.
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
            let capacity_type = super::replacement::capacity_type(replacement);
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

/// What became of one machine.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The machine.
    pub machine: Arc<crate::cluster::NodeState>,
    /// What was decided, and why.
    pub kind: VerdictKind,
}

/// What was decided about a machine.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum VerdictKind {
    /// It is no candidate.
    Blocked(Blocked),
    /// It stays.
    Kept(Unconsolidatable),
    /// It goes.
    Deleted {
        /// Dollars an hour saved by the command.
        savings: f64,
        /// Pods that move off this machine.
        pods_moved: usize,
    },
    /// It goes once something else is ready.
    Replaced {
        /// Dollars an hour saved by the command.
        savings: f64,
        /// Pods that move off this machine.
        pods_moved: usize,
        /// Instance types of the replacements, cheapest first.
        with: Vec<String>,
    },
}
