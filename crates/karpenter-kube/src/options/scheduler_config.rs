//! `--scheduler-config`: the part of kube-scheduler's configuration that Karpenter needs to make the same decisions.
//!
//! YAML or JSON. Only default topology spread constraints are supported; any other field is an error, because a start that
//! fails is better than plans that silently differ from kube-scheduler's.
//!
//! ```yaml
//! podTopologySpread:
//!   defaultConstraints:
//!     - { maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: ScheduleAnyway }
//! ```
//!
//! UPSTREAM: pkg/operator/options/scheduler_config.go

use std::collections::BTreeSet;

use karpenter_api::validation::qualified_name;
use karpenter_core::schedule::DefaultSpread;
use serde::Deserialize;

/// The parsed configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Topology spread constraints of pods that have none of their own.
    pub default_spread: Vec<DefaultSpread>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct File {
    pod_topology_spread: PodTopologySpread,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct PodTopologySpread {
    default_constraints: Vec<Constraint>,
}

/// `labelSelector` and `matchLabelKeys` are not supported: a default applies to pods of any labels.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Constraint {
    max_skew: i32,
    topology_key: String,
    when_unsatisfiable: WhenUnsatisfiable,
    #[serde(default)]
    min_domains: Option<i32>,
    #[serde(default = "honor")]
    node_affinity_policy: Policy,
    #[serde(default = "ignore")]
    node_taints_policy: Policy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
enum WhenUnsatisfiable {
    DoNotSchedule,
    ScheduleAnyway,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum Policy {
    Honor,
    Ignore,
}

fn honor() -> Policy {
    Policy::Honor
}

fn ignore() -> Policy {
    Policy::Ignore
}

/// Parses the option's value; an empty one configures nothing.
///
/// # Errors
/// A sentence about the first invalid field.
pub fn parse(text: &str) -> Result<SchedulerConfig, String> {
    if text.trim().is_empty() {
        return Ok(SchedulerConfig::default());
    }
    let file: File = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    let mut seen = BTreeSet::new();
    let mut default_spread = Vec::new();
    for constraint in file.pod_topology_spread.default_constraints {
        let key = &constraint.topology_key;
        if constraint.max_skew <= 0 {
            return Err(format!("maxSkew of `{key}` must be greater than zero"));
        }
        if let Err(problem) = qualified_name(key) {
            return Err(format!(
                "topologyKey `{key}` is not a qualified name: {problem}"
            ));
        }
        if constraint.min_domains.is_some_and(|domains| domains <= 0) {
            return Err(format!("minDomains of `{key}` must be greater than zero"));
        }
        if !seen.insert((key.clone(), constraint.when_unsatisfiable)) {
            return Err(format!(
                "two constraints have the topologyKey `{key}` and the same whenUnsatisfiable"
            ));
        }
        default_spread.push(DefaultSpread {
            max_skew: constraint.max_skew,
            min_domains: constraint.min_domains,
            hard: constraint.when_unsatisfiable == WhenUnsatisfiable::DoNotSchedule,
            honor_affinity: constraint.node_affinity_policy == Policy::Honor,
            honor_taints: constraint.node_taints_policy == Policy::Honor,
            topology_key: constraint.topology_key,
        });
    }
    Ok(SchedulerConfig { default_spread })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: API-153
    #[test]
    fn constraints_are_read_from_yaml_and_json() {
        let yaml = "
podTopologySpread:
  defaultConstraints:
  - maxSkew: 2
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: DoNotSchedule
    minDomains: 3
    nodeTaintsPolicy: Honor
  - {maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: ScheduleAnyway}
";
        let json = r#"{"podTopologySpread": {"defaultConstraints": [
            {"maxSkew": 2, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule", "minDomains": 3, "nodeTaintsPolicy": "Honor"},
            {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}]}}"#;
        let spread = |max_skew, hard, min_domains, honor_taints| DefaultSpread {
            topology_key: "topology.kubernetes.io/zone".into(),
            max_skew,
            min_domains,
            hard,
            honor_affinity: true,
            honor_taints,
        };
        let expected = SchedulerConfig {
            default_spread: vec![
                spread(2, true, Some(3), true),
                spread(1, false, None, false),
            ],
        };
        assert_eq!(parse(yaml), Ok(expected.clone()));
        assert_eq!(parse(json), Ok(expected));
        assert_eq!(parse(" "), Ok(SchedulerConfig::default()));
    }

    /// Conformance: API-153
    #[test]
    fn configurations_that_kube_scheduler_rejects_are_errors() {
        let one = |constraint: &str| {
            parse(&format!(
                "podTopologySpread: {{defaultConstraints: [{constraint}]}}"
            ))
        };
        for bad in [
            "{maxSkew: 0, topologyKey: a, whenUnsatisfiable: DoNotSchedule}",
            "{maxSkew: 1, topologyKey: a/b/c, whenUnsatisfiable: DoNotSchedule}",
            "{maxSkew: 1, topologyKey: a, whenUnsatisfiable: Sometimes}",
            "{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule, labelSelector: {}}",
            "{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule, matchLabelKeys: [b]}",
            "{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule, minDomains: 0}",
            "{topologyKey: a, whenUnsatisfiable: DoNotSchedule}",
            "{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule}, {maxSkew: 2, topologyKey: a, whenUnsatisfiable: DoNotSchedule}",
        ] {
            assert!(one(bad).is_err(), "{bad}");
        }
        assert!(parse("profiles: []").is_err());
        assert!(parse("[").is_err());
    }
}
