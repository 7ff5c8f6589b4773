//! The Deployment controller: one ReplicaSet per template, rolled out within `maxSurge` and `maxUnavailable`.
//!
//! Not implemented: proportional scaling during a rollout (the rollout itself reaches the new number).
//!
//! UPSTREAM: pkg/controller/deployment

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentCondition, DeploymentSpec, DeploymentStatus, ReplicaSet, ReplicaSetSpec,
};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use super::pods::{label, owner_reference, scaled, template_hash};
use crate::loops::cache::{Change, Key, api, controller_of};
use crate::loops::driver::{Context, Controller, Next, after, until};
use crate::loops::{ignore_conflict_of_existence, ignore_not_found};

const HASH: &str = "pod-template-hash";
const REVISION: &str = "deployment.kubernetes.io/revision";

fn wanted(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)
}

fn available(set: &ReplicaSet) -> i32 {
    set.status
        .as_ref()
        .and_then(|s| s.available_replicas)
        .unwrap_or(0)
}

fn revision(meta: &ObjectMeta) -> i64 {
    meta.annotations
        .as_ref()
        .and_then(|a| a.get(REVISION))
        .and_then(|r| r.parse().ok())
        .unwrap_or(0)
}

/// Returns `maxSurge` and `maxUnavailable` in pods; not both zero.
fn limits(spec: &DeploymentSpec) -> (i32, i32) {
    let replicas = spec.replicas.unwrap_or(1);
    let rolling = spec
        .strategy
        .as_ref()
        .and_then(|s| s.rolling_update.clone())
        .unwrap_or_default();
    let quarter = IntOrString::String("25%".to_owned());
    let surge = scaled(
        rolling.max_surge.as_ref().unwrap_or(&quarter),
        replicas,
        true,
    );
    let unavailable = rolling.max_unavailable.as_ref().unwrap_or(&quarter);
    let unavailable = scaled(unavailable, replicas, false).min(replicas);
    (
        surge,
        if surge == 0 && unavailable == 0 {
            1
        } else {
            unavailable
        },
    )
}

fn recreates(spec: &DeploymentSpec) -> bool {
    spec.strategy.as_ref().and_then(|s| s.type_.as_deref()) == Some("Recreate")
}

/// Returns the new sizes of ReplicaSets, by name; only changed ones. `new` is the ReplicaSet of the current template.
fn sizes(
    spec: &DeploymentSpec,
    new: &ReplicaSet,
    old: &[Arc<ReplicaSet>],
) -> BTreeMap<String, i32> {
    let replicas = spec.replicas.unwrap_or(1);
    let mut sizes = BTreeMap::new();
    let mut set = |of: &ReplicaSet, size: i32| {
        if wanted(of) != size {
            sizes.insert(of.metadata.name.clone().unwrap_or_default(), size);
        }
    };
    if recreates(spec) {
        let mut running = 0;
        for of in old {
            set(of, 0);
            running += of.status.as_ref().map_or(0, |s| s.replicas);
        }
        if running == 0 && old.iter().all(|o| wanted(o) == 0) {
            set(new, replicas);
        }
        return sizes;
    }
    let (surge, max_unavailable) = limits(spec);
    let total = wanted(new) + old.iter().map(|o| wanted(o)).sum::<i32>();
    if wanted(new) > replicas {
        set(new, replicas);
        return sizes;
    }
    let room = replicas + surge - total;
    if wanted(new) < replicas && room > 0 {
        set(new, wanted(new) + room.min(replicas - wanted(new)));
        return sizes;
    }
    let min_available = replicas - max_unavailable;
    let new_unavailable = (wanted(new) - available(new)).max(0);
    let mut removable = total - min_available - new_unavailable;
    if removable <= 0 {
        return sizes;
    }
    let mut left: Vec<(&Arc<ReplicaSet>, i32)> = old.iter().map(|o| (o, wanted(o))).collect();
    // Unavailable pods are deleted first, because availability does not depend on them.
    for (of, size) in &mut left {
        let unhealthy = (*size - available(of)).max(0).min(removable);
        *size -= unhealthy;
        removable -= unhealthy;
    }
    let serving = available(new) + old.iter().map(|o| available(o)).sum::<i32>();
    let mut spare = serving - min_available;
    for (_, size) in &mut left {
        let step = (*size).min(spare).min(removable).max(0);
        *size -= step;
        spare -= step;
        removable -= step;
    }
    for (of, size) in left {
        set(of, size);
    }
    sizes
}

/// Returns the status, without `collisionCount`.
fn status(
    deployment: &Deployment,
    new: Option<&ReplicaSet>,
    all: &[Arc<ReplicaSet>],
    now: Timestamp,
) -> DeploymentStatus {
    let spec = deployment.spec.clone().unwrap_or_default();
    let old_status = deployment.status.clone().unwrap_or_default();
    let sum = |f: fn(&ReplicaSet) -> i32| all.iter().map(|s| f(s)).sum::<i32>();
    let replicas = sum(|s| s.status.as_ref().map_or(0, |s| s.replicas));
    let ready = sum(|s| {
        s.status
            .as_ref()
            .and_then(|s| s.ready_replicas)
            .unwrap_or(0)
    });
    let available = sum(available);
    let updated = new
        .and_then(|n| n.status.as_ref())
        .map_or(0, |s| s.replicas);
    let unavailable = (sum(wanted) - available).max(0);
    let (_, max_unavailable) = limits(&spec);
    let wanted_now = spec.replicas.unwrap_or(1);
    let optional = |n: i32| (n > 0).then_some(n);
    let mut next = DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: optional(replicas),
        updated_replicas: optional(updated),
        ready_replicas: optional(ready),
        available_replicas: optional(available),
        unavailable_replicas: optional(unavailable),
        collision_count: old_status.collision_count,
        conditions: old_status.conditions.clone(),
        ..DeploymentStatus::default()
    };
    let enough = available >= wanted_now - max_unavailable;
    let (state, reason, message) = if enough {
        (
            "True",
            "MinimumReplicasAvailable",
            "Deployment has minimum availability.",
        )
    } else {
        (
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.",
        )
    };
    set_condition(
        &mut next,
        "Available",
        state,
        reason,
        message.to_owned(),
        now,
        false,
    );
    let Some(new) = new else {
        return next;
    };
    let name = new.metadata.name.as_deref().unwrap_or_default();
    let complete = updated == wanted_now && replicas == wanted_now && available == wanted_now;
    let moved = updated > old_status.updated_replicas.unwrap_or(0)
        || replicas - updated
            < old_status.replicas.unwrap_or(0) - old_status.updated_replicas.unwrap_or(0)
        || ready > old_status.ready_replicas.unwrap_or(0)
        || available > old_status.available_replicas.unwrap_or(0);
    let known = progressing(&old_status);
    if complete {
        let message = format!("ReplicaSet \"{name}\" has successfully progressed.");
        set_condition(
            &mut next,
            "Progressing",
            "True",
            "NewReplicaSetAvailable",
            message,
            now,
            false,
        );
    } else if moved || known.is_none() {
        let message = format!("ReplicaSet \"{name}\" is progressing.");
        set_condition(
            &mut next,
            "Progressing",
            "True",
            "ReplicaSetUpdated",
            message,
            now,
            true,
        );
    } else if deadline(&spec, &old_status).is_some_and(|at| at <= now) {
        let message = format!("ReplicaSet \"{name}\" has timed out progressing.");
        set_condition(
            &mut next,
            "Progressing",
            "False",
            "ProgressDeadlineExceeded",
            message,
            now,
            false,
        );
    }
    next
}

fn progressing(status: &DeploymentStatus) -> Option<&DeploymentCondition> {
    status
        .conditions
        .iter()
        .flatten()
        .find(|c| c.type_ == "Progressing")
}

/// Returns when the progress deadline of the rollout is exceeded.
fn deadline(spec: &DeploymentSpec, status: &DeploymentStatus) -> Option<Timestamp> {
    let condition = progressing(status)?;
    if condition.reason.as_deref() == Some("NewReplicaSetAvailable") || spec.paused == Some(true) {
        return None;
    }
    let seconds = u64::try_from(spec.progress_deadline_seconds.unwrap_or(600)).ok()?;
    let since = condition.last_update_time.as_ref()?.0;
    Some(after(since, Duration::from_secs(seconds)))
}

fn set_condition(
    status: &mut DeploymentStatus,
    type_: &str,
    state: &str,
    reason: &str,
    message: String,
    now: Timestamp,
    touch: bool,
) {
    let conditions = status.conditions.get_or_insert_with(Vec::new);
    let known = conditions.iter_mut().find(|c| c.type_ == type_);
    let same = |c: &DeploymentCondition| {
        c.status == state
            && c.reason.as_deref() == Some(reason)
            && c.message.as_ref() == Some(&message)
    };
    match known {
        Some(c) if same(c) && !touch => {}
        Some(c) => {
            if c.status != state {
                c.last_transition_time = Some(Time(now));
            }
            state.clone_into(&mut c.status);
            c.reason = Some(reason.to_owned());
            c.message = Some(message);
            c.last_update_time = Some(Time(now));
        }
        None => conditions.push(DeploymentCondition {
            type_: type_.to_owned(),
            status: state.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_transition_time: Some(Time(now)),
            last_update_time: Some(Time(now)),
        }),
    }
}

fn same_template(set: &ReplicaSet, template: &PodTemplateSpec) -> bool {
    let Some(mut own) = set.spec.as_ref().and_then(|s| s.template.clone()) else {
        return false;
    };
    if let Some(labels) = own.metadata.as_mut().and_then(|m| m.labels.as_mut()) {
        labels.remove(HASH);
    }
    let bare = |t: &PodTemplateSpec| t.metadata.clone().unwrap_or_default();
    own.spec == template.spec
        && bare(&own).labels.unwrap_or_default() == bare(template).labels.unwrap_or_default()
        && bare(&own).annotations.unwrap_or_default()
            == bare(template).annotations.unwrap_or_default()
}

/// Returns the new ReplicaSet of the deployment's template.
fn new_set(
    deployment: &Deployment,
    spec: &DeploymentSpec,
    hash: &str,
    revision: i64,
) -> ReplicaSet {
    let name = deployment.metadata.name.as_deref().unwrap_or_default();
    let mut template = spec.template.clone();
    label(template.metadata.get_or_insert_default(), HASH, hash);
    let mut selector = spec.selector.clone();
    selector
        .match_labels
        .get_or_insert_with(BTreeMap::new)
        .insert(HASH.to_owned(), hash.to_owned());
    let annotations = BTreeMap::from([(REVISION.to_owned(), revision.to_string())]);
    ReplicaSet {
        metadata: ObjectMeta {
            name: Some(format!("{name}-{hash}")),
            namespace: deployment.metadata.namespace.clone(),
            labels: template.metadata.as_ref().and_then(|m| m.labels.clone()),
            annotations: Some(annotations),
            owner_references: Some(vec![owner_reference(deployment)]),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(0),
            min_ready_seconds: spec.min_ready_seconds,
            selector,
            template: Some(template),
        }),
        status: None,
    }
}

#[derive(Debug)]
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

    async fn report(
        &self,
        deployment: &Deployment,
        new: &DeploymentStatus,
    ) -> Result<(), kube::Error> {
        if deployment.status.as_ref() == Some(new) {
            return Ok(());
        }
        let key = Key::of(&deployment.metadata);
        let deployments: Api<Deployment> = api(&self.context.client(), &key);
        let patch = json!({"status": {
            "observedGeneration": new.observed_generation,
            "replicas": new.replicas,
            "updatedReplicas": new.updated_replicas,
            "readyReplicas": new.ready_replicas,
            "availableReplicas": new.available_replicas,
            "unavailableReplicas": new.unavailable_replicas,
            "conditions": new.conditions,
        }});
        deployments
            .patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }
}

impl Controller for Deployments {
    const NAME: &'static str = "deployment";

    fn keys(&self, change: &Change, keys: &mut Vec<Key>) {
        match change {
            Change::Deployment(diff) => {
                keys.extend(diff.latest().map(|d| Key::of(&d.metadata)));
            }
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
        self.report(&deployment, &next).await?;
        Ok(match deadline(&spec, &next).filter(|at| *at > now) {
            Some(at) => Next::After(until(now, at)),
            None => Next::Wait,
        })
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::{DeploymentStrategy, ReplicaSetStatus};

    use super::*;

    fn set(name: &str, wanted: i32, available: i32) -> ReplicaSet {
        ReplicaSet {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            },
            spec: Some(ReplicaSetSpec {
                replicas: Some(wanted),
                ..ReplicaSetSpec::default()
            }),
            status: Some(ReplicaSetStatus {
                replicas: wanted,
                available_replicas: Some(available),
                ..ReplicaSetStatus::default()
            }),
        }
    }

    fn spec(replicas: i32, strategy: &str) -> DeploymentSpec {
        DeploymentSpec {
            replicas: Some(replicas),
            strategy: Some(DeploymentStrategy {
                type_: Some(strategy.to_owned()),
                rolling_update: None,
            }),
            ..DeploymentSpec::default()
        }
    }

    fn roll(replicas: i32, new: (i32, i32), old: (i32, i32)) -> Vec<(String, i32)> {
        let old = Arc::new(set("old", old.0, old.1));
        sizes(
            &spec(replicas, "RollingUpdate"),
            &set("new", new.0, new.1),
            &[old],
        )
        .into_iter()
        .collect()
    }

    fn to(name: &str, size: i32) -> Vec<(String, i32)> {
        vec![(name.to_owned(), size)]
    }

    #[test]
    fn a_rollout_surges_then_gives_up_as_much_as_is_available() {
        assert_eq!(roll(10, (0, 0), (10, 10)), to("new", 3));
        assert_eq!(roll(10, (3, 0), (10, 10)), to("old", 8));
        assert_eq!(roll(10, (3, 0), (8, 8)), to("new", 5));
        assert_eq!(roll(10, (5, 5), (8, 8)), to("old", 3));
        assert_eq!(roll(10, (10, 10), (0, 0)), vec![]);
    }

    #[test]
    fn unhealthy_old_pods_go_first() {
        assert_eq!(roll(4, (1, 0), (4, 0)), to("old", 3));
    }

    #[test]
    fn scaling_down_applies_to_the_new_set() {
        assert_eq!(roll(2, (5, 5), (0, 0)), to("new", 2));
    }

    #[test]
    fn recreate_waits_for_the_old_pods() {
        let spec = spec(3, "Recreate");
        let old = Arc::new(set("old", 3, 3));
        let expected = BTreeMap::from([("old".to_owned(), 0)]);
        assert_eq!(sizes(&spec, &set("new", 0, 0), &[old]), expected);
        let gone = Arc::new(set("old", 0, 0));
        let expected = BTreeMap::from([("new".to_owned(), 3)]);
        assert_eq!(sizes(&spec, &set("new", 0, 0), &[gone]), expected);
    }
}
