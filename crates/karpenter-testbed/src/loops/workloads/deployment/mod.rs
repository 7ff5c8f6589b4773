//! The Deployment controller: one ReplicaSet per template, rolled out within `maxSurge` and `maxUnavailable`.
//!
//! Not implemented: `Recreate`, proportional scaling during a rollout (the rollout itself reaches the new number).
//!
//! UPSTREAM: pkg/controller/deployment

mod replica_sets;
mod rollout;
mod status;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, ReplicaSet};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use self::replica_sets::{REVISION, new_set, revision, same_template};
use self::rollout::{sizes, wanted};
use self::status::{deadline, status};
use super::pods::{report, template_hash};
use crate::loops::cache::{Change, Key, api, controller_of};
use crate::loops::driver::{Context, Controller, Next};
use crate::loops::outcome::{ignore_conflict_of_existence, ignore_not_found};

pub(crate) struct Deployments {
    context: Context,
}

impl Deployments {
    pub(crate) fn new(context: Context) -> Self {
        Self { context }
    }

    fn sets_of(&self, deployment: &Deployment) -> Vec<Arc<ReplicaSet>> {
        let namespace = deployment.metadata.namespace.as_deref().unwrap_or_default();
        let uid = deployment.metadata.uid.as_deref().unwrap_or_default();
        let mut sets: Vec<_> = self
            .context
            .cache
            .replica_sets
            .in_namespace(namespace)
            .into_iter()
            .filter(|s| controller_of(&s.metadata).is_some_and(|o| o.uid == uid))
            .collect();
        sets.sort_by(|a, b| {
            let age = |s: &ReplicaSet| s.metadata.creation_timestamp.as_ref().map(|t| t.0);
            (age(a), &a.metadata.name).cmp(&(age(b), &b.metadata.name))
        });
        sets
    }

    async fn resize(&self, key: &Key, sizes: BTreeMap<String, i32>) -> Result<(), kube::Error> {
        let sets: Api<ReplicaSet> = api(&self.context.client(), key);
        for (name, size) in sizes {
            let patch = json!({"spec": {"replicas": size}});
            sets.patch(&name, &PatchParams::default(), &Patch::Merge(patch))
                .await?;
        }
        Ok(())
    }

    async fn ensure_new(
        &self,
        deployment: &Deployment,
        spec: &DeploymentSpec,
        sets: &[Arc<ReplicaSet>],
    ) -> Result<Option<Arc<ReplicaSet>>, kube::Error> {
        let key = Key::of(&deployment.metadata);
        let highest = sets
            .iter()
            .map(|s| revision(&s.metadata))
            .max()
            .unwrap_or(0);
        let api_sets: Api<ReplicaSet> = api(&self.context.client(), &key);
        let params = PatchParams::default();
        let found = sets
            .iter()
            .find(|s| same_template(s, &spec.template))
            .cloned();
        let current = match &found {
            Some(set) => {
                let older = sets.iter().filter(|s| !Arc::ptr_eq(s, set));
                let others = older.map(|s| revision(&s.metadata)).max().unwrap_or(0);
                let mut own = revision(&set.metadata);
                if own <= others {
                    own = others + 1;
                    let name = set.metadata.name.as_deref().unwrap_or_default();
                    let patch = json!({"metadata": {"annotations": {REVISION: own.to_string()}}});
                    api_sets.patch(name, &params, &Patch::Merge(patch)).await?;
                }
                own
            }
            None => {
                let collisions = deployment
                    .status
                    .as_ref()
                    .and_then(|s| s.collision_count)
                    .unwrap_or(0);
                let hash = template_hash(&spec.template, collisions);
                let set = new_set(deployment, spec, &hash, highest + 1);
                ignore_conflict_of_existence(api_sets.create(&PostParams::default(), &set).await)?;
                highest + 1
            }
        };
        if revision(&deployment.metadata) != current {
            let deployments: Api<Deployment> = api(&self.context.client(), &key);
            let patch = json!({"metadata": {"annotations": {REVISION: current.to_string()}}});
            deployments
                .patch(&key.name, &params, &Patch::Merge(patch))
                .await?;
        }
        Ok(found)
    }

    async fn clean_up(
        &self,
        spec: &DeploymentSpec,
        old: &[Arc<ReplicaSet>],
    ) -> Result<(), kube::Error> {
        let keep = usize::try_from(spec.revision_history_limit.unwrap_or(10)).unwrap_or(0);
        let mut idle: Vec<&Arc<ReplicaSet>> = old
            .iter()
            .filter(|s| wanted(s) == 0 && s.status.as_ref().is_none_or(|st| st.replicas == 0))
            .filter(|s| s.metadata.deletion_timestamp.is_none())
            .collect();
        idle.sort_by_key(|s| revision(&s.metadata));
        let surplus = idle.len().saturating_sub(keep);
        for set in idle.into_iter().take(surplus) {
            let key = Key::of(&set.metadata);
            let sets: Api<ReplicaSet> = api(&self.context.client(), &key);
            ignore_not_found(sets.delete(&key.name, &DeleteParams::default()).await)?;
        }
        Ok(())
    }
}

impl Controller for Deployments {
    const NAME: &'static str = "deployment";

    fn keys(&self, change: &Change, keys: &mut Vec<Key>) {
        match change {
            Change::Deployment(diff) => keys.push(diff.key()),
            Change::ReplicaSet(diff) => {
                if let Some(set) = diff.latest()
                    && let Some(owner) = controller_of(&set.metadata)
                    && owner.kind == "Deployment"
                {
                    let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
                    keys.push(Key::new(namespace, &owner.name));
                }
            }
            _ => {}
        }
    }

    async fn reconcile(&self, key: &Key) -> Result<Next, kube::Error> {
        let Some(deployment) = self.context.cache.deployments.get(key) else {
            return Ok(Next::Wait);
        };
        let now = self.context.clock.now();
        let spec = deployment.spec.clone().unwrap_or_default();
        let sets = self.sets_of(&deployment);
        let deleting = deployment.metadata.deletion_timestamp.is_some();
        let paused = spec.paused == Some(true);
        let new = if deleting || paused {
            sets.iter()
                .find(|s| same_template(s, &spec.template))
                .cloned()
        } else {
            self.ensure_new(&deployment, &spec, &sets).await?
        };
        if let Some(new) = &new
            && !deleting
        {
            let name = &new.metadata.name;
            let old: Vec<_> = sets
                .iter()
                .filter(|s| s.metadata.name != *name)
                .cloned()
                .collect();
            if !paused || old.iter().all(|o| wanted(o) == 0) {
                self.resize(key, sizes(&spec, new, &old)).await?;
            }
            self.clean_up(&spec, &old).await?;
        }
        let next = status(&deployment, new.as_deref(), &sets, now);
        let old = deployment.status.as_ref();
        report(&self.context, &*deployment, old, &next).await?;
        let deadline = deadline(&spec, &next).filter(|at| *at > now);
        Ok(Next::at(now, deadline))
    }
}
