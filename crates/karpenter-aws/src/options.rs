//! Options of Karpenter on AWS: upstream's flags and environment variables with upstream's defaults.
//!
//! They are parsed together with the operator's own: a binary flattens both into one command, and passes it to
//! [`prepare`].
//!
//! UPSTREAM: pkg/operator/options/options.go

use std::time::Duration;

use clap::{ArgAction, Args, Command};

/// Options of Karpenter on AWS.
#[derive(Debug, Clone, PartialEq, Args)]
#[command(next_help_heading = "AWS")]
pub struct AwsOptions {
    /// Name of the cluster, which identifies its resources in AWS.
    #[arg(long, env = "CLUSTER_NAME", default_value = "")]
    pub cluster_name: String,
    /// URL of the cluster's API server, for new nodes; discovered from EKS when empty.
    #[arg(long, env = "CLUSTER_ENDPOINT", default_value = "")]
    pub cluster_endpoint: String,
    /// The cluster's CA in base64, for new nodes; taken from this process's own connection when empty.
    #[arg(long, env = "CLUSTER_CA_BUNDLE", default_value = "")]
    pub cluster_ca_bundle: String,
    /// Name of the SQS queue with interruption events; interruption handling is disabled when empty.
    #[arg(long, env = "INTERRUPTION_QUEUE", default_value = "")]
    pub interruption_queue: String,
    /// Assume that the VPC does not reach global services of AWS: prices come from a built-in table, and instance
    /// profiles are not managed.
    #[arg(long, env = "ISOLATED_VPC", default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set, value_parser = go_bool)]
    pub isolated_vpc: bool,
    /// Assume that EKS runs the control plane, and read version and endpoint from EKS.
    #[arg(long, env = "EKS_CONTROL_PLANE", default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set, value_parser = go_bool)]
    pub eks_control_plane: bool,
    /// Disable the dry runs that validate permissions and parameters of an EC2NodeClass.
    #[arg(long, env = "DISABLE_DRY_RUN", default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set, value_parser = go_bool)]
    pub disable_dry_run: bool,
    /// Do not launch instances in zones with an active zonal shift.
    #[arg(long, env = "ENABLE_ZONAL_SHIFT", default_value = "false", default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set, value_parser = go_bool)]
    pub enable_zonal_shift: bool,
    /// Share of memory that the operating system does not see, used until a node has reported its memory.
    #[arg(
        long,
        env = "VM_MEMORY_OVERHEAD_PERCENT",
        default_value_t = 0.075,
        allow_hyphen_values = true
    )]
    pub vm_memory_overhead_percent: f64,
    /// Number of network interfaces that are not for pods.
    #[arg(
        long,
        env = "RESERVED_ENIS",
        default_value_t = 0,
        allow_hyphen_values = true
    )]
    pub reserved_enis: i64,
    /// How often AMIs are discovered.
    #[arg(long, env = "AMI_REFRESH_INTERVAL", default_value = "1m", value_parser = duration)]
    pub ami_refresh_interval: Duration,
    /// How often subnets are discovered.
    #[arg(long, env = "SUBNET_REFRESH_INTERVAL", default_value = "1m", value_parser = duration)]
    pub subnet_refresh_interval: Duration,
    /// How often spot prices are updated.
    #[arg(long, env = "SPOT_PRICE_INTERVAL", default_value = "5m", value_parser = duration)]
    pub spot_price_interval: Duration,
    /// Comma-separated `Gate=true|false` pairs of AWS-specific feature gates.
    #[arg(long, env = "AWS_FEATURE_GATES", default_value = "", value_parser = feature_gates)]
    pub aws_feature_gates: AwsFeatureGates,
}

/// AWS-specific feature gates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AwsFeatureGates {
    /// Evaluate CEL expressions in kubelet settings.
    pub node_class_cel: bool,
}

/// Options with invalid values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct InvalidOptions(Vec<String>);

impl AwsOptions {
    /// Validates the options beyond the format of single flags.
    ///
    /// # Errors
    /// All invalid options at once.
    pub fn validate(&self) -> Result<(), InvalidOptions> {
        const LEAST_INTERVAL: Duration = Duration::from_secs(60);
        let mut problems = Vec::new();
        let mut check = |holds: bool, problem: &str| {
            if !holds {
                problems.push(problem.to_owned());
            }
        };
        check(!self.cluster_name.is_empty(), "cluster-name is required");
        check(
            self.cluster_endpoint.is_empty() || is_absolute_url(&self.cluster_endpoint),
            "cluster-endpoint must be an absolute URL",
        );
        check(
            self.vm_memory_overhead_percent >= 0.0 && self.vm_memory_overhead_percent.is_finite(),
            "vm-memory-overhead-percent cannot be negative",
        );
        check(
            u32::try_from(self.reserved_enis).is_ok(),
            "reserved-enis cannot be negative",
        );
        check(
            self.ami_refresh_interval >= LEAST_INTERVAL,
            "ami-refresh-interval cannot be less than 1m",
        );
        check(
            self.subnet_refresh_interval >= LEAST_INTERVAL,
            "subnet-refresh-interval cannot be less than 1m",
        );
        check(
            self.spot_price_interval >= LEAST_INTERVAL,
            "spot-price-interval cannot be less than 1m",
        );
        if problems.is_empty() {
            Ok(())
        } else {
            Err(InvalidOptions(problems))
        }
    }

    /// Returns the number of network interfaces that are not for pods.
    pub fn reserved_enis(&self) -> u32 {
        u32::try_from(self.reserved_enis).unwrap_or(0)
    }
}

/// Sets the values of [`AwsOptions`]' arguments in `command` from the environment. An empty variable counts as unset;
/// clap rejects an invalid value with the name of its flag.
#[must_use]
pub fn prepare(command: Command, env: impl Fn(&str) -> Option<String>) -> Command {
    let readable = |id: &str, value: &str| match id {
        "isolated_vpc" | "eks_control_plane" | "disable_dry_run" | "enable_zonal_shift" => {
            Some(go_bool(value).is_ok())
        }
        "vm_memory_overhead_percent" => Some(value.parse::<f64>().is_ok()),
        "reserved_enis" => Some(value.parse::<i64>().is_ok()),
        "ami_refresh_interval" | "subnet_refresh_interval" | "spot_price_interval" => {
            Some(duration(value).is_ok())
        }
        "cluster_name" | "cluster_endpoint" | "cluster_ca_bundle" | "interruption_queue"
        | "aws_feature_gates" => Some(true),
        _ => None,
    };
    command.mut_args(|arg| {
        let value = arg.get_env().and_then(|name| name.to_str()).and_then(&env);
        let Some(value) = value else {
            return arg;
        };
        if value.is_empty() {
            return arg.env(None::<&'static str>);
        }
        match readable(arg.get_id().as_str(), &value) {
            // Read once at the start; clap keeps its strings for the life of the process.
            Some(true) => {
                let value: &'static str = Box::leak(value.into_boxed_str());
                arg.env(None::<&'static str>).default_value(value)
            }
            Some(false) | None => arg,
        }
    })
}

fn is_absolute_url(text: &str) -> bool {
    let rest = text
        .split_once("://")
        .map(|(scheme, rest)| (scheme.to_ascii_lowercase(), rest));
    rest.is_some_and(|(scheme, rest)| {
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        matches!(scheme.as_str(), "http" | "https") && !host.is_empty() && !host.starts_with(':')
    })
}

fn feature_gates(text: &str) -> Result<AwsFeatureGates, String> {
    let mut gates = AwsFeatureGates::default();
    for pair in text
        .split(',')
        .map(str::trim)
        .filter(|pair| !pair.is_empty())
    {
        let (name, value) = pair
            .split_once('=')
            .ok_or_else(|| format!("`{pair}` is not of the form `Gate=true`"))?;
        // Unknown gates are ignored, so that chart and controller can be upgraded in either order.
        if name.trim() == "NodeClassCEL" {
            gates.node_class_cel = go_bool(value.trim())?;
        }
    }
    Ok(gates)
}

fn go_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        other => Err(format!("`{other}` is neither true nor false")),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let parsed = karpenter_api::duration::parse(text).map_err(|error| error.to_string())?;
    Duration::try_from(parsed).map_err(|_| format!("`{text}` is negative"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::{CommandFactory as _, FromArgMatches as _, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Alone {
        #[command(flatten)]
        aws: AwsOptions,
    }

    fn read(args: &[&str], env: &[(&str, &str)]) -> Result<AwsOptions, clap::Error> {
        let env: BTreeMap<&str, &str> = env.iter().copied().collect();
        let command = prepare(Alone::command(), |name| {
            env.get(name).map(|it| (*it).to_owned())
        });
        let args = std::iter::once("karpenter").chain(args.iter().copied());
        Ok(Alone::from_arg_matches(&command.try_get_matches_from(args)?)?.aws)
    }

    /// Conformance: AWS-options-03
    #[test]
    fn the_defaults_are_upstream_s() {
        let options = read(&["--cluster-name=a"], &[]).unwrap();
        let expected = AwsOptions {
            cluster_name: "a".into(),
            cluster_endpoint: String::new(),
            cluster_ca_bundle: String::new(),
            interruption_queue: String::new(),
            isolated_vpc: false,
            eks_control_plane: false,
            disable_dry_run: false,
            enable_zonal_shift: false,
            vm_memory_overhead_percent: 0.075,
            reserved_enis: 0,
            ami_refresh_interval: Duration::from_secs(60),
            subnet_refresh_interval: Duration::from_secs(60),
            // DIFFERS: upstream has none, and asks every twelve hours.
            spot_price_interval: Duration::from_secs(300),
            aws_feature_gates: AwsFeatureGates {
                node_class_cel: false,
            },
        };
        assert_eq!(options, expected);
        assert_eq!(options.validate(), Ok(()));
    }

    /// Conformance: AWS-options-01
    #[test]
    fn invalid_options_are_refused() {
        for wrong in [
            "--vm-memory-overhead-percent=-0.01",
            "--reserved-enis=-1",
            "--cluster-endpoint=00000000000000000000000.gr7.us-west-2.eks.amazonaws.com",
            "--cluster-endpoint=https://",
            "--ami-refresh-interval=59s",
            "--subnet-refresh-interval=1ms",
            "--spot-price-interval=30s",
        ] {
            let options = read(&["--cluster-name=a", wrong], &[]).unwrap();
            assert!(options.validate().is_err(), "{wrong}");
        }
        assert_eq!(
            read(&[], &[]).unwrap().validate().unwrap_err().to_string(),
            "cluster-name is required"
        );
        let fine = read(
            &[
                "--cluster-name=a",
                "--cluster-endpoint=https://x.eks.amazonaws.com",
            ],
            &[],
        );
        assert_eq!(fine.unwrap().validate(), Ok(()));
    }

    /// Conformance: AWS-options-02
    #[test]
    fn unknown_gates_are_ignored_and_flags_beat_the_environment() {
        let env = [
            ("CLUSTER_NAME", "env"),
            ("RESERVED_ENIS", "2"),
            ("AWS_FEATURE_GATES", "Warp=true,NodeClassCEL=true"),
            ("ISOLATED_VPC", "true"),
        ];
        let options = read(&["--cluster-name", "flag", "--isolated-vpc=false"], &env).unwrap();
        assert_eq!(options.cluster_name, "flag");
        assert!(!options.isolated_vpc);
        assert_eq!(options.reserved_enis(), 2);
        assert!(options.aws_feature_gates.node_class_cel);
        assert!(read(&["--aws-feature-gates=NodeClassCEL"], &[]).is_err());
        assert!(read(&["--isolated-vpc"], &[]).unwrap().isolated_vpc);
    }

    #[test]
    fn an_empty_variable_counts_as_unset() {
        let env = [("RESERVED_ENIS", ""), ("ISOLATED_VPC", "")];
        assert_eq!(read(&[], &env).unwrap(), read(&[], &[]).unwrap());
    }

    #[test]
    fn an_invalid_variable_is_refused_with_the_name_of_its_flag() {
        for (flag, value) in [
            ("--vm-memory-overhead-percent", "much"),
            ("--reserved-enis", "few"),
            ("--disable-dry-run", "maybe"),
            ("--subnet-refresh-interval", "often"),
            ("--spot-price-interval", "seldom"),
        ] {
            let error = read(&[&format!("{flag}={value}")], &[]).unwrap_err();
            let error = error.to_string();
            assert!(error.contains(flag) && error.contains(value), "{error}");
        }
    }
}
