//! The processes between a decision and a node: when a pass is made, when a proposal is validated, how a command is executed and
//! rolled back, which pods a drain evicts, when a node is consolidatable or expires.
//!
//! They are synchronous: the time is an argument, and what is to be done to the world is a value. The controllers of
//! `karpenter-kube`, its shadow, and the rehearsal of `karpenter-decisions` execute the same processes, so that a rehearsal does
//! what the controllers would do.

pub mod backoff;
pub mod conditions;
pub mod disruption;
pub mod drain;
pub mod node_claim;
pub mod pod_events;
pub mod provisioning;
pub mod static_pools;
pub mod termination;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// Returns a time plus a duration; the latest time if there is none.
pub fn after(time: Timestamp, duration: Duration) -> Timestamp {
    let duration = SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
    time.saturating_add(duration).unwrap_or(Timestamp::MAX)
}

/// Reports whether a time has passed that was set at most `longest` ahead. If it is further away, the clock was set back since.
fn has_passed(time: Timestamp, now: Timestamp, longest: Duration) -> bool {
    time <= now || after(now, longest) < time
}
