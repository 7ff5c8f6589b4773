//! The charts: archives as `helm package` makes them, which `helm push` uploads.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::archive::{Entries, gzip};
use super::inputs::Release;

const CHARTS: [&str; 2] = ["karpenter", "karpenter-crd"];

/// Checks that the charts and krew's manifest have the version of the workspace.
pub(super) fn check_versions(release: &Release) -> anyhow::Result<()> {
    for name in CHARTS {
        let chart = chart(&release.root, name)?;
        for field in ["version", "appVersion"] {
            if chart[field] != release.version.as_str() {
                bail!(
                    "{field} of charts/{name}/Chart.yaml is {}, not {}",
                    chart[field],
                    release.version
                );
            }
        }
    }
    Ok(())
}

fn chart(root: &Path, name: &str) -> anyhow::Result<Value> {
    let path = format!("charts/{name}/Chart.yaml");
    let text =
        fs::read_to_string(root.join(&path)).with_context(|| format!("cannot read {path}"))?;
    serde_saphyr::from_str(&text).with_context(|| format!("cannot use {path}"))
}

pub(super) fn write_all(release: &Release) -> anyhow::Result<()> {
    let folder = release.out.join("charts");
    fs::create_dir_all(&folder)?;
    for name in CHARTS {
        let mut entries = Entries::default();
        entries.tree(name, &release.root.join("charts").join(name))?;
        let archive = gzip(&entries.tar(release.time)?)?;
        fs::write(
            folder.join(format!("{name}-{}.tgz", release.version)),
            &archive,
        )?;
    }
    Ok(())
}
