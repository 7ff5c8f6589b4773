//! The input of a disruption pass.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::candidate::Surroundings;
use super::command::Method;
use super::consolidation::Rules;
use crate::schedule::{Cancel, Policy, Query};
use crate::setters;

/// The limits of the search of multi-node consolidation.
#[derive(Clone, Default)]
pub struct MultiNodeSearch {
    /// Called periodically; once it returns true, the best set found so far is the result.
    pub cancel: Option<Cancel>,
    /// The maximum number of replacements for a set; 0 and 1 mean one, as upstream.
    pub max_replacements: usize,
}

/// Returns the time since an arbitrary but fixed moment.
pub type Stopwatch = Arc<dyn Fn() -> Duration + Send + Sync>;

/// The input of a disruption pass.
///
/// ```
/// use jiff::Timestamp;
/// use karpenter_core::disruption::DisruptionRequest;
///
/// let request = DisruptionRequest::at(Timestamp::UNIX_EPOCH)
///     .with_spot_to_spot(true)
///     .with_max_commands(1);
/// assert_eq!(request.now(), Timestamp::UNIX_EPOCH);
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct DisruptionRequest {
    /// The settings of the scheduling simulation, and the time of the pass. Reserved capacity falls back to other capacity, and
    /// packing is for the fewest nodes, whatever it says.
    pub policy: Policy,
    /// Capacity buffers' pods, nominations and the end of each simulation. Its pods and nodes are those of the candidates,
    /// whatever it says.
    pub query: Query,
    /// Commands in flight, capacity buffers, and recently launched replacements.
    pub surroundings: Surroundings,
    /// Whether spot nodes may be replaced by spot nodes (feature gate).
    pub spot_to_spot: bool,
    /// The limits of multi-node consolidation.
    pub multi_node: MultiNodeSearch,
    /// Ends the single-node search early; candidates not evaluated come first in the next pass.
    pub single_node_cancel: Option<Cancel>,
    /// NodePools whose candidates the last pass did not reach.
    pub unseen_pools: BTreeSet<String>,
    /// NodePools in cool-down for drift, because replacements failed.
    pub cooling_down_pools: BTreeSet<String>,
    /// The method whose proposal was invalid: only those after it are tried.
    pub after: Option<Method>,
    /// How many nodes of each static NodePool may be replaced now, by `replicas` and `limits.nodes`.
    pub static_headroom: BTreeMap<String, u32>,
    /// The maximum number of commands of a pass.
    pub max_commands: usize,
    /// Whether the reason of each node that is not consolidated is found in full. Else it is
    /// [`NotEvaluated`](super::NotConsolidatable::NotEvaluated) for those that plainly cannot be, and not all pods that stay are
    /// named. The commands do not depend on it.
    pub finds_reasons: bool,
    /// Called before and after each method; [`DisruptionPlan::took`](super::DisruptionPlan::took) is empty without it.
    pub stopwatch: Option<Stopwatch>,
    /// Worker threads; the plan does not depend on it.
    pub threads: usize,
}

impl DisruptionRequest {
    /// Returns a request at `now` with upstream's defaults.
    pub fn at(now: Timestamp) -> Self {
        Self {
            policy: Policy::at(now),
            query: Query::default(),
            surroundings: Surroundings::default(),
            spot_to_spot: false,
            multi_node: MultiNodeSearch::default(),
            single_node_cancel: None,
            unseen_pools: BTreeSet::new(),
            cooling_down_pools: BTreeSet::new(),
            after: None,
            static_headroom: BTreeMap::new(),
            max_commands: 16,
            finds_reasons: true,
            stopwatch: None,
            threads: 1,
        }
    }

    setters! {
        /// Sets the settings of the scheduling simulation, and the time of the pass.
        with_policy(policy: Policy);
        /// Sets whether spot nodes may be replaced by spot nodes.
        with_spot_to_spot(spot_to_spot: bool);
        /// Sets the maximum number of commands.
        with_max_commands(max_commands: usize);
        /// Sets the number of worker threads.
        with_threads(threads: usize);
    }

    /// Returns the time of the pass.
    pub fn now(&self) -> Timestamp {
        self.policy.now
    }

    /// Returns the maximum number of commands of a method that finds one node at a time.
    pub(super) fn max_commands_of_single_nodes(&self) -> usize {
        match self.policy.behavior.several_commands_per_pass {
            true => self.max_commands,
            false => self.max_commands.min(1),
        }
    }

    pub(super) fn rules(&self, method: Method) -> Rules {
        let max_replacements = match method {
            Method::MultiNode => self.multi_node.max_replacements.max(1),
            _ => 1,
        };
        Rules {
            spot_to_spot: self.spot_to_spot,
            max_replacements,
            node_overhead_price: self.policy.node_overhead_price,
        }
    }
}
