//! The project's one door for people and CI: `cargo xtask COMMAND`.

mod bench;
mod ci;
mod conformance;
mod crds;
mod realcluster;
mod sim;
mod walkthrough;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use clap::{Parser, Subcommand};

/// The project's one door for people and CI.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write crds/*.yaml from the Rust types.
    Crds {
        /// Only check that the files are up to date.
        #[arg(long)]
        check: bool,
    },
    /// Write docs/conformance.md: which test or recorded difference covers each line of the catalogues.
    Conformance {
        /// Only check that the file is up to date.
        #[arg(long)]
        check: bool,
        /// Print a line per catalogue instead of writing the file.
        #[arg(long)]
        summary: bool,
    },
    /// Run benchmarks; without names all of them.
    Bench {
        /// Print one JSON object a line instead of a table.
        #[arg(long)]
        json: bool,
        /// A bench target (`consolidate`) or a case (`consolidate-multi-1000`), and all that go on from that name after a dash.
        names: Vec<String>,
    },
    /// Simulate whole clusters from random seeds.
    Sim {
        /// How many seeds.
        #[arg(long)]
        seeds: u64,
        /// The first seed.
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// How many hours of each cluster's life.
        #[arg(long, default_value_t = 24.0)]
        hours: f64,
        /// What else `karpenter-sim` is to be given, such as `--trace`.
        #[arg(last = true)]
        more: Vec<String>,
    },
    /// Run one of the walkthroughs of docs/walkthroughs.md, and print what happens.
    Walkthrough {
        /// Its number: 1 to 3.
        number: u32,
    },
    /// Run the controllers on a real Kubernetes control plane: `build`, `up`, `down`, `test`, `burst`, `scale`, `idle`.
    Realcluster {
        /// What `real-cluster` is to be given; `help` says more.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Everything CI checks.
    Ci,
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("error: {problem:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    let root = workspace_root()?;
    match command {
        Command::Crds { check } => crds::run(&root, check),
        Command::Conformance { check, summary } => conformance::run(&root, check, summary),
        Command::Bench { json, names } => bench::run(&root, json, &names),
        Command::Sim {
            seeds,
            seed,
            hours,
            more,
        } => sim::run(&root, seeds, seed, hours, &more),
        Command::Walkthrough { number } => walkthrough::run(&root, number),
        Command::Realcluster { arguments } => realcluster::run(&root, &arguments),
        Command::Ci => ci::run(&root),
    }
}

/// The directory of the workspace: the parent of this package's.
fn workspace_root() -> anyhow::Result<PathBuf> {
    let package = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    package
        .parent()
        .map(PathBuf::from)
        .context("xtask stands in no workspace")
}
