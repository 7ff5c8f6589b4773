//! Assumed churn: the replicas of Deployments fall and rise again, one pod at a time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use karpenter_core::pod::Pod;

use super::InvalidPlan;
use super::request::duration;

/// A share of the replicas of all Deployments that goes in the first half of each period, and comes back in the second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Churn {
    share: f64,
    period: Duration,
}

impl Churn {
    /// Parses `40%/1h`.
    ///
    /// # Errors
    /// If the text has another form, the share is not between 0% and 100%, or the period not between a minute and a day.
    pub(super) fn parse(text: &str) -> Result<Self, InvalidPlan> {
        let why = "must be a share of the replicas and a period of at least 1m, as 40%/1h";
        let invalid = || InvalidPlan::field("request", "churn", why);
        let (share, period) = text.split_once('/').ok_or_else(invalid)?;
        let share: f64 = share
            .strip_suffix('%')
            .and_then(|share| share.parse().ok())
            .filter(|share| (0.0..=100.0).contains(share))
            .ok_or_else(invalid)?;
        let period = duration("churn", Some(period))?
            .filter(|period| *period >= Duration::from_secs(60))
            .ok_or_else(invalid)?;
        Ok(Self {
            share: share / 100.0,
            period,
        })
    }

    /// Returns how many of so many pods go and come back in a period.
    pub(super) fn pods(&self, replicas: usize) -> u64 {
        (replicas as f64 * self.share) as u64
    }

    /// Returns when the change with a number happens, after the start, if so many pods go and come back in a period.
    pub(super) fn at(&self, number: u64, pods: u64) -> Duration {
        let changes = 2.0 * pods.max(1) as f64;
        self.period.mul_f64((number + 1) as f64 / changes)
    }
}

/// The churn of a rehearsal, and how far it is.
pub(super) struct Churning {
    pub(super) churn: Churn,
    pub(super) start: Timestamp,
    /// The number of pods that go, and come back, in a period.
    pub(super) pods: u64,
    pub(super) changes: u64,
    /// The running pods of Deployments when the period began, by name, and how many of them were chosen so far.
    pub(super) replicas: Vec<Arc<Pod>>,
    pub(super) chosen: u64,
    /// The pods that have gone and will come back.
    pub(super) gone: VecDeque<Arc<Pod>>,
}
