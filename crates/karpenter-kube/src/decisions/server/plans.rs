//! Rehearsals of changes on request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use karpenter_core::schedule::Cancel;
use karpenter_decisions::rehearse::plan::Plan;
use karpenter_decisions::rehearse::request::PlanRequest;
use karpenter_decisions::rehearse::{Settings, rehearse};
use serde_json::{Value, json};

use super::status::Failure;
use crate::context::Context;
use crate::controller::compute;
use crate::decisions::state::{Decisions, ENGINE};
use crate::provisioning;

/// The longest body of a request.
pub(super) const MAX_BODY: u64 = 4 << 20;
/// How long a rehearsal may take, unless the request says otherwise; one that is cut short says so.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Reads the question in the body of a request.
pub(super) async fn read(body: Incoming) -> Result<PlanRequest, Failure> {
    let longest = usize::try_from(MAX_BODY).unwrap_or(usize::MAX);
    let body = Limited::new(body, longest).collect().await;
    // The other error is a broken connection, whose client gets no answer.
    let bytes = body.map_err(|_| Failure::too_large())?.to_bytes();
    let invalid = |error| Failure::bad_request(format!("invalid PlanRequest: {error}"));
    let mut asked: Value = serde_json::from_slice(&bytes).map_err(invalid)?;
    if let Some(changes) = asked.get_mut("changes").and_then(Value::as_array_mut) {
        *changes = with_manifests(std::mem::take(changes))?;
    }
    serde_json::from_value(asked).map_err(invalid)
}

/// Replaces each change `manifest`, a text with YAML documents, by a change `apply` for each document. A browser has no parser of
/// YAML.
fn with_manifests(changes: Vec<Value>) -> Result<Vec<Value>, Failure> {
    let mut all = Vec::with_capacity(changes.len());
    for change in changes {
        let Some(text) = change.get("manifest").and_then(Value::as_str) else {
            all.push(change);
            continue;
        };
        let documents = serde_saphyr::from_multiple::<Value>(text);
        let documents = documents
            .map_err(|error| Failure::bad_request(format!("invalid manifest: {error}")))?;
        let objects = documents.into_iter().filter(|document| !document.is_null());
        all.extend(objects.map(|object| json!({ "apply": object })));
    }
    Ok(all)
}

/// Rehearses a request on the current state of the cluster, with the settings of the controllers.
pub(super) async fn answer(
    cx: &Arc<Context>,
    decisions: &Decisions,
    request: PlanRequest,
    timeout: Option<Duration>,
) -> Result<Plan, Failure> {
    let (began, timeout) = (Instant::now(), timeout.unwrap_or(TIMEOUT));
    let cancel: Cancel = Arc::new(move || began.elapsed() > timeout);
    // As before each pass: a NodePool that no pod has needed yet has no instance types in the model.
    let refreshed = provisioning::refresh_instance_types(cx).await;
    refreshed.map_err(|error| Failure::internal(&error))?;
    let settings = settings(cx, decisions, cancel);
    let view = cx.view();
    let snapshot = view.snapshot.fork();
    let planned = compute("the rehearsal", move || {
        in_background(|| rehearse(&snapshot, &settings, &request))
    });
    let planned = planned.await.map_err(|error| Failure::internal(&error))?;
    planned.map_err(|error| Failure::invalid(error.to_string(), error.field_path()))
}

/// Runs work on threads that get processor time when the controllers need none: a plan can wait, pods cannot.
fn in_background<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let pool = rayon::ThreadPoolBuilder::new()
        .thread_name(|index| format!("plan-{index}"))
        .start_handler(|_| lower_priority())
        .build();
    match pool {
        Ok(pool) => pool.install(work),
        Err(_) => work(),
    }
}

/// Gives this thread the least priority. Elsewhere than on Linux it would be that of the whole process.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, 19) {
        tracing::debug!(%error, "cannot lower the priority of a plan");
    }
}

/// Returns the settings of the controllers.
fn settings(cx: &Arc<Context>, decisions: &Decisions, cancel: Cancel) -> Settings {
    let (options, now) = (&cx.options, cx.clock.now());
    // What the last pass knew of buffers and replacements, with the settings of now.
    let mut request = decisions.disruption(now, Arc::clone(&cancel));
    request.spot_to_spot = options.feature_gates.spot_to_spot_consolidation;
    request.multi_node.max_replacements = options.consolidation_max_replacements;
    request.query.buffer_pods = cx.buffers.pods();
    let mut settings = Settings::of_passes(now, provisioning::policy(cx), request);
    settings.batch_idle = options.batch_idle_duration;
    settings.batch_max = options.batch_max_duration;
    settings.capacity_buffers = options.feature_gates.capacity_buffer;
    settings.cancel = Some(cancel);
    settings.engine = ENGINE.to_owned();
    settings
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Conformance: PLAN-11
    #[test]
    fn a_plan_is_made_at_the_least_priority_and_its_caller_keeps_its_own() {
        let priority = || rustix::process::getpriority_process(None).unwrap();
        let before = priority();
        assert_eq!(in_background(priority), 19);
        assert_eq!(priority(), before);
    }
}
