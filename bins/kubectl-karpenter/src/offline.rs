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

impl BundleFlag {
    /// Returns the file, if there is one.
    pub(crate) fn file(&self) -> Option<BundleFile<'_>> {
        self.bundle.as_deref().map(BundleFile)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct BundleFile<'a>(pub(crate) &'a Path);

impl BundleFile<'_> {
    /// Reads the bundle.
    ///
    /// # Errors
    /// If the file is not a bundle that this version reads; the error names line, byte and field.
    pub(crate) fn open(self) -> anyhow::Result<Bundle> {
        let failed = || format!("cannot read {}", self.0.display());
        let opened = BufReader::new(File::open(self.0).with_context(failed)?);
        bundle::read(opened).with_context(failed)
    }
}

/// Returns what ends a search or a decision after `limit`.
pub(crate) fn after(limit: Duration) -> Cancel {
    let began = Instant::now();
    Arc::new(move || began.elapsed() > limit)
}

/// How long is searched for what all nodes would save.
const SEARCH_NODES: Duration = Duration::from_secs(5);

/// Explains an object of a bundle.
pub(crate) fn explain(
    file: BundleFile<'_>,
    subject: &Subject,
    changes: &[Change],
    timeout: Duration,
) -> anyhow::Result<Value> {
    let offline = Offline::new(file.open()?);
    let answer = offline.explain(subject, changes, after(timeout))?;
    answer.ok_or_else(|| {
        let (kind, name) = (subject.kind(), subject.name());
        let shown = file.0.display();
        match subject {
            Subject::Pod { namespace, .. } => {
                anyhow!("{kind} \"{name}\" not found in namespace \"{namespace}\" of {shown}")
            }
            _ => anyhow!("{kind} \"{name}\" not found in {shown}"),
        }
    })
}

/// Counts pending pods of a bundle by reason.
pub(crate) fn pods(file: BundleFile<'_>) -> anyhow::Result<Value> {
    let offline = Offline::new(file.open()?);
    Ok(offline.pods_by_reason()?)
}

/// Counts nodes of a bundle by reason.
pub(crate) fn nodes(file: BundleFile<'_>) -> anyhow::Result<Value> {
    let offline = Offline::new(file.open()?);
    Ok(offline.nodes_by_reason(after(SEARCH_NODES))?)
}

/// Reports what blocks nodes of a bundle.
pub(crate) fn blockers(file: BundleFile<'_>, namespace: Option<&str>) -> anyhow::Result<Value> {
    let offline = Offline::new(file.open()?);
    let report = offline.blockers(namespace, after(SEARCH_NODES));
    serde_json::to_value(report).context("cannot write the answer")
}

/// Returns the name of a pending pod of a Deployment in a bundle, or of any of its pods.
pub(crate) fn pod_of_deployment(
    file: BundleFile<'_>,
    namespace: &str,
    deployment: &str,
) -> anyhow::Result<String> {
    let bundle = file.open()?;
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
            file.0.display()
        )),
    }
}
