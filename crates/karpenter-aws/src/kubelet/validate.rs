//! Validation rules beyond the schema, and fields that a family does not support.
//!
//! UPSTREAM: pkg/apis/v1/kubeletconfiguration_validation.go

use std::collections::BTreeMap;

use karpenter_core::quantity::Quantity;
use serde_json::{Map, Value};

use super::{Kubelet, MaxPods, schema};
use crate::api::AmiFamily;

const SIGNALS: [&str; 6] = [
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "pid.available",
];
const RESERVABLE: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pid"];

/// Returns everything that is invalid in the settings for any family; empty if a kubelet can start with them.
pub fn violations(object: Option<&Map<String, Value>>) -> Vec<String> {
    let Some(object) = object else {
        return Vec::new();
    };
    let mut problems = Vec::new();
    schema::misfits(object, &mut problems);
    if object.contains_key("registerWithTaints") {
        problems.push("registerWithTaints: taints are set through NodePools".to_owned());
    }
    // The schema has already reported fields of the wrong type.
    let kubelet = readable(object);
    for (field, thresholds) in [
        ("evictionHard", &kubelet.eviction_hard),
        ("evictionSoft", &kubelet.eviction_soft),
        ("evictionMinimumReclaim", &kubelet.eviction_minimum_reclaim),
    ] {
        signals(field, thresholds, &mut problems);
        for (signal, threshold) in thresholds {
            if !is_threshold(threshold) {
                problems.push(format!("{field}.{signal}: `{threshold}` is neither a percentage from 0% to 100% nor a quantity of at least 0"));
            }
        }
    }
    signals(
        "evictionSoftGracePeriod",
        &kubelet.eviction_soft_grace_period,
        &mut problems,
    );
    for (signal, period) in &kubelet.eviction_soft_grace_period {
        if !karpenter_api::duration::parse(period).is_ok_and(|period| !period.is_negative()) {
            problems.push(format!(
                "evictionSoftGracePeriod.{signal}: `{period}` is not a duration of at least 0"
            ));
        }
    }
    for signal in kubelet.eviction_soft.keys() {
        if !kubelet.eviction_soft_grace_period.contains_key(signal) {
            problems.push(format!(
                "evictionSoft.{signal} has no matching evictionSoftGracePeriod"
            ));
        }
    }
    for signal in kubelet.eviction_soft_grace_period.keys() {
        if !kubelet.eviction_soft.contains_key(signal) {
            problems.push(format!(
                "evictionSoftGracePeriod.{signal} has no matching evictionSoft"
            ));
        }
    }
    for (field, reserved) in [
        ("kubeReserved", &kubelet.kube_reserved),
        ("systemReserved", &kubelet.system_reserved),
    ] {
        for (key, value) in reserved {
            if !RESERVABLE.contains(&key.as_str()) {
                problems.push(format!(
                    "{field}.{key}: valid keys are {}",
                    RESERVABLE.join(", ")
                ));
            }
            if value.starts_with('-') {
                problems.push(format!("{field}.{key}: `{value}` cannot be negative"));
            }
        }
    }
    let (high, low) = (
        kubelet.image_gc_high_threshold_percent,
        kubelet.image_gc_low_threshold_percent,
    );
    for (field, percent) in [
        ("imageGCHighThresholdPercent", high),
        ("imageGCLowThresholdPercent", low),
    ] {
        if percent.is_some_and(|percent| !(0..=100).contains(&percent)) {
            problems.push(format!("{field} must be from 0 to 100"));
        }
    }
    if high.zip(low).is_some_and(|(high, low)| high <= low) {
        problems.push(
            "imageGCHighThresholdPercent must be greater than imageGCLowThresholdPercent"
                .to_owned(),
        );
    }
    let max_pods = match kubelet.max_pods {
        Some(MaxPods::Number(number)) => Some(number),
        _ => None,
    };
    for (field, number) in [
        ("maxPods", max_pods),
        ("podsPerCore", kubelet.pods_per_core),
        (
            "evictionMaxPodGracePeriod",
            kubelet.eviction_max_pod_grace_period,
        ),
    ] {
        if number.is_some_and(|number| number < 0) {
            problems.push(format!("{field} cannot be negative"));
        }
    }
    problems
}

/// Parses the settings without the fields that cannot be parsed.
fn readable(object: &Map<String, Value>) -> Kubelet {
    let fits = |(name, value): &(&String, &Value)| {
        let alone = Map::from_iter([((*name).clone(), (*value).clone())]);
        Kubelet::parse(Some(&alone)).is_ok()
    };
    let readable: Map<String, Value> = object
        .iter()
        .filter(fits)
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    Kubelet::parse(Some(&readable)).unwrap_or_default()
}

fn signals(field: &str, thresholds: &BTreeMap<String, String>, problems: &mut Vec<String>) {
    for signal in thresholds.keys() {
        if !SIGNALS.contains(&signal.as_str()) {
            problems.push(format!(
                "{field}.{signal}: valid keys are {}",
                SIGNALS.join(", ")
            ));
        }
    }
}

fn is_threshold(text: &str) -> bool {
    match text.strip_suffix('%') {
        Some(percent) => percent
            .parse::<f64>()
            .is_ok_and(|percent| (0.0..=100.0).contains(&percent)),
        None => text
            .parse::<Quantity>()
            .is_ok_and(|quantity| !quantity.is_negative()),
    }
}

/// Fields that the user data of AL2, Bottlerocket and Windows supports.
const TYPED_FIELDS: [&str; 12] = [
    "clusterDNS",
    "maxPods",
    "podsPerCore",
    "systemReserved",
    "kubeReserved",
    "evictionHard",
    "evictionSoft",
    "evictionSoftGracePeriod",
    "evictionMaxPodGracePeriod",
    "imageGCHighThresholdPercent",
    "imageGCLowThresholdPercent",
    "cpuCFSQuota",
];

/// Returns the fields that the family does not support: AL2023 supports every field, Custom is not checked, the others
/// support twelve fields.
pub fn unsupported_fields(family: AmiFamily, object: Option<&Map<String, Value>>) -> Vec<String> {
    let Some(object) = object else {
        return Vec::new();
    };
    if matches!(family, AmiFamily::Al2023 | AmiFamily::Custom) {
        return Vec::new();
    }
    let supported = |field: &str| {
        TYPED_FIELDS.contains(&field) && (field != "podsPerCore" || family.supports_pods_per_core())
    };
    let mut problems: Vec<String> = object
        .keys()
        .filter(|field| !supported(field))
        .map(|field| format!("{field} is not supported by amiFamily {family}"))
        .collect();
    let addresses = object.get("clusterDNS").and_then(Value::as_array);
    if addresses.is_some_and(|addresses| addresses.len() > 1) {
        problems.push(format!(
            "amiFamily {family} supports one address in clusterDNS"
        ));
    }
    problems
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(object: Value) -> Vec<String> {
        violations(object.as_object())
    }

    /// Conformance: AWS-kubelet-01
    #[test]
    fn unknown_fields_and_wrong_types_are_named_at_any_depth() {
        assert_eq!(of(json!({ "maxPod": 1 })), ["unknown field \"maxPod\""]);
        assert_eq!(
            of(json!({ "logging": { "options": { "json": { "splitStreams": true } } } })),
            ["unknown field \"logging.options.json.splitStreams\""]
        );
        assert_eq!(
            of(json!({ "podsPerCore": "2" })),
            ["podsPerCore: \"2\" is not an integer"]
        );
        assert_eq!(
            of(json!({ "reservedMemory": [{ "numaNode": 0, "limits": { "memory": "lots" } }] })),
            ["reservedMemory[0].limits.memory: \"lots\" is not a quantity"]
        );
        assert_eq!(
            of(json!({ "syncFrequency": "soon" })),
            ["syncFrequency: \"soon\" is not a duration"]
        );
        assert_eq!(
            of(
                json!({ "featureGates": { "A": true }, "memoryThrottlingFactor": 0.5, "tlsCipherSuites": ["x"],
            "shutdownGracePeriod": "30s", "serializeImagePulls": false, "podPidsLimit": -1 })
            ),
            [""; 0]
        );
    }

    /// Conformance: AWS-kubelet-02
    #[test]
    fn all_violations_are_reported_at_once() {
        let problems = of(json!({
            "nonsense": 1, "kubeReserved": { "gpu": "1", "cpu": "-1" }, "podsPerCore": -1,
            "evictionHard": { "memory": "5%" }, "imageGCHighThresholdPercent": 101,
        }));
        assert_eq!(problems.len(), 6, "{problems:?}");
    }

    /// Conformance: AWS-kubelet-03
    #[test]
    fn soft_thresholds_need_grace_periods_and_the_reverse() {
        assert_eq!(
            of(json!({ "evictionSoft": { "memory.available": "5%" } })),
            ["evictionSoft.memory.available has no matching evictionSoftGracePeriod"]
        );
        assert_eq!(
            of(json!({ "evictionSoftGracePeriod": { "memory.available": "1m" } })),
            ["evictionSoftGracePeriod.memory.available has no matching evictionSoft"]
        );
        assert!(of(json!({ "evictionSoft": { "memory.available": "5%" }, "evictionSoftGracePeriod": { "memory.available": "1m" } })).is_empty());
        assert_eq!(of(json!({ "evictionSoft": { "memory.available": "5%" }, "evictionSoftGracePeriod": { "memory.available": "-1m" } })).len(), 1);
    }

    /// Conformance: AWS-kubelet-04
    #[test]
    fn a_threshold_is_a_percentage_or_a_quantity() {
        for (threshold, valid) in [
            ("5%", true),
            ("0%", true),
            ("100%", true),
            ("500Mi", true),
            ("0", true),
            ("101%", false),
            ("-5%", false),
            ("-1Mi", false),
            ("x", false),
        ] {
            let problems = of(json!({ "evictionHard": { "memory.available": threshold } }));
            assert_eq!(problems.is_empty(), valid, "{threshold}");
        }
    }

    /// Conformance: AWS-kubelet-05
    #[test]
    fn images_are_collected_from_high_to_low() {
        let of = |high: i64, low: i64| {
            of(json!({ "imageGCHighThresholdPercent": high, "imageGCLowThresholdPercent": low }))
        };
        assert!(of(85, 80).is_empty());
        assert_eq!(of(80, 80).len(), 1);
        assert_eq!(of(70, 80).len(), 1);
    }

    /// Conformance: AWS-validation-21
    #[test]
    fn signals_and_reserved_resources_are_those_a_kubelet_knows() {
        let signals = [
            "memory.available",
            "nodefs.available",
            "nodefs.inodesFree",
            "imagefs.available",
            "imagefs.inodesFree",
            "pid.available",
        ];
        let all = |value: &str| -> Map<String, Value> {
            let entries = signals.iter();
            entries
                .map(|signal| ((*signal).to_owned(), value.into()))
                .collect()
        };
        let whole = json!({
            "evictionHard": all("5%"), "evictionMinimumReclaim": all("1Gi"),
            "evictionSoft": all("10%"), "evictionSoftGracePeriod": all("1m"),
            "kubeReserved": { "cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi", "pid": "10" },
            "systemReserved": { "cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi", "pid": "10" },
        });
        assert_eq!(of(whole), [""; 0]);
        for field in ["evictionHard", "evictionMinimumReclaim"] {
            for signal in [
                "allocatableMemory.available",
                "nodefs",
                "containerfs.available",
            ] {
                let problems = of(json!({ field: { signal: "5%" } }));
                assert_eq!(problems.len(), 1, "{problems:?}");
                assert!(problems[0].starts_with(&format!("{field}.{signal}: valid keys are")));
            }
        }
        for field in ["kubeReserved", "systemReserved"] {
            let problems = of(json!({ field: { "nvidia.com/gpu": "1" } }));
            assert_eq!(
                problems,
                [format!(
                    "{field}.nvidia.com/gpu: valid keys are cpu, memory, ephemeral-storage, pid"
                )]
            );
        }
        let soft =
            json!({ "evictionSoft": { "x": "5%" }, "evictionSoftGracePeriod": { "x": "1m" } });
        assert_eq!(of(soft).len(), 2, "each map for itself");
    }

    /// Conformance: AWS-validation-22
    #[test]
    fn numbers_have_their_bounds() {
        for (field, good, bad) in [
            (
                "imageGCHighThresholdPercent",
                [0, 100],
                [-1, 101].as_slice(),
            ),
            ("imageGCLowThresholdPercent", [0, 100], &[-1, 101]),
            ("podsPerCore", [0, 1000], &[-1]),
            ("evictionMaxPodGracePeriod", [0, 1000], &[-1]),
            ("maxPods", [0, 1000], &[-1]),
        ] {
            for value in good {
                assert_eq!(of(json!({ field: value })), [""; 0], "{field} {value}");
            }
            for value in bad {
                let problems = of(json!({ field: value }));
                assert_eq!(problems.len(), 1, "{field} {value}: {problems:?}");
                assert!(problems[0].starts_with(field), "{problems:?}");
            }
        }
        for field in ["kubeReserved", "systemReserved"] {
            assert_eq!(
                of(json!({ field: { "cpu": "-100m" } })),
                [format!("{field}.cpu: `-100m` cannot be negative")]
            );
        }
    }

    /// Conformance: AWS-validation-23
    #[test]
    fn twelve_fields_go_into_every_family_s_user_data() {
        use AmiFamily::{Al2, Al2023, Bottlerocket, Custom, Windows2022};
        let twelve = json!({
            "clusterDNS": ["10.0.0.10"], "maxPods": 10, "podsPerCore": 2, "systemReserved": {},
            "kubeReserved": {}, "evictionHard": {}, "evictionSoft": {}, "evictionSoftGracePeriod": {},
            "evictionMaxPodGracePeriod": 1, "imageGCHighThresholdPercent": 80,
            "imageGCLowThresholdPercent": 70, "cpuCFSQuota": true,
        });
        for family in [Al2, Windows2022, Al2023, Custom] {
            assert_eq!(
                unsupported_fields(family, twelve.as_object()),
                [""; 0],
                "{family}"
            );
        }
        assert_eq!(
            unsupported_fields(Bottlerocket, twelve.as_object()),
            ["podsPerCore is not supported by amiFamily Bottlerocket"]
        );
        let more = json!({ "evictionMinimumReclaim": {}, "clusterDomain": "x" });
        for (family, count) in [(Al2, 2), (Bottlerocket, 2), (Windows2022, 2), (Al2023, 0)] {
            assert_eq!(
                unsupported_fields(family, more.as_object()).len(),
                count,
                "{family}"
            );
        }
    }

    /// Conformance: AWS-kubelet-06
    #[test]
    fn taints_belong_to_node_pools() {
        let problems =
            of(json!({ "registerWithTaints": [{ "key": "a", "effect": "NoSchedule" }] }));
        assert_eq!(problems.len(), 1);
        assert!(problems[0].starts_with("registerWithTaints"));
    }

    /// Conformance: AWS-kubelet-07
    #[test]
    fn expressions_are_not_violations() {
        assert_eq!(
            of(json!({ "maxPods": "default_enis * 2", "kubeReserved": { "cpu": "vcpus * 10" } })),
            [""; 0]
        );
    }

    /// Conformance: AWS-validation-01, AWS-validation-02, AWS-validation-03
    #[test]
    fn unsupported_fields_are_reported_per_family() {
        use AmiFamily::{Al2, Al2023, Bottlerocket, Custom, Windows2019, Windows2022, Windows2025};
        let open = json!({ "serializeImagePulls": false });
        let dns = json!({ "clusterDNS": ["10.0.0.10", "10.0.0.11"] });
        let pods = json!({ "podsPerCore": 2, "maxPods": 10, "cpuCFSQuota": true });
        for family in [Al2, Bottlerocket, Windows2019, Windows2022, Windows2025] {
            assert_eq!(
                unsupported_fields(family, open.as_object()).len(),
                1,
                "{family}"
            );
            assert_eq!(
                unsupported_fields(family, dns.as_object()).len(),
                1,
                "{family}"
            );
        }
        for family in [Al2023, Custom] {
            assert!(unsupported_fields(family, open.as_object()).is_empty());
            assert!(unsupported_fields(family, dns.as_object()).is_empty());
        }
        assert_eq!(
            unsupported_fields(Bottlerocket, pods.as_object()),
            ["podsPerCore is not supported by amiFamily Bottlerocket"]
        );
        assert!(unsupported_fields(Al2, pods.as_object()).is_empty());
    }
}
