//! The status of a NodePool: validation, NodeClass, registration health, resources; one look, one write.
//!
//! DIFFERS: upstream has four controllers that write the same status one after another, so that a pool is not ready in
//! between; here a change of the spec settles in one write.
//!
//! UPSTREAM: pkg/controllers/nodepool/{validation,readiness,registrationhealth,counter}/controller.go

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use karpenter_api::conditions::{self, HasConditions, reasons, types};
use karpenter_api::v1::NodePool;
use karpenter_api::validation;
use karpenter_core::resources::Resources;
use kube::Api;

use super::registration_health::{Health, RegistrationHealth};
use crate::context::Context;
use crate::controller::{Controller, Doing, Next, ObjectKey, Queue, ReconcileError};
use crate::model::{Change, NodeClass, View};
use crate::patch::{Lock, patch_status};

/// Resources that are shown even when they are zero.
const SHOWN: [&str; 5] = ["cpu", "memory", "pods", "ephemeral-storage", "nodes"];

/// How long changes of machines are gathered before they are counted.
const GATHER: Duration = Duration::from_secs(1);

/// Keeps the status of NodePools.
#[derive(Debug)]
pub struct Status {
    cx: Arc<Context>,
    health: Arc<RegistrationHealth>,
}

impl Status {
    /// The controller; `health` holds the outcomes of registrations.
    #[must_use]
    pub fn new(cx: Arc<Context>, health: Arc<RegistrationHealth>) -> Self {
        Self { cx, health }
    }

    fn registration_health(&self, pool: &mut NodePool, class: &NodeClass, now: Timestamp) {
        let uid = pool.uid().to_owned();
        let stale = pool
            .condition(types::NODE_REGISTRATION_HEALTHY)
            .is_none_or(|c| c.observed_generation != pool.metadata.generation)
            || pool.status.node_class_observed_generation != Some(class.generation);
        if stale {
            self.health.reset(&uid);
            pool.set_unknown(types::NODE_REGISTRATION_HEALTHY, now);
            pool.status.node_class_observed_generation = Some(class.generation);
            return;
        }
        match pool.condition_status(types::NODE_REGISTRATION_HEALTHY) {
            conditions::Status::True => self.health.restore(&uid, true),
            conditions::Status::False => self.health.restore(&uid, false),
            conditions::Status::Unknown => {}
        }
        match self.health.health(&uid) {
            Health::Unknown => {}
            Health::Healthy => {
                pool.set_true(types::NODE_REGISTRATION_HEALTHY, now);
            }
            Health::Unhealthy(failure) if !pool.is_false(types::NODE_REGISTRATION_HEALTHY) => {
                let (reason, message) = failure.unwrap_or_else(|| {
                    (
                        reasons::REGISTRATION_FAILED.to_owned(),
                        "Failed to register node".to_owned(),
                    )
                });
                pool.set_false(types::NODE_REGISTRATION_HEALTHY, &reason, &message, now);
            }
            Health::Unhealthy(_) => {}
        }
    }
}

fn validate(pool: &mut NodePool, well_known: &validation::WellKnown, now: Timestamp) {
    let findings = validation::node_pool(pool, well_known);
    if findings.is_ok() {
        pool.set_true(types::VALIDATION_SUCCEEDED, now);
    } else {
        pool.set_false(
            types::VALIDATION_SUCCEEDED,
            reasons::NODE_POOL_VALIDATION_FAILED,
            &findings.message(),
            now,
        );
    }
}

fn readiness(pool: &mut NodePool, class: Option<&NodeClass>, now: Timestamp) {
    let outcome = match class {
        None => Err((
            reasons::NODE_CLASS_NOT_FOUND,
            "NodeClass not found on cluster".to_owned(),
        )),
        Some(class) if class.deleted_at.is_some() => Err((
            reasons::NODE_CLASS_TERMINATING,
            "NodeClass is Terminating".to_owned(),
        )),
        Some(class) => match class
            .ready
            .as_ref()
            .map(|(status, reason, message)| (status.as_str(), reason.as_str(), message))
        {
            Some(("True", _, _)) => Ok(()),
            Some(("False", reason, message)) => Err((reason, message.clone())),
            _ => Err((
                reasons::NODE_CLASS_READINESS_UNKNOWN,
                "Node Class Readiness Unknown".to_owned(),
            )),
        },
    };
    match outcome {
        Ok(()) => pool.set_true(types::NODE_CLASS_READY, now),
        Err((reason, message)) => pool.set_false(types::NODE_CLASS_READY, reason, &message, now),
    };
}

/// What the pool's machines add up to. Machines on their way out do not count.
fn count(pool: &mut NodePool, view: &View) {
    let mut total = Resources::new();
    let mut nodes = 0_i64;
    let mine = view
        .snapshot
        .nodes()
        .filter(|machine| machine.claim.is_some() && machine.node_pool() == Some(pool.name()));
    for machine in mine.filter(|machine| !machine.is_deleting()) {
        total.add_assign(&machine.capacity());
        nodes += 1;
    }
    total.set("nodes", nodes);
    let mut resources: BTreeMap<String, Quantity> = SHOWN
        .map(|name| (name.to_owned(), Quantity("0".into())))
        .into();
    resources.extend(total.to_quantities());
    pool.status.resources = resources;
    pool.status.nodes = nodes;
}

impl Controller for Status {
    type Key = ObjectKey;

    fn name(&self) -> &'static str {
        "nodepool.status"
    }

    fn kind(&self) -> &'static str {
        NodePool::KIND
    }

    fn triggered_by(&self, change: &Change, view: &View, queue: &Queue<ObjectKey>) {
        let soon = || self.cx.clock.instant_after(GATHER);
        match change {
            Change::NodePool { name, .. } => queue.add(ObjectKey::cluster(name)),
            Change::NodeClass { reference, .. } => {
                for pool in view
                    .snapshot
                    .node_pools()
                    .filter(|p| p.spec.template.spec.node_class_ref == *reference)
                {
                    queue.add(ObjectKey::cluster(pool.name()));
                }
            }
            Change::NodeClaim { before, after, .. } => {
                for pool in [before, after]
                    .into_iter()
                    .flatten()
                    .filter_map(|c| c.node_pool())
                {
                    queue.add_later(ObjectKey::cluster(pool), soon());
                }
            }
            Change::Node { before, after, .. } => {
                let pool = |node: &Option<Arc<k8s_openapi::api::core::v1::Node>>| {
                    node.as_ref().and_then(|n| {
                        n.metadata
                            .labels
                            .as_ref()?
                            .get(karpenter_api::labels::NODE_POOL)
                            .cloned()
                    })
                };
                for pool in [pool(before), pool(after)].into_iter().flatten() {
                    queue.add_later(ObjectKey::cluster(&pool), soon());
                }
            }
            Change::Synced => {
                for pool in view.snapshot.node_pools() {
                    queue.add(ObjectKey::cluster(pool.name()));
                }
            }
            _ => {}
        }
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, ReconcileError> {
        let view = self.cx.view();
        let Some(before) = view.node_pool(&key.name) else {
            return Ok(Next::Wait);
        };
        let reference = &before.spec.template.spec.node_class_ref;
        // Counting an incomplete cluster would show nodes vanish; every kind comes within moments.
        if !self.cx.is_managed(reference) || !view.is_synced() {
            return Ok(Next::Wait);
        }
        let now = self.cx.clock.now();
        let class = view.node_class(reference);
        let mut after = NodePool::clone(before);
        after.initialise_conditions(now);
        validate(&mut after, self.cx.provider.well_known(), now);
        readiness(&mut after, class.map(|c| &**c), now);
        if let Some(class) = class {
            self.registration_health(&mut after, class, now);
        }
        count(&mut after, &view);
        let api: Api<NodePool> = Api::all(self.cx.clients.api.clone());
        patch_status(&api, before, &after, Lock::Optimistic)
            .await
            .doing("updating nodepool status")?;
        Ok(Next::Wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use karpenter_api::v1::NodeClassReference;

    fn class(ready: Option<(&str, &str, &str)>) -> NodeClass {
        NodeClass {
            reference: NodeClassReference::default(),
            uid: String::new(),
            generation: 1,
            deleted_at: None,
            ready: ready.map(|(s, r, m)| (s.into(), r.into(), m.into())),
        }
    }

    #[test]
    fn readiness_repeats_what_the_class_says() {
        let said = |class: Option<&NodeClass>| {
            let mut pool = NodePool::default();
            readiness(&mut pool, class, Timestamp::UNIX_EPOCH);
            let condition = pool.condition(types::NODE_CLASS_READY).unwrap();
            (condition.status.clone(), condition.reason.clone())
        };
        let expect = |status: &str, reason: &str| (status.to_owned(), reason.to_owned());
        assert_eq!(said(None), expect("False", "NodeClassNotFound"));
        assert_eq!(
            said(Some(&class(None))),
            expect("False", "NodeClassReadinessUnknown")
        );
        assert_eq!(
            said(Some(&class(Some(("False", "Why", "because"))))),
            expect("False", "Why")
        );
        assert_eq!(
            said(Some(&class(Some(("True", "", ""))))),
            expect("True", "NodeClassReady")
        );
        let mut deleted = class(Some(("True", "", "")));
        deleted.deleted_at = Some(Timestamp::UNIX_EPOCH);
        assert_eq!(
            said(Some(&deleted)),
            expect("False", "NodeClassTerminating")
        );
    }
}
