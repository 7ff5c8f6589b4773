//! `cargo xtask realcluster`: the controllers on a real Kubernetes control plane, by the package `real-cluster`.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

use crate::ci::Skipped;

/// Runs `real-cluster` with its arguments, after building it and the controllers that it starts.
pub(crate) fn run(root: &Path, arguments: &[String]) -> anyhow::Result<()> {
    let command = arguments.first().map_or("help", String::as_str);
    let mut arguments = arguments.to_vec();
    // Always the same packages, but for the AWS SDK: another selection would rebuild their dependencies.
    let mut packages = vec!["real-cluster", "karpenter-kwok-controller"];
    if command == "test" {
        packages.push("karpenter");
    }
    build(root, &packages, &[])?;
    let measures = ["burst", "scale", "idle"].contains(&command);
    if measures && !arguments.iter().any(|a| a.starts_with("--controller")) {
        // What is measured is what is shipped.
        build(root, &["karpenter-kwok-controller"], &["--release"])?;
        let binary = root.join("target/release/karpenter-kwok");
        arguments.extend(["--controller".to_owned(), binary.display().to_string()]);
    }
    let status = real_cluster(root)
        .args(&arguments)
        .status()
        .context("cannot run target/debug/real-cluster")?;
    if !status.success() {
        bail!("`realcluster {command}` failed");
    }
    Ok(())
}

/// Builds the programs of a control plane where there is Go, with the program that the tests were built with.
pub(crate) fn build_control_plane(root: &Path) -> anyhow::Result<String> {
    let go = Command::new("go").arg("version").output();
    if !go.is_ok_and(|go| go.status.success()) {
        return Ok("there is no Go to build it with".to_owned());
    }
    if !real_cluster(root).arg("build").status()?.success() {
        bail!("the control plane cannot be built");
    }
    Ok(String::new())
}

/// The part for every CI run: the quick scenarios, with the programs that the tests were built with. Returns their closing line; where programs
/// are missing, they are skipped.
///
/// All of them would not fit into every run: a cold one is to end within an hour on two cores, and the control plane's build takes a quarter.
pub(crate) fn ci(root: &Path, all_skipped: &mut Vec<Skipped>) -> anyhow::Result<String> {
    let mut child = real_cluster(root)
        .args(["test", "--quick"])
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run target/debug/real-cluster, which `cargo test` builds")?;
    let output = BufReader::new(child.stdout.take().context("there is no output")?);
    let mut closing = String::new();
    for line in output.lines() {
        let line = line?;
        println!("{line}");
        if let Some(why) = line.strip_prefix("skipped: ") {
            all_skipped.push(Skipped {
                program: "go".to_owned(),
                what: "the scenarios on a real cluster".to_owned(),
                why: why.to_owned(),
            });
        }
        if line.starts_with("real cluster:") {
            closing = line;
        }
    }
    if !child.wait()?.success() {
        bail!("the real cluster's scenarios failed: {closing}");
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
    let status = Command::new("cargo")
        .args(["build", "--quiet"])
        .args(packages)
        .args(options)
        .current_dir(root)
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("the controllers cannot be built");
    }
    Ok(())
}
