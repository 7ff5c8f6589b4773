//! `cargo xtask vendor-web`: the third-party files of the dashboard, from npm.
//!
//! `VENDOR.toml` names packages, versions, files and checksums; licenses are beside the files. What is fetched is checked against
//! the integrity of the package, so that a version cannot change unnoticed; what is in the repository is checked by
//! `cargo xtask ci`, which needs no network.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::files::sha256;

const DIRECTORY: &str = "crates/karpenter-dashboard/assets/vendor";
const LIST: &str = "VENDOR.toml";
const HEADER: &str = "\
# Third-party files of the dashboard. To update one, change its version, delete its integrity, and run `cargo xtask vendor-web`;
# then review the difference of the files. `cargo xtask ci` compares the checksums.

";
/// Licenses that may be distributed with the project; as in deny.toml.
const LICENSES: [&str; 5] = ["Apache-2.0", "BSD-3-Clause", "ISC", "MIT", "Zlib"];

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Vendored {
    package: Vec<Package>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Package {
    name: String,
    version: String,
    license: String,
    /// The integrity of the package, as npm has it; filled in if it is missing.
    #[serde(default)]
    integrity: String,
    /// Paths in the package, and what they are called here.
    files: BTreeMap<String, String>,
    /// SHA-256 of the files here, after the names of imported packages were replaced.
    #[serde(default)]
    sha256: BTreeMap<String, String>,
    /// Names of imported packages, and the files here that take their place: a browser knows no packages.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    imports: BTreeMap<String, String>,
}

/// Fetches all packages, and writes their files and checksums.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let directory = root.join(DIRECTORY);
    let mut vendored = read(&directory)?;
    let scratch = root.join("target/vendor-web");
    for package in &mut vendored.package {
        fetch(package, &scratch, &directory)
            .with_context(|| format!("cannot fetch {} {}", package.name, package.version))?;
        println!("{} {}", package.name, package.version);
    }
    let text = toml::to_string_pretty(&vendored)?;
    fs::write(directory.join(LIST), format!("{HEADER}{text}"))?;
    check(root).map(drop)
}

/// Checks that the files are those of the list, unchanged.
pub(crate) fn check(root: &Path) -> anyhow::Result<String> {
    let directory = root.join(DIRECTORY);
    let vendored = read(&directory)?;
    let mut expected = BTreeSet::from([LIST.to_owned()]);
    for package in &vendored.package {
        let name = &package.name;
        ensure!(
            LICENSES.contains(&package.license.as_str()),
            "{name}: license {} is not one of {}",
            package.license,
            LICENSES.join(", ")
        );
        ensure!(
            !package.integrity.is_empty(),
            "{name}: no integrity: run `cargo xtask vendor-web`"
        );
        let ours: BTreeSet<&String> = package.files.values().collect();
        ensure!(
            ours.iter().any(|file| file.ends_with(".LICENSE")),
            "{name}: its license is not among its files"
        );
        ensure!(
            ours == package.sha256.keys().collect(),
            "{name}: not every file has a checksum: run `cargo xtask vendor-web`"
        );
        for (file, expected_sum) in &package.sha256 {
            let content =
                fs::read(directory.join(file)).with_context(|| format!("cannot read {file}"))?;
            ensure!(
                sha256(&content) == *expected_sum,
                "{DIRECTORY}/{file} was changed: `cargo xtask vendor-web` restores it"
            );
            expected.insert(file.clone());
        }
    }
    for entry in fs::read_dir(&directory)? {
        let name = entry?.file_name();
        ensure!(
            name.to_str().is_some_and(|name| expected.contains(name)),
            "{DIRECTORY}/{} is not in {LIST}",
            name.display()
        );
    }
    Ok(format!("{} packages", vendored.package.len()))
}

fn read(directory: &Path) -> anyhow::Result<Vendored> {
    let list = directory.join(LIST);
    let text =
        fs::read_to_string(&list).with_context(|| format!("cannot read {}", list.display()))?;
    toml::from_str(&text).with_context(|| format!("cannot read {}", list.display()))
}

/// The part of the output of `npm pack --json` that is used.
#[derive(Deserialize)]
struct Packed {
    filename: String,
    integrity: String,
}

fn fetch(package: &mut Package, scratch: &Path, directory: &Path) -> anyhow::Result<()> {
    let of = scratch.join(package.name.replace('/', "-"));
    fs::create_dir_all(&of)?;
    let wanted = format!("{}@{}", package.name, package.version);
    let packed = output(
        Command::new("npm")
            .args(["pack", "--json", "--ignore-scripts", &wanted])
            .current_dir(&of),
    )?;
    let packed: Vec<Packed> = serde_json::from_str(&packed).context("unknown output of npm")?;
    let [packed] = packed.as_slice() else {
        bail!("npm fetched {} packages", packed.len());
    };
    if package.integrity.is_empty() {
        package.integrity.clone_from(&packed.integrity);
    }
    ensure!(
        package.integrity == packed.integrity,
        "npm has another package of this version: {}, not {}",
        packed.integrity,
        package.integrity
    );
    output(
        Command::new("tar")
            .args(["-xzf", &packed.filename])
            .current_dir(&of),
    )?;
    package.sha256.clear();
    for (from, to) in &package.files {
        let mut text = fs::read_to_string(of.join("package").join(from))
            .with_context(|| format!("cannot read {from}"))?;
        for (name, file) in &package.imports {
            text = text.replace(&format!("from\"{name}\""), &format!("from\"./{file}\""));
        }
        // The source maps of packages are not vendored.
        let lines = text
            .lines()
            .filter(|line| !line.starts_with("//# sourceMappingURL="));
        let text: String = lines.flat_map(|line| [line, "\n"]).collect();
        package.sha256.insert(to.clone(), sha256(text.as_bytes()));
        fs::write(directory.join(to), text)?;
    }
    Ok(())
}

fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?} failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vendored_files_are_unchanged_and_a_changed_or_further_one_is_found() {
        let root = crate::workspace_root().unwrap();
        check(&root).unwrap();
        let copy = tempfile::tempdir().unwrap();
        let directory = copy.path().join(DIRECTORY);
        fs::create_dir_all(&directory).unwrap();
        for entry in fs::read_dir(root.join(DIRECTORY)).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), directory.join(entry.file_name())).unwrap();
        }
        check(copy.path()).unwrap();
        fs::write(directory.join("more.js"), "").unwrap();
        let more = check(copy.path()).unwrap_err().to_string();
        assert!(more.contains("more.js is not in VENDOR.toml"), "{more}");
        fs::remove_file(directory.join("more.js")).unwrap();
        let file = directory.join("htm.js");
        fs::write(&file, fs::read_to_string(&file).unwrap() + " ").unwrap();
        let changed = check(copy.path()).unwrap_err().to_string();
        assert!(changed.contains("htm.js was changed"), "{changed}");
    }
}
