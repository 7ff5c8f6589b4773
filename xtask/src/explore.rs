//! `cargo xtask explore`: builds the explorer in release mode, and runs it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};

pub(crate) fn run(root: &Path, arguments: &[String]) -> anyhow::Result<()> {
    let status = Command::new("cargo")
        .args([
            "run",
            "--quiet",
            "--release",
            "--package",
            "karpenter-explore",
            "--",
        ])
        .args(arguments)
        .current_dir(root)
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("the exploration found a violated rule");
    }
    Ok(())
}
