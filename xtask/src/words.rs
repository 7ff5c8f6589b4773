//! Part of `cargo xtask ci`: words that Kubernetes has a term for, and phrases that readers stumble over, do not come back.
//!
//! The list with its reasons is `tests/words.toml`. It names the worst words only: a reviewer sees the rest.

use std::path::Path;

use anyhow::{Context as _, bail};
use serde::Deserialize;

use crate::files;

const LIST: &str = "tests/words.toml";
/// What is read, from the workspace's root.
const ROOTS: [&str; 10] = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs",
    "charts",
    "crates",
    "bins",
    "tests",
    "xtask",
    "examples",
];
const EXTENSIONS: [&str; 3] = ["rs", "md", "yaml"];

#[derive(Deserialize)]
struct List {
    word: Vec<Word>,
}

#[derive(Deserialize)]
struct Word {
    /// One or more words in lower case. They are found in identifiers, too.
    words: Vec<String>,
    instead: String,
    /// Phrases in which the word is right.
    #[serde(default)]
    right_in: Vec<String>,
    /// Files and folders in which the word is right, from the workspace's root.
    #[serde(default)]
    right_under: Vec<String>,
}

/// Fails if a listed word stands where it is not right.
pub(crate) fn check(root: &Path) -> anyhow::Result<String> {
    let list: List = toml::from_str(&files::read(&root.join(LIST))?)
        .with_context(|| format!("cannot read {LIST}"))?;
    let mut found = Vec::new();
    for top in ROOTS {
        for path in files::below(&root.join(top), &EXTENSIONS)? {
            let name = files::relative(root, &path);
            let is_right = |word: &&Word| word.right_under.iter().any(|it| name.starts_with(it));
            let words: Vec<&Word> = list.word.iter().filter(|word| !is_right(word)).collect();
            for (number, line) in (1..).zip(files::read(&path)?.lines()) {
                let line = split(line);
                for word in &words {
                    if let Some(wrong) = word.wrong_in(&line) {
                        found.push(format!("{name}:{number}: `{wrong}`: {}", word.instead));
                    }
                }
            }
        }
    }
    if !found.is_empty() {
        bail!("{}\n{} words of {LIST}", found.join("\n"), found.len());
    }
    Ok(String::new())
}

impl Word {
    /// The word, if the line has it outside of a phrase in which it is right.
    fn wrong_in(&self, line: &[String]) -> Option<&str> {
        let is_right = |at: usize| {
            self.right_in.iter().any(|phrase| {
                let phrase = split(phrase);
                let first = (at + 1).saturating_sub(phrase.len());
                (first..=at).any(|start| line[start..].starts_with(&phrase))
            })
        };
        self.words.iter().map(String::as_str).find(|word| {
            let word = split(word);
            let places = 0..line.len();
            places
                .filter(|at| line[*at..].starts_with(&word))
                .any(|at| !is_right(at))
        })
    }
}

/// The words of a line in lower case; `LostNode` and `lost_node` are two words.
fn split(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for c in line.chars() {
        let begins = !c.is_alphanumeric() || (c.is_uppercase() && before.is_lowercase());
        if begins && words.last().is_some_and(|last| !last.is_empty()) {
            words.push(String::new());
        }
        if let (true, Some(last)) = (c.is_alphanumeric(), words.last_mut()) {
            last.extend(c.to_lowercase());
        }
        before = c;
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The list's words are put together, lest this file be found to have them.
    const THING: &str = concat!("ga", "dget");

    fn word() -> Word {
        Word {
            words: vec![
                THING.into(),
                format!("{THING}s"),
                format!("gives {THING} back"),
            ],
            instead: "node".into(),
            right_in: vec![format!("the right {THING} here")],
            right_under: vec![],
        }
    }

    fn finds(line: &str) -> bool {
        word()
            .wrong_in(&split(&line.replace("IT", THING)))
            .is_some()
    }

    #[test]
    fn a_word_is_found_in_prose_and_in_identifiers() {
        for line in ["a IT", "lost_IT", "ITs.", "`IT`", "IT's", "// IT"] {
            assert!(finds(line), "{line}");
        }
        assert!(word().wrong_in(&split("LostGadget")).is_some());
        assert!(!finds("ITry"), "part of another word");
    }

    #[test]
    fn a_word_is_right_within_a_phrase() {
        assert!(!finds("it is the right IT here"));
        assert!(finds("the right IT there"));
        assert!(finds("the right IT here, IT there"));
    }

    #[test]
    fn files_are_named_with_the_line_and_folders_are_left_out() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: String| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            LIST,
            format!(
                "[[word]]\nwords = [\"{THING}\"]\ninstead = \"node\"\nright_under = [\"docs/old\"]\n"
            ),
        );
        for top in ROOTS {
            fs::create_dir_all(root.path().join(top)).unwrap();
        }
        check(root.path()).unwrap();
        write("docs/old/a.md", THING.into());
        write("docs/a.json", THING.into());
        check(root.path()).unwrap();
        write("crates/a/src/lib.rs", format!("\n{THING}\n"));
        let error = check(root.path()).unwrap_err().to_string();
        assert!(
            error.contains("crates/a/src/lib.rs:2: `gadget`: node"),
            "{error}"
        );
    }
}
