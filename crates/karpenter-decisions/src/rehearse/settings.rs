//! The settings of a rehearsal, its bounds, and why there is none.

use std::fmt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use karpenter_core::behavior::Behavior;
use karpenter_core::disruption::DisruptionRequest;
use karpenter_core::lifecycle::static_pools;
use karpenter_core::schedule::{Cancel, Policy};

use crate::bundle::Bundle;
use crate::change::InvalidChange;

/// The maximum number of events of a rehearsal.
pub const MAX_EVENTS: usize = 1_000_000;
/// The maximum number of runs of the engine of a rehearsal.
pub const MAX_RUNS: usize = 40_000;
/// The most nodes that a static NodePool launches at once; with more the rehearsal ends.
pub const MAX_STATIC: u32 = 10_000;
/// The longest time that can be rehearsed.
pub const MAX_LENGTH: SignedDuration = SignedDuration::from_hours(24);
/// The time that is rehearsed unless the request says otherwise.
pub const LENGTH: SignedDuration = SignedDuration::from_hours(1);

/// Feature gates of the controllers; off by default, as with the controllers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gates {
    /// CapacityBuffer: the pods of capacity buffers are planned.
    pub capacity_buffers: bool,
    /// How static NodePools have their number of nodes.
    pub static_pools: static_pools::Settings,
    /// NodeOverlay: instance types have NodeOverlays applied.
    pub node_overlays: bool,
}

impl Gates {
    /// Returns the gates by their names in the options of the controllers.
    pub fn of(is_on: impl Fn(&str) -> bool) -> Self {
        Self {
            capacity_buffers: is_on("CapacityBuffer"),
            static_pools: static_pools::Settings::of(&is_on),
            node_overlays: is_on("NodeOverlay"),
        }
    }
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

    /// Returns the rules in which versions of Karpenter differ.
    pub(super) fn behavior(&self) -> Behavior {
        self.disruption.policy.behavior
    }

    pub(super) fn set_behavior(&mut self, behavior: Behavior) {
        self.scheduling.behavior = behavior;
        self.disruption.policy.behavior = behavior;
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
        settings.gates = Gates::of(|gate| captured.gates.get(gate).is_some_and(|is_on| *is_on));
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
