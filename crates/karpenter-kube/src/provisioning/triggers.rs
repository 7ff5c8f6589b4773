//! The provisioning process, shared by the provisioner and by those who trigger it.

use std::time::Duration;

use jiff::Timestamp;
use karpenter_core::cluster::Snapshot;
use karpenter_core::lifecycle::provisioning::nominations::Bound;
use karpenter_core::lifecycle::provisioning::{
    self, Effect, Event, PodNomination, Provisioning as Process,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::pod_nomination::{self, Together};
use crate::clock::Clock;
use crate::context::Context;
use crate::model::Change;
use crate::options::Options;

/// The process, and a wake-up when it is triggered.
#[derive(Debug)]
pub struct Triggers {
    process: Mutex<Process>,
    triggered: Notify,
    /// Wakes those who wait until the NodeClaims of a plan are created.
    launched: Notify,
    together: Together,
    clock: Clock,
}

/// How long a Node waits to be registered while the NodeClaims of a plan, which its own may be one of, are created.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(5);
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// A batch has closed.
    Batch,
    /// Pending pods are to be checked.
    Check,
}

impl Triggers {
    /// Creates the process with the batch window of the options.
    #[must_use]
    pub fn new(options: &Options, clock: Clock) -> Self {
        Self {
            process: Mutex::new(
                Process::new(options.batch_window(), clock.now())
                    .with_pod_nomination(options.feature_gates.pod_nomination),
            ),
            triggered: Notify::new(),
            launched: Notify::new(),
            together: Together::default(),
            clock,
        }
    }

    /// Requests a plan for an object by its uid. The same uid again within a batch changes nothing.
    pub fn trigger(&self, uid: &str) {
        self.process.lock().trigger(uid, self.clock.now());
        self.triggered.notify_one();
    }

    /// Returns when the open batch closes; `None` without one.
    pub fn closes(&self) -> Option<Timestamp> {
        self.process.lock().closes(self.clock.now())
    }

    /// Takes note of a change of the model; see [`Process::observe`].
    pub(crate) fn observe(
        &self,
        change: &Change,
        snapshot: &Snapshot,
        has_buffers: bool,
    ) -> Option<Bound> {
        let change = of_model(change)?;
        let (mut process, now) = (self.process.lock(), self.clock.now());
        let due = (process.closes(now), process.checks(now));
        let bound = process.observe(change, snapshot, has_buffers, now);
        if (process.closes(now), process.checks(now)) != due {
            self.triggered.notify_one();
        }
        bound
    }

    /// Nominates the pods of a NodeClaim to its Node, whose taint `karpenter.sh/unregistered` is about to be removed.
    pub(crate) async fn registering(&self, cx: &Context, claim: &str, node: &str) {
        let event = Event::Registering {
            claim: claim.to_owned(),
            node: node.to_owned(),
        };
        if !cx.options.feature_gates.pod_nomination {
            return;
        }
        let nominating = self.together.begin();
        let launch = self.clock.real_duration(LAUNCH_TIMEOUT);
        let _elapsed = tokio::time::timeout(launch, self.until_launched()).await;
        for effect in self.on(event, &cx.view().snapshot) {
            if let Effect::NominatePods(pods) = effect {
                self.nominate_pods(cx, pods).await;
            }
        }
        drop(nominating);
        self.together.others(&self.clock).await;
    }

    async fn until_launched(&self) {
        loop {
            let launched = self.launched.notified();
            if !self.process.lock().is_launching() {
                return;
            }
            launched.await;
        }
    }

    /// Executes [`Effect::NominatePods`].
    pub(crate) async fn nominate_pods(&self, cx: &Context, pods: Vec<PodNomination>) {
        if pod_nomination::write(cx, pods).await.is_err() {
            self.process.lock().end_pod_nomination();
        }
    }

    /// Hands an event to the process.
    pub(crate) fn on(&self, event: Event, snapshot: &Snapshot) -> Vec<Effect> {
        let mut process = self.process.lock();
        let effects = process.on(event, snapshot, self.clock.now());
        if !process.is_launching() {
            self.launched.notify_waiters();
        }
        effects
    }

    fn next(&self, now: Timestamp) -> (Timestamp, Due) {
        let process = self.process.lock();
        let check = (process.checks(now), Due::Check);
        match process.closes(now) {
            Some(closes) if closes <= check.0 => (closes, Due::Batch),
            _ => check,
        }
    }

    /// Waits until something is due. A pass that was not finished, because it panicked, is abandoned.
    pub(crate) async fn due(&self) -> Due {
        self.process.lock().abandon(self.clock.now());
        loop {
            let now = self.clock.now();
            let (at, due) = self.next(now);
            let left = at.duration_since(now);
            if !left.is_positive() {
                return due;
            }
            tokio::select! {
                biased;
                () = self.triggered.notified() => {}
                () = self.clock.sleep(left.unsigned_abs()) => {}
            }
        }
    }
}

fn of_model(change: &Change) -> Option<provisioning::Change<'_>> {
    use provisioning::Change::{Node, NodeClaim, NodePool, Pod, Synced};
    Some(match change {
        Change::Pod { before, after } => Pod(before.as_deref(), after.as_deref()),
        Change::Node { before, after, .. } => Node(before.as_deref(), after.as_deref()),
        Change::NodeClaim { before, after, .. } => NodeClaim(before.as_deref(), after.as_deref()),
        Change::NodePool { before, after, .. } => NodePool(before.as_deref(), after.as_deref()),
        Change::Synced => Synced,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_trigger_wakes_the_provisioner_and_extends_the_batch() {
        let clock = Clock::new(Timestamp::UNIX_EPOCH, 1.0);
        let options = Options {
            batch_idle_duration: Duration::from_secs(5),
            ..Options::default()
        };
        let (triggers, start) = (Arc::new(Triggers::new(&options, clock)), Instant::now());
        let triggering = Arc::clone(&triggers);
        let task = tokio::spawn(async move {
            for uid in ["a", "b"] {
                tokio::time::sleep(Duration::from_secs(2)).await;
                triggering.trigger(uid);
            }
        });
        assert_eq!(triggers.due().await, Due::Batch);
        assert_eq!(start.elapsed().as_secs(), 9);
        assert!(task.is_finished());
    }
}
