//! The input of a disruption pass.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::candidate::Surroundings;
use super::command::Method;
use super::consolidation::Rules;
use crate::schedule::{Cancel, ScheduleRequest};

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
#[derive(Clone)]
pub struct DisruptionRequest {
    /// The settings of the scheduling simulation, and the time of the pass.
    pub schedule: ScheduleRequest,
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
    /// How many nodes of each static NodePool may be replaced now, by `replicas` and `limits.nodes`.
    pub static_headroom: BTreeMap<String, u32>,
    /// The maximum number of commands of a pass.
    pub max_commands: usize,
    /// Called before and after each method; [`DisruptionPlan::took`](super::DisruptionPlan::took) is empty without it.
    pub stopwatch: Option<Stopwatch>,
    /// Worker threads; the plan does not depend on it.
    pub threads: usize,
}

impl DisruptionRequest {
    /// Returns a request at `now` with upstream's defaults.
    pub fn at(now: Timestamp) -> Self {
        Self {
            schedule: ScheduleRequest::at(now),
            surroundings: Surroundings::default(),
            spot_to_spot: false,
            multi_node: MultiNodeSearch::default(),
            single_node_cancel: None,
            unseen_pools: BTreeSet::new(),
            cooling_down_pools: BTreeSet::new(),
            static_headroom: BTreeMap::new(),
            max_commands: 16,
            stopwatch: None,
            threads: 1,
        }
    }

    /// Returns the time of the pass.
    pub fn now(&self) -> Timestamp {
        self.schedule.now
    }

    pub(super) fn rules(&self, method: Method) -> Rules {
        let max_replacements = match method {
            Method::MultiNode => self.multi_node.max_replacements.max(1),
            _ => 1,
        };
        Rules {
            spot_to_spot: self.spot_to_spot,
            max_replacements,
        }
    }
}
