//! The kubectl plugin for Karpenter, as a library: its commands and what they share.
//!
//! - [`flags`]: the options of kubectl; [`cluster`]: the connection to the API server that they select.
//! - [`transport`]: the connection to the server of decisions in Karpenter's leader.
//! - [`offline`]: answers from a bundle, without a server.
//! - [`output`]: tables, JSON, YAML; nothing that a terminal would interpret.
//!
//! Exit codes: 0 for an answer, 1 for an error, and for commands with `--exit-code` 2 if the answer is the one that the option
//! asks about. An error is one line on standard error that names what to do about it.

mod capture;
pub mod cluster;
mod completion;
#[cfg(feature = "convert")]
mod convert;
mod dashboard;
mod doctor;
pub mod flags;
mod nodes;
pub mod offline;
pub mod output;
mod pause;
mod plan;
mod replay;
mod shadow;
mod stream;
pub mod transport;
mod why;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// The exit code of a process that SIGINT has ended.
const INTERRUPTED: u8 = 130;

/// Answers questions about Karpenter and changes its resources.
#[derive(Debug, Parser)]
#[command(name = "kubectl-karpenter", bin_name = "kubectl karpenter", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Capture(capture::Args),
    #[cfg(feature = "convert")]
    Convert(convert::Args),
    Dashboard(dashboard::Args),
    Doctor(doctor::Args),
    Nodes(nodes::Args),
    Pause(pause::PauseArgs),
    Plan(Box<plan::Args>),
    Replay(replay::Args),
    Resume(pause::ResumeArgs),
    Shadow(shadow::Args),
    Why(why::Args),
    /// Print completions of a command line, as kubectl asks `kubectl_complete-karpenter` for them.
    #[command(name = completion::COMMAND, hide = true, disable_help_flag = true)]
    Complete(completion::Args),
}

/// Returns the command line of the plugin, for its documentation.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the plugin with these arguments, the first of which is the name of the program.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(usage) => {
            // Unless help was asked for, this is an error: clap's own code 2 has another meaning here.
            let code = u8::from(usage.use_stderr());
            let _ = usage.print();
            return ExitCode::from(code);
        }
    };
    let outcome = match cli.command {
        Command::Capture(args) => run(args.run()),
        #[cfg(feature = "convert")]
        Command::Convert(args) => convert::run(&args),
        Command::Dashboard(args) => run(args.run()),
        Command::Doctor(args) => run(args.run()),
        Command::Nodes(args) => run(args.run()),
        Command::Pause(args) => run(args.run()),
        Command::Plan(args) => run(args.run()),
        Command::Replay(args) => args.run(),
        Command::Resume(args) => run(args.run()),
        Command::Shadow(args) => run(args.run()),
        Command::Why(args) => run(args.run()),
        Command::Complete(args) => completion::run(Cli::command(), args),
    };
    outcome.unwrap_or_else(|error| {
        match error.downcast_ref::<transport::Unreachable>() {
            Some(ways) => ways.lines().for_each(output::error),
            None => output::error(&cluster::causes(error.as_ref())),
        }
        ExitCode::FAILURE
    })
}

/// Runs a command until it ends, or until a signal asks the process to stop.
fn run(command: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    block_on(command)?.unwrap_or_else(|| Ok(ExitCode::from(INTERRUPTED)))
}

/// Waits for a future; `None` if a signal asked the process to stop before. The future is dropped then, and with it the child
/// processes that it started.
fn block_on<T>(future: impl Future<Output = T>) -> anyhow::Result<Option<T>> {
    // Another crypto provider may be linked in: install ours before its first use. It fails only if a default is already set.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    Ok(runtime.block_on(async {
        tokio::select! {
            biased;
            () = asked_to_stop() => None,
            value = future => Some(value),
        }
    }))
}

#[cfg(unix)]
async fn asked_to_stop() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    ) else {
        // Without handlers the signals end the process.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

#[cfg(not(unix))]
async fn asked_to_stop() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_usage_lines_begin_with_kubectl() {
        let mut command = Cli::command();
        command.build();
        command.clone().debug_assert();
        for subcommand in command.get_subcommands_mut() {
            let usage = subcommand.render_usage().to_string();
            assert!(usage.starts_with("Usage: kubectl karpenter "), "{usage}");
        }
    }
}
