//! Shared parts of the `main` functions of controller binaries: log, clients, stop on signals, final error.
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
use kube::Config;
use kube::config::InferConfigError;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::prelude::*;

use crate::client::Clients;
#[cfg(feature = "decisions")]
use crate::client::refusal::Refusals;
use crate::logging::{JsonLines, Outputs};
use crate::metrics::Registry;
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

/// The cluster of a process.
#[derive(Debug)]
pub struct Connection {
    /// How it is reached.
    pub config: Config,
    /// Its clients.
    pub clients: Clients,
    /// The metrics, which count the requests of the clients.
    pub registry: Registry,
}

/// Why [`connect`] has failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is neither a kubeconfig nor a ServiceAccount.
    #[error("cannot load the kubeconfig or the in-cluster configuration")]
    Config(#[from] InferConfigError),
    /// TLS or authentication cannot be set up.
    #[error(transparent)]
    Client(#[from] kube::Error),
}

/// Creates the clients for the cluster of the kubeconfig, or of the pod.
///
/// # Errors
/// If the configuration is missing or invalid. No request is sent.
pub async fn connect(options: &Options) -> Result<Connection, ConnectError> {
    // Two crypto providers may be linked in: install ours as the default before its first use. Installing fails only if a default
    // is already set.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let config = Config::infer().await?;
    let registry = Registry::new();
    let clients = clients(&config, options, &registry)?;
    Ok(Connection {
        config,
        clients,
        registry,
    })
}

/// Creates clients for a cluster with the limits of the options; those of a shadow only read.
///
/// # Errors
/// If TLS or authentication cannot be set up.
pub fn clients(
    config: &Config,
    options: &Options,
    registry: &Registry,
) -> Result<Clients, kube::Error> {
    let (qps, burst) = (options.kube_client_qps, options.kube_client_burst);
    let clients = Clients::connect(config, qps, burst, registry)?;
    #[cfg(feature = "decisions")]
    if options.shadow {
        return Ok(clients.read_only(&Refusals::new(registry)));
    }
    Ok(clients)
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

/// Returns a token that is cancelled on SIGTERM or SIGINT.
#[must_use]
pub fn stop_on_signal() -> CancellationToken {
    let stop = CancellationToken::new();
    let token = stop.clone();
    tokio::spawn(async move {
        signalled().await;
        stop.cancel();
    });
    token
}

async fn signalled() {
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
