//! The lifecycle controller: one reconciliation of a NodeClaim.
//!
//! The process is `karpenter_core::lifecycle::node_claim`; its effects are executed here. Changes of the NodeClaim are written at the
//! end: labels and annotations first, then the status, each only if it differs and only onto the version that was read.
//!
//! UPSTREAM: pkg/controllers/nodeclaim/lifecycle/controller.go

mod finalize;
mod joining;
pub(super) mod launch;
mod registration;

use std::sync::Arc;
use std::time::Duration;

use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels::{annotations, finalizers};
use karpenter_api::v1::NodeClaim;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::client::patch::Lock;
use crate::context::Context;
use crate::controller::{Backoff, Controller, Doing, Next, ObjectKey, Queue, ReconcileError};
use crate::model::{Change, View};
use crate::nodepool::RegistrationHealth;
use crate::options::Options;
use crate::provisioning::Triggers;
use finalize::has_finalizer;
use launch::Launches;

/// Launches, registers, initializes and finalizes NodeClaims.
#[derive(Debug)]
pub struct Lifecycle {
    pub(super) cx: Arc<Context>,
    pub(super) launches: Launches,
    health: Arc<RegistrationHealth>,
    pub(super) provisioner: Arc<Triggers>,
    pub(super) unreported: UnreportedMilestones,
}

/// The milestones of a NodeClaim.
#[derive(Debug, Clone, Copy)]
struct Milestones {
    registered: bool,
    initialized: bool,
}

/// NodeClaims of which a write failed, by uid, with their milestones before: the API server may have applied the write
/// although its answer was lost, and then the next reconciliation finds the milestone reached, but not reported.
#[derive(Debug, Default)]
pub(super) struct UnreportedMilestones(Mutex<FxHashMap<String, Milestones>>);

impl UnreportedMilestones {
    /// Returns the milestones that were reported.
    fn before(&self, claim: &NodeClaim) -> Milestones {
        let known = self.0.lock().get(claim.uid()).copied();
        known.unwrap_or_else(|| Milestones {
            registered: claim.is_true(types::REGISTERED),
            initialized: claim.is_true(types::INITIALIZED),
        })
    }

    fn record(&self, claim: &NodeClaim, reached: Milestones) {
        self.0.lock().insert(claim.uid().to_owned(), reached);
    }

    pub(super) fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}

impl Lifecycle {
    /// Creates the controller. `health` records which registrations succeed; `provisioner` nominates pods to nodes that register.
    #[must_use]
    pub fn new(
        cx: Arc<Context>,
        health: Arc<RegistrationHealth>,
        provisioner: Arc<Triggers>,
    ) -> Self {
        Self {
            cx,
            launches: Launches::default(),
            health,
            provisioner,
            unreported: UnreportedMilestones::default(),
        }
    }

    async fn advance(&self, claim: &Arc<NodeClaim>) -> Result<Next, ReconcileError> {
        let (api, writes) = (self.cx.node_claims(), &self.cx.claim_writes);
        let mut before = (**claim).clone();
        if !has_finalizer(&before) {
            // INVARIANT: the finalizer is written before the provider is asked for an instance.
            let mut finalized = before.clone();
            finalized
                .metadata
                .finalizers
                .get_or_insert_default()
                .push(finalizers::TERMINATION.to_owned());
            if let Some(written) = writes
                .patch_object(api.clone(), &before, &finalized, Lock::Optimistic)
                .await
                .doing("adding finalizer")?
            {
                before = written;
            }
        }
        let Some(joined) = self.join(before.clone()).await? else {
            return Ok(Next::Wait);
        };
        let was = self.unreported.before(&before);
        let written = self.write(&mut before, &joined.claim).await;
        let written = written.inspect_err(|_| self.unreported.record(&before, was))?;
        self.unreported.forget(before.uid());
        if !was.registered && written.is_true(types::REGISTERED) {
            self.announce_registration(&written);
        }
        if !was.initialized && written.is_true(types::INITIALIZED) {
            self.announce_initialization(&written);
        }
        ReconcileError::collect(joined.errors)?;
        Ok(joined.next)
    }

    /// Writes the changes of a reconciliation; returns the NodeClaim as written.
    async fn write(
        &self,
        before: &mut NodeClaim,
        after: &NodeClaim,
    ) -> Result<Arc<NodeClaim>, ReconcileError> {
        let (api, writes) = (self.cx.node_claims(), &self.cx.claim_writes);
        // Labels and annotations have one writer each.
        let labeled = writes.patch_object(api, before, after, Lock::None).await;
        if let Some(written) = labeled.doing("updating nodeclaim")? {
            before.metadata = written.metadata;
        }
        if before.status == after.status {
            return Ok(Arc::new(before.clone()));
        }
        // Launching takes time: other controllers may have written since.
        let known = self.cx.node_claim(&self.cx.view(), before.name());
        let known = known.filter(|claim| claim.uid() == before.uid());
        let known = known.unwrap_or_else(|| Arc::new(before.clone()));
        let before = &*before;
        self.cx
            .change_claim_status(&known, |latest| carry_over(before, after, latest))
            .await
    }

    /// Records in the health of the NodePool whether a NodeClaim has registered, else reason and message.
    pub(super) fn record_registration(
        &self,
        claim: &NodeClaim,
        outcome: Result<(), (String, String)>,
    ) {
        if let Some((pool, uid)) = owner_pool(claim) {
            self.health
                .record(pool, uid, outcome.is_ok(), outcome.err());
        }
    }
}

/// Applies the changes from `before` to `after` to a status that other controllers have written since. No other controller
/// writes the conditions of these steps.
fn carry_over(before: &NodeClaim, after: &NodeClaim, latest: &mut NodeClaim) {
    let (old, new, status) = (&before.status, &after.status, &mut latest.status);
    if old.node_name != new.node_name {
        status.node_name.clone_from(&new.node_name);
    }
    if old.provider_id != new.provider_id {
        status.provider_id.clone_from(&new.provider_id);
    }
    if old.image_id != new.image_id {
        status.image_id.clone_from(&new.image_id);
    }
    if old.capacity != new.capacity {
        status.capacity.clone_from(&new.capacity);
    }
    if old.allocatable != new.allocatable {
        status.allocatable.clone_from(&new.allocatable);
    }
    for condition in after.conditions() {
        if before.condition(&condition.type_) == Some(condition) {
            continue;
        }
        let conditions = latest.conditions_mut();
        match conditions.iter_mut().find(|c| c.type_ == condition.type_) {
            Some(known) => known.clone_from(condition),
            None => conditions.push(condition.clone()),
        }
    }
}

/// Returns name and uid of the NodePool that owns the NodeClaim.
fn owner_pool(claim: &NodeClaim) -> Option<(&str, &str)> {
    let owners = claim.metadata.owner_references.as_ref()?;
    owners
        .iter()
        .find(|o| o.kind == "NodePool")
        .map(|o| (o.name.as_str(), o.uid.as_str()))
}

impl Controller for Lifecycle {
    type Key = ObjectKey;
    const NAME: &'static str = "nodeclaim.lifecycle";
    const KIND: &'static str = NodeClaim::KIND;

    fn concurrency(&self, options: &Options) -> usize {
        options.concurrency(1000, 5000)
    }

    fn backoff(&self) -> Backoff {
        Backoff {
            base: Duration::from_secs(1),
            max: Duration::from_secs(60),
        }
    }

    fn triggered_by(&self, change: &Change, view: &View, queue: &Queue<ObjectKey>) {
        match change {
            Change::NodeClaim { name, .. } => queue.add(ObjectKey::cluster(name)),
            Change::Node { before, after, .. } => {
                for node in [before, after].into_iter().flatten() {
                    for claim in view.node_claims_of(node) {
                        queue.add(ObjectKey::cluster(claim.name()));
                    }
                }
            }
            // A driver has published devices: NodeClaims that wait for them are reconciled.
            Change::Other("ResourceSlice") => {
                let waits = |claim: &&Arc<NodeClaim>| {
                    claim
                        .annotation(annotations::REQUESTED_DRA_DRIVERS)
                        .is_some()
                        && !claim.is_true(types::INITIALIZED)
                };
                for claim in view.snapshot.node_claims().filter(waits) {
                    queue.add(ObjectKey::cluster(claim.name()));
                }
            }
            _ => {}
        }
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, ReconcileError> {
        let Some(claim) = self.cx.node_claim(&self.cx.view(), &key.name) else {
            return Ok(Next::Wait);
        };
        if !self.cx.is_managed(&claim.spec.node_class_ref) {
            return Ok(Next::Wait);
        }
        if claim.is_deleting() {
            self.finalize(&claim).await
        } else {
            self.advance(&claim).await
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn milestones_of_a_failed_write_are_unreported_until_one_succeeds() {
        let unreported = UnreportedMilestones::default();
        let mut claim = NodeClaim::new("a", Default::default());
        claim.metadata.uid = Some("uid".to_owned());
        let reported = |claim: &NodeClaim| {
            let before = unreported.before(claim);
            (before.registered, before.initialized)
        };
        unreported.record(&claim, unreported.before(&claim));
        claim.set_true(types::REGISTERED, at(10));
        assert_eq!(reported(&claim), (false, false));
        unreported.forget("uid");
        assert_eq!(reported(&claim), (true, false));
    }

    #[test]
    fn what_the_steps_changed_is_carried_over_and_what_others_wrote_stays() {
        type Set<'a> = &'a dyn Fn(&mut NodeClaim, &str);
        let amount = |text: &str| [("cpu".to_owned(), Quantity(text.to_owned()))].into();
        let fields: [Set<'_>; 5] = [
            &|claim, to| claim.status.node_name = Some(to.into()),
            &|claim, to| claim.status.provider_id = Some(to.into()),
            &|claim, to| claim.status.image_id = Some(to.into()),
            &|claim, to| claim.status.capacity = amount(to),
            &|claim, to| claim.status.allocatable = amount(to),
        ];
        let before = NodeClaim::new("a", Default::default());
        for set in fields {
            let (mut ours, mut latest) = (before.clone(), before.clone());
            set(&mut ours, "1");
            carry_over(&before, &ours, &mut latest);
            assert_eq!(latest.status, ours.status);
            set(&mut latest, "2");
            let theirs = latest.clone();
            carry_over(&before, &before, &mut latest);
            assert_eq!(latest.status, theirs.status);
        }
    }

    #[test]
    fn conditions_of_the_steps_are_carried_over_and_those_of_others_stay() {
        let mut before = NodeClaim::new("a", Default::default());
        before.set_unknown(types::LAUNCHED, at(10));
        before.set_unknown(types::DRAINED, at(10));
        let (mut ours, mut latest) = (before.clone(), before.clone());
        ours.set_true(types::LAUNCHED, at(20));
        ours.set_unknown(types::REGISTERED, at(20));
        latest.set_true(types::DRAINED, at(20));
        latest.set_true(types::CONSOLIDATABLE, at(20));
        carry_over(&before, &ours, &mut latest);
        for condition in [types::LAUNCHED, types::DRAINED, types::CONSOLIDATABLE] {
            assert!(latest.is_true(condition), "{condition}");
        }
        let registered = latest.condition(types::REGISTERED);
        assert_eq!(registered, ours.condition(types::REGISTERED));
    }

    /// Conformance: DIS-044
    #[test]
    fn the_termination_of_the_instance_does_not_make_a_ready_claim_unknown() {
        let mut claim = NodeClaim::new("a", Default::default());
        claim.metadata.generation = Some(1);
        for dependent in NodeClaim::TYPES.dependents {
            claim.set_true(dependent, at(10));
        }
        // A deletion is a new generation.
        claim.metadata.generation = Some(2);
        claim.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(20)));
        claim.set_true(types::INSTANCE_TERMINATING, at(21));
        assert!(claim.is_true(types::READY));
        assert!(claim.is_true(types::INSTANCE_TERMINATING));
    }
}
