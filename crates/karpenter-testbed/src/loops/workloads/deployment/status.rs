//! The status of a Deployment: counts of pods, and the conditions `Available` and `Progressing`.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentCondition, DeploymentSpec, DeploymentStatus, ReplicaSet,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::rollout::{available, limits, wanted};
use crate::loops::driver::after;

/// Returns the status, without `collisionCount`.
pub(super) fn status(
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
    let (state, reason, message) = match enough {
        true => (
            "True",
            "MinimumReplicasAvailable",
            "Deployment has minimum availability.",
        ),
        false => (
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.",
        ),
    };
    set_condition(&mut next, "Available", (state, reason, message), now, false);
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
    let is_moving = !complete && (moved || progressing(&old_status).is_none());
    let (state, reason, message) = if complete {
        (
            "True",
            "NewReplicaSetAvailable",
            "has successfully progressed",
        )
    } else if is_moving {
        ("True", "ReplicaSetUpdated", "is progressing")
    } else if deadline(&spec, &old_status).is_some_and(|at| at <= now) {
        (
            "False",
            "ProgressDeadlineExceeded",
            "has timed out progressing",
        )
    } else {
        return next;
    };
    let message = format!("ReplicaSet \"{name}\" {message}.");
    set_condition(
        &mut next,
        "Progressing",
        (state, reason, &message),
        now,
        is_moving,
    );
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
pub(super) fn deadline(spec: &DeploymentSpec, status: &DeploymentStatus) -> Option<Timestamp> {
    let condition = progressing(status)?;
    if condition.reason.as_deref() == Some("NewReplicaSetAvailable") || spec.paused == Some(true) {
        return None;
    }
    let seconds = u64::try_from(spec.progress_deadline_seconds.unwrap_or(600)).ok()?;
    let since = condition.last_update_time.as_ref()?.0;
    Some(after(since, Duration::from_secs(seconds)))
}

/// Sets a condition's status, reason and message; `touch`: it is updated even if it has them already.
fn set_condition(
    status: &mut DeploymentStatus,
    type_: &str,
    (state, reason, message): (&str, &str, &str),
    now: Timestamp,
    touch: bool,
) {
    let conditions = status.conditions.get_or_insert_with(Vec::new);
    let known = conditions.iter().position(|c| c.type_ == type_);
    let old = known.map(|at| &conditions[at]);
    let mut new = DeploymentCondition {
        type_: type_.to_owned(),
        status: state.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_transition_time: Some(Time(now)),
        last_update_time: Some(Time(now)),
    };
    if let Some(old) = old.filter(|old| old.status == new.status) {
        new.last_transition_time
            .clone_from(&old.last_transition_time);
        if !touch && (&old.reason, &old.message) == (&new.reason, &new.message) {
            return;
        }
    }
    match known {
        Some(at) => conditions[at] = new,
        None => conditions.push(new),
    }
}
