//! Part of `cargo xtask ci`: what releases are built with cannot change under its name. Actions are named by commit, base images by digest;
//! dependabot updates both.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};

const WORKFLOWS: &str = ".github/workflows";
const DOCKERFILE: &str = "Dockerfile";

/// Fails if a workflow uses an action by tag, or the Dockerfile an image.
pub(crate) fn check(root: &Path) -> anyhow::Result<String> {
    let mut found = Vec::new();
    let folder = root.join(WORKFLOWS);
    let entries =
        fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        found.extend(by_tag(
            "uses:",
            "@",
            40,
            &fs::read_to_string(entry?.path())?,
        ));
    }
    let dockerfile = fs::read_to_string(root.join(DOCKERFILE))?;
    let stages = dockerfile
        .lines()
        .filter_map(|line| line.split(" AS ").nth(1));
    let stages: Vec<&str> = stages.map(str::trim).collect();
    let images = by_tag("FROM ", "@sha256:", 64, &dockerfile);
    found.extend(
        images
            .into_iter()
            .filter(|image| !stages.contains(&image.as_str())),
    );
    if !found.is_empty() {
        bail!("not pinned by digest: {}", found.join(", "));
    }
    Ok(String::new())
}

/// Returns the names that follow `keyword` without `separator` and a hexadecimal digest of this length.
fn by_tag(keyword: &str, separator: &str, length: usize, text: &str) -> Vec<String> {
    let names = text.lines().filter_map(|line| {
        let line = line.trim_start().trim_start_matches("- ");
        line.strip_prefix(keyword)?.split_whitespace().next()
    });
    let is_pinned = |name: &str| {
        name.split_once(separator).is_some_and(|(_, digest)| {
            digest.len() == length && digest.chars().all(|c| c.is_ascii_hexdigit())
        })
    };
    let found = names.filter(|name| !is_pinned(name));
    found.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_or_image_without_its_digest_is_found() {
        let (commit, digest) = ("a".repeat(40), "0".repeat(64));
        let steps = format!(
            "  - uses: a/checkout@{commit} # v4\n  - uses: a/cache@v4\n    uses: b/c@{digest}\n"
        );
        assert_eq!(
            by_tag("uses:", "@", 40, &steps),
            ["a/cache@v4".to_owned(), format!("b/c@{digest}")]
        );
        let images = format!("FROM rust:1@sha256:{digest} AS build\nFROM debian:12\n");
        assert_eq!(by_tag("FROM ", "@sha256:", 64, &images), ["debian:12"]);
    }

    #[test]
    fn a_stage_of_the_dockerfile_needs_no_digest() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join(WORKFLOWS)).unwrap();
        let write = |text: &str| fs::write(root.path().join(DOCKERFILE), text).unwrap();
        let base = format!("FROM rust@sha256:{} AS source\n", "0".repeat(64));
        write(&format!("{base}FROM source AS build\n"));
        assert!(check(root.path()).is_ok());
        write(&format!("{base}FROM other AS build\n"));
        let error = check(root.path()).unwrap_err().to_string();
        assert_eq!(error, "not pinned by digest: other");
    }
}
