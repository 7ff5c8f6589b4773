//! Changes to a question: what if a PodDisruptionBudget were gone, a limit higher, a taint tolerated.
//!
//! A [`Change`] is written as one `--if` of `kubectl karpenter why`; [`std::fmt::Display`] returns that text. Changes are made to
//! a copy of the snapshot, so that everything else shares its data.

mod apply;

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use karpenter_api::duration::NillableDuration;
use karpenter_api::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karpenter_api::v1::{Budget, ConsolidationPolicy, NodePool};
use karpenter_core::quantity::Quantity;
use karpenter_core::taints::{Effect, Taint};

pub(crate) use apply::without_annotation;
pub use apply::{Changed, apply};

/// The longest text of a change in bytes; a NodePool is the only long one.
pub const MAX_LENGTH: usize = 16 * 1024;
/// The largest number of changes of a question.
pub const MAX_CHANGES: usize = 32;

/// A change to a question.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Change {
    /// `budget.<pool>=<number or percentage>`: one budget for every reason, always active.
    Budget(String, String),
    /// `policy.<pool>=<consolidationPolicy>`.
    Policy(String, ConsolidationPolicy),
    /// `consolidate-after.<pool>=<duration or Never>`.
    ConsolidateAfter(String, NillableDuration),
    /// `limits.<pool>.<resource>=<quantity>`: the NodePools that exist decide where the name of the pool ends.
    Limit(String, String),
    /// `without-pdb=<namespace>/<name>`.
    WithoutPdb(String, String),
    /// `without-annotation=<namespace>/<pod>`: without the annotations that keep the pod from being disrupted.
    WithoutPodAnnotation(String, String),
    /// `without-annotation=<node>`: without the annotations that keep the node from being disrupted.
    WithoutNodeAnnotation(String),
    /// `without-pause=<pool>`.
    WithoutPause(String),
    /// `without-nomination=<node>`: no pending pod is nominated to the node.
    WithoutNomination(String),
    /// `consolidatable=<node>`: `consolidateAfter` has passed since the node's pods changed.
    Consolidatable(String),
    /// `spot-to-spot=true`: spot nodes may be replaced by spot nodes.
    SpotToSpot,
    /// `tolerate=<key>[=<value>]:<effect>`: the pod tolerates the taint.
    Tolerate(Taint),
    /// `drop=<id>`: the pod's question without a constraint, by the id in the explanation.
    Drop(String),
    /// `pool=<NodePool as JSON>`: a NodePool that is added or replaced.
    Pool(Box<NodePool>),
    /// A PodDisruptionBudget that is replaced. What helps against one is run with it; `--if` has no text for it.
    Pdb(Box<PodDisruptionBudget>),
    /// `offer=<type>/<zone>/<capacity type>`: the offering is available.
    Offer {
        instance_type: String,
        zone: String,
        /// `spot`, `on-demand` or `reserved`.
        capacity_type: String,
    },
    /// `now=<RFC 3339 time>`: the time at which budgets and pauses are read.
    Now(Timestamp),
}

/// Why a change cannot be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidChange {
    /// The text is not a change.
    Text {
        /// The beginning of the text.
        text: String,
        expected: &'static str,
    },
    /// The object does not exist.
    NotFound {
        /// `NodePool`, `Pod` …
        kind: &'static str,
        name: String,
    },
    /// The change does not apply to the object that is asked about.
    NotApplicable {
        change: String,
        /// `pods` or `nodes`.
        only: &'static str,
    },
    /// There are more than [`MAX_CHANGES`].
    TooMany,
}

impl fmt::Display for InvalidChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text { text, expected } => {
                write!(f, "invalid change `{}`: {expected}", text.escape_default())
            }
            Self::NotFound { kind, name } => {
                write!(f, "{kind} {} does not exist", name.escape_default())
            }
            Self::NotApplicable { change, only } => write!(
                f,
                "invalid change `{}`: it applies to {only} only",
                change.escape_default()
            ),
            Self::TooMany => write!(f, "at most {MAX_CHANGES} changes are allowed"),
        }
    }
}

impl std::error::Error for InvalidChange {}

/// The forms of a change, for errors.
const FORMS: &str = "must be budget.<pool>=, policy.<pool>=, consolidate-after.<pool>=, limits.<pool>.<resource>=, without-pdb=, \
without-annotation=, without-pause=, without-nomination=, consolidatable=, spot-to-spot=, tolerate=, drop=, pool=, offer= or now=";

impl FromStr for Change {
    type Err = InvalidChange;

    fn from_str(text: &str) -> Result<Self, InvalidChange> {
        let invalid = |expected| InvalidChange::Text {
            text: text.chars().take(64).collect(),
            expected,
        };
        if text.len() > MAX_LENGTH {
            return Err(invalid("it is longer than 16 KiB"));
        }
        let (key, value) = text.split_once('=').ok_or_else(|| invalid(FORMS))?;
        if key.is_empty() || value.is_empty() {
            return Err(invalid(FORMS));
        }
        let owned = str::to_owned;
        let namespaced = || {
            let (namespace, name) = value.split_once('/')?;
            (!namespace.is_empty() && !name.is_empty() && !name.contains('/'))
                .then(|| (owned(namespace), owned(name)))
        };
        if let Some(pool) = key.strip_prefix("budget.") {
            let budget = Budget {
                nodes: owned(value),
                ..Budget::default()
            };
            let checked = budget.value(0);
            checked.map_err(|_| invalid("must be a number of nodes or a percentage"))?;
            return Ok(Self::Budget(owned(pool), budget.nodes));
        }
        if let Some(pool) = key.strip_prefix("policy.") {
            let policy = [
                ConsolidationPolicy::WhenEmpty,
                ConsolidationPolicy::WhenEmptyOrUnderutilized,
                ConsolidationPolicy::Balanced,
            ]
            .into_iter()
            .find(|policy| policy.as_str() == value);
            let expected = "must be WhenEmpty, WhenEmptyOrUnderutilized or Balanced";
            let policy = policy.ok_or_else(|| invalid(expected))?;
            return Ok(Self::Policy(owned(pool), policy));
        }
        if let Some(pool) = key.strip_prefix("consolidate-after.") {
            let after = value.parse();
            let after = after.map_err(|_| invalid("must be a duration or Never"))?;
            return Ok(Self::ConsolidateAfter(owned(pool), after));
        }
        if let Some(target) = key.strip_prefix("limits.") {
            let quantity = value.parse::<Quantity>();
            quantity.map_err(|_| invalid("must be a quantity"))?;
            if !target.contains('.') {
                return Err(invalid("must be limits.<pool>.<resource>=<quantity>"));
            }
            return Ok(Self::Limit(owned(target), owned(value)));
        }
        Ok(match key {
            "without-pdb" => {
                let (namespace, name) =
                    namespaced().ok_or_else(|| invalid("must be <namespace>/<name>"))?;
                Self::WithoutPdb(namespace, name)
            }
            "without-annotation" => match value.contains('/') {
                false => Self::WithoutNodeAnnotation(owned(value)),
                true => {
                    let (namespace, name) = namespaced()
                        .ok_or_else(|| invalid("must be <namespace>/<pod> or a node"))?;
                    Self::WithoutPodAnnotation(namespace, name)
                }
            },
            "without-pause" => Self::WithoutPause(owned(value)),
            "without-nomination" => Self::WithoutNomination(owned(value)),
            "consolidatable" => Self::Consolidatable(owned(value)),
            "spot-to-spot" if value == "true" => Self::SpotToSpot,
            "spot-to-spot" => return Err(invalid("must be true")),
            "tolerate" => Self::Tolerate(taint(value).ok_or_else(|| {
                invalid("must be <key>[=<value>]:NoSchedule, :PreferNoSchedule or :NoExecute")
            })?),
            "drop" => Self::Drop(owned(value)),
            "pool" => {
                let pool: NodePool = serde_json::from_str(value)
                    .map_err(|_| invalid("must be a NodePool as JSON"))?;
                if pool.metadata.name.as_deref().unwrap_or_default().is_empty() {
                    return Err(invalid("the NodePool has no name"));
                }
                Self::Pool(Box::new(pool))
            }
            "offer" => match value.split('/').collect::<Vec<_>>()[..] {
                [instance_type, zone, capacity_type]
                    if ![instance_type, zone, capacity_type].contains(&"") =>
                {
                    Self::Offer {
                        instance_type: owned(instance_type),
                        zone: owned(zone),
                        capacity_type: owned(capacity_type),
                    }
                }
                _ => return Err(invalid("must be <type>/<zone>/<capacity type>")),
            },
            "now" => {
                let now = value.parse();
                Self::Now(now.map_err(|_| invalid("must be a time by RFC 3339"))?)
            }
            _ => return Err(invalid(FORMS)),
        })
    }
}

fn taint(text: &str) -> Option<Taint> {
    let (rest, effect) = text.rsplit_once(':')?;
    let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
    let effect = Effect::parse(effect)?;
    (!key.is_empty()).then(|| Taint {
        key: key.to_owned(),
        value: value.to_owned(),
        effect: Some(effect),
    })
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Budget(pool, nodes) => write!(f, "budget.{pool}={nodes}"),
            Self::Policy(pool, policy) => write!(f, "policy.{pool}={}", policy.as_str()),
            Self::ConsolidateAfter(pool, after) => write!(f, "consolidate-after.{pool}={after}"),
            Self::Limit(target, amount) => write!(f, "limits.{target}={amount}"),
            Self::WithoutPdb(namespace, name) => write!(f, "without-pdb={namespace}/{name}"),
            Self::WithoutPodAnnotation(namespace, name) => {
                write!(f, "without-annotation={namespace}/{name}")
            }
            Self::WithoutNodeAnnotation(node) => write!(f, "without-annotation={node}"),
            Self::WithoutPause(pool) => write!(f, "without-pause={pool}"),
            Self::WithoutNomination(node) => write!(f, "without-nomination={node}"),
            Self::Consolidatable(node) => write!(f, "consolidatable={node}"),
            Self::SpotToSpot => f.write_str("spot-to-spot=true"),
            Self::Tolerate(taint) => write!(f, "tolerate={taint}"),
            Self::Drop(id) => write!(f, "drop={id}"),
            Self::Pool(pool) => {
                let json = serde_json::to_string(pool).map_err(|_| fmt::Error)?;
                write!(f, "pool={json}")
            }
            Self::Pdb(budget) => {
                let (meta, none) = (&budget.metadata, String::new());
                let namespace = meta.namespace.as_ref().unwrap_or(&none);
                write!(f, "pdb={namespace}/{}", meta.name.as_ref().unwrap_or(&none))
            }
            Self::Offer {
                instance_type,
                zone,
                capacity_type,
            } => write!(f, "offer={instance_type}/{zone}/{capacity_type}"),
            Self::Now(now) => write!(f, "now={now}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_read_from_the_text_that_it_writes() {
        for text in [
            "budget.default=20%",
            "budget.a.b=3",
            "policy.default=Balanced",
            "consolidate-after.default=Never",
            "consolidate-after.default=30s",
            "limits.default.nvidia.com/gpu=8",
            "without-pdb=shop/payments",
            "without-annotation=shop/web-0",
            "without-annotation=ip-10-0-3-7",
            "without-pause=default",
            "without-nomination=n1",
            "consolidatable=n1",
            "spot-to-spot=true",
            "tolerate=team=search:NoSchedule",
            "tolerate=gpu:NoExecute",
            "drop=pool[default].limits[cpu]",
            "drop=pod.toleration[team=search:NoSchedule]",
            "offer=m5.large/eu-west-1a/spot",
            "now=2026-11-24T06:00:00Z",
        ] {
            let change: Change = text.parse().unwrap();
            assert_eq!(change.to_string(), text);
        }
    }

    #[test]
    fn what_is_not_a_change_is_one_line_that_says_what_is_expected() {
        for (text, expected) in [
            ("budget.default=lots", "a number of nodes or a percentage"),
            (
                "policy.default=Never",
                "WhenEmpty, WhenEmptyOrUnderutilized or Balanced",
            ),
            ("limits.cpu=4", "limits.<pool>.<resource>=<quantity>"),
            ("limits.default.cpu=many", "a quantity"),
            ("without-pdb=payments", "<namespace>/<name>"),
            (
                "tolerate=team",
                "<key>[=<value>]:NoSchedule, :PreferNoSchedule or :NoExecute",
            ),
            ("offer=m5.large", "<type>/<zone>/<capacity type>"),
            ("now=tomorrow", "a time by RFC 3339"),
            ("pool={}", "a NodePool as JSON"),
            ("spot-to-spot=no", "true"),
        ] {
            let error = text.parse::<Change>().unwrap_err().to_string();
            assert_eq!(
                error,
                format!("invalid change `{text}`: must be {expected}")
            );
        }
        let hostile = "\u{1b}[31m=\n";
        for text in [
            "",
            "budget",
            "budget.default",
            "=",
            "x=y",
            "budget.default=",
            hostile,
        ] {
            let error = text.parse::<Change>().unwrap_err().to_string();
            let expected = "must be budget.<pool>=, policy.<pool>=";
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains(['\n', '\u{1b}']), "{error:?}");
        }
    }
}
