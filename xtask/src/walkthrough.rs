//! `cargo xtask walkthrough N`: one of the walkthroughs that users showed us, with the controller as a process of its own.

use std::{env, path::Path, process::Command};

use anyhow::{Context as _, bail};

/// How many there are.
const COUNT: u32 = 3;

pub(crate) fn run(root: &Path, number: u32) -> anyhow::Result<()> {
    if !(1..=COUNT).contains(&number) {
        bail!("there is no walkthrough {number}: they are 1 to {COUNT}");
    }
    // `KARPENTER` names a binary that is already there.
    if env::var_os("KARPENTER").is_none() {
        let built = Command::new("cargo")
            .args(["build", "--package", "karpenter"])
            .current_dir(root)
            .status()
            .context("cannot run cargo")?;
        if !built.success() {
            bail!("the controller cannot be built");
        }
    }
    let status = Command::new("cargo")
        .args(["test", "--quiet", "--package", "walkthroughs"])
        .args(["--test", "walkthroughs", "--", "--exact", "--nocapture"])
        .arg(format!("{}::walkthrough_{number}", module(number)))
        // A tool that is missing is an error, and said.
        .env("WALKTHROUGH", number.to_string())
        .env("PATH", path(root)?)
        .current_dir(root)
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("walkthrough {number} did not show what must be seen");
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

/// The search path, with the Helm that `.ci/run` installs where there is no other.
fn path(root: &Path) -> anyhow::Result<std::ffi::OsString> {
    let before = env::var_os("PATH").unwrap_or_default();
    let ours = root.join("target/tools/helm/bin");
    let all = env::split_paths(&before).chain([ours]);
    env::join_paths(all).context("the search path cannot be extended")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_three() {
        for number in [0, 4] {
            let error = run(Path::new("/"), number).unwrap_err().to_string();
            assert!(error.contains("they are 1 to 3"), "{error}");
        }
    }
}
