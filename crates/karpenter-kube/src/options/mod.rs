//! The operator's options: upstream's flags and environment variables with upstream's defaults.
//!
//! A flag takes precedence over its environment variable, which takes precedence over the default. An invalid value stops
//! the process with the name of the flag and the value, wherever it is set; an empty environment variable counts as unset.
//!
//! UPSTREAM: pkg/operator/options/options.go

mod parse;
pub mod scheduler_config;

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{ArgAction, CommandFactory, FromArgMatches, Parser};
use karpenter_core::lifecycle::provisioning::BatchWindow;
pub use karpenter_core::schedule::{MinValuesPolicy, PreferencePolicy};
#[cfg(feature = "decisions")]
use karpenter_decisions::change::Change;

#[cfg(feature = "decisions")]
use parse::change_of_copy;
pub use parse::{go_bool, go_duration};
use parse::{log_level, min_values_policy, preference_policy, price};
use scheduler_config::SchedulerConfig;

/// Options of the operator.
#[derive(Debug, Clone, PartialEq, Parser)]
#[command(
    name = "karpenter",
    version,
    about = "Just-in-time nodes for any Kubernetes cluster"
)]
pub struct Options {
    /// Name of Karpenter's Service, by which the API server reaches its webhook.
    #[arg(
        long,
        help_heading = "Process",
        env = "KARPENTER_SERVICE",
        default_value = ""
    )]
    pub karpenter_service: String,
    /// Port that `/metrics` is served on.
    #[arg(
        long,
        help_heading = "Process",
        env = "METRICS_PORT",
        default_value_t = 8080
    )]
    pub metrics_port: u16,
    /// Folder with `tls.crt` and `tls.key`, for `/metrics` over TLS; they may be replaced at any time. Without it, plain HTTP.
    #[arg(long, help_heading = "Process", env = "METRICS_CERT_DIR")]
    pub metrics_cert_dir: Option<PathBuf>,
    /// Port that `/healthz` and `/readyz` are served on.
    #[arg(
        long,
        help_heading = "Process",
        env = "HEALTH_PROBE_PORT",
        default_value_t = 8081
    )]
    pub health_probe_port: u16,
    /// Port on the loopback addresses that explanations of decisions are served on; 0 means none.
    #[arg(
        long,
        help_heading = "Process",
        env = "DECISIONS_PORT",
        default_value_t = 8082
    )]
    pub decisions_port: u16,
    /// Where each decision is written as a line of JSON: `none`, `stdout` or `file:PATH`.
    #[arg(
        long,
        help_heading = "Logging",
        env = "DECISION_LOG",
        default_value = "none"
    )]
    pub decision_log: DecisionLog,
    /// Sustained requests per second to the API server.
    #[arg(
        long,
        help_heading = "API server",
        env = "KUBE_CLIENT_QPS",
        default_value_t = 200
    )]
    pub kube_client_qps: u32,
    /// Requests that may be sent to the API server in one burst.
    #[arg(
        long,
        help_heading = "API server",
        env = "KUBE_CLIENT_BURST",
        default_value_t = 300
    )]
    pub kube_client_burst: u32,
    /// Serve profiles of the processor at `/debug/pprof/` on the metrics port.
    #[arg(long, help_heading = "Process", env = "ENABLE_PROFILING", default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set, value_parser = go_bool)]
    pub enable_profiling: bool,
    /// Start watching only after the lease is held; `false` keeps every replica's model warm.
    #[arg(long, help_heading = "Replicas", env = "DISABLE_CONTROLLER_WARMUP", default_value = "true", default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set, value_parser = go_bool)]
    pub disable_controller_warmup: bool,
    /// Run without a lease; for a single replica only.
    #[arg(long, help_heading = "Replicas", env = "DISABLE_LEADER_ELECTION", default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set, value_parser = go_bool)]
    pub disable_leader_election: bool,
    /// Drop the metrics and events that describe the cluster's objects.
    #[arg(long, help_heading = "Process", env = "DISABLE_CLUSTER_STATE_OBSERVABILITY", default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set, value_parser = go_bool)]
    pub disable_cluster_state_observability: bool,
    /// Name of the lease.
    #[arg(
        long,
        help_heading = "Replicas",
        env = "LEADER_ELECTION_NAME",
        default_value = "karpenter-leader-election"
    )]
    pub leader_election_name: String,
    /// Namespace of the lease; empty means the pod's own.
    #[arg(
        long,
        help_heading = "Replicas",
        env = "LEADER_ELECTION_NAMESPACE",
        default_value = ""
    )]
    pub leader_election_namespace: String,
    /// Memory limit of the container in bytes. Near it a burst of pods is scheduled in slices. Not positive means no limit.
    #[arg(long, help_heading = "Process", env = "MEMORY_LIMIT", default_value_t = -1, allow_hyphen_values = true)]
    pub memory_limit: i64,
    /// CPU request of the container in millicores; scales the controllers' concurrency.
    #[arg(
        long,
        help_heading = "Process",
        env = "CPU_REQUESTS",
        default_value_t = 1000,
        allow_hyphen_values = true
    )]
    pub cpu_requests: i64,
    /// Least severe level that is logged: debug, info or error; empty means info.
    #[arg(long, help_heading = "Logging", env = "LOG_LEVEL", default_value = "info", value_parser = log_level)]
    pub log_level: LogLevel,
    /// Comma-separated destinations of log lines.
    #[arg(
        long,
        help_heading = "Logging",
        env = "LOG_OUTPUT_PATHS",
        default_value = "stdout"
    )]
    pub log_output_paths: String,
    /// Accepted for compatibility, without effect: the logger has no errors of its own.
    #[arg(
        long,
        help_heading = "Logging",
        env = "LOG_ERROR_OUTPUT_PATHS",
        default_value = "stderr"
    )]
    pub log_error_output_paths: String,
    /// Longest time that a batch of pods is kept open.
    #[arg(long, help_heading = "Scheduling", env = "BATCH_MAX_DURATION", default_value = "10s", value_parser = go_duration)]
    pub batch_max_duration: Duration,
    /// Quiet time after which a batch of pods is closed.
    #[arg(long, help_heading = "Scheduling", env = "BATCH_IDLE_DURATION", default_value = "1s", value_parser = go_duration)]
    pub batch_idle_duration: Duration,
    /// How preferences are handled: respected, or ignored.
    #[arg(
        long,
        help_heading = "Scheduling",
        env = "PREFERENCE_POLICY",
        default_value = "Respect",
        value_parser = preference_policy()
    )]
    pub preference_policy: PreferencePolicy,
    /// How minValues that cannot be met are handled: the pool does not fit, or they are lowered.
    #[arg(
        long,
        help_heading = "Scheduling",
        env = "MIN_VALUES_POLICY",
        default_value = "Strict",
        value_parser = min_values_policy()
    )]
    pub min_values_policy: MinValuesPolicy,
    /// Dollars per hour that a node costs beside its instance: root volume, licenses by host, addresses. Fewer, larger nodes with a higher one.
    #[arg(long, help_heading = "Scheduling", env = "NODE_OVERHEAD_PRICE", default_value = "0.03", value_parser = price)]
    pub node_overhead_price: f64,
    /// Treat pods that request devices as unschedulable instead of simulating their allocation.
    #[arg(long, help_heading = "Scheduling", env = "IGNORE_DRA_REQUESTS", default_value = "true", default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set, value_parser = go_bool)]
    pub ignore_dra_requests: bool,
    /// Move no pods by consolidation to nodes whose pods changed within consolidateAfter, as upstream does since 1.14. With false, they may be moved there, as up to 1.13.
    #[arg(long, help_heading = "Scheduling", env = "CONSOLIDATE_AFTER_APPLIES_TO_DESTINATIONS", default_value = "true", default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set, value_parser = go_bool)]
    pub consolidate_after_applies_to_destinations: bool,
    /// How many nodes one consolidation may launch in place of several; 1 is upstream's behavior.
    #[arg(
        long,
        help_heading = "Scheduling",
        env = "CONSOLIDATION_MAX_REPLACEMENTS",
        default_value_t = 1
    )]
    pub consolidation_max_replacements: usize,
    #[cfg(feature = "decisions")]
    /// Decide and record, and write nothing: beside another Karpenter, for a comparison with it.
    #[arg(long, help_heading = "Shadow", env = "SHADOW", default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set, value_parser = go_bool)]
    pub shadow: bool,
    #[cfg(feature = "decisions")]
    /// Changes to the shadow's copy of the cluster, separated by `;`, as `--if` of `kubectl karpenter why`.
    #[arg(
        long,
        help_heading = "Shadow",
        env = "SHADOW_IF",
        value_delimiter = ';',
        value_parser = change_of_copy
    )]
    pub shadow_if: Vec<Change>,
    /// Comma-separated `Gate=true|false` pairs.
    #[arg(
        long,
        help_heading = "Features",
        env = "FEATURE_GATES",
        default_value = ""
    )]
    pub feature_gates: FeatureGates,
    /// Scheduler configuration with default topology spread constraints.
    #[arg(long, help_heading = "Scheduling", env = "SCHEDULER_CONFIG", default_value = "", value_parser = scheduler_config::parse)]
    pub scheduler_config: SchedulerConfig,
}

impl Options {
    /// Returns the options of Karpenter in a test: free ports, no explanations of decisions, no leader election.
    #[must_use]
    pub fn for_tests() -> Self {
        Self {
            metrics_port: 0,
            health_probe_port: 0,
            decisions_port: 0,
            disable_leader_election: true,
            ..Self::default()
        }
    }

    /// Parses flags and environment.
    ///
    /// # Errors
    /// An unknown or unparsable flag, or a request for help or the version.
    pub fn read<I, T>(args: I) -> Result<Self, clap::Error>
    where
        I: IntoIterator<Item = T>,
        T: Into<OsString> + Clone,
    {
        let command = Self::prepare(Self::command(), |name| std::env::var(name).ok());
        Self::from_arg_matches(&command.try_get_matches_from(args)?)
    }

    /// Makes empty environment variables count as unset for every argument of `command`. For binaries that flatten these
    /// options into a command of their own.
    #[must_use]
    pub fn prepare(command: clap::Command, env: impl Fn(&str) -> Option<String>) -> clap::Command {
        command.mut_args(|arg| {
            let value = arg.get_env().and_then(|name| name.to_str()).and_then(&env);
            match value {
                Some(value) if value.is_empty() => arg.env(None::<&'static str>),
                _ => arg,
            }
        })
    }

    /// Returns the requested CPU in whole cores, at least one.
    #[must_use]
    pub fn cores(&self) -> usize {
        let milli = if self.cpu_requests <= 0 {
            1000
        } else {
            self.cpu_requests
        };
        usize::try_from(milli.unsigned_abs().div_ceil(1000)).unwrap_or(usize::MAX)
    }

    /// Returns upstream's linear scale from `low` at one core to `high` at sixty.
    #[must_use]
    pub fn concurrency(&self, low: usize, high: usize) -> usize {
        let slope = (high - low) as f64 / 59.0;
        let scaled = slope * self.cores().saturating_sub(1) as f64 + low as f64;
        (scaled as usize).clamp(low, high)
    }

    /// Returns how long triggers of a plan are collected.
    #[must_use]
    pub fn batch_window(&self) -> BatchWindow {
        BatchWindow {
            idle: self.batch_idle_duration,
            max: self.batch_max_duration,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            karpenter_service: String::new(),
            metrics_port: 8080,
            metrics_cert_dir: None,
            health_probe_port: 8081,
            decisions_port: 8082,
            decision_log: DecisionLog::None,
            kube_client_qps: 200,
            kube_client_burst: 300,
            enable_profiling: false,
            disable_controller_warmup: true,
            disable_leader_election: false,
            disable_cluster_state_observability: false,
            leader_election_name: "karpenter-leader-election".into(),
            leader_election_namespace: String::new(),
            memory_limit: -1,
            cpu_requests: 1000,
            log_level: LogLevel::Info,
            log_output_paths: "stdout".into(),
            log_error_output_paths: "stderr".into(),
            batch_max_duration: Duration::from_secs(10),
            batch_idle_duration: Duration::from_secs(1),
            preference_policy: PreferencePolicy::Respect,
            min_values_policy: MinValuesPolicy::Strict,
            node_overhead_price: 0.03,
            ignore_dra_requests: true,
            consolidate_after_applies_to_destinations: true,
            consolidation_max_replacements: 1,
            #[cfg(feature = "decisions")]
            shadow: false,
            #[cfg(feature = "decisions")]
            shadow_if: Vec::new(),
            feature_gates: FeatureGates::default(),
            scheduler_config: SchedulerConfig::default(),
        }
    }
}

/// Least severe level that is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Everything.
    Debug,
    /// Milestones, warnings and errors.
    Info,
    /// Errors only.
    Error,
}

/// Where decisions are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecisionLog {
    /// Nowhere.
    None,
    /// The standard output, between the log lines.
    Stdout,
    /// A file, to which lines are appended.
    File(PathBuf),
}

impl FromStr for DecisionLog {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "none" => Ok(Self::None),
            None if text == "stdout" => Ok(Self::Stdout),
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(path.into())),
            _ => Err(format!(
                "unknown decision log `{text}`: must be none, stdout or file:PATH"
            )),
        }
    }
}

/// Feature gates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeatureGates {
    /// Replace unhealthy nodes.
    pub node_repair: bool,
    /// Launch instances into capacity reservations.
    pub reserved_capacity: bool,
    /// Replace spot nodes with cheaper spot nodes.
    pub spot_to_spot_consolidation: bool,
    /// Adjust prices and capacity with NodeOverlays.
    pub node_overlay: bool,
    /// Keep a fixed number of nodes for NodePools with `replicas`.
    pub static_capacity: bool,
    /// Keep spare capacity for CapacityBuffers.
    pub capacity_buffer: bool,
    /// Keep records of decisions in memory, and serve explanations on a loopback port.
    pub decision_records: bool,
    /// Add what blocks a pod to its `FailedScheduling` events.
    pub scheduling_hints: bool,
    /// Keep the passes of the last half hour, for `kubectl karpenter capture --last`.
    pub flight_recorder: bool,
    /// Have kube-scheduler bind pods where they were planned, through `status.nominatedNodeName`.
    pub pod_nomination: bool,
}

impl Default for FeatureGates {
    fn default() -> Self {
        Self {
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
        }
    }
}

impl FeatureGates {
    /// Reports whether the gate of a name is on.
    #[must_use]
    pub fn is_on(mut self, name: &str) -> bool {
        self.named(name).is_some_and(|gate| *gate)
    }

    fn named(&mut self, name: &str) -> Option<&mut bool> {
        Some(match name {
            "NodeRepair" => &mut self.node_repair,
            "ReservedCapacity" => &mut self.reserved_capacity,
            "SpotToSpotConsolidation" => &mut self.spot_to_spot_consolidation,
            "NodeOverlay" => &mut self.node_overlay,
            "StaticCapacity" => &mut self.static_capacity,
            "CapacityBuffer" => &mut self.capacity_buffer,
            "DecisionRecords" => &mut self.decision_records,
            "SchedulingHints" => &mut self.scheduling_hints,
            "FlightRecorder" => &mut self.flight_recorder,
            "PodNomination" => &mut self.pod_nomination,
            _ => return None,
        })
    }
}

impl FromStr for FeatureGates {
    type Err = String;

    /// Parses `Gate=true,Other=false`; other gates keep their defaults.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut gates = Self::default();
        for pair in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let (name, value) = pair.split_once('=').ok_or_else(|| {
                format!("invalid feature gate `{pair}`: must be of the form `Gate=true`")
            })?;
            let value = go_bool(value.trim())?;
            // Gates of older and newer releases are ignored, so that a chart can be upgraded in either order.
            if let Some(gate) = gates.named(name.trim()) {
                *gate = value;
            }
        }
        Ok(gates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(args: &[&str]) -> Result<Options, clap::Error> {
        let args = std::iter::once("karpenter").chain(args.iter().copied());
        Options::from_arg_matches(&Options::command().try_get_matches_from(args)?)
    }

    /// Conformance: API-147
    #[test]
    fn no_flags_give_the_documented_defaults() {
        assert_eq!(read(&[]).unwrap(), Options::default());
    }

    /// Conformance: API-150
    #[test]
    fn flags_have_upstreams_names() {
        let options = read(&[
            "--batch-idle-duration=500ms",
            "--feature-gates=NodeRepair=true,Unknown=true,ReservedCapacity=false",
            "--disable-leader-election",
            "--ignore-dra-requests=false",
            "--memory-limit=-1",
            "--consolidation-max-replacements=3",
            "--consolidate-after-applies-to-destinations=false",
            "--preference-policy=Ignore",
            "--node-overhead-price=0.125",
            "--decision-log=file:/var/log/decisions:1",
        ])
        .unwrap();
        let file = DecisionLog::File("/var/log/decisions:1".into());
        assert_eq!(options.decision_log, file);
        assert_eq!(options.batch_idle_duration, Duration::from_millis(500));
        assert!(options.feature_gates.node_repair && !options.feature_gates.reserved_capacity);
        assert!(options.disable_leader_election && !options.ignore_dra_requests);
        assert_eq!(options.preference_policy, PreferencePolicy::Ignore);
        assert_eq!(options.consolidation_max_replacements, 3);
        assert!(!options.consolidate_after_applies_to_destinations);
        assert!((options.node_overhead_price - 0.125).abs() < 1e-9);
    }

    /// Conformance: API-149
    #[test]
    fn invalid_flags_are_errors() {
        for bad in [
            "--preference-policy=Maybe",
            "--node-overhead-price=-0.01",
            "--node-overhead-price=inf",
            "--node-overhead-price=NaN",
            "--node-overhead-price=$1",
            "--feature-gates=NodeRepair",
            "--unknown",
            "--metrics-port=x",
            "--log-level=loud",
            "--decision-log=syslog",
            "--decision-log=file:",
            "--scheduler-config=podTopologySpread: {defaultConstraints: [{maxSkew: 0}]}",
        ] {
            assert!(read(&[bad]).is_err(), "{bad}");
        }
    }

    /// Conformance: API-149
    #[test]
    fn an_empty_variable_counts_as_unset_and_an_invalid_one_is_an_error() {
        let env = |name: &str| match name {
            "METRICS_PORT" => Some(String::new()),
            "HEALTH_PROBE_PORT" => Some("many".to_owned()),
            _ => None,
        };
        let command = Options::prepare(Options::command(), env);
        let reads_the_environment = |id: &str| {
            let mut all = command.get_arguments();
            let arg = all.find(|arg| arg.get_id() == id).unwrap();
            arg.get_env().is_some()
        };
        assert!(!reads_the_environment("metrics_port"));
        assert!(reads_the_environment("health_probe_port"));
    }

    /// Conformance: API-149
    #[test]
    fn an_invalid_value_is_reported_with_its_flag() {
        let error = read(&["--batch-idle-duration=soon"])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("--batch-idle-duration") && error.contains("soon"),
            "{error}"
        );
    }

    #[test]
    fn every_flag_has_a_heading_in_the_help() {
        let command = Options::command();
        for arg in command.get_arguments() {
            assert!(arg.get_help_heading().is_some(), "{}", arg.get_id());
        }
    }

    /// Conformance: API-154
    #[test]
    fn concurrency_grows_linearly_with_cores() {
        let cores = |milli| Options {
            cpu_requests: milli,
            ..Options::default()
        };
        assert_eq!(cores(1000).concurrency(10, 1000), 10);
        assert_eq!(cores(60_000).concurrency(10, 1000), 1000);
        assert_eq!(cores(0).concurrency(10, 3000), 10);
        assert_eq!(cores(2500).cores(), 3);
    }
}
