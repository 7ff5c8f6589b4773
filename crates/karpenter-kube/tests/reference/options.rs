//! Flags, environment variables and defaults (section 7.1 of core-api.md).

use std::collections::BTreeSet;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches};
use karpenter_kube::options::{
    FeatureGates, LogLevel, MinValuesPolicy, Options, PreferencePolicy, go_bool,
};

/// Flag, environment variable and default, as upstream has them.
const UPSTREAMS: [(&str, &str, &str); 23] = [
    ("karpenter-service", "KARPENTER_SERVICE", ""),
    ("metrics-port", "METRICS_PORT", "8080"),
    ("health-probe-port", "HEALTH_PROBE_PORT", "8081"),
    ("kube-client-qps", "KUBE_CLIENT_QPS", "200"),
    ("kube-client-burst", "KUBE_CLIENT_BURST", "300"),
    ("enable-profiling", "ENABLE_PROFILING", "false"),
    (
        "disable-controller-warmup",
        "DISABLE_CONTROLLER_WARMUP",
        "true",
    ),
    (
        "disable-leader-election",
        "DISABLE_LEADER_ELECTION",
        "false",
    ),
    (
        "disable-cluster-state-observability",
        "DISABLE_CLUSTER_STATE_OBSERVABILITY",
        "false",
    ),
    (
        "leader-election-name",
        "LEADER_ELECTION_NAME",
        "karpenter-leader-election",
    ),
    ("leader-election-namespace", "LEADER_ELECTION_NAMESPACE", ""),
    ("memory-limit", "MEMORY_LIMIT", "-1"),
    ("cpu-requests", "CPU_REQUESTS", "1000"),
    ("log-level", "LOG_LEVEL", "info"),
    ("log-output-paths", "LOG_OUTPUT_PATHS", "stdout"),
    ("log-error-output-paths", "LOG_ERROR_OUTPUT_PATHS", "stderr"),
    ("batch-max-duration", "BATCH_MAX_DURATION", "10s"),
    ("batch-idle-duration", "BATCH_IDLE_DURATION", "1s"),
    ("preference-policy", "PREFERENCE_POLICY", "Respect"),
    ("min-values-policy", "MIN_VALUES_POLICY", "Strict"),
    ("ignore-dra-requests", "IGNORE_DRA_REQUESTS", "true"),
    ("feature-gates", "FEATURE_GATES", ""),
    ("scheduler-config", "SCHEDULER_CONFIG", ""),
];
/// Flags that upstream does not have.
const OWN_FLAGS: [&str; 8] = [
    "node-overhead-price",
    "shadow",
    "shadow-if",
    "metrics-cert-dir",
    "consolidate-after-applies-to-destinations",
    "consolidation-max-replacements",
    "decisions-port",
    "decision-log",
];

fn read(args: &[&str]) -> Result<Options, clap::Error> {
    let args = std::iter::once("karpenter").chain(args.iter().copied());
    Options::from_arg_matches(&Options::command().try_get_matches_from(args)?)
}

/// Conformance: API-147
#[test]
fn every_flag_has_its_variable_and_its_default() {
    let command = Options::command();
    let arg = |flag: &str| {
        command
            .get_arguments()
            .find(|arg| arg.get_long() == Some(flag))
    };
    for (flag, variable, default) in UPSTREAMS {
        let arg = arg(flag).unwrap_or_else(|| panic!("--{flag} is missing"));
        assert_eq!(arg.get_env().unwrap(), variable, "{flag}");
        let defaults = arg.get_default_values().iter();
        let defaults: Vec<&str> = defaults.map(|value| value.to_str().unwrap()).collect();
        assert_eq!(defaults, [default], "{flag}");
    }
    let known: BTreeSet<&str> = UPSTREAMS
        .iter()
        .map(|(flag, _, _)| *flag)
        .chain(OWN_FLAGS)
        .collect();
    let all = command.get_arguments().filter_map(clap::Arg::get_long);
    let all: BTreeSet<&str> = all
        .filter(|flag| !["help", "version"].contains(flag))
        .collect();
    assert_eq!(all, known);

    let options = read(&[]).unwrap();
    assert_eq!(
        (options.metrics_port, options.health_probe_port),
        (8080, 8081)
    );
    assert_eq!(
        (options.kube_client_qps, options.kube_client_burst),
        (200, 300)
    );
    assert_eq!((options.memory_limit, options.cpu_requests), (-1, 1000));
    assert_eq!(options.batch_max_duration, Duration::from_secs(10));
    assert_eq!(options.batch_idle_duration, Duration::from_secs(1));
    assert!(options.disable_controller_warmup && options.ignore_dra_requests);
}

/// Conformance: API-148
#[test]
fn a_flag_wins_over_its_variable_which_wins_over_the_default() {
    // Every process has a PATH.
    let path = std::env::var("PATH").unwrap();
    let command = Options::command().mut_arg("karpenter_service", |arg| arg.env("PATH"));
    let service = |args: &[&str]| {
        let matches = command.clone().try_get_matches_from(args).unwrap();
        Options::from_arg_matches(&matches)
            .unwrap()
            .karpenter_service
    };
    assert_eq!(service(&["karpenter"]), path);
    assert_eq!(service(&["karpenter", "--karpenter-service=flag"]), "flag");
    assert_eq!(read(&[]).unwrap().karpenter_service, "");
}

/// Conformance: API-150
#[test]
fn booleans_are_spelt_as_go_spells_them_and_a_bare_flag_is_true() {
    for text in ["1", "t", "T", "true", "TRUE", "True"] {
        assert_eq!(go_bool(text), Ok(true));
    }
    for text in ["0", "f", "F", "false", "FALSE", "False"] {
        assert_eq!(go_bool(text), Ok(false));
    }
    for text in ["", "yes", "no", "tRUE", "2"] {
        assert!(go_bool(text).is_err(), "{text}");
    }
    assert!(read(&["--enable-profiling"]).unwrap().enable_profiling);
    assert!(
        !read(&["--disable-controller-warmup=false"])
            .unwrap()
            .disable_controller_warmup
    );
    assert!(read(&["--enable-profiling=yes"]).is_err());
}

/// Conformance: API-151
#[test]
fn levels_and_policies_have_their_values_and_no_others() {
    let level =
        |text: &str| read(&[&format!("--log-level={text}")]).map(|options| options.log_level);
    for (text, expected) in [
        ("", LogLevel::Info),
        ("debug", LogLevel::Debug),
        ("info", LogLevel::Info),
        ("error", LogLevel::Error),
    ] {
        assert_eq!(level(text).unwrap(), expected, "`{text}`");
    }
    assert!(level("warn").is_err() && level("INFO").is_err());
    let preferences = |text: &str| read(&[&format!("--preference-policy={text}")]);
    assert_eq!(
        preferences("Respect").unwrap().preference_policy,
        PreferencePolicy::Respect
    );
    assert_eq!(
        preferences("Ignore").unwrap().preference_policy,
        PreferencePolicy::Ignore
    );
    assert!(preferences("ignore").is_err());
    let minimums = |text: &str| read(&[&format!("--min-values-policy={text}")]);
    assert_eq!(
        minimums("Strict").unwrap().min_values_policy,
        MinValuesPolicy::Strict
    );
    assert_eq!(
        minimums("BestEffort").unwrap().min_values_policy,
        MinValuesPolicy::BestEffort
    );
    assert!(minimums("besteffort").is_err());
}

/// Conformance: API-152
#[test]
fn gates_that_are_not_named_have_defaults_and_unknown_ones_are_ignored() {
    let gates = |text: &str| {
        read(&[&format!("--feature-gates={text}")]).map(|options| options.feature_gates)
    };
    let defaults = FeatureGates {
        node_repair: false,
        reserved_capacity: true,
        spot_to_spot_consolidation: false,
        node_overlay: false,
        static_capacity: false,
        capacity_buffer: false,
        decision_records: true,
        scheduling_hints: false,
        flight_recorder: false,
        pod_nomination: false,
    };
    for text in ["", "Unknown=true", "Drift=false,"] {
        assert_eq!(gates(text).unwrap(), defaults, "{text}");
    }
    for (name, change) in [
        (
            "NodeRepair",
            (|g: &mut FeatureGates| g.node_repair = true) as fn(&mut FeatureGates),
        ),
        ("SpotToSpotConsolidation", |g| {
            g.spot_to_spot_consolidation = true
        }),
        ("NodeOverlay", |g| g.node_overlay = true),
        ("StaticCapacity", |g| g.static_capacity = true),
        ("CapacityBuffer", |g| g.capacity_buffer = true),
        ("SchedulingHints", |g| g.scheduling_hints = true),
        ("FlightRecorder", |g| g.flight_recorder = true),
        ("PodNomination", |g| g.pod_nomination = true),
    ] {
        let mut expected = defaults;
        change(&mut expected);
        assert_eq!(gates(&format!("{name}=true")).unwrap(), expected, "{name}");
    }
    assert!(!gates("ReservedCapacity=false").unwrap().reserved_capacity);
    assert!(!gates("DecisionRecords=false").unwrap().decision_records);
    for malformed in [
        "NodeRepair",
        "NodeRepair=maybe",
        "NodeRepair=true,StaticCapacity",
    ] {
        assert!(gates(malformed).is_err(), "{malformed}");
    }
}

/// Conformance: API-155
#[test]
fn a_nomination_lasts_two_batches_and_ten_seconds_at_least() {
    let window = |max: u64| {
        let options = Options {
            batch_max_duration: Duration::from_secs(max),
            ..Options::default()
        };
        options.batch_window().nomination().as_secs()
    };
    assert_eq!(
        [window(10), window(30), window(1), window(5)],
        [20, 60, 10, 10]
    );
}
