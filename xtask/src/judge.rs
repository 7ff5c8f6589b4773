//! `cargo xtask sim` and `cargo xtask explore`: build a judge of the project in release mode, and run it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};

/// Runs the binary of a package.
pub(crate) fn run(root: &Path, package: &str, arguments: &[String]) -> anyhow::Result<()> {
    let status = Command::new("cargo")
        .args(["run", "--quiet", "--release", "--package", package, "--"])
        .args(arguments)
        .current_dir(root)
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("{package} found a violation, or did not run: see its output above");
    }
    Ok(())
}
