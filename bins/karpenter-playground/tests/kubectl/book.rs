//! Manifests and commands in the README and in the book.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::marked::marked;
use crate::playground::{Playground, kubectl_is_missing};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the fenced blocks of a language in the book and the README, each with its position.
fn blocks(language: &str) -> Vec<(String, String)> {
    let root = root();
    let summary = std::fs::read_to_string(root.join("docs/SUMMARY.md")).unwrap();
    let mut pages: Vec<PathBuf> = summary
        .split('(')
        .filter_map(|link| link.split_once(".md)"))
        .map(|(page, _)| root.join("docs").join(format!("{page}.md")))
        .collect();
    assert!(pages.len() > 10, "{pages:?}");
    pages.push(root.join("README.md"));
    let mut found = Vec::new();
    for page in pages {
        let text = std::fs::read_to_string(&page);
        assert!(text.is_ok(), "{}", page.display());
        let text = text.unwrap();
        for (number, part) in text.split(&format!("```{language}\n")).enumerate().skip(1) {
            let (block, _) = part.split_once("```").unwrap();
            found.push((
                format!("{} block {number}", page.display()),
                block.to_owned(),
            ));
        }
    }
    found
}

/// Runs the marked blocks of a page as a reader would: shell commands from the root of the repository, manifests with `kubectl
/// apply`. The line that starts the playground starts the binary that was built with this test.
fn follow(page: &str) -> Playground {
    let text = std::fs::read_to_string(root().join(page)).unwrap();
    let blocks = marked(page, &text, "playground");
    assert!(!blocks.is_empty(), "{page} has no marked block");
    let starts = |line: &str| {
        let arguments = line.strip_prefix("cargo run -p karpenter-playground")?;
        Some(
            arguments
                .trim_start()
                .trim_start_matches("--")
                .trim()
                .to_owned(),
        )
    };
    let lines = || blocks.iter().flat_map(|block| block.text.lines());
    let arguments = lines().find_map(starts).unwrap();
    let mut arguments: Vec<&str> = arguments.split_whitespace().collect();
    if !arguments.contains(&"--speed") {
        arguments.extend(["--speed", "10"]);
    }
    let playground = Playground::start(&arguments);
    for block in &blocks {
        if block.language == "yaml" {
            playground.succeeds(&["apply", "-f", "-"], Some(&block.text));
            continue;
        }
        // The test knows where the kubeconfig is.
        let is_done =
            |line: &&str| starts(line).is_none() && !line.starts_with("export KUBECONFIG=");
        let commands: Vec<&str> = block.text.lines().filter(is_done).collect();
        let output = Command::new("bash")
            .args(["-euo", "pipefail", "-c", &commands.join("\n")])
            .env("KUBECONFIG", playground.kubeconfig())
            .current_dir(root())
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {error}", block.place);
    }
    playground
}

#[test]
fn the_commands_of_the_readme_launch_nodes_for_a_hundred_pods() {
    if kubectl_is_missing() {
        return;
    }
    let playground = follow("README.md");
    playground.until_pods("inflate", 100);
}

#[test]
fn the_commands_of_the_first_page_launch_nodes_and_leave_none() {
    if kubectl_is_missing() {
        return;
    }
    let playground = follow("docs/getting-started/playground.md");
    // Its last command scales to zero.
    playground.until(
        &["get", "pods,nodeclaims", "-A", "-o", "name"],
        str::is_empty,
    );
}

#[test]
fn the_commands_of_the_examples_run_all_pods_and_the_static_nodes() {
    if kubectl_is_missing() {
        return;
    }
    let playground = follow("docs/examples/README.md");
    playground.until_examples();
    let fixed = [
        "get",
        "nodes",
        "-l",
        "karpenter.sh/nodepool=fixed",
        "-o",
        "name",
    ];
    playground.until(&fixed, |nodes| nodes.lines().count() == 3);
}

#[test]
fn every_manifest_of_the_book_is_accepted() {
    if kubectl_is_missing() {
        return;
    }
    let playground = Playground::start(&["--speed", "10"]);
    playground.add_ec2_node_classes();
    let manifests = blocks("yaml");
    assert!(manifests.len() >= 6);
    for (place, manifest) in manifests {
        let output =
            playground.kubectl(&["apply", "--validate=strict", "-f", "-"], Some(&manifest));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{place}: {error}");
        // The next page has its own object of the same name.
        playground.succeeds(&["delete", "--wait=true", "-f", "-"], Some(&manifest));
    }
}

#[test]
fn every_kubectl_command_of_the_book_that_reads_or_scales_runs() {
    if kubectl_is_missing() {
        return;
    }
    let playground = Playground::start(&["--speed", "10"]);
    for (_, manifest) in blocks("yaml") {
        if !manifest.contains("kind: EC2NodeClass\nmetadata") {
            playground.succeeds(&["apply", "-f", "-"], Some(&manifest));
        }
    }
    let mut ran = 0;
    for (place, block) in blocks("sh") {
        for line in block.lines().filter(|line| line.starts_with("kubectl ")) {
            let words: Vec<&str> = line.split_whitespace().skip(1).collect();
            // Commands that need a file of the repository, an object of the reader, or our plugin, which has tests of its own.
            let others = ["apply", "describe", "karpenter"].contains(&words[0]);
            if others || words.contains(&"|") {
                continue;
            }
            let output = playground.kubectl(&words, None);
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{place}: {line}: {error}");
            ran += 1;
        }
    }
    assert!(ran >= 5);
}
