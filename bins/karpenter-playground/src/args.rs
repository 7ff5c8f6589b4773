//! The playground's command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use karpenter_kube::options::FeatureGates;

/// A cluster with Karpenter on a laptop: an embedded control plane, simulated nodes, and Karpenter's controllers.
#[derive(Debug, Clone, PartialEq, Parser)]
#[command(name = "karpenter-playground", version)]
pub struct Args {
    /// Address of the API server; port 0 selects a free port.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Path of the kubeconfig that is written at startup.
    #[arg(long, value_name = "PATH", default_value = "./playground.kubeconfig")]
    pub kubeconfig: PathBuf,
    /// Address of the controllers' Prometheus metrics; port 0 selects a free port. By default no metrics are served.
    #[arg(long, value_name = "ADDR:PORT")]
    pub metrics: Option<SocketAddr>,
    /// Cloud provider to use.
    #[arg(long, value_enum, default_value_t = Provider::Kwok)]
    pub provider: Provider,
    /// Start only the control plane (with `--provider aws` also the fake of AWS and its instances), without Karpenter, so that you
    /// can start your own controllers, such as those of another provider.
    #[arg(long, conflicts_with_all = ["demo", "exit_when_idle"])]
    pub no_controllers: bool,
    /// Kubernetes versions for which `--provider aws` has images, comma-separated; the first is the version of the control plane.
    #[cfg(feature = "aws")]
    #[arg(long, value_name = "VERSION", value_delimiter = ',', default_value = karpenter_lab::aws::KUBERNETES)]
    pub kubernetes: Vec<String>,
    /// Feature gates, as for `karpenter`; the reference of its flags lists them.
    #[arg(
        long,
        value_name = "GATE=BOOL,...",
        env = "FEATURE_GATES",
        default_value = ""
    )]
    pub feature_gates: FeatureGates,
    /// Speed of time in the cluster, relative to real time.
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = speed)]
    pub speed: f64,
    /// JSON file of instance types, instead of the built-in ones.
    #[arg(long, value_name = "FILE")]
    pub instance_types: Option<PathBuf>,
    /// Files with manifests to apply at startup.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub apply: Vec<PathBuf>,
    /// Faults to inject.
    #[arg(long, value_name = "PROFILE", value_enum, default_value_t = FaultProfile::None)]
    pub faults: FaultProfile,
    /// Exit with a summary once the cluster is idle; the exit code is 0 if every pod runs.
    #[arg(long)]
    pub exit_when_idle: bool,
    /// Run a demo: a burst, a pod that cannot run, a spot interruption, a rehearsed change and the consolidation that follows.
    #[arg(long)]
    pub demo: bool,
    /// Open the dashboard in the browser.
    #[arg(long)]
    pub open: bool,
    /// Seed of generated names and injected faults.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Log level of messages to standard error.
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t = Verbosity::Error)]
    pub log_level: Verbosity,
}

/// Cloud provider to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Provider {
    /// Simulated nodes without a cloud.
    Kwok,
    /// The AWS provider (EC2NodeClasses), against a fake of AWS.
    #[cfg(feature = "aws")]
    Aws,
}

/// Log level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Verbosity {
    /// No messages.
    Off,
    /// Errors only.
    Error,
    /// Errors, warnings and the main steps.
    Info,
    /// All messages.
    Debug,
}

/// Faults to inject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FaultProfile {
    /// No faults.
    None,
    /// The API server sometimes returns errors, answers late and closes watches.
    Api,
    /// No spot capacity in half of the zones.
    Capacity,
    /// The faults of `api` and `capacity`.
    Chaos,
}

fn speed(text: &str) -> Result<f64, String> {
    let speed: f64 = text
        .parse()
        .map_err(|_| format!("`{text}` is not a number"))?;
    if speed.is_finite() && speed > 0.0 {
        Ok(speed)
    } else {
        Err(format!("`{text}` is not a positive number"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_need_no_arguments() {
        let args = Args::try_parse_from(["karpenter-playground"]).unwrap();
        assert_eq!(args.kubeconfig, PathBuf::from("./playground.kubeconfig"));
        assert_eq!(
            (args.speed, args.demo, args.exit_when_idle),
            (1.0, false, false)
        );
    }

    #[test]
    fn feature_gates_are_written_as_for_karpenter() {
        let gates = "StaticCapacity=true,ReservedCapacity=false";
        let args = Args::try_parse_from(["x", "--feature-gates", gates]).unwrap();
        let gates = args.feature_gates;
        assert!(gates.static_capacity && !gates.reserved_capacity && !gates.node_repair);
        assert!(Args::try_parse_from(["x", "--feature-gates", "StaticCapacity"]).is_err());
    }

    #[test]
    fn several_manifests_and_a_speed_are_taken() {
        let args = Args::try_parse_from([
            "x", "--apply", "a.yaml", "b.yaml", "--speed", "60", "--faults", "chaos",
        ])
        .unwrap();
        assert_eq!(
            (args.apply.len(), args.speed, args.faults),
            (2, 60.0, FaultProfile::Chaos)
        );
        for bad in ["0", "-1", "fast", "inf"] {
            assert!(
                Args::try_parse_from(["x", "--speed", bad]).is_err(),
                "{bad}"
            );
        }
    }

    /// The feature `aws` adds flags.
    #[cfg(not(feature = "aws"))]
    #[test]
    fn reference_page_man_page_and_completions_have_the_flags() -> anyhow::Result<()> {
        use clap::CommandFactory as _;
        let intro = "# Flags of karpenter-playground\n\n[On a laptop](../getting-started/playground.md) explains them with examples. \
            A build with `--features aws` also has `--provider aws`, `--no-controllers` and `--kubernetes`.\n";
        let flags = reference::flags(&Args::command(), &|_| None);
        reference::page("karpenter-playground", &format!("{intro}\n{flags}"))?;
        reference::man_pages(&Args::command())?;
        reference::completions(&Args::command())
    }
}
