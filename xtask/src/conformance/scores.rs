//! The scores of the mutation tests, as recorded in `tests/mutants.toml`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;

/// The score of a module: how many of its mutants were tried, and what became of them.
#[derive(Deserialize)]
pub(super) struct Score {
    module: String,
    /// The commit whose source was mutated.
    commit: String,
    /// The part of the module's mutants that was tried: `1/1` for all of them.
    sample: String,
    caught: u64,
    missed: u64,
}

impl Score {
    /// Returns the caught mutants in percent of those that compile; `None` if none does.
    fn percent(&self) -> Option<f64> {
        let all = self.caught + self.missed;
        (all > 0).then(|| self.caught as f64 / all as f64 * 100.0)
    }
}

#[derive(Deserialize)]
struct Records {
    score: Vec<Score>,
}

/// Returns the recorded scores.
pub(super) fn read(root: &Path) -> anyhow::Result<Vec<Score>> {
    let path = root.join("tests/mutants.toml");
    if !path.exists() {
        return Ok(Vec::new());
    }
    let records: Records = toml::from_str(&fs::read_to_string(&path)?)
        .with_context(|| format!("cannot read {}", path.display()))?;
    Ok(records.score)
}

/// The scores of the mutation tests, as a table.
pub(super) fn render(scores: &[Score]) -> String {
    if scores.is_empty() {
        return String::new();
    }
    let mut text = String::from(
        "\n## Mutation scores\n\n\
         How many single changes of the source make a test fail (cargo-mutants). Left out are mutants\n\
         that do not compile and those that mean nothing (`.cargo/mutants.toml`).\n\n\
         | Module | Sample | Commit | Mutants | Caught | Score |\n|---|---|---|---|---|---|\n",
    );
    // INVARIANT: writing to a String cannot fail.
    for score in scores {
        let percent = score
            .percent()
            .map_or_else(|| "-".to_owned(), |percent| format!("{percent:.1} %"));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {percent} |",
            score.module,
            score.sample,
            score.commit,
            score.caught + score.missed,
            score.caught
        );
    }
    text
}
