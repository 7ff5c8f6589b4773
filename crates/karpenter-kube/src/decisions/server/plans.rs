//! Rehearsals of changes on request.

use std::cell::Cell;
use std::error::Error;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Request;
use http_body::Body;
use karpenter_core::schedule::Cancel;
use karpenter_decisions::rehearse::plan::Plan;
use karpenter_decisions::rehearse::request::{Intent, MAX_CHANGES, PlanRequest};
use karpenter_decisions::rehearse::{Gates, Settings, rehearse};
use karpenter_listener::{Bodies, Held, Refused, weight};
use serde_json::Value;

use super::status::Failure;
use crate::context::Context;
use crate::controller::compute;
use crate::decisions::state::{Decisions, ENGINE};
use crate::provisioning;

/// The longest body of a request.
pub(super) const MAX_BODY: usize = 4 << 20;
/// The most bytes of all bodies that are read or wait.
pub(super) const BODIES: usize = 4 * MAX_BODY;
/// How long a body may take to arrive.
const BODY: Duration = Duration::from_secs(10);
/// The most values of a request, with those in its manifests. A chart has a few thousand; 4 MiB of real objects have about 200,000.
/// A value takes up to 250 bytes.
const MAX_VALUES: usize = 250_000;
/// Default time limit of a rehearsal; one that is cut short is marked.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Receives the body of a request.
pub(super) async fn receive<B>(
    bodies: &Bodies,
    request: Request<B>,
) -> Result<(Vec<u8>, Held), Failure>
where
    B: Body<Error: Into<Box<dyn Error + Send + Sync>>>,
{
    let read = bodies.read(request, MAX_BODY, BODY).await;
    read.map_err(|refused| match refused {
        Refused::TooLarge(_) => Failure::too_large(),
        Refused::TooLargeTogether => Failure::busy(&refused.to_string()),
        Refused::TooSlow(_) => Failure::too_slow(&refused.to_string()),
        // Its client gets no answer.
        _ => Failure::bad_request(refused.to_string()),
    })
}

/// Reads the question in the body of a request, on a blocking thread.
pub(super) async fn parse(body: Vec<u8>) -> Result<PlanRequest, Failure> {
    let parsed = compute("reading the request", move || read(&body)).await;
    parsed.map_err(|error| Failure::internal(&error))?
}

fn read(body: &[u8]) -> Result<PlanRequest, Failure> {
    let weight = weight(body);
    let left = MAX_VALUES.checked_sub(weight).ok_or_else(too_many_values)?;
    let asked: Result<PlanRequest, _> = serde_json::from_slice(body);
    let mut asked =
        asked.map_err(|error| Failure::bad_request(format!("invalid PlanRequest: {error}")))?;
    if asked.changes.len() <= MAX_CHANGES {
        asked.changes = with_manifests(asked.changes, left)?;
    }
    Ok(asked)
}

fn too_many_values() -> Failure {
    Failure::bad_request(format!(
        "the request has more than {MAX_VALUES} values with those of its manifests"
    ))
}

/// Replaces each change `manifest`, a text with YAML documents, by a change `apply` for each document. A browser has no parser of
/// YAML. All manifests share the limit of values: an alias repeats the values of its anchor.
fn with_manifests(changes: Vec<Intent>, values: usize) -> Result<Vec<Intent>, Failure> {
    let left = Rc::new(Cell::new((values, MAX_BODY)));
    let mut all = Vec::with_capacity(changes.len());
    for change in changes {
        let Intent::Manifest(text) = change else {
            all.push(change);
            continue;
        };
        let (values, bytes) = left.get();
        let options = serde_saphyr::options! {
            budget: serde_saphyr::budget! {
                max_nodes: values,
                max_documents: MAX_CHANGES,
                max_total_scalar_bytes: bytes,
                max_recorded_anchor_events: MAX_VALUES,
                max_recorded_anchor_bytes: MAX_BODY,
            },
        };
        let used = Rc::clone(&left);
        let options = options.with_budget_report(move |report| {
            let values = values.saturating_sub(report.nodes);
            used.set((values, bytes.saturating_sub(report.total_scalar_bytes)));
        });
        let documents = serde_saphyr::from_multiple_with_options::<Value>(&text, options);
        let documents = documents
            .map_err(|error| Failure::bad_request(format!("invalid manifest: {error}")))?;
        let objects = documents.into_iter().filter(|document| !document.is_null());
        all.extend(objects.map(Intent::Apply));
        if all.len() > MAX_CHANGES {
            let message = format!("at most {MAX_CHANGES} changes are allowed");
            return Err(Failure::invalid(message, Some("changes")));
        }
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
    settings.gates = Gates::of(|gate| options.feature_gates.is_on(gate));
    settings.cancel = Some(cancel);
    settings.engine = ENGINE.to_owned();
    settings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Conformance: PLAN-11
    #[cfg(target_os = "linux")]
    #[test]
    fn a_plan_is_made_at_the_least_priority_and_its_caller_keeps_its_own() {
        let priority = || rustix::process::getpriority_process(None).unwrap();
        let before = priority();
        assert_eq!(in_background(priority), 19);
        assert_eq!(priority(), before);
    }

    /// Reads a body; returns how much memory that takes besides it, and the changes or the refusal.
    fn measured(body: &str) -> (u64, Result<Vec<Intent>, String>) {
        let mut read = Ok(Vec::new());
        let memory = allocation_counter::measure(|| {
            let asked = super::read(body.as_bytes());
            read = asked.map(|it| it.changes).map_err(|it| format!("{it:?}"));
        });
        (memory.bytes_max, read)
    }

    #[test]
    fn a_request_of_many_small_values_is_refused_before_it_is_read() {
        let values = vec![r#"{"":0}"#; 598_000].join(",");
        let (memory, read) = measured(&format!(r#"{{"changes":[{{"apply":[{values}]}}]}}"#));
        let refusal = read.map(|changes| changes.len()).unwrap_err();
        assert!(refusal.contains("more than 250000 values"), "{refusal}");
        assert!(memory < 1 << 20, "{memory}");
    }

    /// Returns a manifest of 100,000 values in a few lines.
    fn expanding() -> String {
        let mut manifest = "kind: X\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..5 {
            let repeated = vec![format!("*a{}", level - 1); 10].join(", ");
            manifest += &format!("a{level}: &a{level} [{repeated}]\n");
        }
        manifest
    }

    #[test]
    fn all_manifests_of_a_request_have_one_budget() {
        let asked = |manifests| {
            let changes = vec![json!({ "manifest": expanding() }); manifests];
            json!({ "changes": changes }).to_string()
        };
        let (one, read) = measured(&asked(1));
        assert_eq!(read.map(|changes| changes.len()), Ok(1));
        let (many, read) = measured(&asked(20));
        let refusal = read.map(|changes| changes.len()).unwrap_err();
        assert!(refusal.contains("invalid manifest"), "{refusal}");
        assert!(many < 3 * one, "{many} for 20 of {one}");
    }

    #[test]
    fn each_document_of_a_manifest_is_a_change_and_their_number_is_limited() {
        let documents = "kind: A\n---\n---\nkind: B\n";
        let asked = json!({ "changes": [
            { "removeNode": "n" }, { "manifest": documents }, { "if": "spot-to-spot=true" },
        ] });
        let (_, read) = measured(&asked.to_string());
        assert_eq!(
            read,
            Ok(vec![
                Intent::RemoveNode("n".into()),
                Intent::Apply(json!({ "kind": "A" })),
                Intent::Apply(json!({ "kind": "B" })),
                Intent::If("spot-to-spot=true".into()),
            ])
        );
        let changes = vec![json!({ "manifest": "kind: A\n---\n".repeat(600) }); 2];
        let (_, read) = measured(&json!({ "changes": changes }).to_string());
        let refusal = read.map(|changes| changes.len()).unwrap_err();
        assert!(refusal.contains("at most 1000 changes"), "{refusal}");
    }
}
