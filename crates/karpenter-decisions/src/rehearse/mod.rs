//! Rehearses a change: what nodes, dollars and evictions would do after it, over a time, before it is made.
//!
//! [`rehearse`] forks a snapshot, makes the changes, and lets a discrete-event stepper do what the controllers would do, in
//! virtual time: `schedule` for pending pods, `disruption::plan` for nodes, drains, launches. The rules that the controllers
//! follow are those of [`karpenter_core::lifecycle`]. The unchanged cluster is rehearsed beside it, so that the
//! answer has only what the change causes.
//!
//! - `versions` rehearses two versions of Karpenter in the same cluster, and names the rules that make the difference.
//! - [`request`]: the question; [`plan`]: the answer; [`agreement`]: how far an answer agrees with what happened.
//! - `admission` checks manifests as an API server with the CRDs does; `changes`, `workloads` and `buffers` make the changes.
//! - `stepper` holds the state and its events; its modules `provisioning`, `disruption`, `launch` and `drain` are the steps.
//!   Beside them, `evictions` recomputes PodDisruptionBudgets, and `timing` estimates how long nodes and pods take to start.
//!
//! The work is bounded by counts, not by time: [`MAX_EVENTS`] events and [`MAX_RUNS`] runs of the engine. An answer that was cut
//! short says so.

mod admission;
pub mod agreement;
mod buffers;
mod changes;
mod churn;
mod difference;
mod fields;
pub mod plan;
pub mod request;
mod settings;
mod stepper;
mod versions;
mod workloads;

use jiff::{SignedDuration, Timestamp};
use karpenter_core::cluster::Snapshot;
use rayon::prelude::*;

pub use settings::{
    Gates, InvalidPlan, LENGTH, MAX_EVENTS, MAX_LENGTH, MAX_RUNS, MAX_STATIC, Settings,
};

use crate::API_VERSION;
use crate::explain::Observed;
use changes::Intended;
use plan::{Plan, Unchanged};
use request::{Compare, PlanRequest, VersionPair};
use stepper::{Outcome, Stepper};
use versions::{As, First};

/// Rehearses the changes of a request on a copy of the snapshot.
///
/// ```
/// use jiff::Timestamp;
/// use karpenter_core::cluster::{Cluster, ClusterConfig};
/// use karpenter_decisions::rehearse::request::PlanRequest;
/// use karpenter_decisions::rehearse::{Settings, rehearse};
///
/// let snapshot = Cluster::new(ClusterConfig::default()).snapshot();
/// let plan = rehearse(&snapshot, &Settings::at(Timestamp::UNIX_EPOCH), &PlanRequest::default())?;
/// assert_eq!((plan.after.nodes, plan.differs()), (0, false));
/// # Ok::<(), karpenter_decisions::rehearse::InvalidPlan>(())
/// ```
///
/// # Errors
/// If the request or one of its manifests is invalid.
pub fn rehearse(
    snapshot: &Snapshot,
    settings: &Settings,
    request: &PlanRequest,
) -> Result<Plan, InvalidPlan> {
    let length = request.length()?;
    let start = request.at.unwrap_or(settings.now);
    if let Some(pair) = &request.versions {
        return rehearse_versions(snapshot, settings, request, (start, length), pair);
    }
    let mut intended = Intended::of(snapshot, settings, request)?;
    let (described, is_nothing) = (
        std::mem::take(&mut intended.described),
        intended.is_nothing(),
    );
    let of_changes = std::mem::take(&mut intended.notes);
    let stepper = Stepper::new(snapshot, settings, request, start, length, Some(intended));
    let mut notes = stepper.notes();
    if start != settings.now {
        notes.push("The cluster is taken as it is now, not as it will be at that time.".into());
    }
    notes.extend(of_changes);
    notes.extend(churn_note(request));
    let changed = stepper.run();
    let twin = (request.compare_with == Compare::Unchanged).then(|| {
        if is_nothing {
            changed.clone()
        } else {
            Stepper::new(snapshot, settings, request, start, length, None).run()
        }
    });
    Ok(answer(
        snapshot, settings, start, length, described, changed, twin, notes,
    ))
}

/// Rehearses the changes of a request with two versions of Karpenter.
fn rehearse_versions(
    snapshot: &Snapshot,
    settings: &Settings,
    request: &PlanRequest,
    (start, length): (Timestamp, SignedDuration),
    pair: &VersionPair,
) -> Result<Plan, InvalidPlan> {
    let seen = |version: &str| As::of(version, snapshot, settings);
    let (from, to) = (seen(&pair.from)?, seen(&pair.to)?);
    let (rules, alone): (Vec<_>, Vec<_>) = from.differences(&to).into_iter().unzip();
    type Rehearsed = (Outcome, Vec<String>, Vec<String>);
    let rehearsed = |of: &As, length| -> Result<Rehearsed, InvalidPlan> {
        let mut intended = Intended::of(&of.snapshot, &of.settings, request)?;
        let described = std::mem::take(&mut intended.described);
        let of_changes = std::mem::take(&mut intended.notes);
        let stepper = Stepper::new(
            &of.snapshot,
            &of.settings,
            request,
            start,
            length,
            Some(intended),
        );
        let mut notes = vec![versions::NOTE.to_owned()];
        notes.extend(stepper.notes());
        notes.extend(of_changes);
        notes.extend(churn_note(request));
        Ok((stepper.run(), described, notes))
    };
    let (before, after) = rayon::join(|| rehearsed(&from, length), || rehearsed(&to, length));
    let (twin, (changed, described, notes)) = (before?.0, after?);
    let first = First::of(&twin, &changed);
    let reach = match &first {
        _ if pair.each_rule => Some(length),
        Some(first) => Some(first.reach().unwrap_or(length).min(length)),
        None => None,
    };
    let run_alone = |reach| {
        let runs = alone.par_iter().map(|of| Ok(rehearsed(of, reach)?.0));
        runs.collect::<Result<Vec<Outcome>, InvalidPlan>>()
    };
    let alone = reach.map(run_alone).transpose()?.unwrap_or_default();
    let ended_by = alone.iter().filter_map(|outcome| outcome.ended_by).max();
    let versions = versions::compare(
        pair,
        [&from, &to],
        [&twin, &changed],
        length.as_secs(),
        first,
        rules,
        &alone,
    );
    let mut plan = answer(
        snapshot,
        settings,
        start,
        length,
        described,
        changed,
        Some(twin),
        notes,
    );
    plan.versions = Some(versions);
    plan.ended_by = plan.ended_by.max(ended_by);
    plan.observed.truncated = plan.ended_by.is_some();
    plan.seal();
    Ok(plan)
}

fn churn_note(request: &PlanRequest) -> Option<String> {
    let churn = request.churn.as_ref()?;
    let (share, period) = churn.split_once('/')?;
    Some(format!(
        "Churn is assumed: {share} of the replicas of all Deployments go and come back in each period of {period}, one pod at a time."
    ))
}

#[expect(clippy::too_many_arguments, reason = "the parts of one answer")]
fn answer(
    snapshot: &Snapshot,
    settings: &Settings,
    start: Timestamp,
    length: SignedDuration,
    changes: Vec<String>,
    changed: Outcome,
    twin: Option<Outcome>,
    approximate: Vec<String>,
) -> Plan {
    let of_twin = twin.as_ref().and_then(|twin| twin.ended_by);
    let ended_by = changed.ended_by.max(of_twin);
    let difference = twin
        .as_ref()
        .map(|twin| difference::between(&changed, twin));
    let mut plan = Plan {
        api_version: API_VERSION.to_owned(),
        kind: "Plan".to_owned(),
        observed: Observed {
            at: settings.now,
            epoch: snapshot.epoch(),
            engine: settings.engine.clone(),
            truncated: ended_by.is_some(),
        },
        start,
        seconds: length.as_secs(),
        changes,
        before: changed.before,
        after: changed.after,
        peak: changed.peak,
        launched: changed.launched,
        steps: changed.steps,
        evictions: changed.evictions,
        blocked: changed.blocked,
        budgets: changed.budgets,
        curve: changed.curve,
        unchanged: twin.map(|twin| Unchanged {
            after: twin.after,
            peak: twin.peak,
            steps: twin.steps.len(),
            evictions: twin.evictions.total,
            curve: twin.curve,
        }),
        difference,
        versions: None,
        ended_by,
        approximate,
        digest: String::new(),
    };
    plan.seal();
    plan
}
