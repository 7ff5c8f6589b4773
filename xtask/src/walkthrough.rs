//! `cargo xtask walkthrough N`: runs one of the users' walkthroughs, with the controller as a separate process.

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;

use crate::process::succeed;

pub(crate) fn run(root: &Path, number: u32) -> anyhow::Result<()> {
    // `KARPENTER` names an existing binary.
    if env::var_os("KARPENTER").is_none() {
        succeed(
            Command::new("cargo")
                .args(["build", "--package", "karpenter-controller"])
                .current_dir(root),
        )?;
    }
    let module = match number {
        1 => "one",
        2 => "two",
        _ => "three",
    };
    succeed(
        Command::new("cargo")
            .args(["test", "--quiet", "--package", "walkthroughs"])
            .args(["--test", "walkthroughs", "--", "--exact", "--nocapture"])
            .arg(format!("{module}::walkthrough_{number}"))
            // A missing tool is an error here.
            .env("WALKTHROUGH", number.to_string())
            .env("PATH", path(root)?)
            .current_dir(root),
    )
}

/// Returns the search path, with the Helm that `.ci/run` installs if there is no other.
fn path(root: &Path) -> anyhow::Result<OsString> {
    let before = env::var_os("PATH").unwrap_or_default();
    let ours = root.join("target/tools/helm/bin");
    let all = env::split_paths(&before).chain([ours]);
    env::join_paths(all).context("cannot extend the search path")
}
