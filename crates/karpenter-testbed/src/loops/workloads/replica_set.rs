//! The ReplicaSet controller: keeps the desired number of active pods.
//!
//! UPSTREAM: pkg/controller/replicaset

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetStatus};

use super::pods::{PodControl, Tally, deletion_order, from_template, report, tally};
use crate::loops::cache::{Change, Key, PodRecord};
use crate::loops::driver::{Context, Controller, Next};

/// Maximum number of pods created or deleted in one pass.
const BURST: usize = 500;

/// The actions to reach the number of pods.
#[derive(Debug)]
enum Plan {
    Nothing,
    Create(usize),
    Delete(Vec<Arc<PodRecord>>),
}

fn plan(wanted: i32, active: &[Arc<PodRecord>]) -> Plan {
    let wanted = usize::try_from(wanted).unwrap_or(0);
    if active.len() < wanted {
        return Plan::Create((wanted - active.len()).min(BURST));
    }
    if active.len() > wanted {
        let mut sorted = active.to_vec();
        deletion_order(&mut sorted);
        sorted.truncate((active.len() - wanted).min(BURST));
        return Plan::Delete(sorted);
    }
    Plan::Nothing
}

fn status(set: &ReplicaSet, counted: Tally, fully_labeled: i32) -> ReplicaSetStatus {
    let optional = |n: i32| (n > 0).then_some(n);
    ReplicaSetStatus {
        replicas: counted.replicas,
        fully_labeled_replicas: optional(fully_labeled),
        ready_replicas: optional(counted.ready),
        available_replicas: optional(counted.available),
        observed_generation: set.metadata.generation,
        ..set.status.clone().unwrap_or_default()
    }
}

pub(crate) struct ReplicaSets {
    context: Context,
    control: PodControl,
}

impl ReplicaSets {
    pub(crate) fn new(context: Context) -> Self {
        Self {
            context,
            control: PodControl::default(),
        }
    }

    async fn scale(&self, set: &ReplicaSet, plan: Plan) -> Result<(), kube::Error> {
        let owner = set.metadata.uid.as_deref().unwrap_or_default();
        match plan {
            Plan::Nothing => Ok(()),
            Plan::Delete(pods) => self.control.delete(&self.context, owner, &pods).await,
            Plan::Create(count) => {
                let template = set
                    .spec
                    .as_ref()
                    .and_then(|s| s.template.clone())
                    .unwrap_or_default();
                let pods = (0..count)
                    .map(|_| from_template(&template, set, &self.context.names.suffix()))
                    .collect();
                self.control.create(&self.context, owner, pods).await
            }
        }
    }
}

impl Controller for ReplicaSets {
    const NAME: &'static str = "replicaset";

    fn keys(&self, change: &Change, keys: &mut Vec<Key>) {
        match change {
            Change::Pod(diff) => keys.extend(self.control.observe(diff, "ReplicaSet")),
            Change::ReplicaSet(diff) => keys.push(diff.key()),
            _ => {}
        }
    }

    async fn reconcile(&self, key: &Key) -> Result<Next, kube::Error> {
        let Some(set) = self.context.cache.replica_sets.get(key) else {
            return Ok(Next::Wait);
        };
        let now: Timestamp = self.context.clock.now();
        let uid = set.metadata.uid.as_deref().unwrap_or_default();
        let spec = set.spec.clone().unwrap_or_default();
        let active: Vec<_> = self
            .context
            .cache
            .pods_of(uid)
            .into_iter()
            .filter(|p| p.is_active())
            .collect();
        let wanted = spec.replicas.unwrap_or(1);
        let met = self.control.expectations_met(uid, now);
        let mut outcome = Ok(());
        if met && set.metadata.deletion_timestamp.is_none() {
            outcome = self.scale(&set, plan(wanted, &active)).await;
        }
        let counted = tally(active.iter(), spec.min_ready_seconds.unwrap_or(0), now);
        let labels = spec
            .template
            .and_then(|t| t.metadata)
            .and_then(|m| m.labels);
        let fully = active
            .iter()
            .filter(|p| {
                labels
                    .iter()
                    .flatten()
                    .all(|(k, v)| p.meta.labels.as_ref().and_then(|l| l.get(k)) == Some(v))
            })
            .count();
        let fully = i32::try_from(fully).unwrap_or(i32::MAX);
        let new = status(&set, counted, fully);
        report(&self.context, &*set, set.status.as_ref(), &new).await?;
        outcome?;
        Ok(Next::at(now, counted.next))
    }
}
