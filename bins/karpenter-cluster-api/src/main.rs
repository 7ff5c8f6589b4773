//! Karpenter with the Cluster API provider, as it runs in a workload cluster or beside it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::{CommandFactory, FromArgMatches, Parser};
use karpenter_cluster_api::{ClusterApiProvider, Hub, controllers};
use karpenter_kube::clock::Clock;
use karpenter_kube::operator::Operator;
use karpenter_kube::options::Options;
use karpenter_kube::process::{clients, connect, exit_with, log, stop_on_signal};
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};

/// It returns freed memory to the operating system by itself; the C library keeps what lies between objects that stay. Configured in
/// `.cargo/config.toml`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Karpenter with the Cluster API provider: launches Machines from MachineDeployments.
#[derive(Debug, Parser)]
#[command(name = "karpenter-cluster-api", version)]
struct Args {
    #[command(flatten)]
    core: Options,
    /// Kubeconfig of the management cluster; by default, the management cluster is this cluster.
    #[arg(long, help_heading = "Cluster API", env = "CLUSTER_API_KUBECONFIG")]
    cluster_api_kubeconfig: Option<PathBuf>,
    /// The Cluster whose nodes are launched, as NAMESPACE/NAME. It may be omitted if the management cluster has only one.
    #[arg(long, help_heading = "Cluster API", env = "CLUSTER_API_CLUSTER")]
    cluster_api_cluster: Option<String>,
}

#[tokio::main]
async fn main() -> ExitCode {
    exit_with(run().await)
}

async fn run() -> Result<()> {
    let command = Options::prepare(Args::command(), |name: &str| std::env::var(name).ok());
    let args = Args::from_arg_matches(&command.get_matches())?;
    log(&args.core, env!("CARGO_PKG_VERSION")).context("cannot initialize logging")?;
    let workload = connect(&args.core).await?;
    let management = match &args.cluster_api_kubeconfig {
        Some(path) => of_file(path).await?,
        None => workload.config,
    };
    let management = clients(&management, &args.core, &workload.registry)?;
    let hub = Hub::new(management.api, args.cluster_api_cluster.as_deref())?;
    let clock = Clock::real();
    let provider = Arc::new(ClusterApiProvider::new(hub, clock));
    let own = Arc::clone(&provider);
    Operator::builder(provider, workload.clients, args.core)
        .clock(clock)
        .registry(workload.registry)
        .with(move |controllers| controllers::add(controllers, &own))
        .run(stop_on_signal())
        .await?;
    Ok(())
}

async fn of_file(path: &PathBuf) -> Result<Config> {
    let read = || format!("cannot load the kubeconfig `{}`", path.display());
    let kubeconfig = Kubeconfig::read_from(path).with_context(read)?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .with_context(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_page_and_man_page_have_the_flags() -> Result<()> {
        let intro = "# Settings of karpenter-cluster-api\n\nThe controller for [Cluster API](../getting-started/cluster-api.md).\n";
        let flags = reference::flags(&Args::command(), &reference::chart_values()?);
        reference::page("karpenter-cluster-api", &format!("{intro}\n{flags}"))?;
        reference::man_pages(&Args::command())
    }
}
