//! Part of `cargo xtask ci`: no file is so long, and no folder so full, that a reader has to search in it, and no test is in a target
//! whose manifest says that it has none.
//!
//! A long file is split by its subjects, a full folder by the parts of the architecture.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::bail;

use crate::files;

/// Where Rust files are, from the workspace's root.
const ROOTS: [&str; 5] = ["crates", "bins", "tests", "examples", "xtask"];
/// How many lines a file may have.
const MAX_LINES: usize = 600;
/// How many Rust files a folder of sources may have, beside the head of the module and its tests. A folder of tests is a list
/// without a structure: any number of subjects, a file for each.
const MAX_FILES: usize = 14;
/// How tests begin that a target with this key has, unless the manifest turns it off.
const TESTS: [(&str, &[&str]); 2] = [
    ("test", &["#[test]", "#[tokio::test"]),
    ("doctest", &["/// ```", "//! ```", "doc = include_str!"]),
];

/// Fails if a file is too long or a folder too full.
pub(crate) fn check(root: &Path) -> anyhow::Result<String> {
    let mut found = Vec::new();
    let mut folders: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for top in ROOTS {
        for manifest in files::below(&root.join(top), &["toml"])? {
            if manifest.ends_with("Cargo.toml") {
                found.extend(never_run(root, &manifest)?);
            }
        }
        for path in files::below(&root.join(top), &["rs"])? {
            let name = files::relative(root, &path);
            found.extend(too_long(&name, files::read(&path)?.lines().count()));
            let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
            folders.entry(folder.to_owned()).or_default().push(name);
        }
    }
    found.extend(
        folders
            .iter()
            .filter_map(|(folder, files)| too_full(folder, files)),
    );
    if !found.is_empty() {
        bail!("{}", found.join("\n"));
    }
    Ok(String::new())
}

/// Returns the complaint about a file with this number of lines.
fn too_long(file: &str, lines: usize) -> Option<String> {
    (lines > MAX_LINES)
        .then(|| format!("{file} has {lines} lines, more than {MAX_LINES}: split it by subject"))
}

/// Returns the complaint about a folder with these files.
fn too_full(folder: &str, files: &[String]) -> Option<String> {
    let is_source = folder.split('/').any(|part| part == "src");
    let of_module = |file: &&String| {
        let name = file.rsplit('/').next().unwrap_or_default();
        !["mod.rs", "lib.rs", "main.rs", "tests.rs"].contains(&name)
    };
    let number = files.iter().filter(of_module).count();
    (is_source && number > MAX_FILES).then(|| {
        format!("{folder} has {number} Rust files, more than {MAX_FILES}: group them in folders")
    })
}

/// Returns the complaints about tests that cargo does not run, as the manifest says that the target has none.
fn never_run(root: &Path, manifest: &Path) -> anyhow::Result<Vec<String>> {
    let table: toml::Table = toml::from_str(&files::read(manifest)?)?;
    let programs = table.get("bin").and_then(toml::Value::as_array);
    let mut found = Vec::new();
    for target in programs.into_iter().flatten().chain(table.get("lib")) {
        let path = target.get("path").and_then(toml::Value::as_str);
        for source in files::below(&manifest.with_file_name(path.unwrap_or("src")), &["rs"])? {
            let (name, text) = (files::relative(root, &source), files::read(&source)?);
            for (key, starts) in TESTS {
                let is_off = target.get(key).and_then(toml::Value::as_bool) == Some(false);
                if is_off && starts.iter().any(|start| text.contains(start)) {
                    found.push(format!(
                        "{name} has tests, but its target has `{key} = false`"
                    ));
                }
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_of_more_than_600_lines_is_too_long() {
        assert_eq!(too_long("a/src/lib.rs", 600), None);
        assert_eq!(
            too_long("a/src/lib.rs", 601).as_deref(),
            Some("a/src/lib.rs has 601 lines, more than 600: split it by subject")
        );
    }

    #[test]
    fn a_folder_is_too_full_with_15_files_beside_its_head_and_tests() {
        let files = |number: usize| -> Vec<String> {
            let numbered = (0..number).map(|number| format!("a/src/b/f{number}.rs"));
            let beside = ["a/src/b/mod.rs", "a/src/b/tests.rs"].map(str::to_owned);
            numbered.chain(beside).collect()
        };
        assert_eq!(too_full("a/src/b", &files(14)), None);
        assert_eq!(
            too_full("a/src/b", &files(15)).as_deref(),
            Some("a/src/b has 15 Rust files, more than 14: group them in folders")
        );
        assert_eq!(too_full("a/tests/b", &files(40)), None);
    }

    #[test]
    fn folders_are_checked_with_all_below_them_except_the_output_of_cargo() {
        let root = tempfile::tempdir().unwrap();
        for folder in ["crates/a/src/b", "crates/a/target/src"] {
            let folder = root.path().join(folder);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("long.rs"), "\n".repeat(601)).unwrap();
        }
        let error = check(root.path()).unwrap_err().to_string();
        let long = "crates/a/src/b/long.rs has 601 lines, more than 600: split it by subject";
        assert_eq!(error, long);
    }

    #[test]
    fn a_target_that_is_not_tested_has_no_tests() {
        let root = tempfile::tempdir().unwrap();
        let package = root.path().join("crates/a");
        fs::create_dir_all(package.join("src")).unwrap();
        let write = |file, text| fs::write(package.join(file), text).unwrap();
        write("src/lib.rs", "//! ```\n#[test]\n");
        write("Cargo.toml", "[lib]\nname = \"b\"");
        assert!(check(root.path()).is_ok());
        write("Cargo.toml", "[lib]\ntest = false\ndoctest = false");
        let complaint =
            |key| format!("crates/a/src/lib.rs has tests, but its target has `{key} = false`");
        assert_eq!(
            check(root.path()).unwrap_err().to_string(),
            [complaint("test"), complaint("doctest")].join("\n")
        );
    }
}
