//! The fields of KubeletConfiguration and their types.
//!
//! UPSTREAM: k8s.io/kubelet/config/v1beta1/types.go, k8s.io/component-base/logs/api/v1/types.go,
//! k8s.io/component-base/tracing/api/v1/types.go (0.36)

use karpenter_core::quantity::Quantity;
use serde_json::{Map, Value};

use super::settings::int32;

/// The type of a field.
enum Kind {
    Text,
    Int32,
    Int64,
    Float,
    Bool,
    /// A Go duration: `1m30s`.
    Duration,
    /// A Go duration, or a number of nanoseconds.
    DurationOrNanos,
    Quantity,
    List(&'static Kind),
    Map(&'static Kind),
    Object(&'static [(&'static str, Kind)]),
}

use Kind::{Bool, Duration, Float, Int32, Int64, List, Object, Text};

const KUBELET: &[(&str, Kind)] = &[
    ("kind", Text),
    ("apiVersion", Text),
    ("enableServer", Bool),
    ("staticPodPath", Text),
    ("podLogsDir", Text),
    ("syncFrequency", Duration),
    ("fileCheckFrequency", Duration),
    ("httpCheckFrequency", Duration),
    ("staticPodURL", Text),
    ("staticPodURLHeader", Kind::Map(&List(&Text))),
    ("address", Text),
    ("port", Int32),
    ("readOnlyPort", Int32),
    ("tlsCertFile", Text),
    ("tlsPrivateKeyFile", Text),
    ("tlsCipherSuites", List(&Text)),
    ("tlsCurvePreferences", List(&Int32)),
    ("tlsMinVersion", Text),
    ("rotateCertificates", Bool),
    ("serverTLSBootstrap", Bool),
    (
        "authentication",
        Object(&[
            ("x509", Object(&[("clientCAFile", Text)])),
            (
                "webhook",
                Object(&[("enabled", Bool), ("cacheTTL", Duration)]),
            ),
            ("anonymous", Object(&[("enabled", Bool)])),
        ]),
    ),
    (
        "authorization",
        Object(&[
            ("mode", Text),
            (
                "webhook",
                Object(&[
                    ("cacheAuthorizedTTL", Duration),
                    ("cacheUnauthorizedTTL", Duration),
                ]),
            ),
        ]),
    ),
    ("registryPullQPS", Int32),
    ("registryBurst", Int32),
    ("imagePullCredentialsVerificationPolicy", Text),
    ("preloadedImagesVerificationAllowlist", List(&Text)),
    ("eventRecordQPS", Int32),
    ("eventBurst", Int32),
    ("enableDebuggingHandlers", Bool),
    ("enableContentionProfiling", Bool),
    ("healthzPort", Int32),
    ("healthzBindAddress", Text),
    ("oomScoreAdj", Int32),
    ("clusterDomain", Text),
    ("clusterDNS", List(&Text)),
    ("streamingConnectionIdleTimeout", Duration),
    ("nodeStatusUpdateFrequency", Duration),
    ("nodeStatusReportFrequency", Duration),
    ("nodeLeaseDurationSeconds", Int32),
    ("imageMinimumGCAge", Duration),
    ("imageMaximumGCAge", Duration),
    ("imageGCHighThresholdPercent", Int32),
    ("imageGCLowThresholdPercent", Int32),
    ("volumeStatsAggPeriod", Duration),
    ("kubeletCgroups", Text),
    ("systemCgroups", Text),
    ("cgroupRoot", Text),
    ("cgroupsPerQOS", Bool),
    ("cgroupDriver", Text),
    ("cpuManagerPolicy", Text),
    ("singleProcessOOMKill", Bool),
    ("cpuManagerPolicyOptions", Kind::Map(&Text)),
    ("cpuManagerReconcilePeriod", Duration),
    ("draManagerReconcilePeriod", Duration),
    ("memoryManagerPolicy", Text),
    ("topologyManagerPolicy", Text),
    ("topologyManagerScope", Text),
    ("topologyManagerPolicyOptions", Kind::Map(&Text)),
    ("qosReserved", Kind::Map(&Text)),
    ("runtimeRequestTimeout", Duration),
    ("hairpinMode", Text),
    ("maxPods", Int32),
    ("podCIDR", Text),
    ("podPidsLimit", Int64),
    ("resolvConf", Text),
    ("runOnce", Bool),
    ("cpuCFSQuota", Bool),
    ("cpuCFSQuotaPeriod", Duration),
    ("nodeStatusMaxImages", Int32),
    ("maxOpenFiles", Int64),
    ("contentType", Text),
    ("kubeAPIQPS", Int32),
    ("kubeAPIBurst", Int32),
    ("serializeImagePulls", Bool),
    ("maxParallelImagePulls", Int32),
    ("evictionHard", Kind::Map(&Text)),
    ("evictionSoft", Kind::Map(&Text)),
    ("evictionSoftGracePeriod", Kind::Map(&Text)),
    ("evictionPressureTransitionPeriod", Duration),
    ("evictionMaxPodGracePeriod", Int32),
    ("evictionMinimumReclaim", Kind::Map(&Text)),
    ("mergeDefaultEvictionSettings", Bool),
    ("podsPerCore", Int32),
    ("enableControllerAttachDetach", Bool),
    ("protectKernelDefaults", Bool),
    ("makeIPTablesUtilChains", Bool),
    ("iptablesMasqueradeBit", Int32),
    ("iptablesDropBit", Int32),
    ("featureGates", Kind::Map(&Bool)),
    ("failSwapOn", Bool),
    ("memorySwap", Object(&[("swapBehavior", Text)])),
    ("containerLogMaxSize", Text),
    ("containerLogMaxFiles", Int32),
    ("containerLogMaxWorkers", Int32),
    ("containerLogMonitorInterval", Duration),
    ("configMapAndSecretChangeDetectionStrategy", Text),
    ("systemReserved", Kind::Map(&Text)),
    ("kubeReserved", Kind::Map(&Text)),
    ("reservedSystemCPUs", Text),
    ("showHiddenMetricsForVersion", Text),
    ("systemReservedCgroup", Text),
    ("kubeReservedCgroup", Text),
    ("enforceNodeAllocatable", List(&Text)),
    ("allowedUnsafeSysctls", List(&Text)),
    ("volumePluginDir", Text),
    ("providerID", Text),
    ("kernelMemcgNotification", Bool),
    (
        "logging",
        Object(&[
            ("format", Text),
            ("flushFrequency", Kind::DurationOrNanos),
            ("verbosity", Int64),
            (
                "vmodule",
                List(&Object(&[("filePattern", Text), ("verbosity", Int64)])),
            ),
            (
                "options",
                Object(&[
                    ("text", Object(OUTPUT_ROUTING)),
                    ("json", Object(OUTPUT_ROUTING)),
                ]),
            ),
        ]),
    ),
    ("enableSystemLogHandler", Bool),
    ("enableSystemLogQuery", Bool),
    ("shutdownGracePeriod", Duration),
    ("shutdownGracePeriodCriticalPods", Duration),
    (
        "shutdownGracePeriodByPodPriority",
        List(&Object(&[
            ("priority", Int32),
            ("shutdownGracePeriodSeconds", Int64),
        ])),
    ),
    (
        "crashLoopBackOff",
        Object(&[("maxContainerRestartPeriod", Duration)]),
    ),
    (
        "reservedMemory",
        List(&Object(&[
            ("numaNode", Int32),
            ("limits", Kind::Map(&Kind::Quantity)),
        ])),
    ),
    ("enableProfilingHandler", Bool),
    ("enableDebugFlagsHandler", Bool),
    ("seccompDefault", Bool),
    ("memoryThrottlingFactor", Float),
    ("memoryReservationPolicy", Text),
    (
        "registerWithTaints",
        List(&Object(&[
            ("key", Text),
            ("value", Text),
            ("effect", Text),
            ("timeAdded", Text),
        ])),
    ),
    ("registerNode", Bool),
    (
        "tracing",
        Object(&[("endpoint", Text), ("samplingRatePerMillion", Int32)]),
    ),
    ("localStorageCapacityIsolation", Bool),
    ("containerRuntimeEndpoint", Text),
    ("imageServiceEndpoint", Text),
    ("failCgroupV1", Bool),
    ("userNamespaces", Object(&[("idsPerPod", Int64)])),
];

const OUTPUT_ROUTING: &[(&str, Kind)] =
    &[("splitStream", Bool), ("infoBufferSize", Kind::Quantity)];

/// Collects the fields that the kubelet would reject. A string as `maxPods` is an expression and accepted.
pub(super) fn misfits(object: &Map<String, Value>, problems: &mut Vec<String>) {
    for (name, value) in object {
        if name == "maxPods" && value.is_string() {
            continue;
        }
        field(KUBELET, "", name, value, problems);
    }
}

fn field(
    fields: &'static [(&'static str, Kind)],
    path: &str,
    name: &str,
    value: &Value,
    problems: &mut Vec<String>,
) {
    let path = if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    };
    match fields.iter().find(|(known, _)| *known == name) {
        Some((_, kind)) => check(kind, &path, value, problems),
        None => problems.push(format!("unknown field \"{path}\"")),
    }
}

fn check(kind: &'static Kind, path: &str, value: &Value, problems: &mut Vec<String>) {
    let go_duration = |value: &Value| {
        let text = value.as_str();
        text.is_some_and(|text| karpenter_api::duration::parse(text).is_ok())
    };
    let (fits, wanted) = match (kind, value) {
        (_, Value::Null) => (true, ""),
        (List(item), Value::Array(values)) => {
            for (index, value) in values.iter().enumerate() {
                check(item, &format!("{path}[{index}]"), value, problems);
            }
            (true, "")
        }
        (Kind::Map(entry), Value::Object(object)) => {
            for (key, value) in object {
                check(entry, &format!("{path}.{key}"), value, problems);
            }
            (true, "")
        }
        (Object(fields), Value::Object(object)) => {
            for (name, value) in object {
                field(fields, path, name, value, problems);
            }
            (true, "")
        }
        (Text, value) => (value.is_string(), "a string"),
        (Int32, value) => (int32(value).is_some(), "an integer"),
        (Int64, value) => (value.is_i64(), "an integer"),
        (Float, value) => (value.is_number(), "a number"),
        (Bool, value) => (value.is_boolean(), "a boolean"),
        (Duration, value) => (go_duration(value), "a duration"),
        (Kind::DurationOrNanos, value) => (value.is_i64() || go_duration(value), "a duration"),
        (Kind::Quantity, Value::String(text)) => (text.parse::<Quantity>().is_ok(), "a quantity"),
        (Kind::Quantity, value) => (value.is_number(), "a quantity"),
        (List(_), _) => (false, "a list"),
        (Kind::Map(_) | Object(_), _) => (false, "an object"),
    };
    if !fits {
        problems.push(format!("{path}: {value} is not {wanted}"));
    }
}
