//! Karpenter with the kwok provider, as it runs in a cluster: it creates Node objects without instances, which kwok
//! (<https://kwok.sigs.k8s.io>) keeps ready.
//!
//! UPSTREAM: kwok/main.go

mod instance_types;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::{CommandFactory, FromArgMatches, Parser};
use karpenter_kube::client::Clients;
use karpenter_kube::clock::Clock;
use karpenter_kube::metrics::Registry;
use karpenter_kube::operator::Operator;
use karpenter_kube::options::Options;
use karpenter_kube::process::{exit_with, log, stop_on_signal};
use karpenter_kube::shadow::Refusals;
use karpenter_kwok::{Cloud, KwokProvider, controllers};
use tokio_util::sync::CancellationToken;

/// It returns freed memory to the operating system by itself; the C library keeps what lies between objects that stay. Configured in
/// `.cargo/config.toml`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Karpenter with the kwok provider: launches simulated nodes (Node objects without instances) in any cluster.
#[derive(Debug, Parser)]
#[command(name = "karpenter-kwok", version)]
struct Args {
    #[command(flatten)]
    core: Options,
    /// JSON file of the instance types to launch; by default, 144 built-in instance types.
    #[arg(long, help_heading = "KWOK", env = "INSTANCE_TYPES_FILE_PATH")]
    instance_types_file_path: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    exit_with(run().await)
}

async fn run() -> Result<()> {
    let command = Options::prepare(Args::command(), |name: &str| std::env::var(name).ok());
    let args = Args::from_arg_matches(&command.get_matches())?;
    log(&args.core, env!("CARGO_PKG_VERSION")).context("cannot initialize logging")?;
    // Two crypto providers may be linked in: install ours as the default before its first use. Installing fails only if a default
    // is already set.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let types = instance_types::load(args.instance_types_file_path.as_deref())?;
    let config = kube::Config::infer()
        .await
        .context("cannot load the kubeconfig or the in-cluster configuration")?;
    let registry = Registry::new();
    let mut clients = Clients::connect(
        &config,
        args.core.kube_client_qps,
        args.core.kube_client_burst,
        &registry,
    )?;
    if args.core.shadow {
        clients = clients.read_only(&Refusals::new(&registry));
    }
    let clock = Clock::real();
    let provider = KwokProvider::new(clients.api.clone(), clock, types, Cloud::new());
    let provider = Arc::new(provider.instances_through(clients.no_retry.clone()));
    let kwok = Arc::clone(&provider);

    let stop = CancellationToken::new();
    tokio::spawn(stop_on_signal(stop.clone()));
    Operator::builder(provider, clients, args.core)
        .clock(clock)
        .registry(registry)
        .with(move |controllers| controllers::add(controllers, kwok))
        .run(stop)
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_page_and_man_page_have_the_flags() -> Result<()> {
        let intro = "# Settings of karpenter-kwok\n\nThe controller for [simulated nodes](../getting-started/kwok.md).\n";
        let flags = reference::flags(&Args::command(), &reference::chart_values()?);
        reference::page("karpenter-kwok", &format!("{intro}\n{flags}"))?;
        reference::man_pages(&Args::command())
    }
}
