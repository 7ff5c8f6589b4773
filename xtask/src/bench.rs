//! `cargo xtask bench`: finds the bench targets of the workspace and runs those asked for.
//!
//! CONTRIBUTING.md describes the convention; the crate `karpenter-bench` implements its other half.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use serde::Deserialize;

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
    #[serde(default, rename = "required-features")]
    required_features: Vec<String>,
}

pub(crate) fn run(root: &Path, json: bool, names: &[String]) -> anyhow::Result<()> {
    let metadata: Metadata = crate::metadata(root)?;
    let selected = select(&metadata, names)?;
    if !json {
        println!(
            "{:<40} {:>14} {:>17} {:>13}  parameters",
            "name", "one round", "items", "peak memory"
        );
    }
    each(selected, |target, (package, cases)| {
        measure(root, json, &metadata, target, package, &cases)
    })
}

/// Runs the requested benches of every target, even if some fail; failed targets are listed at the end.
fn each<'a, T>(
    targets: BTreeMap<&'a str, T>,
    mut run: impl FnMut(&'a str, T) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut failed = Vec::new();
    for (target, asked) in targets {
        if let Err(problem) = run(target, asked) {
            eprintln!("error: {problem:#}");
            failed.push(format!("`{target}`"));
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// Runs one target, and forwards its output.
fn measure(
    root: &Path,
    json: bool,
    metadata: &Metadata,
    target: &str,
    package: &str,
    cases: &[String],
) -> anyhow::Result<()> {
    let mut command = Command::new("cargo");
    command
        .args(["bench", "--quiet", "--package", package, "--bench", target])
        .current_dir(root);
    let package = metadata.packages.iter().find(|known| known.name == package);
    let targets = package.map(|p| p.targets.as_slice()).unwrap_or_default();
    if let Some(found) = targets.iter().find(|t| t.name == target)
        && !found.required_features.is_empty()
    {
        command.args(["--features", &found.required_features.join(",")]);
    }
    command.arg("--");
    if json {
        command.arg("--json");
    }
    let mut child = command.args(cases).stdout(Stdio::piped()).spawn()?;
    let mut results = 0;
    for line in BufReader::new(
        child
            .stdout
            .take()
            .context("cannot read the output of cargo")?,
    )
    .lines()
    {
        let line = line?;
        results += usize::from(!line.is_empty());
        println!("{line}");
    }
    if !child.wait()?.success() {
        bail!("bench `{target}` failed");
    }
    if results == 0 {
        bail!("bench `{target}` has no case {}", cases.join(", "));
    }
    Ok(())
}

/// Returns the targets to run, each with its package and the names to pass to it.
fn select<'a>(
    metadata: &'a Metadata,
    names: &[String],
) -> anyhow::Result<BTreeMap<&'a str, (&'a str, Vec<String>)>> {
    let mut targets = BTreeMap::new();
    for package in &metadata.packages {
        for target in package
            .targets
            .iter()
            .filter(|target| target.kind.iter().any(|kind| kind == "bench"))
        {
            if targets
                .insert(target.name.as_str(), (package.name.as_str(), Vec::new()))
                .is_some()
            {
                bail!("duplicate bench target `{}`", target.name);
            }
        }
    }
    for name in names {
        // A case belongs to the most specific target: `schedule-cost-gpu` to `schedule-cost`, not to `schedule`.
        let of_case = targets
            .keys()
            .filter(|target| continues(name, target))
            .max_by_key(|target| target.len())
            .copied();
        let mut found = false;
        for (target, (_, cases)) in &mut targets {
            if Some(*target) == of_case || continues(target, name) {
                cases.push(name.clone());
                found = true;
            }
        }
        if !found {
            let known = targets.keys().copied().collect::<Vec<_>>().join(", ");
            bail!("unknown bench target `{name}`; the targets are {known}");
        }
    }
    if !names.is_empty() {
        targets.retain(|_, (_, cases)| !cases.is_empty());
    }
    Ok(targets)
}

/// Whether `name` is `start`, or starts with `start` and a dash.
fn continues(name: &str, start: &str) -> bool {
    name.strip_prefix(start)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(targets: &[(&str, &str)]) -> Metadata {
        let package = |(package, bench): &(&str, &str)| Package {
            name: (*package).to_owned(),
            targets: vec![
                Target {
                    name: (*package).to_owned(),
                    kind: vec!["lib".into()],
                    required_features: Vec::new(),
                },
                Target {
                    name: (*bench).to_owned(),
                    kind: vec!["bench".into()],
                    required_features: Vec::new(),
                },
            ],
        };
        Metadata {
            packages: targets.iter().map(package).collect(),
        }
    }

    fn selected(names: &[&str]) -> anyhow::Result<Vec<String>> {
        let metadata = metadata(&[
            ("karpenter-core", "engine"),
            ("karpenter-spec", "engine-cost"),
            ("karpenter-testbed", "testbed"),
        ]);
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        Ok(select(&metadata, &names)?
            .into_iter()
            .map(|(target, (package, cases))| format!("{package} {target} {cases:?}"))
            .collect())
    }

    #[test]
    fn a_name_picks_a_target_or_a_case_and_none_picks_all() {
        assert_eq!(
            selected(&[]).unwrap(),
            [
                "karpenter-core engine []",
                "karpenter-spec engine-cost []",
                "karpenter-testbed testbed []"
            ]
        );
        assert_eq!(
            selected(&["engine"]).unwrap(),
            [
                r#"karpenter-core engine ["engine"]"#,
                r#"karpenter-spec engine-cost ["engine"]"#
            ]
        );
        assert_eq!(
            selected(&["engine-a", "engine-cost-gpu"]).unwrap(),
            [
                r#"karpenter-core engine ["engine-a"]"#,
                r#"karpenter-spec engine-cost ["engine-cost-gpu"]"#
            ]
        );
    }

    #[test]
    fn one_that_fails_keeps_none_from_being_measured_and_is_named_at_the_end() {
        let targets = BTreeMap::from([("a", 1), ("binary", 2), ("c", 3)]);
        let mut measured = Vec::new();
        let error = each(targets, |target, asked| {
            measured.push((target, asked));
            match target {
                "binary" => bail!("cannot find target/dist/karpenter"),
                _ => Ok(()),
            }
        });
        assert_eq!(measured, [("a", 1), ("binary", 2), ("c", 3)]);
        assert_eq!(error.unwrap_err().to_string(), "failed: `binary`");
    }

    #[test]
    fn an_unknown_name_and_a_doubled_target_are_errors() {
        let error = selected(&["enigne"]).unwrap_err().to_string();
        assert_eq!(
            error,
            "unknown bench target `enigne`; the targets are engine, engine-cost, testbed"
        );
        assert!(select(&metadata(&[("a", "x"), ("b", "x")]), &[]).is_err());
    }
}
