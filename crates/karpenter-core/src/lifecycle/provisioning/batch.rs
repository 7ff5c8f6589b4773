//! Collects triggers into batches: a batch closes when no new trigger has arrived for the idle time, or at the maximum.
//!
//! UPSTREAM: pkg/controllers/provisioning/batcher.go

use std::time::Duration;

use jiff::Timestamp;
use rustc_hash::FxHashSet;

use crate::lifecycle::{after, has_passed};

/// How long triggers are collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchWindow {
    /// Without a new trigger.
    pub idle: Duration,
    /// At most.
    pub max: Duration,
}

impl BatchWindow {
    /// Returns how long nodes that pods are nominated to are protected from disruption.
    pub fn nomination(self) -> Duration {
        (self.max * 2).max(Duration::from_secs(10))
    }
}

/// The objects that need a plan, by uid, and when it is made.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    uids: FxHashSet<String>,
    quiet: Timestamp,
    end: Timestamp,
}

impl Batch {
    pub(super) fn open(window: BatchWindow, now: Timestamp) -> Self {
        Self {
            uids: FxHashSet::default(),
            quiet: after(now, window.idle),
            end: after(now, window.max),
        }
    }

    /// Adds an object. The same again changes nothing.
    pub(super) fn add(&mut self, uid: &str, window: BatchWindow, now: Timestamp) {
        if self.uids.insert(uid.to_owned()) {
            self.quiet = after(now, window.idle);
        }
    }

    /// Begins the window again: triggers arrived while no batch could be planned.
    pub(super) fn restart(&mut self, window: BatchWindow, now: Timestamp) {
        (self.quiet, self.end) = (after(now, window.idle), after(now, window.max));
    }

    pub(super) fn closes(&self, window: BatchWindow, now: Timestamp) -> Timestamp {
        let closes = self.quiet.min(self.end);
        match has_passed(closes, now, window.max.max(window.idle)) {
            true => now,
            false => closes,
        }
    }
}
