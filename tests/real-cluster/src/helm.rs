//! Installs our charts with Helm.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};
use serde_json::Value;

use crate::paths::root;
use crate::plane::ControlPlane;

/// A release of a chart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Release {
    pub(crate) name: &'static str,
    pub(crate) namespace: &'static str,
    chart: &'static str,
}

/// The Karpenter that runs the cluster.
pub(crate) const KARPENTER: Release = Release {
    name: "karpenter",
    namespace: "kube-system",
    chart: "karpenter",
};
pub(crate) const CRDS: Release = Release {
    name: "karpenter-crd",
    namespace: "kube-system",
    chart: "karpenter-crd",
};
/// A shadow beside it.
pub(crate) const SHADOW: Release = Release {
    name: "karpenter-shadow",
    namespace: "karpenter-shadow",
    chart: "karpenter",
};

/// Runs `helm upgrade --install` for one of our charts, and waits until all its objects are ready.
pub(crate) async fn upgrade(plane: &ControlPlane, release: Release, values: &Value) -> Result<()> {
    let chart = root().join("charts").join(release.chart);
    upgrade_from(plane, release, &chart, values).await
}

/// Like [`upgrade`], with the chart of a directory.
pub(crate) async fn upgrade_from(
    plane: &ControlPlane,
    release: Release,
    chart: &Path,
    values: &Value,
) -> Result<()> {
    let file = plane.folder().join(format!("{}-values.json", release.name));
    std::fs::write(&file, values.to_string())?;
    run(
        plane,
        &[
            "upgrade".as_ref(),
            "--install".as_ref(),
            release.name.as_ref(),
            chart,
            "--namespace".as_ref(),
            release.namespace.as_ref(),
            "--create-namespace".as_ref(),
            "--values".as_ref(),
            &file,
            // Adopts CRDs that were applied without Helm before.
            "--take-ownership".as_ref(),
            "--wait".as_ref(),
            "--timeout".as_ref(),
            "3m".as_ref(),
        ],
    )
    .await?;
    Ok(())
}

/// Returns the revision number of a release, and its status.
pub(crate) async fn revision(plane: &ControlPlane, release: Release) -> Result<(u64, String)> {
    let arguments = [
        "status",
        release.name,
        "--namespace",
        release.namespace,
        "--output",
        "json",
    ];
    let said = run(plane, &arguments.map(Path::new)).await?;
    let status: Value = serde_json::from_str(&said)?;
    let state = status["info"]["status"].as_str().unwrap_or_default();
    Ok((
        status["version"].as_u64().unwrap_or_default(),
        state.to_owned(),
    ))
}

/// Runs Helm against a cluster.
async fn run(plane: &ControlPlane, arguments: &[&Path]) -> Result<String> {
    let mut command = Command::new(plane.binaries().path("helm")?);
    command
        .args(arguments)
        .env("KUBECONFIG", plane.kubeconfig())
        .env("HOME", plane.folder())
        .stdin(Stdio::null());
    // It exits by itself, because it has a timeout.
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    if !output.status.success() {
        let words: Vec<_> = arguments.iter().map(|a| a.to_string_lossy()).collect();
        let error = String::from_utf8_lossy(&output.stderr);
        bail!("helm {}: {error}", words.join(" "));
    }
    Ok(String::from_utf8(output.stdout)?)
}
