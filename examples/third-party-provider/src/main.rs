//! The controller of the imaginary cloud, as it runs in a cluster.
//!
//! ```sh
//! cargo run -p karpenter-playground -- --no-controllers      # a control plane on this computer
//! export KUBECONFIG=$PWD/playground.kubeconfig                            # in a second terminal
//! cargo run --bin third-party-provider -- --print-crd | kubectl apply -f -
//! cargo run --bin third-party-provider -- --disable-leader-election
//! ```

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{CommandFactory, FromArgMatches, Parser};
use karpenter_kube::clock::Clock;
use karpenter_kube::options::Options;
use karpenter_kube::process::{connect, exit_with, log, stop_on_signal};
use kube::CustomResourceExt;
use third_party_provider::lagoon::Lagoon;
use third_party_provider::{LagoonClass, kubelets, operator};

/// It returns freed memory to the operating system by itself; the C library keeps what lies between objects that stay. Configured in
/// `.cargo/config.toml`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Karpenter for the imaginary cloud.
#[derive(Debug, Parser)]
#[command(name = "third-party-provider", version)]
struct Args {
    #[command(flatten)]
    core: Options,
    /// Prints the CustomResourceDefinition of LagoonClass, for `kubectl apply -f -`, and exits.
    #[arg(long)]
    print_crd: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    exit_with(run().await)
}

// ANCHOR: run
async fn run() -> Result<()> {
    // Options are read from flags and environment variables.
    let command = Options::prepare(Args::command(), |name: &str| std::env::var(name).ok());
    let args = Args::from_arg_matches(&command.get_matches())?;
    if args.print_crd {
        println!("{}", serde_json::to_string_pretty(&LagoonClass::crd())?);
        return Ok(());
    }
    log(&args.core, env!("CARGO_PKG_VERSION")).context("cannot initialize logging")?;
    let connection = connect(&args.core).await?;
    let (clock, stop) = (Clock::real(), stop_on_signal());

    // The instances of a real cloud join the cluster on their own.
    let (cloud, cluster) = (Lagoon::default(), "example");
    let instances = kubelets::join(
        connection.clients.api.clone(),
        cloud.clone(),
        cluster.to_owned(),
        clock,
        stop.clone(),
    );
    tokio::spawn(instances);

    operator(connection.clients, cloud, cluster, args.core)
        .clock(clock)
        .registry(connection.registry)
        .run(stop)
        .await?;
    Ok(())
}
// ANCHOR_END: run
