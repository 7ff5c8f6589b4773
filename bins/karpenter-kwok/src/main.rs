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
use karpenter_kube::clock::Clock;
use karpenter_kube::operator::Operator;
use karpenter_kube::options::Options;
use karpenter_kube::process::{connect, exit_with, log, stop_on_signal};
use karpenter_kwok::{Cloud, KwokProvider, controllers};

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
    let types = instance_types::load(args.instance_types_file_path.as_deref())?;
    let cluster = connect(&args.core).await?;
    let (clock, clients) = (Clock::real(), cluster.clients);
    let provider = KwokProvider::new(clients.api.clone(), clock, types, Cloud::new());
    let provider = Arc::new(provider.instances_through(clients.no_retry.clone()));
    let kwok = Arc::clone(&provider);
    Operator::builder(provider, clients, args.core)
        .clock(clock)
        .registry(cluster.registry)
        .with(move |controllers| controllers::add(controllers, kwok))
        .run(stop_on_signal())
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
