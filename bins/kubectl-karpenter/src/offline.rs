//! Answers from a bundle, in this process: `--bundle FILE`.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use clap::ValueHint;
use karpenter_core::pod::Pod;
use karpenter_core::schedule::Cancel;
use karpenter_decisions::answer::Subject;
use karpenter_decisions::bundle::{self, Bundle, Offline};
use karpenter_decisions::change::Change;
use karpenter_decisions::workload::Workload;
use serde_json::Value;

/// The option of commands that answer from a bundle as well.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct BundleFlag {
    /// Answer from a file that `kubectl karpenter capture` wrote, without a cluster.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "server")]
    pub bundle: Option<PathBuf>,
}

/// Reads a bundle.
///
/// # Errors
/// If the file is not a bundle that this version reads; the error names line, byte and field.
pub fn open(path: &Path) -> anyhow::Result<Bundle> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("cannot read {shown}"))?;
    bundle::read(BufReader::new(file)).with_context(|| format!("cannot read {shown}"))
}

/// Returns what ends a search after `limit`.
fn after(limit: Duration) -> Cancel {
    let began = Instant::now();
    Arc::new(move || began.elapsed() > limit)
}

/// How long is searched for what all nodes would save.
const SEARCH_NODES: Duration = Duration::from_secs(5);

/// Explains an object of a bundle.
pub(crate) fn explain(
    path: &Path,
    subject: &Subject,
    changes: &[Change],
    timeout: Duration,
) -> anyhow::Result<Value> {
    let offline = Offline::new(open(path)?);
    let answer = offline.explain(subject, changes, after(timeout))?;
    answer.ok_or_else(|| {
        let (kind, name) = (subject.kind(), subject.name());
        let shown = path.display();
        match subject {
            Subject::Pod { namespace, .. } => {
                anyhow!("{kind} \"{name}\" not found in namespace \"{namespace}\" of {shown}")
            }
            _ => anyhow!("{kind} \"{name}\" not found in {shown}"),
        }
    })
}

/// Counts pending pods of a bundle by reason.
pub(crate) fn pods(path: &Path) -> anyhow::Result<Value> {
    Ok(Offline::new(open(path)?).pods_by_reason()?)
}

/// Counts nodes of a bundle by reason.
pub(crate) fn nodes(path: &Path) -> anyhow::Result<Value> {
    Ok(Offline::new(open(path)?).nodes_by_reason(after(SEARCH_NODES))?)
}

/// Reports what blocks nodes of a bundle.
pub(crate) fn blockers(path: &Path, namespace: Option<&str>) -> anyhow::Result<Value> {
    let report = Offline::new(open(path)?).blockers(namespace, after(SEARCH_NODES));
    serde_json::to_value(report).context("cannot write the answer")
}

/// Returns the name of a pending pod of a Deployment in a bundle, or of any of its pods.
pub(crate) fn pod_of_deployment(
    path: &Path,
    namespace: &str,
    deployment: &str,
) -> anyhow::Result<String> {
    let bundle = open(path)?;
    let is_of = |pod: &&Arc<Pod>| {
        let workload = Workload::of(pod);
        workload.kind == "Deployment"
            && workload.namespace == namespace
            && workload.name == deployment
    };
    let mut pods: Vec<_> = bundle.snapshot.pods().filter(is_of).collect();
    pods.sort_by_key(|pod| (pod.node_name.is_some(), pod.key.clone()));
    match pods.first() {
        Some(pod) => Ok(pod.key.name.clone()),
        None => Err(anyhow!(
            "Deployment {namespace}/{deployment} has no pods in {}",
            path.display()
        )),
    }
}
