//! Log lines about a failing watch or list request: one per minute, and one when it works again.
//!
//! A single failed watch is retried and not worth an error. Repeated failures leave Karpenter without the state of the
//! cluster, because a CRD or a permission is missing, or the API server does not answer: that is an error, logged once per
//! minute, and the recovery is logged as well.

use std::fmt::Display;
use std::time::Duration;

use kube::runtime::watcher;
use kube::runtime::watcher::Event;
use tokio::time::Instant;

/// Interval between the error lines of an outage.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// A failure this long after the previous one starts a new outage: attempts, and the pauses between them, take half a minute at most.
const OUTAGE_GAP: Duration = Duration::from_secs(120);

/// The consecutive failures of one watch or list request.
#[derive(Debug)]
pub struct WatchFailureLog {
    logger: &'static str,
    kind: &'static str,
    last: Option<Instant>,
    logged: Option<Instant>,
}

impl WatchFailureLog {
    /// Creates the log of an operation that has not failed yet. `kind` is the kind that is listed or watched.
    #[must_use]
    pub fn new(logger: &'static str, kind: &'static str) -> Self {
        Self {
            logger,
            kind,
            last: None,
            logged: None,
        }
    }

    /// Records an event of a watch: a success or a failure.
    pub fn saw<K>(&mut self, event: &watcher::Result<Event<K>>) {
        match event {
            Ok(Event::InitDone | Event::Apply(_) | Event::Delete(_)) => self.worked(),
            Ok(Event::Init | Event::InitApply(_)) => {}
            Err(error) => self.failed(error),
        }
    }

    /// Records a failure that is retried.
    pub fn failed(&mut self, error: &dyn Display) {
        let (logger, kind) = (self.logger, self.kind);
        if self.is_worth_logging(Instant::now()) {
            tracing::error!(logger, kind, error = %error, "failing to list or watch, trying again");
        } else {
            tracing::debug!(logger, kind, error = %error, "watch failed");
        }
    }

    /// Records a success.
    pub fn worked(&mut self) {
        let (logger, kind) = (self.logger, self.kind);
        if self.ended() {
            tracing::info!(logger, kind, "listing and watching again");
        }
    }

    fn is_worth_logging(&mut self, now: Instant) -> bool {
        let before = self.last.replace(now);
        let repeated = before.is_some_and(|before| now.duration_since(before) < OUTAGE_GAP);
        let logged = self.logged;
        let due = repeated && logged.is_none_or(|at| now.duration_since(at) >= LOG_INTERVAL);
        if due {
            self.logged = Some(now);
        }
        due
    }

    /// Returns whether an outage that was logged has ended.
    fn ended(&mut self) -> bool {
        self.last = None;
        self.logged.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_failures_are_logged_each_minute_and_a_single_one_never() {
        let (mut outage, start) = (WatchFailureLog::new("model", "Pod"), Instant::now());
        let mut logged = |second: u64| outage.is_worth_logging(start + Duration::from_secs(second));
        let each_half_minute: Vec<bool> = (0..6).map(|n| logged(n * 30)).collect();
        assert_eq!(each_half_minute, [false, true, false, true, false, true]);
        assert!(!logged(1_000), "a single failure");
        assert!(logged(1_001));
    }

    #[test]
    fn the_end_is_logged_if_the_outage_was() {
        let (mut outage, now) = (WatchFailureLog::new("model", "Pod"), Instant::now());
        assert!(!outage.ended());
        outage.is_worth_logging(now);
        assert!(!outage.ended());
        assert!(!outage.is_worth_logging(now), "a new outage");
        assert!(outage.is_worth_logging(now));
        assert!(outage.ended() && !outage.ended());
    }
}
