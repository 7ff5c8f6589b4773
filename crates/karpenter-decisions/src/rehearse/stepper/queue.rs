//! The events of a rehearsal, by time; events of equal time in the order in which they were added.

use std::collections::BTreeMap;

use jiff::Timestamp;

/// Something that happens at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::rehearse) enum Event {
    /// The batch of pending pods closes.
    Provision,
    /// A disruption pass is due.
    Disrupt,
    /// A static NodePool is due.
    StaticPools,
    /// A NodeClaim that is not being deleted is reconciled.
    Join(String),
    /// The Node of a NodeClaim registers.
    Registered(String),
    /// The Node of a NodeClaim is ready.
    Ready(String),
    /// A NodeClaim that is being deleted is reconciled, and its Node.
    Finalize(String),
    /// A pod goes or comes back by an assumed churn.
    Churn,
    /// kube-scheduler tries pods that are new.
    Bind,
    Expire(String),
    /// An evicted pod has ended.
    PodGone(String, String),
    /// A pod is ready.
    PodReady(String, String),
}

#[derive(Clone, Debug, Default)]
pub(in crate::rehearse) struct Queue {
    events: BTreeMap<(Timestamp, u64), Event>,
    added: u64,
}

impl Queue {
    pub(super) fn add(&mut self, at: Timestamp, event: Event) {
        self.added += 1;
        self.events.insert((at, self.added), event);
    }

    /// Returns the time of the next event that is not a mere check.
    pub(super) fn next_change(&self) -> Option<Timestamp> {
        let mut others = self
            .events
            .iter()
            .filter(|(_, event)| !matches!(event, Event::Disrupt | Event::StaticPools));
        others.next().map(|((at, _), _)| *at)
    }

    pub(super) fn pop(&mut self) -> Option<(Timestamp, Event)> {
        let ((at, _), event) = self.events.pop_first()?;
        Some((at, event))
    }
}
