//! Taints, and the matching of tolerations.
//!
//! UPSTREAM: pkg/scheduling/taints.go; the matching rules are those of Kubernetes' component helpers.

use std::fmt;

use karpenter_api::k8s_openapi::api::core::v1 as corev1;
use serde::{Deserialize, Serialize};

use crate::pod::Toleration;

/// The effect of a taint on pods that do not tolerate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Effect {
    /// New pods are not scheduled.
    NoSchedule,
    /// New pods are preferably not scheduled. Treated as NoSchedule until relaxation tolerates it.
    PreferNoSchedule,
    /// Pods are evicted.
    NoExecute,
}

impl Effect {
    /// Parses the name of an effect.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "NoSchedule" => Some(Self::NoSchedule),
            "PreferNoSchedule" => Some(Self::PreferNoSchedule),
            "NoExecute" => Some(Self::NoExecute),
            _ => None,
        }
    }

    /// Returns the name of the effect.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }
}

/// A taint on a node or in a template.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Taint {
    /// Key.
    pub key: String,
    /// Value; empty if absent.
    pub value: String,
    /// Effect; `None` if it is unknown, which Kubernetes treats as no effect.
    pub effect: Option<Effect>,
}

impl Taint {
    /// Parses a Kubernetes taint.
    pub fn parse(taint: &corev1::Taint) -> Self {
        Self {
            key: taint.key.clone(),
            value: taint.value.clone().unwrap_or_default(),
            effect: Effect::parse(&taint.effect),
        }
    }

    /// Reports whether one of `tolerations` matches.
    pub fn is_tolerated_by(&self, tolerations: &[Toleration]) -> bool {
        tolerations
            .iter()
            .any(|toleration| tolerates(toleration, self))
    }
}

impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.key)?;
        if !self.value.is_empty() {
            write!(f, "={}", self.value)?;
        }
        match self.effect {
            Some(effect) => write!(f, ":{}", effect.as_str()),
            None => Ok(()),
        }
    }
}

/// Returns the first taint that no toleration matches.
pub fn untolerated<'a>(taints: &'a [Taint], tolerations: &[Toleration]) -> Option<&'a Taint> {
    taints
        .iter()
        .find(|taint| !taint.is_tolerated_by(tolerations))
}

/// Reports whether `toleration` matches `taint`.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    if toleration.unknown_effect
        || toleration
            .effect
            .is_some_and(|effect| taint.effect != Some(effect))
    {
        return false;
    }
    if !toleration.key.is_empty() && toleration.key != taint.key {
        return false;
    }
    match toleration.operator.as_str() {
        "Exists" => true,
        "Equal" => {
            toleration.value == taint.value && (!toleration.key.is_empty() || taint.key.is_empty())
        }
        "Gt" => compare(toleration, taint).is_some_and(|ordering| ordering.is_gt()),
        "Lt" => compare(toleration, taint).is_some_and(|ordering| ordering.is_lt()),
        _ => false,
    }
}

/// Compares the taint's value with the toleration's, if both are integers.
fn compare(toleration: &Toleration, taint: &Taint) -> Option<std::cmp::Ordering> {
    Some(integer(&taint.value)?.cmp(&integer(&toleration.value)?))
}

fn integer(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let canonical = !digits.is_empty()
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && (digits == "0" || !digits.starts_with('0'));
    if canonical { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(key: &str, value: &str, effect: &str) -> Taint {
        Taint {
            key: key.into(),
            value: value.into(),
            effect: Effect::parse(effect),
        }
    }

    fn toleration(key: &str, operator: &str, value: &str, effect: &str) -> Toleration {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Toleration::parse(&corev1::Toleration {
            key: given(key),
            operator: given(operator),
            value: given(value),
            effect: given(effect),
            toleration_seconds: None,
        })
    }

    /// Conformance: SCH-220
    #[test]
    fn equal_needs_key_value_and_effect() {
        let foo = taint("foo", "bar", "NoSchedule");
        assert!(foo.is_tolerated_by(&[toleration("foo", "", "bar", "NoSchedule")]));
        assert!(foo.is_tolerated_by(&[toleration("foo", "Equal", "bar", "")]));
        assert!(!foo.is_tolerated_by(&[toleration("foo", "Equal", "other", "")]));
        assert!(!foo.is_tolerated_by(&[toleration("other", "Equal", "bar", "")]));
        assert!(!foo.is_tolerated_by(&[toleration("foo", "Equal", "bar", "NoExecute")]));
        assert!(!foo.is_tolerated_by(&[]));
    }

    /// Conformance: SCH-220
    #[test]
    fn exists_matches_any_value_and_without_a_key_everything() {
        let foo = taint("foo", "bar", "PreferNoSchedule");
        assert!(foo.is_tolerated_by(&[toleration("foo", "Exists", "", "")]));
        assert!(foo.is_tolerated_by(&[toleration("", "Exists", "", "")]));
        assert!(!foo.is_tolerated_by(&[toleration("", "Exists", "", "NoSchedule")]));
        assert!(!foo.is_tolerated_by(&[toleration("foo", "Sometimes", "", "")]));
    }

    /// Conformance: SCH-220
    #[test]
    fn numeric_operators_compare_canonical_integers() {
        let tier = taint("tier", "5", "NoSchedule");
        assert!(tier.is_tolerated_by(&[toleration("tier", "Gt", "4", "")]));
        assert!(!tier.is_tolerated_by(&[toleration("tier", "Gt", "5", "")]));
        assert!(tier.is_tolerated_by(&[toleration("tier", "Lt", "6", "")]));
        assert!(!tier.is_tolerated_by(&[toleration("tier", "Lt", "06", "")]));
        assert!(
            !taint("tier", "high", "NoSchedule")
                .is_tolerated_by(&[toleration("tier", "Gt", "1", "")])
        );
    }
}
