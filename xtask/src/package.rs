//! `cargo xtask package`: packages the published crates, and tests with them what others build: the book's example of a provider, the
//! Cluster API provider, and the first plan of `karpenter`.
//!
//! They are a workspace of their own, in `target/outside`, in which the packages stand for those of crates.io.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};
use flate2::read::GzDecoder;
use serde::Deserialize;

use crate::process::succeed;

/// The packages whose tests run; all others are dependencies.
const TESTED: [&str; 2] = ["karpenter", "karpenter-cluster-api"];
const EXAMPLE: &str = "third-party-provider";

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    /// The registries that the package may be published to: `null` means all, `[]` none.
    publish: Option<Vec<String>>,
}

pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let metadata: Metadata = crate::metadata(root)?;
    let published = metadata.packages.iter().filter(|p| p.publish.is_none());
    let published: Vec<&Package> = published.collect();

    let names = published
        .iter()
        .flat_map(|p| ["--package", p.name.as_str()]);
    let mut package = Command::new("cargo");
    package.args(["package", "--no-verify", "--allow-dirty"]);
    succeed(package.args(names).current_dir(root))?;

    let outside = root.join("target/outside");
    if outside.exists() {
        fs::remove_dir_all(&outside)?;
    }
    let mut members = vec![EXAMPLE.to_owned()];
    let mut patches = String::new();
    for Package { name, version, .. } in published {
        let folder = format!("{name}-{version}");
        let archive = root.join(format!("target/package/{folder}.crate"));
        let archive = fs::File::open(&archive)
            .with_context(|| format!("cannot read {}", archive.display()))?;
        tar::Archive::new(GzDecoder::new(archive)).unpack(&outside)?;
        for file in ["LICENSE", "NOTICE", "README.md"] {
            if !outside.join(&folder).join(file).is_file() {
                bail!("{name} is packaged without {file}");
            }
        }
        patches += &format!("{name} = {{ path = \"{folder}\" }}\n");
        if TESTED.contains(&name.as_str()) {
            members.push(folder);
        }
    }
    example(&root.join("examples").join(EXAMPLE), &outside.join(EXAMPLE))?;
    let manifest = format!(
        "[workspace]\nresolver = \"3\"\nmembers = {members:?}\n\n[profile.dev]\ndebug = false\n\n[patch.crates-io]\n{patches}"
    );
    fs::write(outside.join("Cargo.toml"), manifest)?;
    // The versions of third-party crates that everything else is tested with.
    fs::copy(root.join("Cargo.lock"), outside.join("Cargo.lock"))?;
    succeed(
        Command::new("cargo")
            .args(["test", "--workspace", "--target-dir"])
            .arg(root.join("target/outside-build"))
            // Of others' programs, only their manifests choose the version.
            .env("K8S_OPENAPI_ENABLED_VERSION", "")
            .current_dir(&outside),
    )
}

/// Copies the example, with the manifest of the book.
fn example(from: &Path, to: &Path) -> anyhow::Result<()> {
    for folder in ["src", "tests"] {
        fs::create_dir_all(to.join(folder))?;
        for file in fs::read_dir(from.join(folder))? {
            let file = file?;
            fs::copy(file.path(), to.join(folder).join(file.file_name()))?;
        }
    }
    fs::copy(from.join("outside.toml"), to.join("Cargo.toml"))?;
    Ok(())
}
