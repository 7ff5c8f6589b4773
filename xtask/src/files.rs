//! The files that commands read and generate.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use sha2::{Digest as _, Sha256};

/// Returns a file, or the files below a folder, with one of these extensions or, without any, all of them, in order; without the output
/// of cargo.
pub(crate) fn below(path: &Path, extensions: &[&str]) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    if path.is_dir() && !path.ends_with("target") {
        let entries =
            fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))?;
        for entry in entries {
            found.extend(below(&entry?.path(), extensions)?);
        }
        found.sort();
    } else if path.is_file() {
        let extension = path.extension().and_then(|extension| extension.to_str());
        let is_wanted = extension.is_some_and(|extension| extensions.contains(&extension));
        found.extend((is_wanted || extensions.is_empty()).then(|| path.to_owned()));
    }
    Ok(found)
}

pub(crate) fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Returns a path from the workspace's root.
pub(crate) fn relative(root: &Path, path: &Path) -> String {
    path.strip_prefix(root)
        .unwrap_or(path)
        .display()
        .to_string()
}

/// Writes generated files, by their paths from the workspace's root, or fails if `check` finds one that is out of date.
pub(crate) fn generate(
    root: &Path,
    check: bool,
    command: &str,
    files: impl IntoIterator<Item = (String, String)>,
) -> anyhow::Result<()> {
    let mut stale = Vec::new();
    for (path, text) in files {
        let file = root.join(&path);
        if fs::read_to_string(&file).unwrap_or_default() == text {
            continue;
        }
        if check {
            stale.push(path);
            continue;
        }
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&file, text).with_context(|| format!("cannot write {path}"))?;
    }
    if !stale.is_empty() {
        bail!(
            "out of date: {}; run `cargo xtask {command}`",
            stale.join(", ")
        );
    }
    Ok(())
}

/// Returns a SHA-256 checksum in hexadecimal.
pub(crate) fn sha256(content: &[u8]) -> String {
    let digest = Sha256::digest(content);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
