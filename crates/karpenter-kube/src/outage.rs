//! What is said of something that keeps failing, a watch above all: not every failure, and not nothing.
//!
//! A watch breaks off now and then and goes on. One that fails again and again leaves Karpenter blind, because a definition or a
//! permission is missing, or nobody answers: that is an error, once a minute, and its end is worth a line as well.

use std::fmt::Display;
use std::time::Duration;

use kube::runtime::watcher::{self, Event};
use tokio::time::Instant;

/// How often an outage is told.
const AGAIN: Duration = Duration::from_secs(60);
/// A failure this long after the last has another cause: attempts are at most half a minute apart, and may take as long.
const APART: Duration = Duration::from_secs(120);

/// The failures of one thing that is tried again and again.
#[derive(Debug)]
pub struct Outage {
    logger: &'static str,
    kind: &'static str,
    last: Option<Instant>,
    told: Option<Instant>,
}

impl Outage {
    /// Nothing has failed yet. `kind` is what is listed or watched.
    #[must_use]
    pub fn new(logger: &'static str, kind: &'static str) -> Self {
        Self {
            logger,
            kind,
            last: None,
            told: None,
        }
    }

    /// What a watch has brought: that it works, or a failure.
    pub fn saw<K>(&mut self, event: &watcher::Result<Event<K>>) {
        match event {
            Ok(Event::InitDone | Event::Apply(_) | Event::Delete(_)) => self.worked(),
            Ok(Event::Init | Event::InitApply(_)) => {}
            Err(error) => self.failed(error),
        }
    }

    /// It failed, and is tried again.
    pub fn failed(&mut self, error: &dyn Display) {
        let (logger, kind) = (self.logger, self.kind);
        if self.is_worth_telling(Instant::now()) {
            tracing::error!(logger, kind, error = %error, "failing to list or watch, trying again");
        } else {
            tracing::debug!(logger, kind, error = %error, "watch failed");
        }
    }

    /// It worked.
    pub fn worked(&mut self) {
        let (logger, kind) = (self.logger, self.kind);
        if self.ended() {
            tracing::info!(logger, kind, "listing and watching again");
        }
    }

    fn is_worth_telling(&mut self, now: Instant) -> bool {
        let before = self.last.replace(now);
        let repeated = before.is_some_and(|before| now.duration_since(before) < APART);
        let told = self.told;
        let due = repeated && told.is_none_or(|at| now.duration_since(at) >= AGAIN);
        if due {
            self.told = Some(now);
        }
        due
    }

    /// Whether what ended was told of.
    fn ended(&mut self) -> bool {
        self.last = None;
        self.told.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_failures_are_told_at_once_and_then_each_minute_and_a_single_one_never() {
        let (mut outage, start) = (Outage::new("model", "Pod"), Instant::now());
        let mut told = |second: u64| outage.is_worth_telling(start + Duration::from_secs(second));
        let each_half_minute: Vec<bool> = (0..6).map(|n| told(n * 30)).collect();
        assert_eq!(each_half_minute, [false, true, false, true, false, true]);
        assert!(!told(1_000), "one that stands alone");
        assert!(told(1_001));
    }

    #[test]
    fn the_end_is_told_if_the_outage_was() {
        let (mut outage, now) = (Outage::new("model", "Pod"), Instant::now());
        assert!(!outage.ended());
        outage.is_worth_telling(now);
        assert!(!outage.ended());
        assert!(!outage.is_worth_telling(now), "it begins anew");
        assert!(outage.is_worth_telling(now));
        assert!(outage.ended() && !outage.ended());
    }
}
