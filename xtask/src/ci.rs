//! `cargo xtask ci`: what has to hold for every commit. Every check runs, and the last lines say how each went.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};

use crate::{conformance, crds, realcluster};

/// Crates that stay free of I/O, clients and runtimes, and what must not be in their dependencies.
const PURE: [&str; 3] = ["karpenter-api", "karpenter-core", "karpenter-spec"];
const IMPURE: [&str; 4] = ["tokio", "hyper", "kube-client", "aws-"];

pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let mut failed = Vec::new();
    let mut summary = Vec::new();
    let mut step = |name: &str, check: &dyn Fn() -> anyhow::Result<String>| {
        println!("=== {name}");
        match check() {
            Ok(note) => summary.push(format!(
                "ok      {name}{}{note}",
                if note.is_empty() { "" } else { ": " }
            )),
            Err(problem) => {
                println!("{problem:#}");
                summary.push(format!("FAILED  {name}"));
                failed.push(name.to_owned());
            }
        }
    };
    step("format", &|| cargo(root, &["fmt", "--all", "--check"]));
    step("crds", &|| crds::run(root, true).map(|()| String::new()));
    step("conformance", &|| {
        conformance::run(root, true, false).map(|()| String::new())
    });
    step("purity", &|| purity(root));
    step("clippy", &|| {
        cargo(
            root,
            &[
                "clippy",
                "--workspace",
                "--all-targets",
                "--quiet",
                "--",
                "-D",
                "warnings",
            ],
        )
    });
    step("docs", &|| docs(root));
    step("tests", &|| {
        let without = missing_programs(root);
        let totals = tests(root)?;
        Ok(match without.is_empty() {
            true => totals,
            false => format!("{totals}; without {}", without.join(", ")),
        })
    });
    step("realcluster", &|| realcluster::ci(root));
    step("deny", &|| {
        cargo(
            root,
            &[
                "deny",
                "--log-level",
                "error",
                "check",
                "bans",
                "licenses",
                "sources",
            ],
        )
    });
    println!("=== summary");
    for line in &summary {
        println!("{line}");
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

fn cargo(root: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let status = Command::new("cargo")
        .args(arguments)
        .current_dir(root)
        .status()?;
    if !status.success() {
        bail!("`cargo {}` failed", arguments.join(" "));
    }
    Ok(String::new())
}

/// Pages of all public items, without a warning.
fn docs(root: &Path) -> anyhow::Result<String> {
    let status = Command::new("cargo")
        .args(["doc", "--workspace", "--no-deps", "--quiet"])
        .env("RUSTDOCFLAGS", "-D warnings")
        .current_dir(root)
        .status()?;
    if !status.success() {
        bail!("`cargo doc` has warnings");
    }
    Ok(String::new())
}

/// Runs the test command of the README, and repeats its closing lines.
fn tests(root: &Path) -> anyhow::Result<String> {
    let readme = fs::read_to_string(root.join("README.md"))?;
    let command = test_command(&readme).context("README.md has no line `cargo test …`")?;
    println!("{command}");
    let mut child = Command::new("cargo")
        .args(command.split_whitespace().skip(1))
        .current_dir(root)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut closing = Vec::new();
    for line in BufReader::new(child.stdout.take().context("cargo has no output")?).lines() {
        let line = line?;
        if line.starts_with("test result:") {
            closing.push(line.clone());
        }
        println!("{line}");
    }
    let status = child.wait()?;
    println!("--- closing lines of `{command}`");
    closing.iter().for_each(|line| println!("{line}"));
    let totals = totals(&closing);
    if !status.success() {
        bail!("`{command}` failed: {totals}");
    }
    Ok(totals)
}

/// The programs of others that are not on this machine: tests that need one of them have skipped themselves.
fn missing_programs(root: &Path) -> Vec<&'static str> {
    let there = |name: &&&str| {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&paths).any(|folder| folder.join(name).is_file())
    };
    let mut missing: Vec<&str> = ["kubectl", "prometheus", "helm"]
        .iter()
        .filter(|name| !there(name))
        .copied()
        .collect();
    if !missing.contains(&"kubectl") && kubectl_is_old() {
        missing.push("kubectl of 1.28 or later");
    }
    if !root.join("target/tools/moto/bin/moto_server").is_file() {
        missing.push("moto");
    }
    missing
}

/// Whether kubectl is older than what the tests that apply manifests need.
fn kubectl_is_old() -> bool {
    let asked = Command::new("kubectl")
        .args(["version", "--client", "--output=json"])
        .output();
    asked.is_ok_and(|answer| is_old(&answer.stdout))
}

fn is_old(kubectl_version: &[u8]) -> bool {
    let answer: serde_json::Value = serde_json::from_slice(kubectl_version).unwrap_or_default();
    let version = answer["clientVersion"]["gitVersion"].as_str();
    let numbers = version.and_then(|v| v.strip_prefix('v')).map(|v| {
        let mut parts = v.split('.').map(|part| part.parse::<u32>().ok());
        (parts.next().flatten(), parts.next().flatten())
    });
    numbers.is_some_and(|(major, minor)| (major, minor) < (Some(1), Some(28)))
}

/// The one line of the README that runs the whole test suite.
fn test_command(readme: &str) -> Option<&str> {
    readme
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with("cargo test"))
}

/// The sums of lines like `test result: ok. 12 passed; 0 failed; 1 ignored; …`.
fn totals(lines: &[String]) -> String {
    let count = |what: &str| -> u64 {
        let number = |line: &String| {
            line.split([';', '.'])
                .find_map(|part| part.trim().strip_suffix(what)?.trim().parse::<u64>().ok())
        };
        lines.iter().filter_map(number).sum()
    };
    format!(
        "{} passed, {} failed, {} ignored in {} test binaries",
        count("passed"),
        count("failed"),
        count("ignored"),
        lines.len()
    )
}

/// Checks that the pure crates depend on nothing that waits or talks.
fn purity(root: &Path) -> anyhow::Result<String> {
    for package in PURE {
        let tree = Command::new("cargo")
            .args([
                "tree",
                "--package",
                package,
                "--edges",
                "normal",
                "--prefix",
                "none",
                "--format",
                "{p}",
            ])
            .current_dir(root)
            .output()?;
        if !tree.status.success() {
            bail!(
                "`cargo tree` failed for {package}: {}",
                String::from_utf8_lossy(&tree.stderr)
            );
        }
        let tree = String::from_utf8_lossy(&tree.stdout).into_owned();
        let found = impure(&tree);
        if !found.is_empty() {
            bail!("{package} depends on {}", found.join(", "));
        }
    }
    Ok(String::new())
}

fn impure(tree: &str) -> Vec<&str> {
    let names = tree
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let mut found: Vec<&str> = names
        .filter(|name| {
            IMPURE.iter().any(|impure| match impure.strip_suffix('-') {
                Some(family) => name
                    .strip_prefix(family)
                    .is_some_and(|rest| rest.starts_with('-')),
                None => name == impure,
            })
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_command_is_the_readme_s() {
        assert_eq!(
            test_command("# K\n\n```sh\ncargo test --workspace\n```\n"),
            Some("cargo test --workspace")
        );
        assert_eq!(test_command("# K\n"), None);
    }

    #[test]
    fn results_add_up() {
        let line = |passed, failed| {
            format!(
                "test result: ok. {passed} passed; {failed} failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s"
            )
        };
        assert_eq!(
            totals(&[line(3, 0), line(4, 1)]),
            "7 passed, 1 failed, 2 ignored in 2 test binaries"
        );
    }

    #[test]
    fn a_kubectl_that_tests_skip_is_told_by_its_version() {
        let of = |version: &str| {
            format!(r#"{{"clientVersion": {{"minor": "9+", "gitVersion": "{version}"}}}}"#)
        };
        assert!(is_old(of("v1.20.2").as_bytes()));
        assert!(!is_old(of("v1.28.0").as_bytes()));
        assert!(!is_old(of("v1.32.4-dispatcher").as_bytes()));
        assert!(!is_old(b"not JSON"));
    }

    #[test]
    fn clients_and_runtimes_are_impure() {
        let tree = "karpenter-core v0.1.0 (/x)\ntokio v1.0.0\ntokio-util v0.7.0\naws-config v1.0.0\nawsome v1.0.0\nkube-core v5.0.0\ntokio v1.0.0 (*)";
        assert_eq!(impure(tree), ["aws-config", "tokio"]);
    }
}
