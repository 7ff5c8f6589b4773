//! `cargo xtask realcluster`: runs the controllers on a real Kubernetes control plane, with the package `real-cluster`.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

use crate::ci::Skipped;
use crate::process::succeed;

/// Builds `real-cluster` and the controllers that it starts, and runs it with its arguments.
pub(crate) fn run(root: &Path, arguments: &[String]) -> anyhow::Result<()> {
    let command = arguments.first().map_or("help", String::as_str);
    let mut arguments = arguments.to_vec();
    // Always the same packages, except for the AWS SDK: another selection would rebuild their dependencies.
    let mut packages = vec!["real-cluster", "karpenter-kwok-controller"];
    if command == "test" {
        packages.extend([
            "karpenter-controller",
            "karpenter-cluster-api-controller",
            "kubectl-karpenter",
        ]);
    }
    if command == "versions" {
        packages.push("kubectl-karpenter");
    }
    build(root, &packages, &[])?;
    let measures = ["burst", "scale", "idle", "compare"].contains(&command);
    if measures && !arguments.iter().any(|a| a.starts_with("--controller")) {
        // Measurements use the release profile, as the image does.
        build(root, &["karpenter-kwok-controller"], &["--release"])?;
        let binary = root.join("target/release/karpenter-kwok");
        arguments.extend(["--controller".to_owned(), binary.display().to_string()]);
    }
    succeed(real_cluster(root).args(&arguments))
}

/// Builds the programs of a control plane if Go is installed, with the program that the tests were built with.
pub(crate) fn build_control_plane(root: &Path) -> anyhow::Result<String> {
    let go = Command::new("go").arg("version").output();
    if !go.is_ok_and(|go| go.status.success()) {
        return Ok("skipped: Go is not installed".to_owned());
    }
    succeed(real_cluster(root).args(["build", "--quick"]))?;
    Ok(String::new())
}

/// Runs the quick scenarios of every CI run, with the programs that the tests were built with. Returns their summary line; if
/// programs are missing, the scenarios are skipped. All scenarios would take too long for every run: a cold run must end within
/// an hour on two cores, and building the control plane takes a quarter of it.
pub(crate) fn ci(root: &Path, all_skipped: &mut Vec<Skipped>) -> anyhow::Result<String> {
    let mut child = real_cluster(root)
        .args(["test", "--quick"])
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run target/debug/real-cluster, which `cargo test` builds")?;
    let output = BufReader::new(
        child
            .stdout
            .take()
            .context("cannot read the output of real-cluster")?,
    );
    let mut closing = String::new();
    for line in output.lines() {
        let line = line?;
        println!("{line}");
        if let Some(why) = line.strip_prefix("skipped: ") {
            all_skipped.push(Skipped {
                program: "go".to_owned(),
                what: "scenarios on a real cluster".to_owned(),
                why: why.to_owned(),
            });
        }
        if line.starts_with("real cluster:") {
            closing = line;
        }
    }
    if !child.wait()?.success() {
        bail!("scenarios on a real cluster failed: {closing}");
    }
    Ok(closing)
}

fn real_cluster(root: &Path) -> Command {
    let mut command = Command::new(root.join("target/debug/real-cluster"));
    command.current_dir(root);
    command
}

fn build(root: &Path, packages: &[&str], options: &[&str]) -> anyhow::Result<()> {
    let packages = packages.iter().flat_map(|package| ["--package", package]);
    succeed(
        Command::new("cargo")
            .args(["build", "--quiet"])
            .args(packages)
            .args(options)
            .current_dir(root),
    )
}
