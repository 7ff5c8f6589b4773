//! `kubectl karpenter doctor`: what blocks nodes, what it costs a day, whose it is, and how to unblock it.

mod text;

use std::process::ExitCode;

use serde_json::Value;

use crate::flags::{Format, KubectlFlags};
use crate::offline::{self, BundleFlag};
use crate::output::{self, Layout};
use crate::transport::{Server, ServerFlags};
use crate::why::segment;

/// List what blocks nodes, what it costs a day, whose it is, and how to unblock it.
///
/// Karpenter's leader examines the cluster: PodDisruptionBudgets that never allow an eviction, pods that are protected without an
/// end, settings of NodePools that contradict each other, missing permissions, and more. The dollars of a finding are what the
/// next consolidation saves once the finding is fixed. Nothing is changed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kubectl karpenter doctor
  kubectl karpenter doctor -n shop
  kubectl karpenter doctor -o wide
  kubectl karpenter doctor --bundle tuesday.karpenter.zst
  kubectl karpenter doctor --exit-code > /dev/null || echo blocked")]
pub struct Args {
    /// Exit with 2 if something blocks nodes.
    #[arg(long)]
    exit_code: bool,
    #[command(flatten)]
    bundle: BundleFlag,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    kubectl: KubectlFlags,
}

impl Args {
    /// Asks and prints; returns the exit code.
    pub(crate) async fn run(&self) -> anyhow::Result<ExitCode> {
        let path = match &self.kubectl.namespace {
            Some(namespace) => format!("/blockers?namespace={}", segment(namespace)?),
            None => "/blockers".to_owned(),
        };
        let report: Value = match self.bundle.file() {
            Some(bundle) => offline::blockers(bundle, self.kubectl.namespace.as_deref())?,
            None => {
                let mut server = Server::connect(&self.kubectl, &self.server).await?;
                server.get(&path).await?
            }
        };
        let layout = Layout::of_stdout(!self.kubectl.no_headers);
        let text = match self.kubectl.output {
            Some(Format::Json) => output::json(&report)?,
            Some(Format::Yaml) => output::yaml(&report)?,
            Some(Format::Name) => text::names(&report),
            Some(Format::Wide) => text::table(&report, layout),
            None => text::paragraphs(&report),
        };
        output::print(&text)?;
        let blocked = text::findings(&report).any(text::blocks);
        Ok(output::exit_code(self.exit_code, blocked))
    }
}
