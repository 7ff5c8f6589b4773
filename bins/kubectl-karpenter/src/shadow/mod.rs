//! `kubectl karpenter shadow report`: what a shadow would have done, and what the Karpenter that runs the cluster did.

mod text;

use std::process::ExitCode;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::flags::{Format, KubectlFlags};
use crate::output;
use crate::transport::{Server, ServerFlags};

/// Compare a shadow with the Karpenter that runs the cluster.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Report(ReportArgs),
}

/// Show what a shadow would have done otherwise: nodes, dollars, evictions, and the largest differences.
///
/// A shadow is a Karpenter with --shadow (chart value shadow.enabled) beside the one that runs the cluster. It decides on the same
/// states, and writes nothing. The report begins with the shadow's start.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kubectl karpenter shadow report
  kubectl karpenter shadow report --since 24h
  kubectl karpenter shadow report -o json | jq .agreement")]
struct ReportArgs {
    /// Leave out decisions that are older; by default all since the shadow's start count.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    since: Option<SignedDuration>,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    kubectl: KubectlFlags,
}

fn duration(text: &str) -> Result<SignedDuration, String> {
    let parsed = karpenter_api::duration::parse(text).ok();
    parsed
        .filter(|duration| duration.is_positive())
        .ok_or_else(|| "must be a duration, as 30m or 24h".to_owned())
}

impl Args {
    /// Asks and prints; returns the exit code.
    pub(crate) async fn run(&self) -> anyhow::Result<ExitCode> {
        let Command::Report(args) = &self.command;
        args.run().await
    }
}

impl ReportArgs {
    async fn run(&self) -> anyhow::Result<ExitCode> {
        let path = match self.since {
            Some(since) => {
                let since = Timestamp::now().checked_sub(since)?;
                format!("/shadow?since={since}")
            }
            None => "/shadow".to_owned(),
        };
        let mut server = Server::connect_to_shadow(&self.kubectl, &self.server).await?;
        let report: Value = server.get(&path).await?;
        let text = match self.kubectl.output {
            Some(Format::Json) => output::json(&report)?,
            Some(Format::Yaml) => output::yaml(&report)?,
            _ => text::render(&report),
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}
