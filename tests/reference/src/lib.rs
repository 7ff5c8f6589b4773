//! Pages of the book's reference that only the programs know: their flags, and the metrics that they register.
//!
//! A test of a program renders its page and compares it with the file in the repository ([`compare`]); with `UPDATE_REFERENCE=1`
//! in the environment it writes the file instead. The pages that can be rendered without building the programs are written by
//! `cargo xtask docs`.

mod chart;
mod command;

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context as _, bail};
pub use chart::chart_values;
pub use command::{completions, flags, man_pages};

/// First line of each generated page.
const HEADER: &str = "<!-- Generated; do not edit. Update with `UPDATE_REFERENCE=1 cargo test --workspace reference_page`. -->\n\n";

/// Compares a generated page of the book with its file in `docs/reference`, or writes it.
///
/// # Errors
///
/// The page in the repository is out of date, or the file cannot be read or written.
pub fn page(name: &str, text: &str) -> anyhow::Result<()> {
    let text = format!("{HEADER}{}\n", text.trim_end());
    compare(&format!("docs/reference/{name}.md"), &text)
}

/// Compares a file of the repository with what it should contain, or writes it if `UPDATE_REFERENCE` is set.
///
/// # Errors
///
/// The file is out of date, or cannot be read or written.
pub fn compare(path: &str, text: &str) -> anyhow::Result<()> {
    compare_in(
        &root(),
        path,
        text,
        env::var_os("UPDATE_REFERENCE").is_some(),
    )
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn compare_in(root: &Path, path: &str, text: &str, update: bool) -> anyhow::Result<()> {
    let file = root.join(path);
    if update {
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        return fs::write(&file, text).with_context(|| format!("cannot write {path}"));
    }
    let found = fs::read_to_string(&file).unwrap_or_default();
    if found != text {
        let line = found.lines().zip(text.lines()).position(|(a, b)| a != b);
        let line = line.unwrap_or_else(|| found.lines().count().min(text.lines().count()));
        bail!(
            "{path} is out of date from line {}; run `UPDATE_REFERENCE=1 cargo test --workspace reference_page`",
            line + 1
        );
    }
    Ok(())
}

/// Returns text as a cell of a Markdown table: on one line, without column separators and HTML.
#[must_use]
pub fn cell(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace('|', "\\|").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_page_is_an_error_that_names_the_line_and_an_update_mends_it() {
        let root = tempfile::tempdir().unwrap();
        compare_in(root.path(), "docs/a.md", "one\ntwo\n", true).unwrap();
        compare_in(root.path(), "docs/a.md", "one\ntwo\n", false).unwrap();
        let stale = compare_in(root.path(), "docs/a.md", "one\nthree\n", false).unwrap_err();
        assert!(
            stale
                .to_string()
                .starts_with("docs/a.md is out of date from line 2")
        );
        let missing = compare_in(root.path(), "docs/b.md", "one\n", false).unwrap_err();
        assert!(missing.to_string().contains("from line 1"), "{missing}");
    }

    #[test]
    fn a_cell_is_one_line_without_separators() {
        assert_eq!(cell("a | b\n  <name>"), "a \\| b &lt;name>");
    }
}
