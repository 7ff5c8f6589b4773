//! Shared parts of the `main` functions of controller binaries: log, stop on signals, final error.
//!
//! Every error that ends the process is a log line in the same format: errors returned by `main` go through [`exit_with`],
//! panics through the hook that [`log`] installs.

mod memory;

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::error::Error;
use std::io;
use std::panic::PanicHookInfo;
use std::process::ExitCode;

use karpenter_core::provider::ErrorCode;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::prelude::*;

use crate::logging::{JsonLines, Outputs};
use crate::options::{LogLevel, Options};

pub(crate) use memory::resident;

/// Sets up the log of the process from the options, including panics. `version` is the `commit` of every line.
///
/// # Errors
/// When a file of `--log-output-paths` cannot be opened.
pub fn log(options: &Options, version: &str) -> io::Result<()> {
    let level = match options.log_level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    let outputs = Outputs::open(&options.log_output_paths)?;
    let ours = filter_fn(|metadata| metadata.target().starts_with("karpenter"));
    let lines = JsonLines::new(outputs, version);
    tracing_subscriber::registry()
        .with(lines.with_filter(level).with_filter(ours))
        .init();
    std::panic::set_hook(Box::new(log_panic));
    Ok(())
}

/// Logs a panic under the keys of controller-runtime. `RUST_BACKTRACE=1` adds the stack.
fn log_panic(info: &PanicHookInfo<'_>) {
    let location = info.location().map(ToString::to_string);
    let stack = Backtrace::capture();
    let stack = (stack.status() == BacktraceStatus::Captured).then(|| stack.to_string());
    tracing::error!(
        logger = "controller",
        panic = text_of(info.payload()),
        location,
        stacktrace = stack,
        "Observed a panic"
    );
}

fn text_of(payload: &(dyn Any + Send)) -> &str {
    let literal = payload.downcast_ref::<&str>().copied();
    literal
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a value that is not text")
}

/// Logs the error that ends the process, if there is one; returns the exit code for `main`.
///
/// Before [`log`] has succeeded the error is written to standard error.
#[must_use]
pub fn exit_with<E>(result: Result<(), E>) -> ExitCode
where
    E: Into<Box<dyn Error + Send + Sync>>,
{
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    let error: Box<dyn Error + Send + Sync> = error.into();
    let text = with_causes(&*error);
    if tracing::dispatcher::has_been_set() {
        let code = ErrorCode::of(&*error);
        tracing::error!(
            logger = "controller",
            "error-code.field" = code.map(|code| code.field),
            "error-code" = code.map(|code| &**code),
            "{text}"
        );
    } else {
        eprintln!("Error: {text}");
    }
    ExitCode::FAILURE
}

/// An error with those causes that it does not name itself.
fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// Cancels `stop` on SIGTERM or SIGINT.
pub async fn stop_on_signal(stop: CancellationToken) {
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
    stop.cancel();
}
