//! Karpenter on a real Kubernetes control plane: `cargo xtask realcluster` builds and runs this.
//!
//! | module | what it answers |
//! |---|---|
//! | [`binaries`] | where are the programs of a control plane, and how are they built? |
//! | [`plane`] | how do they become a control plane on loopback? |
//! | [`cluster`] | how does Karpenter get into it? By Helm, with the rights of the chart |
//! | [`case`] | what does each scenario have to itself? |
//! | [`scenarios`] | what must be so? |
//! | [`measure`] | how fast, how dear, how many requests? |

mod audit;
mod binaries;
mod case;
mod cluster;
mod controller;
mod helm;
mod measure;
mod objects;
mod person;
mod plane;
mod process;
mod scenarios;
mod suite;
mod wait;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};

/// Karpenter on a real Kubernetes control plane.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask realcluster")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Builds the programs of the control plane that are neither in KUBEBUILDER_ASSETS nor in PATH, through the Go module proxy.
    Build,
    /// Starts a cluster with Karpenter in it, and leaves it running.
    Up,
    /// Ends the cluster that `up` started.
    Down,
    /// Runs the scenarios whose names contain one of the words; without words all of them.
    Test {
        /// Only the scenarios that fit into every CI run.
        #[arg(long)]
        quick: bool,
        /// Words in scenarios' names.
        words: Vec<String>,
    },
    /// Measures the controller.
    #[command(flatten)]
    Measure(measure::Measure),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let result = runtime.context("cannot start").and_then(|runtime| {
        runtime.block_on(async {
            // Dropping what runs ends every process that it started.
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
    // Two providers may be linked in; it is only refused if one is set.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    match command {
        Command::Build => binaries::build().map(|_| ()),
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

/// The directory of the workspace.
fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = package.ancestors().nth(2).unwrap_or(package);
    root.to_owned()
}

/// The binary of a controller that was built beside this program.
fn controller_binary(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let binary = own.with_file_name(name);
    anyhow::ensure!(
        binary.is_file(),
        "{} is not built; `cargo xtask realcluster` does it",
        binary.display()
    );
    Ok(binary)
}
