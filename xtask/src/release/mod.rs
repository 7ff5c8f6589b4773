//! `cargo xtask release`: builds what a release consists of into `target/release-artifacts`.
//!
//! | file or folder | content |
//! |---|---|
//! | `bin/OS_ARCH/` | the binaries |
//! | `NAME_OS_ARCH.tar.gz` | a binary with its license, man pages and completions |
//! | `images/NAME/` | the image of a controller for all architectures, as an OCI layout |
//! | `charts/NAME-VERSION.tgz` | a chart, as Helm packages it |
//! | `crds.yaml` | the CRDs of the current generation |
//! | `NAME.cdx.json` | the SBOM of a binary (CycloneDX) |
//! | `karpenter.yaml` | the manifest for krew |
//! | `SHA256SUMS` | checksums of the files |
//!
//! Everything but the binaries is the same in each run on the same commit: archives and layers have sorted entries, no owner, and
//! the time of the commit.

mod archive;
mod binaries;
mod charts;
mod image;
mod inputs;
mod krew;
mod oci;
mod sbom;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use self::binaries::Platform;
use self::inputs::Release;
use crate::files;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Folder with built binaries, in a folder for each platform such as `linux_amd64`. By default they are built here, for this
    /// computer's architecture and for those whose cross toolchain is installed.
    #[arg(long, value_name = "DIR")]
    binaries_from: Option<PathBuf>,
    /// Where to write, instead of target/release-artifacts: a new or empty folder, or one with an earlier release, which is
    /// deleted first.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Leave the SBOM out, which needs `cargo cyclonedx`.
    #[arg(long)]
    without_sbom: bool,
}

pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<()> {
    let own = root.join("target/release-artifacts");
    let out = options.out.clone().unwrap_or_else(|| own.clone());
    if out.exists() {
        let is_release = out == own || out.join("SHA256SUMS").is_file();
        if !is_release && fs::read_dir(&out)?.next().is_some() {
            bail!("{} has other files than those of a release", out.display());
        }
        fs::remove_dir_all(&out).context("cannot empty the folder of artifacts")?;
    }
    fs::create_dir_all(&out)?;
    let release = Release {
        root: root.to_owned(),
        version: version(root)?,
        time: commit(root, "%ct")?
            .parse()
            .context("cannot read the time of the commit")?,
        commit: commit(root, "%H")?,
        out,
    };
    charts::check_versions(&release)?;
    let from = match &options.binaries_from {
        Some(folder) => folder.clone(),
        None => binaries::build(&release)?,
    };
    let platforms = binaries::collect(&release, &from)?;
    let archives = archive::write_all(&release, &platforms)?;
    krew::write(&release, &archives)?;
    image::write_all(&release, &platforms)?;
    charts::write_all(&release)?;
    fs::write(release.out.join("crds.yaml"), crds(root)?)?;
    if !options.without_sbom {
        sbom::write_all(&release)?;
    }
    checksums(&release.out)?;
    let names: Vec<String> = platforms.iter().map(Platform::to_string).collect();
    println!(
        "wrote version {} for {} to {}",
        release.version,
        names.join(", "),
        release.out.display()
    );
    Ok(())
}

fn commit(root: &Path, format: &str) -> anyhow::Result<String> {
    let output = Command::new("git")
        .args(["log", "-1", &format!("--format={format}")])
        .current_dir(root)
        .output()
        .context("cannot run git")?;
    if !output.status.success() {
        bail!(
            "cannot read the commit: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Returns the version of the workspace.
fn version(root: &Path) -> anyhow::Result<String> {
    let manifest: toml::Value = toml::from_str(&fs::read_to_string(root.join("Cargo.toml"))?)?;
    let version = manifest["workspace"]["package"]["version"].as_str();
    Ok(version.context("the workspace has no version")?.to_owned())
}

/// Returns the CRDs that `kubectl apply -f` needs for the AWS provider, in one file.
fn crds(root: &Path) -> anyhow::Result<String> {
    let folder = root.join("crds");
    let all = files::below(&folder, &["yaml"])?.into_iter();
    all.filter(|file| file.parent() == Some(&folder))
        .map(|file| files::read(&file))
        .collect()
}

/// Writes the checksums of all files but those inside of OCI layouts, whose names are checksums.
fn checksums(out: &Path) -> anyhow::Result<()> {
    let mut sums = String::new();
    for file in files::below(out, &[])? {
        let name = file.strip_prefix(out)?.to_string_lossy().into_owned();
        let folder = file.parent().context("a file has a folder")?;
        let is_in_layout = folder
            .ancestors()
            .any(|folder| folder.join("oci-layout").exists());
        if !is_in_layout {
            let _ = writeln!(sums, "{}  {name}", files::sha256(&fs::read(&file)?));
        }
    }
    fs::write(out.join("SHA256SUMS"), sums)?;
    Ok(())
}

#[cfg(test)]
mod tests;
