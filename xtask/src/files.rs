//! The files that checks read.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Returns a file, or the files below a folder, with one of these extensions, in order; without the output of cargo.
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
        let wanted = extension.is_some_and(|extension| extensions.contains(&extension));
        found.extend(wanted.then(|| path.to_owned()));
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
