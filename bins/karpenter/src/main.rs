//! Karpenter for AWS: the controller that runs in the cluster.

mod catalogue;
mod profiling;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use karpenter_aws::context::AwsSettings;
use karpenter_aws::operator::{AwsOperator, discovery};
use karpenter_aws::options;
use karpenter_aws::options::AwsOptions;
use karpenter_aws::sdk::{Aws, Connect};
use karpenter_kube::clock::Clock;
use karpenter_kube::operator::Operator;
use karpenter_kube::options::Options;
use karpenter_kube::process::{Connection, connect, exit_with, log, stop_on_signal};
use karpenter_legacy::options::LegacyOptions;

/// It returns freed memory to the operating system by itself; the C library keeps what lies between objects that stay. Configured in
/// `.cargo/config.toml`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Karpenter for AWS: launches nodes for pending pods, and consolidates, replaces and terminates nodes.
#[derive(Debug, Parser)]
#[command(name = "karpenter", version)]
struct Args {
    #[command(flatten)]
    core: Options,
    #[command(flatten)]
    aws: AwsOptions,
    #[command(flatten)]
    legacy: LegacyOptions,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Catalogue(catalogue::Args),
}

#[tokio::main]
async fn main() -> ExitCode {
    exit_with(run().await)
}

async fn run() -> Result<()> {
    let env = |name: &str| std::env::var(name).ok();
    let command = options::prepare(Options::prepare(Args::command(), env), env);
    let mut args = Args::from_arg_matches(&command.get_matches())?;
    if args.command.is_some() {
        // The answer is on standard output.
        args.core.log_output_paths = "stderr".to_owned();
    }
    log(&args.core, env!("CARGO_PKG_VERSION")).context("cannot initialize logging")?;
    args.aws.validate()?;
    if let Some(Command::Catalogue(catalogue)) = &args.command {
        // Installing fails only if there is one already.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let aws = Aws::connect(&Connect::from_env(env)?).await?;
        let settings = AwsSettings::from_options(&args.core, &args.aws, None);
        return catalogue.run(&aws, &settings).await;
    }
    let Connection {
        config,
        clients,
        registry,
    } = connect(&args.core).await?;
    let shadow = args.core.shadow;
    let how = Connect {
        registry: registry.clone(),
        ..Connect::from_env(env)?
    };
    let aws = Aws::connect(&how).await?;
    let trusted = config.root_cert.as_deref().unwrap_or_default();
    let authority = discovery::authority(discovery::raw_authorities(), trusted);
    let settings = AwsSettings::from_options(&args.core, &args.aws, authority);
    let clock = Clock::real();
    let on_aws = AwsOperator::new(aws, clients.api.clone(), clock, &registry, settings).await?;

    let operator = Operator::builder(on_aws.provider(), clients, args.core)
        .clock(clock)
        .registry(registry)
        .profiler(profiling::profiler());
    let operator = if shadow {
        operator.with_in_shadow(move |controllers| on_aws.add_reads(controllers))
    } else {
        operator
            .with(move |controllers| on_aws.add(controllers))
            .with(move |controllers| args.legacy.add(controllers))
    };
    operator.run(stop_on_signal()).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_page_and_man_page_have_the_flags() -> Result<()> {
        let intro = "# Settings of karpenter\n\nThe controller for AWS. [Settings](../settings.md) explains what they have in common.\n";
        let flags = reference::flags(&Args::command(), &reference::chart_values()?);
        reference::page("karpenter", &format!("{intro}\n{flags}"))?;
        reference::man_pages(&Args::command())
    }
}
