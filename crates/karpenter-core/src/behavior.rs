//! The rules in which versions of Karpenter differ.

use karpenter_api::labels::annotations::CONSOLIDATE_AFTER_APPLIES_TO_DESTINATIONS;
use karpenter_api::v1::NodePool;
use serde::{Deserialize, Serialize};

/// The rules in which versions of Karpenter decide differently, one field for each. Each is asked in one place of the engine.
///
/// The default is what this version does. Upstream's versions were read in the sources of the releases 1.0.0, 1.6.0, 1.13.0, 1.14.1
/// and 1.15.0 of `sigs.k8s.io/karpenter`; `head` is 1.15.0. Files are those of `pkg/controllers`, numbers without a repository
/// those of `kubernetes-sigs/karpenter`.
///
/// ```
/// use karpenter_core::behavior::Behavior;
///
/// let (old, new) = (Behavior::of("karpenter-1.13").unwrap(), Behavior::of("karpenter-1.14").unwrap());
/// let names: Vec<&str> = old.differences(new).map(|rule| rule.name).collect();
/// assert_eq!(names, ["consolidate-after-applies-to-destinations", "candidates-by-savings"]);
/// assert_eq!(Behavior::of("this"), Some(Behavior::default()));
/// assert_eq!(Behavior::of("karpenter-0.9"), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Behavior {
    /// Consolidation moves no pods to nodes whose pods changed within `consolidateAfter`. Otherwise `consolidateAfter` only keeps
    /// such nodes from being consolidated themselves.
    ///
    /// Since 1.14: `provisioning/scheduling/scheduler.go`, `isUnderConsolidateAfter`, pull request 3006; issue 3225 asks for the
    /// earlier rule. An [annotation](CONSOLIDATE_AFTER_APPLIES_TO_DESTINATIONS) of a NodePool overrides it.
    pub consolidate_after_applies_to_destinations: bool,
    /// Consolidation and emptiness consider the nodes with the highest price per disruption cost first. Otherwise those with the lowest
    /// disruption cost, which falls with the remaining lifetime.
    ///
    /// Since 1.14: `disruption/consolidation.go`, `sortCandidates`, pull request 2962.
    pub candidates_by_savings: bool,
    /// Empty nodes are deleted before drifted nodes are replaced. Otherwise after them.
    ///
    /// 1.6 and later, not 1.0: `disruption/controller.go`, pull request 2180.
    pub emptiness_before_drift: bool,
    /// Single-node consolidation takes a node of each NodePool in turn. Otherwise it takes nodes of all NodePools in one order.
    ///
    /// 1.6 and later, not 1.0: `disruption/singlenodeconsolidation.go`, `shuffleCandidates`, pull request 2035.
    pub node_pools_take_turns: bool,
    /// Nothing else is disrupted in the 15 seconds until a proposal is validated; if it is invalid then, the pass goes on with the next
    /// method. Otherwise passes go on beside it, and the next one begins with the first method.
    ///
    /// All versions of upstream, not ours: `ComputeCommands` of `disruption/{emptiness,multinodeconsolidation,singlenodeconsolidation}.go`
    /// waits in `disruption/validation.go`. Issue 651 is about this wait; pull request 2724 would have shortened it.
    pub passes_wait_for_validation: bool,
    /// A pass replaces as many drifted nodes, or consolidates as many single nodes, as budgets allow. Otherwise one.
    ///
    /// Ours; no version of upstream: `disruption/{drift,singlenodeconsolidation}.go`. Issue 1350 asks for it.
    pub several_commands_per_pass: bool,
    /// Multi-node consolidation considers any set of nodes. Otherwise only the first N in order, up to 101.
    ///
    /// Ours; no version of upstream: `disruption/multinodeconsolidation.go`, `firstNConsolidationOption`. Issue 2434 asks for it.
    pub multi_node_considers_any_set: bool,
    /// A node that consolidation launched is not consolidated for ten minutes, unless pods leave it.
    ///
    /// Ours; no version of upstream: `disruption/consolidation.go`, `ShouldDisrupt`. Issues 1019 and 1851 are about nodes that are
    /// consolidated again and again.
    pub replacements_are_kept_ten_minutes: bool,
}

/// A rule of [`Behavior`].
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The name of the field, with hyphens.
    pub name: &'static str,
    field: fn(&mut Behavior) -> &mut bool,
}

/// All rules, in the order in which a pass asks them.
pub const RULES: [Rule; 8] = [
    Rule {
        name: "consolidate-after-applies-to-destinations",
        field: |behavior| &mut behavior.consolidate_after_applies_to_destinations,
    },
    Rule {
        name: "candidates-by-savings",
        field: |behavior| &mut behavior.candidates_by_savings,
    },
    Rule {
        name: "emptiness-before-drift",
        field: |behavior| &mut behavior.emptiness_before_drift,
    },
    Rule {
        name: "node-pools-take-turns",
        field: |behavior| &mut behavior.node_pools_take_turns,
    },
    Rule {
        name: "passes-wait-for-validation",
        field: |behavior| &mut behavior.passes_wait_for_validation,
    },
    Rule {
        name: "several-commands-per-pass",
        field: |behavior| &mut behavior.several_commands_per_pass,
    },
    Rule {
        name: "multi-node-considers-any-set",
        field: |behavior| &mut behavior.multi_node_considers_any_set,
    },
    Rule {
        name: "replacements-are-kept-ten-minutes",
        field: |behavior| &mut behavior.replacements_are_kept_ten_minutes,
    },
];

impl Rule {
    /// Reports whether the rule holds.
    pub fn holds(&self, mut behavior: Behavior) -> bool {
        *(self.field)(&mut behavior)
    }

    /// Returns the behavior with this rule the other way.
    #[must_use]
    pub fn switched(&self, mut behavior: Behavior) -> Behavior {
        let holds = (self.field)(&mut behavior);
        *holds = !*holds;
        behavior
    }
}

impl Default for Behavior {
    fn default() -> Self {
        Self {
            passes_wait_for_validation: false,
            several_commands_per_pass: true,
            multi_node_considers_any_set: true,
            replacements_are_kept_ten_minutes: true,
            ..Self::V1_14
        }
    }
}

impl Behavior {
    /// The names of the versions that are known, oldest first; `this` is this version.
    pub const VERSIONS: [&str; 6] = [
        "karpenter-1.0",
        "karpenter-1.6",
        "karpenter-1.13",
        "karpenter-1.14",
        "head",
        "this",
    ];

    const V1_14: Self = Self {
        consolidate_after_applies_to_destinations: true,
        candidates_by_savings: true,
        ..Self::V1_6
    };

    const V1_6: Self = Self {
        emptiness_before_drift: true,
        node_pools_take_turns: true,
        ..Self::V1_0
    };

    const V1_0: Self = Self {
        consolidate_after_applies_to_destinations: false,
        candidates_by_savings: false,
        emptiness_before_drift: false,
        node_pools_take_turns: false,
        passes_wait_for_validation: true,
        several_commands_per_pass: false,
        multi_node_considers_any_set: false,
        replacements_are_kept_ten_minutes: false,
    };

    /// Returns the behavior of a version by its name; `None` if it is not one of [`Self::VERSIONS`].
    pub fn of(version: &str) -> Option<Self> {
        Some(match version {
            "karpenter-1.0" => Self::V1_0,
            "karpenter-1.6" | "karpenter-1.13" => Self::V1_6,
            "karpenter-1.14" | "head" => Self::V1_14,
            "this" => Self::default(),
            _ => return None,
        })
    }

    /// Iterates over the rules in which another behavior differs.
    pub fn differences(self, other: Self) -> impl Iterator<Item = &'static Rule> {
        let differs = move |rule: &&Rule| rule.holds(self) != rule.holds(other);
        RULES.iter().filter(differs)
    }

    /// Reports whether consolidation moves no pods to the nodes of a NodePool that changed within `consolidateAfter`.
    pub(crate) fn keeps_from_destinations(self, pool: &NodePool) -> bool {
        let of_pool = destinations_annotation(pool).and_then(Result::ok);
        of_pool.unwrap_or(self.consolidate_after_applies_to_destinations)
    }

    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Returns what a NodePool's annotation says about
/// [`consolidate_after_applies_to_destinations`](Behavior::consolidate_after_applies_to_destinations), or its value if that is neither
/// `true` nor `false`, which counts as absent.
pub fn destinations_annotation(pool: &NodePool) -> Option<Result<bool, &str>> {
    let annotations = pool.metadata.annotations.as_ref()?;
    let value = annotations.get(CONSOLIDATE_AFTER_APPLIES_TO_DESTINATIONS)?;
    Some(value.parse().map_err(|_| value.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_a_rule_by_its_name_and_every_version_has_a_behavior() {
        let fields = serde_json::to_value(Behavior::default()).unwrap();
        for rule in &RULES {
            let other = rule.switched(Behavior::default());
            let changed: Vec<&str> = other
                .differences(Behavior::default())
                .map(|it| it.name)
                .collect();
            assert_eq!(changed, [rule.name]);
            let field = rule.name.split('-').enumerate().map(|(at, word)| match at {
                0 => word.to_owned(),
                _ => word[..1].to_uppercase() + &word[1..],
            });
            let field: String = field.collect();
            let value = serde_json::to_value(other).unwrap();
            assert_ne!(value[&field], fields[&field], "{field}");
        }
        assert_eq!(fields.as_object().map(|it| it.len()), Some(RULES.len()));
        for version in Behavior::VERSIONS {
            assert!(Behavior::of(version).is_some(), "{version}");
        }
    }
}
