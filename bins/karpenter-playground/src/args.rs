//! The playground's command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use karpenter_kube::options::FeatureGates;

/// Karpenter on a laptop: an embedded control plane, simulated machines, and the controllers.
#[derive(Debug, Clone, PartialEq, Parser)]
#[command(name = "karpenter-playground", version)]
pub struct Args {
    /// Where the API server listens; port 0 takes a free one.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Where the kubeconfig is written.
    #[arg(long, value_name = "PATH", default_value = "./playground.kubeconfig")]
    pub kubeconfig: PathBuf,
    /// Where the controllers' metrics are served, for Prometheus; port 0 takes a free one.
    #[arg(long, value_name = "ADDR:PORT")]
    pub metrics: Option<SocketAddr>,
    /// Who sells the machines.
    #[arg(long, value_enum, default_value_t = Provider::Kwok)]
    pub provider: Provider,
    /// Leave Karpenter out: the control plane, AWS and its machines wait for a `karpenter` that is started by hand.
    #[cfg(feature = "aws")]
    #[arg(long)]
    pub no_controllers: bool,
    /// Versions of Kubernetes that images are published for, with `--provider aws`; the control plane's is the first.
    #[cfg(feature = "aws")]
    #[arg(long, value_name = "VERSION", value_delimiter = ',', default_value = crate::aws::KUBERNETES)]
    pub kubernetes: Vec<String>,
    /// Optional features, as `karpenter` takes them: NodeRepair, NodeOverlay, StaticCapacity, CapacityBuffer,
    /// SpotToSpotConsolidation, ReservedCapacity.
    #[arg(
        long,
        value_name = "GATE=BOOL,...",
        env = "FEATURE_GATES",
        default_value = ""
    )]
    pub feature_gates: FeatureGates,
    /// How many times faster than real time the cluster runs.
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = speed)]
    pub speed: f64,
    /// A JSON file of instance types instead of the generated ones.
    #[arg(long, value_name = "FILE")]
    pub instance_types: Option<PathBuf>,
    /// Manifests to apply at the start.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub apply: Vec<PathBuf>,
    /// What goes wrong.
    #[arg(long, value_name = "PROFILE", value_enum, default_value_t = FaultProfile::None)]
    pub faults: FaultProfile,
    /// End once nothing moves any more, with a summary; the exit code says whether every pod runs.
    #[arg(long)]
    pub exit_when_idle: bool,
    /// Show what Karpenter does: 500 pods come, and go.
    #[arg(long)]
    pub demo: bool,
    /// Seed of generated names and of chance.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Least severe level that is logged to standard error: off, error, info or debug.
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t = Verbosity::Error)]
    pub log_level: Verbosity,
}

/// Who sells the machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Provider {
    /// Simulated machines of no cloud.
    Kwok,
    /// The provider for AWS against a stand-in for AWS, with EC2NodeClasses.
    #[cfg(feature = "aws")]
    Aws,
}

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Verbosity {
    /// Nothing.
    Off,
    /// What fails.
    Error,
    /// Milestones, too.
    Info,
    /// Everything.
    Debug,
}

/// What goes wrong on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FaultProfile {
    /// Nothing.
    None,
    /// The API server fails, answers late and drops watches now and then.
    Api,
    /// Spot capacity is out in half of the zones.
    Capacity,
    /// Both.
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
}
