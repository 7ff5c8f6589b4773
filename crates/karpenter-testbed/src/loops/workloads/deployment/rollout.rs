//! The sizes of a Deployment's ReplicaSets during a rollout.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{DeploymentSpec, ReplicaSet};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::loops::workloads::pods::scaled;

/// Returns the size that a ReplicaSet is to have.
pub(super) fn wanted(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)
}

/// Returns the number of available pods of a ReplicaSet.
pub(super) fn available(set: &ReplicaSet) -> i32 {
    set.status
        .as_ref()
        .and_then(|s| s.available_replicas)
        .unwrap_or(0)
}

/// Returns `maxSurge` and `maxUnavailable` in pods; not both zero.
pub(super) fn limits(spec: &DeploymentSpec) -> (i32, i32) {
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

/// Returns the new sizes of ReplicaSets, by name; only changed ones. `new` is the ReplicaSet of the current template.
pub(super) fn sizes(
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
