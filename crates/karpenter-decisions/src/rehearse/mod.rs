//! Rehearses a change: what nodes, dollars and evictions would do after it, over a time, before it is made.
//!
//! [`rehearse`] forks a snapshot, makes the changes, and lets a discrete-event stepper do what the controllers would do, in
//! virtual time: `schedule` for pending pods, `disruption::plan` for nodes, drains, launches. The rules that the controllers
//! follow are those of [`karpenter_core::lifecycle`]. The unchanged twin of the cluster runs beside it, so that only the
//! difference is blamed on the change.
//!
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
pub mod plan;
pub mod request;
mod stepper;
mod told;
mod workloads;

use std::fmt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use karpenter_core::cluster::Snapshot;
use karpenter_core::disruption::DisruptionRequest;
use karpenter_core::schedule::{Cancel, Policy};

use crate::API_VERSION;
use crate::bundle::Bundle;
use crate::change::InvalidChange;
use crate::explain::Observed;
use changes::Intended;
use plan::{Difference, Plan, Unchanged};
use request::{Compare, PlanRequest};
use stepper::{Outcome, Stepper};

/// The maximum number of events of a rehearsal.
pub const MAX_EVENTS: usize = 200_000;
/// The maximum number of runs of the engine of a rehearsal.
pub const MAX_RUNS: usize = 4_000;
/// The longest time that can be rehearsed.
pub const MAX_LENGTH: SignedDuration = SignedDuration::from_hours(24);
/// The time that is rehearsed unless the request says otherwise.
pub const LENGTH: SignedDuration = SignedDuration::from_hours(1);

/// Feature gates of the controllers; off by default, as with the controllers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gates {
    /// CapacityBuffer: the pods of capacity buffers are planned.
    pub capacity_buffers: bool,
    /// StaticCapacity: NodePools with `replicas` have that number of nodes.
    pub static_capacity: bool,
    /// NodeOverlay: instance types have NodeOverlays applied.
    pub node_overlays: bool,
}

/// The settings of the controllers, and the time at which the snapshot was taken.
#[derive(Clone)]
pub struct Settings {
    /// The time of the snapshot.
    pub now: Timestamp,
    /// The settings of scheduling passes.
    pub scheduling: Policy,
    /// The settings of disruption passes.
    pub disruption: DisruptionRequest,
    /// How long a batch of pending pods waits for another pod.
    pub batch_idle: Duration,
    /// How long a batch of pending pods waits at most.
    pub batch_max: Duration,
    /// The feature gates that a rehearsal follows beside those of the passes' settings.
    pub gates: Gates,
    /// Ends the rehearsal early; asked between runs of the engine and inside of them.
    pub cancel: Option<Cancel>,
    /// The version of the engine.
    pub engine: String,
}

impl Settings {
    /// Returns upstream's default settings at `now`.
    pub fn at(now: Timestamp) -> Self {
        Self {
            now,
            scheduling: Policy::at(now),
            disruption: DisruptionRequest::at(now),
            batch_idle: Duration::from_secs(1),
            batch_max: Duration::from_secs(10),
            gates: Gates::default(),
            cancel: None,
            engine: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Returns the settings of passes at `now`: those of a live controller, or of a bundle.
    pub fn of_passes(now: Timestamp, scheduling: Policy, disruption: DisruptionRequest) -> Self {
        let mut settings = Self::at(now);
        settings.scheduling = scheduling.with_now(now);
        settings.disruption = disruption;
        settings.disruption.policy = settings.scheduling.clone();
        settings.disruption.threads = 1;
        settings
    }

    /// Returns the settings of a bundle.
    pub fn of_bundle(bundle: &Bundle) -> Self {
        let captured = &bundle.settings;
        let policy = captured.policy().clone();
        let mut settings = Self::of_passes(bundle.at(), policy, captured.request());
        let option = |name: &str| {
            let seconds = captured
                .options
                .get(name)?
                .strip_suffix('s')?
                .parse()
                .ok()?;
            Duration::try_from_secs_f64(seconds).ok()
        };
        settings.batch_idle = option("batch-idle-duration").unwrap_or(settings.batch_idle);
        settings.batch_max = option("batch-max-duration").unwrap_or(settings.batch_max);
        let is_on = |gate: &str| captured.gates.get(gate).is_some_and(|is_on| *is_on);
        settings.gates = Gates {
            capacity_buffers: is_on("CapacityBuffer"),
            static_capacity: is_on("StaticCapacity"),
            node_overlays: is_on("NodeOverlay"),
        };
        settings.engine.clone_from(&bundle.engine);
        settings
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

/// Why a change cannot be rehearsed. Nothing is planned then.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidPlan {
    /// A field of the request or of a manifest is invalid.
    Field {
        /// The object or part of the request: `NodePool default`, `changes[2]`.
        of: String,
        /// The field, as `spec.disruption.budgets[0]`; empty if the whole is meant.
        field: String,
        /// What is wrong with it.
        why: String,
    },
    /// A kind of objects that is not rehearsed.
    UnknownKind {
        /// Group, version and kind.
        kind: String,
    },
    /// A change in the language of `--if` cannot be made.
    Change(InvalidChange),
}

impl InvalidPlan {
    pub(crate) fn field(of: &str, field: &str, why: impl Into<String>) -> Self {
        Self::Field {
            of: shortened(of),
            field: shortened(field),
            why: shortened(&why.into()),
        }
    }

    /// Returns the field that is invalid, if it is one.
    pub fn field_path(&self) -> Option<&str> {
        match self {
            Self::Field { field, .. } if !field.is_empty() => Some(field),
            _ => None,
        }
    }
}

/// Returns the beginning of a text of a user, for errors.
fn shortened(text: &str) -> String {
    text.chars().take(256).collect()
}

impl fmt::Display for InvalidPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let escaped = |text: &str| -> String {
            let is_shown = |c: char| !c.is_control();
            text.chars()
                .map(|c| if is_shown(c) { c } else { ' ' })
                .collect()
        };
        match self {
            Self::Field { of, field, why } if field.is_empty() => {
                write!(f, "invalid {}: {}", escaped(of), escaped(why))
            }
            Self::Field { of, field, why } => write!(
                f,
                "invalid {}: {}: {}",
                escaped(of),
                escaped(field),
                escaped(why)
            ),
            Self::UnknownKind { kind } => write!(
                f,
                "unknown kind `{}`: NodePool, NodeOverlay, PodDisruptionBudget, Deployment, StatefulSet, DaemonSet and CapacityBuffer can be rehearsed",
                escaped(kind)
            ),
            Self::Change(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for InvalidPlan {}

impl From<InvalidChange> for InvalidPlan {
    fn from(error: InvalidChange) -> Self {
        Self::Change(error)
    }
}

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
    let mut intended = Intended::of(snapshot, settings, request)?;
    let (told, is_nothing) = (std::mem::take(&mut intended.told), intended.is_nothing());
    let of_changes = std::mem::take(&mut intended.notes);
    let stepper = Stepper::new(snapshot, settings, request, start, length, Some(intended));
    let mut notes = stepper.notes();
    if start != settings.now {
        notes.push("The cluster is taken as it is now, not as it will be at that time.".into());
    }
    notes.extend(of_changes);
    let changed = stepper.run();
    let twin = (request.compare_with == Compare::Unchanged).then(|| {
        if is_nothing {
            changed.clone()
        } else {
            Stepper::new(snapshot, settings, request, start, length, None).run()
        }
    });
    Ok(answer(
        snapshot, settings, start, length, told, changed, twin, notes,
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
    let truncated = changed.truncated || twin.as_ref().is_some_and(|twin| twin.truncated);
    let difference = twin.as_ref().map(|twin| Difference::of(&changed, twin));
    let mut plan = Plan {
        api_version: API_VERSION.to_owned(),
        kind: "Plan".to_owned(),
        observed: Observed {
            at: settings.now,
            epoch: snapshot.epoch(),
            engine: settings.engine.clone(),
            truncated,
            exact: true,
        },
        start,
        seconds: length.as_secs(),
        changes,
        before: changed.before,
        after: changed.after,
        peak: changed.peak,
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
        approximate,
        digest: String::new(),
    };
    plan.seal();
    plan
}
