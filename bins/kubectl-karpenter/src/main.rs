//! `kubectl karpenter`: the user's side of Karpenter.

mod convert;
mod stream;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The user's side of Karpenter.
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
