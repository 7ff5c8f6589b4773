//! Karpenter for AWS, as it runs in the cluster: options, provider, operator.

mod profiling;

use anyhow::{Context, Result};
use clap::{CommandFactory, FromArgMatches, Parser};
use karpenter_aws::discovery;
use karpenter_aws::operator::{Settings, assemble};
use karpenter_aws::options::{self, AwsOptions};
use karpenter_aws::sdk::{Aws, Connect};
use karpenter_kube::client::Clients;
use karpenter_kube::clock::Clock;
use karpenter_kube::logging::{JsonLines, Outputs};
use karpenter_kube::metrics::Registry;
use karpenter_kube::operator::Operator;
use karpenter_kube::options::{LogLevel, Options};
use karpenter_legacy::options::LegacyOptions;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::prelude::*;

/// Just-in-time nodes for Kubernetes on AWS.
#[derive(Debug, Parser)]
#[command(name = "karpenter", version)]
struct Args {
    #[command(flatten)]
    core: Options,
    #[command(flatten)]
    aws: AwsOptions,
    #[command(flatten)]
    legacy: LegacyOptions,
}

#[tokio::main]
async fn main() -> Result<()> {
    let env = |name: &str| std::env::var(name).ok();
    let command = options::prepare(Options::prepare(Args::command(), env), env);
    let args = Args::from_arg_matches(&command.get_matches())?;
    args.aws.validate()?;
    log(&args.core)?;
    // Two providers may be linked in; whoever asks first must find the one we mean. It is only refused if one is set.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();

    let config = kube::Config::infer().await.context("finding the cluster")?;
    let registry = Registry::new();
    let clients = Clients::connect(
        &config,
        args.core.kube_client_qps,
        args.core.kube_client_burst,
        &registry,
    )?;
    let how = Connect {
        registry: registry.clone(),
        ..Connect::default()
    };
    let aws = Aws::connect(&how).await?;
    let authority = discovery::ca_bundle(config.root_cert.as_deref().unwrap_or_default());
    let settings = Settings::from_options(&args.core, &args.aws, authority);
    let clock = Clock::real();
    let assembly = assemble(aws, clients.api.clone(), clock, &registry, settings).await?;

    let stop = CancellationToken::new();
    tokio::spawn(stop_on_signal(stop.clone()));
    Operator::builder(assembly.provider(), clients, args.core)
        .clock(clock)
        .registry(registry)
        .profiler(profiling::profiler())
        .with(move |setup| assembly.add(setup))
        .with(move |setup| args.legacy.add(setup))
        .run(stop)
        .await?;
    Ok(())
}

fn log(options: &Options) -> Result<()> {
    let level = match options.log_level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    let outputs = Outputs::open(&options.log_output_paths).context("opening the log")?;
    let ours = tracing_subscriber::filter::filter_fn(|metadata| {
        metadata.target().starts_with("karpenter")
    });
    let lines = JsonLines::new(outputs, env!("CARGO_PKG_VERSION"));
    tracing_subscriber::registry()
        .with(lines.with_filter(level).with_filter(ours))
        .init();
    Ok(())
}

async fn stop_on_signal(stop: CancellationToken) {
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
