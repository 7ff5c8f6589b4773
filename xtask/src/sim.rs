//! `cargo xtask sim`: builds the simulator in release mode, and runs it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};

pub(crate) fn run(
    root: &Path,
    seeds: u64,
    seed: u64,
    hours: f64,
    more: &[String],
) -> anyhow::Result<()> {
    let status = Command::new("cargo")
        .args([
            "run",
            "--quiet",
            "--release",
            "--package",
            "karpenter-sim",
            "--",
        ])
        .args(["--seeds", &seeds.to_string()])
        .args(["--seed", &seed.to_string()])
        .args(["--hours", &hours.to_string()])
        .args(more)
        .current_dir(root)
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("the simulation found violated invariants");
    }
    Ok(())
}
