//! Development tasks of the project, for contributors and CI: `cargo xtask COMMAND`.

mod bench;
mod ci;
mod circles;
mod conformance;
mod crds;
mod docs;
mod files;
mod layout;
mod package;
mod pinned;
mod plots;
mod process;
mod realcluster;
mod release;
mod vendor_web;
mod walkthrough;
mod words;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use serde::de::DeserializeOwned;

use process::succeed;

/// Development tasks of the project, for contributors and CI.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write the CRDs (crds/*.yaml and charts/karpenter-crd) from the Rust types.
    Crds {
        /// Only check that the files are up to date.
        #[arg(long)]
        check: bool,
    },
    /// Write docs/conformance.md: the tests and documented differences that cover each line of the catalogues.
    Conformance {
        /// Only check that the file is up to date.
        #[arg(long)]
        check: bool,
    },
    /// Write the generated pages of docs/reference. Those about flags and metrics are written by tests: `UPDATE_REFERENCE=1 cargo
    /// test --workspace reference_page`.
    Docs {
        /// Only check that the pages are up to date.
        #[arg(long)]
        check: bool,
    },
    /// List the files of each crate that import each other in a circle.
    Circles,
    /// Draw the charts of docs/performance.md from its tables.
    Plots {
        /// Only check that the pictures are up to date.
        #[arg(long)]
        check: bool,
    },
    /// Run benchmarks; by default all of them.
    Bench {
        /// Print one JSON object per line instead of a table.
        #[arg(long)]
        json: bool,
        /// Bench targets (`consolidate`) or cases (`consolidate-multi-1000`); a name also selects names that start with it and a
        /// dash.
        names: Vec<String>,
    },
    /// Simulate whole clusters in virtual time, with random workloads, faults and restarts.
    Sim {
        /// Arguments passed to `karpenter-sim`: `--seeds N`, `--seed S`, `--hours H`, `--trace`, `--log FILTER`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Try every order of events of the processes in small clusters, with stale reads, lost answers and crashes.
    Explore {
        /// Arguments passed to `karpenter-explore`: `--states N`, `--depth N`, `--faults N`, names of clusters.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run one of the walkthroughs of docs/walkthroughs.md, and print its output.
    Walkthrough {
        /// Number of the walkthrough.
        #[arg(value_parser = clap::value_parser!(u32).range(1..=3))]
        number: u32,
    },
    /// Run the controllers on a real Kubernetes control plane: `build`, `up`, `down`, `test`, `burst`, `scale`, `idle`, `compare`.
    Realcluster {
        /// Arguments passed to `real-cluster`; `help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Build what a release consists of: binaries, archives, images, charts, CRDs, SBOMs, checksums.
    Release(release::Options),
    /// Package the published crates, and test providers that are built with the packages, outside of the workspace.
    Package,
    /// Fetch the third-party files of the dashboard from npm, in the versions of
    /// crates/karpenter-dashboard/assets/vendor/VENDOR.toml, and write their checksums.
    VendorWeb,
    /// Run all checks of CI.
    Ci {
        /// Only the checks that build nothing: format, generated files, dependencies, words, circles, layout and pins.
        #[arg(long)]
        quick: bool,
    },
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
        Command::Conformance { check } => conformance::run(&root, check),
        Command::Docs { check } => docs::run(&root, check),
        Command::Circles => circles::run(&root).map(|_| ()),
        Command::Plots { check } => plots::run(&root, check),
        Command::Bench { json, names } => bench::run(&root, json, &names),
        Command::Sim { arguments } => judge(&root, "karpenter-sim", &arguments),
        Command::Explore { arguments } => judge(&root, "karpenter-explore", &arguments),
        Command::Walkthrough { number } => walkthrough::run(&root, number),
        Command::Realcluster { arguments } => realcluster::run(&root, &arguments),
        Command::Release(options) => release::run(&root, &options),
        Command::Package => package::run(&root),
        Command::VendorWeb => vendor_web::run(&root),
        Command::Ci { quick } => ci::run(&root, quick),
    }
}

/// Returns the directory of the workspace: the parent of this package's directory.
fn workspace_root() -> anyhow::Result<PathBuf> {
    let package = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    package
        .parent()
        .map(PathBuf::from)
        .context("cannot find the workspace of xtask")
}

/// Reads of the workspace's packages what `T` has of the output of `cargo metadata`.
fn metadata<T: DeserializeOwned>(root: &Path) -> anyhow::Result<T> {
    let output = std::process::Command::new("cargo")
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root)
        .output()?;
    serde_json::from_slice(&output.stdout).context("cannot read cargo's metadata")
}

/// Builds a judge of the project in release mode, and runs it.
fn judge(root: &Path, package: &str, arguments: &[String]) -> anyhow::Result<()> {
    let arguments = arguments.iter().filter(|argument| *argument != "--");
    succeed(
        std::process::Command::new("cargo")
            .args(["run", "--quiet", "--release", "--package", package, "--"])
            .args(arguments)
            .current_dir(root),
    )
}
