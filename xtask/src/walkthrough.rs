//! `cargo xtask walkthrough N`: runs one of the users' walkthroughs, with the controller as a separate process.

use std::env;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};

const COUNT: u32 = 3;

pub(crate) fn run(root: &Path, number: u32) -> anyhow::Result<()> {
    if !(1..=COUNT).contains(&number) {
        bail!("unknown walkthrough {number}: must be 1 to {COUNT}");
    }
    // `KARPENTER` names an existing binary.
    if env::var_os("KARPENTER").is_none() {
        let built = Command::new("cargo")
            .args(["build", "--package", "karpenter-controller"])
            .current_dir(root)
            .status()
            .context("cannot run cargo")?;
        if !built.success() {
            bail!("cannot build the controller");
        }
    }
    let status = Command::new("cargo")
        .args(["test", "--quiet", "--package", "walkthroughs"])
        .args(["--test", "walkthroughs", "--", "--exact", "--nocapture"])
        .arg(format!("{}::walkthrough_{number}", module(number)))
        // A missing tool is an error here.
        .env("WALKTHROUGH", number.to_string())
        .env("PATH", path(root)?)
        .current_dir(root)
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("walkthrough {number} failed");
    }
    Ok(())
}

fn module(number: u32) -> &'static str {
    match number {
        1 => "one",
        2 => "two",
        _ => "three",
    }
}

/// Returns the search path, with the Helm that `.ci/run` installs if there is no other.
fn path(root: &Path) -> anyhow::Result<std::ffi::OsString> {
    let before = env::var_os("PATH").unwrap_or_default();
    let ours = root.join("target/tools/helm/bin");
    let all = env::split_paths(&before).chain([ours]);
    env::join_paths(all).context("cannot extend the search path")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_three() {
        for number in [0, 4] {
            let error = run(Path::new("/"), number).unwrap_err().to_string();
            assert!(error.contains("must be 1 to 3"), "{error}");
        }
    }
}
