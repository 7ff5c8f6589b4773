//! `cargo xtask realcluster`: the controllers on a real Kubernetes control plane, by the package `real-cluster`.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

/// Runs `real-cluster` with its arguments, after building it and the controllers that it starts.
pub(crate) fn run(root: &Path, arguments: &[String]) -> anyhow::Result<()> {
    let command = arguments.first().map_or("help", String::as_str);
    let mut more: Vec<String> = Vec::new();
    let controllers: &[&str] = match command {
        "test" => &["karpenter-kwok-controller", "karpenter"],
        "up" => &["karpenter-kwok-controller"],
        _ => &[],
    };
    build(root, &[&["real-cluster"], controllers].concat(), &[])?;
    // What is measured is what is shipped.
    if ["burst", "scale", "idle"].contains(&command)
        && !arguments.iter().any(|a| a.starts_with("--controller"))
    {
        build(root, &["karpenter-kwok-controller"], &["--release"])?;
        let binary = root.join("target/release/karpenter-kwok");
        more = vec!["--controller".to_owned(), binary.display().to_string()];
    }
    let status = Command::new(root.join("target/debug/real-cluster"))
        .args(arguments)
        .args(more)
        .current_dir(root)
        .status()
        .context("cannot run target/debug/real-cluster")?;
    if !status.success() {
        bail!("`realcluster {command}` failed");
    }
    Ok(())
}

/// The part for every CI run: builds the control plane where it can be built, and runs the quick scenarios. Returns their closing line.
///
/// All scenarios would not fit: a cold run may take an hour on two cores, of which the control plane's build is a quarter.
pub(crate) fn ci(root: &Path) -> anyhow::Result<String> {
    let arguments = |words: &[&str]| words.iter().map(|&w| w.to_owned()).collect::<Vec<_>>();
    build(
        root,
        &["real-cluster", "karpenter-kwok-controller", "karpenter"],
        &[],
    )?;
    let go = Command::new("go").arg("version").output();
    if go.is_ok_and(|go| go.status.success()) {
        run(root, &arguments(&["build"]))?;
    }
    let mut child = Command::new(root.join("target/debug/real-cluster"))
        .args(["test", "--quick"])
        .current_dir(root)
        .stdout(Stdio::piped())
        .spawn()?;
    let output = BufReader::new(child.stdout.take().context("there is no output")?);
    let mut closing = String::new();
    for line in output.lines() {
        let line = line?;
        println!("{line}");
        if line.starts_with("skipped:") || line.starts_with("real cluster:") {
            closing = line;
        }
    }
    if !child.wait()?.success() {
        bail!("the real cluster's scenarios failed: {closing}");
    }
    Ok(closing)
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
