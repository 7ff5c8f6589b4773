//! The binaries of a release, built here or taken from a folder.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use super::inputs::Release;
use crate::process::succeed;

/// The binaries of a release, with their packages; the last ones run in the cluster only.
pub(super) const BINARIES: [(&str, &str); 5] = [
    ("kubectl-karpenter", "kubectl-karpenter"),
    ("karpenter-playground", "karpenter-playground"),
    ("karpenter", "karpenter-controller"),
    ("karpenter-kwok", "karpenter-kwok-controller"),
    ("karpenter-cluster-api", "karpenter-cluster-api-controller"),
];

/// Rust targets that can be built on Linux, with their linker where it is not the computer's own.
const TARGETS: [(&str, &str, &str); 2] = [
    (
        "linux_amd64",
        "x86_64-unknown-linux-gnu",
        "x86_64-linux-gnu-gcc",
    ),
    (
        "linux_arm64",
        "aarch64-unknown-linux-gnu",
        "aarch64-linux-gnu-gcc",
    ),
];

/// A platform with its binaries.
#[derive(Debug)]
pub(super) struct Platform {
    pub(super) os: String,
    pub(super) arch: String,
    /// The folder with the binaries.
    pub(super) folder: PathBuf,
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", self.os, self.arch)
    }
}

impl Platform {
    /// Returns the file of a binary, if the platform has it.
    pub(super) fn binary(&self, name: &str) -> Option<PathBuf> {
        let file = self.folder.join(name);
        file.is_file().then_some(file)
    }
}

/// Builds the binaries for every architecture whose linker and standard library are installed, and returns their folder.
pub(super) fn build(release: &Release) -> anyhow::Result<PathBuf> {
    let folder = release.root.join("target/release-binaries");
    for (platform, target, linker) in TARGETS {
        if !can_link(linker) {
            println!("skipped {platform}: {linker} is not installed");
            continue;
        }
        let packages = BINARIES
            .iter()
            .flat_map(|(_, package)| ["--package", package]);
        // All at once, as the workflow does: dependencies that a crate has with other features are not compiled again.
        let mut cargo = Command::new("cargo");
        cargo
            .args(["build", "--locked", "--profile", "dist", "--target", target])
            .args(packages)
            .arg("--bins")
            .current_dir(&release.root);
        // The same in each call: build scripts and macros are linked for this computer, and all crates are compiled again if its
        // linker is named in one call and not in the next.
        for (_, target, linker) in TARGETS
            .into_iter()
            .filter(|(_, _, linker)| can_link(linker))
        {
            let name = target.replace('-', "_");
            cargo
                .env(
                    format!("CARGO_TARGET_{}_LINKER", name.to_uppercase()),
                    linker,
                )
                .env(format!("CC_{name}"), linker);
        }
        succeed(&mut cargo)?;
        let built = release.root.join("target").join(target).join("dist");
        let to = folder.join(platform);
        fs::create_dir_all(&to)?;
        for (binary, _) in BINARIES {
            fs::copy(built.join(binary), to.join(binary))
                .with_context(|| format!("cannot copy {binary}"))?;
        }
    }
    Ok(folder)
}

fn can_link(linker: &str) -> bool {
    Command::new(linker)
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Copies the binaries of each platform to the artifacts.
pub(super) fn collect(release: &Release, from: &Path) -> anyhow::Result<Vec<Platform>> {
    let mut platforms = Vec::new();
    let folders = fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))?;
    for folder in folders {
        let folder = folder?.path();
        let name = folder
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let Some((os, arch)) = name.split_once('_').filter(|_| folder.is_dir()) else {
            continue;
        };
        let to = release.out.join("bin").join(&name);
        fs::create_dir_all(&to)?;
        for (binary, _) in BINARIES {
            let file = folder.join(binary);
            if file.exists() {
                fs::copy(&file, to.join(binary))?;
            }
        }
        platforms.push(Platform {
            os: os.to_owned(),
            arch: arch.to_owned(),
            folder: to,
        });
    }
    if platforms.is_empty() {
        bail!("{} has no folder like `linux_amd64`", from.display());
    }
    platforms.sort_by_key(Platform::to_string);
    Ok(platforms)
}
