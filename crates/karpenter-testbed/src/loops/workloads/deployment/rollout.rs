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

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::{ReplicaSetSpec, ReplicaSetStatus};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

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

    fn roll(replicas: i32, new: (i32, i32), old: (i32, i32)) -> Vec<(String, i32)> {
        let old = Arc::new(set("old", old.0, old.1));
        let spec = DeploymentSpec {
            replicas: Some(replicas),
            ..DeploymentSpec::default()
        };
        let sizes = sizes(&spec, &set("new", new.0, new.1), &[old]);
        sizes.into_iter().collect()
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
}
