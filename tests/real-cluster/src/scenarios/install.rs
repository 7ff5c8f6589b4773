//! CRDs and charts on a real API server.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::helm;
use crate::helm::Release;
use crate::objects::{apply, documents, dry_run, name};
use crate::paths::root;
use crate::suite::{install_kwok, kwok_values};

/// Returns the CRDs of a directory.
fn files(folder: &str) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(root().join(folder))? {
        let path = entry?.path();
        if path.is_file() {
            let text = fs::read_to_string(&path)?;
            let read = documents(&text).with_context(|| path.display().to_string())?;
            all.extend(read);
        }
    }
    ensure!(!all.is_empty(), "{folder} is empty");
    Ok(all)
}

/// All CRDs of the repository are accepted, alone and as updates of each other.
async fn every_crd_is_accepted(cluster: &Cluster) -> Result<()> {
    for folder in ["crds", "crds/legacy", "crds/kwok", "crds/cluster-api"] {
        for definition in files(folder)? {
            let said = dry_run(&cluster.client, &definition).await?;
            if let Err(refusal) = said {
                anyhow::bail!("{folder}: {} is rejected: {refusal}", name(&definition));
            }
        }
    }
    Ok(())
}

/// Revisions increase, and each is deployed.
async fn upgrades(cluster: &Cluster, release: Release, values: &Value) -> Result<()> {
    let (before, _) = helm::revision(&cluster.plane, release).await?;
    helm::upgrade(&cluster.plane, release, values).await?;
    let (after, status) = helm::revision(&cluster.plane, release).await?;
    ensure!(
        after == before + 1 && status == "deployed",
        "{} is {status} in revision {after} after {before}",
        release.name
    );
    Ok(())
}

/// The charts with the kwok provider are installed and upgraded.
pub(crate) async fn kwok(cluster: &Cluster) -> Result<()> {
    install_kwok(cluster).await?;
    let mut values = kwok_values();
    values["podLabels"] = json!({ "upgraded": "true" });
    upgrades(cluster, helm::KARPENTER, &values).await?;
    let definitions =
        json!({ "provider": "kwok", "additionalAnnotations": { "upgraded": "true" } });
    upgrades(cluster, helm::CRDS, &definitions).await
}

/// The charts are installed over CRDs with v1 only, as upstream's are, and upgraded.
pub(crate) async fn aws(cluster: &Cluster, webhook: u16) -> Result<()> {
    every_crd_is_accepted(cluster).await?;
    for definition in files("crds")? {
        apply(&cluster.client, &definition).await?;
    }
    cluster.until_definitions_are_established().await?;
    let (definitions, values) = (
        super::aws::definitions(webhook),
        super::aws::values(webhook),
    );
    cluster.install(&definitions, &values).await?;
    let mut changed = values;
    changed["podLabels"] = json!({ "upgraded": "true" });
    upgrades(cluster, helm::KARPENTER, &changed).await?;
    upgrades(cluster, helm::CRDS, &definitions).await
}
