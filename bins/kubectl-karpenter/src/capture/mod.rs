//! `kubectl karpenter capture`: the state of the cluster, with all that Karpenter's decisions depend on, in one file.

mod file;
mod objects;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::ValueHint;
use karpenter_decisions::bundle::catalogue::Catalogue;
use karpenter_decisions::bundle::redact::redact;
use karpenter_decisions::bundle::{self, Bundle, Redaction};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::flags::KubectlFlags;
use crate::offline::after;
use crate::output;
use crate::transport::{Server, ServerFlags};
pub(crate) use file::Partial;

/// How long the decisions on a captured state may take.
const DECISION_TIMEOUT: Duration = Duration::from_secs(10);

/// Write the state of the cluster, with all that decisions depend on, to a file.
///
/// The file is a bundle: `why`, `doctor` and `replay` answer from it without a cluster (`--bundle FILE`). It has what the engine
/// reads: names, labels, requests, constraints, instance types, prices. It has no environment variables, arguments, images, Secrets
/// or ConfigMaps. `zstdcat FILE | jq` shows it.
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("output", |arg| arg.short(None).long("format").hide(true)),
    after_help = "Examples:
  kubectl karpenter capture -o tuesday.karpenter.zst
  kubectl karpenter capture --without-controller --catalogue catalogue.json -o theirs.karpenter.zst
  kubectl karpenter capture --redact names --key names.json -o for-the-vendor.karpenter.zst
  kubectl karpenter capture --last 30m -o the-last-half-hour.karpenter.zst
  kubectl karpenter why nodes --bundle tuesday.karpenter.zst"
)]
pub struct Args {
    /// The file; it is written completely or not at all.
    #[arg(short = 'o', long = "output", value_name = "FILE", value_hint = ValueHint::FilePath, default_value = "cluster.karpenter.zst")]
    file: PathBuf,
    /// List the objects with the permissions of the caller, instead of asking Karpenter's leader.
    #[arg(long)]
    without_controller: bool,
    /// The instance types of each NodePool, as `karpenter catalogue` prints them.
    #[arg(long, value_name = "FILE", requires = "without_controller", value_hint = ValueHint::FilePath)]
    catalogue: Option<PathBuf>,
    /// Which names are replaced by pseudonyms.
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = Redact::None)]
    redact: Redact,
    /// Where the names and their pseudonyms are written, readable by the owner only; without it they are not kept.
    #[arg(long, value_name = "FILE", requires = "redact", value_hint = ValueHint::FilePath)]
    key: Option<PathBuf>,
    /// Add the passes of this time before, at most 30m, which Karpenter keeps with the feature gate FlightRecorder.
    #[arg(long, value_name = "DURATION", conflicts_with_all = ["without_controller", "redact"])]
    last: Option<String>,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    kubectl: KubectlFlags,
}

/// The value of `--redact`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Redact {
    /// No name is replaced.
    None,
    /// Names of namespaces, pods, nodes and other objects, and users' labels.
    Names,
    /// Those, and names of NodePools, NodeClasses, zones and regions.
    All,
}

impl From<Redact> for Redaction {
    fn from(which: Redact) -> Self {
        match which {
            Redact::None => Self::None,
            Redact::Names => Self::Names,
            Redact::All => Self::All,
        }
    }
}

impl Args {
    /// Captures; returns the exit code.
    pub(crate) async fn run(&self) -> anyhow::Result<ExitCode> {
        if self.kubectl.output.is_some() {
            bail!("capture has no output format");
        }
        let catalogue = self.catalogue.as_deref().map(catalogue).transpose()?;
        let mut partial = Partial::create(&self.file)?;
        let mut key = self.key.as_deref().map(Partial::create).transpose()?;
        let captured = if self.without_controller {
            let cluster = self.kubectl.connect().await?;
            let captured = objects::capture(&cluster, catalogue.as_ref()).await?;
            Some(captured.decided(Some(&after(DECISION_TIMEOUT))))
        } else {
            let mut server = Server::connect(&self.kubectl, &self.server).await?;
            if self.redact == Redact::None {
                let path = match &self.last {
                    Some(last) => format!(
                        "/bundle?last={}",
                        utf8_percent_encode(last, NON_ALPHANUMERIC)
                    ),
                    None => "/bundle".to_owned(),
                };
                server
                    .download(&path, |piece| partial.append(piece))
                    .await?;
                None
            } else {
                // Names that are not to be in a file are not in one for a moment either.
                let mut file = Vec::new();
                let take = |piece: &[u8]| {
                    file.extend_from_slice(piece);
                    Ok(())
                };
                server.download("/bundle", take).await?;
                Some(bundle::read(file.as_slice()).context("cannot read Karpenter's answer")?)
            }
        };
        if let Some(captured) = captured {
            let cancel = after(DECISION_TIMEOUT);
            let redacted = redact(&captured, self.redact.into(), Some(&cancel));
            let (captured, names) = redacted.context("cannot replace names")?;
            if let Some(key) = &mut key {
                key.append(output::json(&names)?.as_bytes())?;
            }
            bundle::write(&captured, &mut partial)
                .with_context(|| format!("cannot write {}", self.file.display()))?;
        }
        // The written file can be read.
        let read = bundle::read(partial.reader()?)
            .with_context(|| format!("cannot keep {}", self.file.display()))?;
        // The bundle and the key to its names: both, or none if the disk is full.
        partial.store()?;
        if let Some(key) = key {
            key.persist()?;
        }
        let bytes = partial.persist()?;
        output::print(&summary(&read, &self.file, bytes))?;
        if catalogue.is_none() && self.without_controller {
            output::error(
                "without --catalogue the bundle has no instance types: it answers about existing nodes only",
            );
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn catalogue(path: &Path) -> anyhow::Result<Catalogue> {
    let shown = path.display();
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read catalogue {shown}"))?;
    Catalogue::parse(&text).with_context(|| format!("cannot read catalogue {shown}"))
}

fn summary(bundle: &Bundle, file: &Path, bytes: u64) -> String {
    let snapshot = &bundle.snapshot;
    let (nodes, pods) = (snapshot.nodes().count(), snapshot.pod_count());
    let pending = snapshot.pending_pods().count();
    let pools = snapshot.node_pools().count();
    let kib = bytes.div_ceil(1024);
    let shown = file.display().to_string();
    let mut text = format!(
        "captured {nodes} nodes, {pods} pods ({pending} pending), {pools} NodePools at {}\n{} {kib} KiB\n",
        bundle.at(),
        output::escaped(&shown)
    );
    if let (Some(first), Some(last)) = (bundle.recording.first(), bundle.recording.last()) {
        let passes = bundle.recording.len();
        text.push_str(&format!(
            "recorded {passes} passes from {} to {}\n",
            first.at(),
            last.at()
        ));
    }
    for decision in bundle.decisions.iter().filter(|made| made.truncated) {
        let pass = decision.pass.as_str();
        text.push_str(&format!(
            "the {pass} pass on it was cut short, and is not compared by replay\n"
        ));
    }
    text
}
