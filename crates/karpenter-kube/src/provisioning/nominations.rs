//! The node that each pending pod is nominated to, shared by the provisioner and the task of the model.
//!
//! The rules are those of [`karpenter_core::lifecycle::nominations`].

use jiff::Timestamp;
use karpenter_core::cluster::Snapshot;
use karpenter_core::lifecycle::nominations as rules;
use karpenter_core::schedule::Plan;
use parking_lot::Mutex;

pub(super) use karpenter_core::lifecycle::nominations::{Overdue, Standing};

use crate::model::View;

/// The nominations of all pending pods, by uid.
#[derive(Debug, Default)]
pub struct Nominations(Mutex<rules::Nominations>);

impl Nominations {
    /// Records the nominations of a plan. `claims` are the names of the NodeClaims of the plan's new nodes.
    pub(super) fn nominate_planned<'a>(
        &self,
        snapshot: &Snapshot,
        plan: &Plan,
        claims: impl IntoIterator<Item = Option<&'a str>>,
        now: Timestamp,
    ) {
        let mut rules = self.0.lock();
        rules.nominate_planned(snapshot, plan, claims, now);
    }

    /// Removes the nomination of a pod that is bound, deleted or whose requirements have changed.
    pub fn forget(&self, uid: &str) {
        self.0.lock().forget(uid);
    }

    /// Removes the nominations to a NodeClaim that is deleted before its node could run a pod.
    pub fn release(&self, claim: &str) {
        self.0.lock().release(claim);
    }

    /// Sorts the pending pods of a view; removes nominations without room.
    pub(super) fn standing(&self, view: &View, now: Timestamp) -> Standing {
        self.0.lock().standing(&view.snapshot, now)
    }
}
