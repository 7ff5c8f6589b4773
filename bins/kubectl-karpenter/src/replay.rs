//! `kubectl karpenter replay`: the decisions of a bundle made again, and compared.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::ValueHint;
use karpenter_decisions::bundle::{self, Comparison};
use serde_json::json;

use crate::capture::Partial;
use crate::flags::Format;
use crate::offline::BundleFile;
use crate::output;

/// Make the decisions of a bundle again, and compare them with the recorded ones.
///
/// A bundle has the decisions that were made on its state when it was captured, by their digests. The same version of the engine
/// makes the same decisions on each host, with any number of threads; another version may not, which shows what an upgrade changes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kubectl karpenter replay tuesday.karpenter.zst
  kubectl karpenter replay tuesday.karpenter.zst --exit-code -o json
  kubectl karpenter replay tuesday.karpenter.zst --bisect first.karpenter.zst")]
pub struct Args {
    /// The bundle.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Make only the decision with this id.
    #[arg(long, value_name = "ID")]
    decision: Option<String>,
    /// Write a bundle with only the first decision that differs.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    bisect: Option<PathBuf>,
    /// Number of threads; by default that of the cores.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// Exit with 2 if a decision differs.
    #[arg(long)]
    exit_code: bool,
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Format>,
}

/// How many ids an error names.
const NAMED: usize = 10;

impl Args {
    /// Replays and prints; returns the exit code.
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        let mut bundle = BundleFile(&self.file).open()?;
        if let Some(id) = &self.decision {
            let known: Vec<&str> = bundle.decision_ids().take(NAMED).collect();
            let more = match bundle.decision_ids().count().saturating_sub(NAMED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let known = format!("{}{more}", output::escaped(&known.join(", ")));
            bundle.retain_decision(id);
            if bundle.decision_ids().next().is_none() {
                bail!("unknown decision `{id}`: the bundle has {known}");
            }
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = self.threads.map_or(cores, usize::from);
        let compared = bundle.replay(threads);
        let first = compared.iter().find(|made| made.differs());
        if let (Some(path), Some(first)) = (&self.bisect, first) {
            let mut recorded = bundle.recording.iter();
            let alone = match recorded.find(|pass| pass.decision.id == first.id) {
                Some(pass) => pass.alone(&bundle),
                None => {
                    let mut alone = bundle.clone();
                    alone.retain_decision(&first.id);
                    alone
                }
            };
            let mut partial = Partial::create(path)?;
            bundle::write(&alone, &mut partial)
                .with_context(|| format!("cannot write {}", path.display()))?;
            partial.persist()?;
        }
        let text = match self.output {
            Some(Format::Json) => output::json(&json!({ "items": compared }))?,
            Some(Format::Yaml) => output::yaml(&json!({ "items": compared }))?,
            Some(Format::Name) => compared
                .iter()
                .map(|made| format!("{}\n", output::escaped(&made.id)))
                .collect(),
            Some(Format::Wide) | None => text(&compared),
        };
        output::print(&text)?;
        Ok(output::exit_code(self.exit_code, first.is_some()))
    }
}

fn text(compared: &[Comparison]) -> String {
    let cut = compared.iter().filter(|made| made.replayed.is_none());
    let different: Vec<&Comparison> = compared.iter().filter(|made| made.differs()).collect();
    let (all, cut, differing) = (compared.len(), cut.count(), different.len());
    let mut text = format!(
        "replayed {} decisions: {} identical, {differing} different",
        all - cut,
        all - cut - differing
    );
    if cut > 0 {
        text.push_str(&format!(", {cut} cut short in the original (not compared)"));
    }
    text.push('\n');
    for made in different {
        let id = output::escaped(&made.id);
        text.push_str(&format!("{id} differs:"));
        for (what, was) in &made.recorded_counts {
            let is = made.replayed_counts.get(what).copied().unwrap_or_default();
            text.push_str(&format!(" {} {was} -> {is}", output::escaped(what)));
        }
        let replayed = made.replayed.as_deref().unwrap_or_default();
        let short = |digest: &str| digest.chars().take(12).collect::<String>();
        text.push_str(&format!(
            " (digest {} -> {})\n",
            output::escaped(&short(&made.recorded)),
            short(replayed)
        ));
    }
    text
}
