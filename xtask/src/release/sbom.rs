//! The SBOM (software bill of materials) of each binary, which `cargo cyclonedx` writes.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, bail};

use super::binaries::BINARIES;
use super::inputs::Release;
use crate::files::below;

/// The folders of the workspace's packages: the program writes an SBOM next to the manifest of each that has a binary.
const PACKAGES: [&str; 5] = ["bins", "crates", "examples", "tests", "xtask"];

pub(super) fn write_all(release: &Release) -> anyhow::Result<()> {
    let output = Command::new("cargo")
        .args(["cyclonedx", "--format", "json", "--describe", "binaries"])
        .args(["--spec-version", "1.5", "--quiet"])
        .args(["--target", "x86_64-unknown-linux-gnu"])
        .env("SOURCE_DATE_EPOCH", release.time.to_string())
        .current_dir(&release.root)
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!(
            "`cargo cyclonedx` failed; install it with `cargo install cargo-cyclonedx --locked`, or use --without-sbom: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    for (binary, _) in BINARIES {
        let written = format!("bins/{binary}/{binary}_bin.cdx.json");
        let to = release.out.join(format!("{binary}.cdx.json"));
        fs::copy(release.root.join(&written), to)
            .with_context(|| format!("`cargo cyclonedx` did not write {written}"))?;
    }
    for folder in PACKAGES {
        for file in below(&release.root.join(folder), &["json"])? {
            if file.to_string_lossy().ends_with(".cdx.json") {
                fs::remove_file(file)?;
            }
        }
    }
    Ok(())
}
