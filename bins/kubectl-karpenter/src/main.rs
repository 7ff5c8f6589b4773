//! `kubectl karpenter`: the kubectl plugin for Karpenter.

mod convert;
mod stream;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Converts resources of older Karpenter generations to v1.
#[derive(Debug, Parser)]
#[command(name = "kubectl-karpenter", bin_name = "kubectl karpenter", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Convert(convert::Args),
}

fn main() -> ExitCode {
    let outcome = match Args::parse().command {
        Command::Convert(args) => convert::run(&args),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
