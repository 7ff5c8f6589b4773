//! `cargo xtask conformance`: the tests and documented differences that cover each line of the catalogues.
//!
//! 1. Catalogues are `tests/conformance/*.toml`: lines with an id, a section and a text.
//! 2. A test covers lines with a doc line directly on it: `/// Conformance: SCH-017, SCH-018`.
//! 3. A documented difference decides lines with tags in `docs/DIFFERENCES.md`: `[SCH-017]`.
//! 4. A line about time or memory names the bench that measures it (`bench = "schedule"`); its figures are in `docs/performance.md`.
//! 5. The result is `docs/conformance.md`. Ids that no catalogue has and tags on functions that are not tests are errors.

mod scan;
mod scores;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};
use serde::Deserialize;

use crate::files;

#[derive(Deserialize)]
struct Catalogue {
    catalogue: String,
    source: String,
    /// What the ids begin with, beside the catalogue's own name.
    #[serde(default)]
    families: Vec<String>,
    #[serde(default)]
    line: Vec<Line>,
}

impl Catalogue {
    /// Returns what the ids of the catalogue begin with.
    fn prefixes(&self) -> impl Iterator<Item = &str> {
        let families = self.families.iter().map(String::as_str);
        std::iter::once(self.catalogue.as_str()).chain(families)
    }

    fn has(&self, id: &str) -> bool {
        self.prefixes().any(|prefix| {
            id.strip_prefix(prefix)
                .is_some_and(|rest| rest.starts_with('-'))
        })
    }
}

#[derive(Deserialize)]
struct Line {
    id: String,
    section: String,
    text: String,
    /// The target of `cargo xtask bench` that measures it.
    bench: Option<String>,
}

/// The tests that cover the lines, by id.
#[derive(Default)]
struct Coverage {
    tests: BTreeMap<String, BTreeSet<String>>,
    differences: BTreeSet<String>,
}

#[derive(Default, Clone, Copy)]
struct Counts {
    tests: usize,
    benches: usize,
    differences: usize,
    missing: usize,
}

impl Coverage {
    /// Number of lines decided by a difference, covered by a test, measured by a bench, or neither, in this order of precedence.
    fn counts(&self, catalogue: &Catalogue) -> Counts {
        let mut counts = Counts::default();
        for line in &catalogue.line {
            if self.differences.contains(&line.id) {
                counts.differences += 1;
            } else if self.tests.contains_key(&line.id) {
                counts.tests += 1;
            } else if line.bench.is_some() {
                counts.benches += 1;
            } else {
                counts.missing += 1;
            }
        }
        counts
    }
}

pub(crate) fn run(root: &Path, check: bool) -> anyhow::Result<()> {
    let catalogues = read_catalogues(root)?;
    let coverage = collect(root, &catalogues)?;
    let mut text = render(&catalogues, &coverage);
    text.push_str(&scores::render(&scores::read(root)?));
    let path = "docs/conformance.md".to_owned();
    files::generate(root, check, "conformance", [(path, text)])
}

fn read_catalogues(root: &Path) -> anyhow::Result<Vec<Catalogue>> {
    let directory = root.join("tests/conformance");
    let mut known = BTreeSet::new();
    let mut catalogues: Vec<Catalogue> = Vec::new();
    for path in files::below(&directory, &["toml"])? {
        let catalogue: Catalogue = toml::from_str(&files::read(&path)?)
            .with_context(|| format!("cannot read {}", path.display()))?;
        for line in &catalogue.line {
            if !catalogue.has(&line.id) || !known.insert(line.id.clone()) {
                bail!(
                    "{}: id `{}` does not belong to this catalogue, or is not unique",
                    path.display(),
                    line.id
                );
            }
        }
        catalogues.push(catalogue);
    }
    Ok(catalogues)
}

fn collect(root: &Path, catalogues: &[Catalogue]) -> anyhow::Result<Coverage> {
    let ids: BTreeSet<&str> = catalogues
        .iter()
        .flat_map(|catalogue| &catalogue.line)
        .map(|line| line.id.as_str())
        .collect();
    let mut coverage = Coverage::default();
    let mut problems = Vec::new();
    let benches = benches(root)?;
    for line in catalogues.iter().flat_map(|catalogue| &catalogue.line) {
        if let Some(bench) = line.bench.as_ref().filter(|name| !benches.contains(*name)) {
            problems.push(format!("{}: no package has a bench `{bench}`", line.id));
        }
    }
    let mut sources = Vec::new();
    for top in ["crates", "bins", "xtask", "tests"] {
        sources.extend(files::below(&root.join(top), &["rs"])?);
    }
    for path in sources {
        let relative = files::relative(root, &path);
        let (tags, wrong) = scan::tags(&files::read(&path)?);
        problems.extend(
            wrong
                .into_iter()
                .map(|problem| format!("{relative}:{problem}")),
        );
        for tag in tags {
            if !ids.contains(tag.id.as_str()) {
                problems.push(format!(
                    "{relative}:{}: unknown catalogue id `{}`",
                    tag.line, tag.id
                ));
            }
            coverage
                .tests
                .entry(tag.id)
                .or_default()
                .insert(format!("{relative}::{}", tag.test));
        }
    }
    let differences = fs::read_to_string(root.join("docs/DIFFERENCES.md"))?;
    let prefixes: Vec<&str> = catalogues.iter().flat_map(Catalogue::prefixes).collect();
    for (number, id) in scan::difference_tags(&differences, &prefixes) {
        if !ids.contains(id.as_str()) {
            problems.push(format!(
                "docs/DIFFERENCES.md:{number}: unknown catalogue id `{id}`"
            ));
        }
        coverage.differences.insert(id);
    }
    if !problems.is_empty() {
        bail!("{}", problems.join("\n"));
    }
    Ok(coverage)
}

/// Returns the names of all benches of the workspace.
fn benches(root: &Path) -> anyhow::Result<BTreeSet<String>> {
    #[derive(Deserialize)]
    struct Manifest {
        #[serde(default)]
        bench: Vec<Bench>,
    }
    #[derive(Deserialize)]
    struct Bench {
        name: String,
    }
    let mut names = BTreeSet::new();
    for group in ["bins", "crates", "tests"] {
        let Ok(packages) = fs::read_dir(root.join(group)) else {
            continue;
        };
        for package in packages {
            let path = package?.path().join("Cargo.toml");
            let Ok(text) = fs::read_to_string(&path) else {
                continue;
            };
            let manifest: Manifest =
                toml::from_str(&text).with_context(|| format!("cannot read {}", path.display()))?;
            names.extend(manifest.bench.into_iter().map(|bench| bench.name));
        }
    }
    Ok(names)
}

fn render(catalogues: &[Catalogue], coverage: &Coverage) -> String {
    let mut text = String::from(
        "# Conformance\n\n\
         Generated by `cargo xtask conformance`; do not edit. Each line of the reference catalogues (`tests/conformance/*.toml`) with the\n\
         tests that pin it, the *bench* that measures it (its figures are in `docs/performance.md`), *difference* where `docs/DIFFERENCES.md`\n\
         decides it otherwise, or **missing**.\n\n\
         | Catalogue | Lines | Tests | Benches | Differences | Missing |\n|---|---|---|---|---|---|\n",
    );
    // INVARIANT: writing to a String cannot fail; the results are ignored.
    for catalogue in catalogues {
        let Counts {
            tests,
            benches,
            differences,
            missing,
        } = coverage.counts(catalogue);
        let _ = writeln!(
            text,
            "| {} | {} | {tests} | {benches} | {differences} | {missing} |",
            catalogue.catalogue,
            catalogue.line.len()
        );
    }
    for catalogue in catalogues {
        let _ = write!(
            text,
            "\n## {}\n\nSource: {}.\n",
            catalogue.catalogue, catalogue.source
        );
        let mut section = None;
        for line in &catalogue.line {
            if section != Some(&line.section) {
                let _ = write!(
                    text,
                    "\n### {}\n\n| Id | Line | Covered by |\n|---|---|---|\n",
                    line.section
                );
                section = Some(&line.section);
            }
            let _ = writeln!(
                text,
                "| {} | {} | {} |",
                line.id,
                cell(&line.text),
                covered_by(line, coverage)
            );
        }
    }
    text
}

/// Escapes a text for a cell of a table: mdbook takes `<name>` outside code spans for HTML, and loses it.
fn cell(text: &str) -> String {
    let escape = |(index, part): (usize, &str)| match index % 2 {
        0 => part.replace('<', "&lt;"),
        _ => part.to_owned(),
    };
    let parts: Vec<String> = text.split('`').enumerate().map(escape).collect();
    parts.join("`").replace('|', "\\|")
}

fn covered_by(line: &Line, coverage: &Coverage) -> String {
    let difference = coverage
        .differences
        .contains(&line.id)
        .then(|| "*difference*".to_owned());
    let bench = line.bench.iter().map(|name| format!("*bench* `{name}`"));
    let tests = coverage
        .tests
        .get(&line.id)
        .into_iter()
        .flatten()
        .map(|test| format!("`{test}`"));
    let all: Vec<String> = difference.into_iter().chain(tests).chain(bench).collect();
    if all.is_empty() {
        "**missing**".to_owned()
    } else {
        all.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catalogue ids in fixtures are assembled, so that this file does not count as covering them.
    fn workspace(source: &str, differences: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for directory in [
            "tests/conformance",
            "docs",
            "crates/a/src",
            "crates/a/target",
        ] {
            fs::create_dir_all(root.path().join(directory)).unwrap();
        }
        let catalogue = "catalogue = \"XYZ\"\nsource = \"a page\"\nfamilies = [\"UVW\"]\n\
            [[line]]\nid = \"XYZ-1\"\nsection = \"S\"\ntext = \"a | <b> `<c>`\"\n[[line]]\nid = \"XYZ-2\"\nsection = \"S\"\ntext = \"two\"\n\
            [[line]]\nid = \"UVW-3\"\nsection = \"T\"\ntext = \"three\"\n\
            [[line]]\nid = \"UVW-4\"\nsection = \"T\"\ntext = \"fast\"\nbench = \"b\"\n";
        fs::write(root.path().join("tests/conformance/XYZ.toml"), catalogue).unwrap();
        fs::write(root.path().join("docs/DIFFERENCES.md"), differences).unwrap();
        let manifest = "[[bench]]\nname = \"b\"\n";
        fs::write(root.path().join("crates/a/Cargo.toml"), manifest).unwrap();
        fs::write(
            root.path().join("crates/a/src/lib.rs"),
            source.replace("TAG", "Conformance"),
        )
        .unwrap();
        root
    }

    #[test]
    fn each_line_has_its_tests_its_bench_its_difference_or_nothing() {
        let root = workspace(
            "/// TAG: XYZ-1\n#[test]\nfn one() {}\n",
            "- we differ [XYZ-2]\n",
        );
        run(root.path(), false).unwrap();
        let text = fs::read_to_string(root.path().join("docs/conformance.md")).unwrap();
        assert!(text.contains("| XYZ | 4 | 1 | 1 | 1 | 1 |"), "{text}");
        assert!(
            text.contains("| XYZ-1 | a \\| &lt;b> `<c>` | `crates/a/src/lib.rs::one` |"),
            "{text}"
        );
        assert!(text.contains("| XYZ-2 | two | *difference* |"), "{text}");
        assert!(text.contains("### T\n\n| Id | Line | Covered by |\n|---|---|---|\n| UVW-3 | three | **missing** |"), "{text}");
        assert!(text.contains("| UVW-4 | fast | *bench* `b` |"), "{text}");
        run(root.path(), true).unwrap();
    }

    #[test]
    fn a_line_whose_bench_does_not_exist_is_an_error() {
        let root = workspace("", "");
        fs::remove_file(root.path().join("crates/a/Cargo.toml")).unwrap();
        let error = run(root.path(), false).unwrap_err().to_string();
        assert_eq!(error, "UVW-4: no package has a bench `b`");
    }

    #[test]
    fn mutation_scores_follow() {
        let root = workspace("", "");
        let records = "[[score]]\nmodule = \"api\"\ncommit = \"abc\"\nsample = \"1/8\"\ncaught = 3\nmissed = 1\nunviable = 2\n";
        fs::write(root.path().join("tests/mutants.toml"), records).unwrap();
        run(root.path(), false).unwrap();
        let text = fs::read_to_string(root.path().join("docs/conformance.md")).unwrap();
        assert!(
            text.contains("| api | 1/8 | abc | 4 | 3 | 75.0 % |"),
            "{text}"
        );
    }

    #[test]
    fn a_stale_file_fails_the_check() {
        let root = workspace("", "");
        assert!(
            run(root.path(), true)
                .unwrap_err()
                .to_string()
                .contains("out of date")
        );
    }

    #[test]
    fn unknown_ids_and_tags_on_what_is_no_test_are_errors() {
        let root = workspace(
            "/// TAG: XYZ-9\n#[test]\nfn one() {}\n\n/// TAG: XYZ-1\nfn two() {}\n",
            "[XYZ-8]\n",
        );
        let error = run(root.path(), false).unwrap_err().to_string();
        for expected in [
            "lib.rs:1: unknown catalogue id `XYZ-9`",
            "lib.rs:5: `two` is not a test",
            "DIFFERENCES.md:1: unknown catalogue id `XYZ-8`",
        ] {
            assert!(error.contains(expected), "{error}");
        }
    }
}
