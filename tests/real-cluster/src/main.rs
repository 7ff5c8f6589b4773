//! Karpenter on a real Kubernetes control plane: `cargo xtask realcluster` builds and runs this.
//!
//! | module | contents |
//! |---|---|
//! | [`binaries`] | finds or builds the programs of a control plane |
//! | [`plane`] | starts a control plane on loopback |
//! | [`cluster`] | installs Karpenter with Helm, with only the chart's permissions |
//! | [`case`] | the namespace and NodePool of each scenario |
//! | [`scenarios`] | the scenarios |
//! | [`measure`] | measurements: duration, cost, requests |

mod audit;
mod binaries;
mod case;
mod cluster;
mod controller;
mod helm;
mod measure;
mod objects;
mod paths;
mod person;
mod plane;
mod process;
mod scenarios;
mod suite;
mod wait;

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};

/// Runs Karpenter on a real Kubernetes control plane on loopback: scenarios, measurements, or an interactive cluster.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask realcluster")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Build the programs of the control plane that are neither in KUBEBUILDER_ASSETS nor in PATH, through the Go module proxy.
    Build {
        /// Build only what the quick scenarios need.
        #[arg(long)]
        quick: bool,
    },
    /// Start a cluster with Karpenter, and leave it running.
    Up,
    /// Stop the cluster that `up` started.
    Down,
    /// Run the scenarios, by default all of them.
    Test {
        /// Run only the scenarios of every CI run.
        #[arg(long)]
        quick: bool,
        /// Run only scenarios whose name contains one of these words.
        words: Vec<String>,
    },
    /// Measure the controller.
    #[command(flatten)]
    Measure(measure::Measure),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let result = runtime
        .context("cannot start the runtime")
        .and_then(|runtime| {
            runtime.block_on(async {
                // Dropping the future kills every process that it started.
                tokio::select! {
                    result = run(arguments.command) => result,
                    _ = interrupted() => Err(anyhow::anyhow!("interrupted")),
                }
            })
        });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("error: {problem:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> Result<()> {
    // Two crypto providers may be linked in. Installing fails only if a default is already set.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    match command {
        Command::Build { quick } => binaries::build(quick).map(|_| ()),
        Command::Up => person::up().await,
        Command::Down => person::down(),
        Command::Test { quick, words } => suite::run(quick, &words).await,
        Command::Measure(measure) => measure.run().await,
    }
}

async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
        }
        Err(_) => {
            let _ = tokio::signal::ctrl_c().await;
        }
    }
}
