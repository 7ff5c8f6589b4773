//! `--demo`, and what the README shows of it.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// Returns the lines of the block of the README that begins with a command.
fn block_of_the_readme(command: &str) -> Vec<String> {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let (_, block) = readme.split_once(&format!("```text\n{command}")).unwrap();
    let (block, _) = block.split_once("```").unwrap();
    block.lines().map(str::to_owned).collect()
}

/// The words of a line, without what differs from run to run: names and amounts, and after the first word of some lines all.
fn words(line: &str) -> Vec<&str> {
    let mask = |word| if is_fixed(word) { word } else { "#" };
    let words: Vec<_> = line.split_whitespace().map(mask).collect();
    let varies = ["#", "Kept", "Evictions"].contains(words.first().unwrap_or(&""));
    let taken = if varies { 1 } else { words.len() };
    words.into_iter().take(taken).collect()
}

fn is_fixed(word: &str) -> bool {
    !word.contains(|c: char| c.is_ascii_digit()) && !word.starts_with("default/report-")
}

#[test]
fn the_demo_ends_without_nodes_and_says_what_the_readme_shows() {
    let home = TempDir::new().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_karpenter-playground"))
        .args(["--demo", "--speed", "5", "--kubeconfig"])
        .arg(home.path().join("kubeconfig"))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{error}");
    for end in [
        "All 300 pods run after",
        "Its pods run elsewhere after",
        "a month.",
        "0 are left.",
    ] {
        assert!(text.contains(end), "{end}: {text}");
    }
    let said: Vec<_> = text.lines().map(words).collect();
    for command in [
        "$ kubectl karpenter why deploy report",
        "$ kubectl karpenter plan",
    ] {
        for line in block_of_the_readme(command) {
            let is_said = said.iter().any(|it| it.ends_with(&words(&line)));
            assert!(is_said, "the README shows `{line}`: {text}");
        }
    }
}
