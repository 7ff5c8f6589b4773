//! `cargo xtask mutants`: mutation tests with cargo-mutants. Each mutant is one change of the source; a mutant that no test fails on
//! is a rule that nothing proves.
//!
//! 1. Without names, what changed since a commit is mutated, and any missed mutant is an error.
//! 2. With names, whole modules are, or a sample of their mutants: there are 4,000, and each costs a build and a run of tests.
//!    `--record` writes the scores to `tests/mutants.toml`, from which `cargo xtask conformance` makes its table.
//!
//! Mutants that mean nothing are left out by `.cargo/mutants.toml`, each with its reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

/// A part of the workspace whose mutants are counted together.
struct Module {
    name: &'static str,
    package: &'static str,
    files: &'static str,
}

/// The modules whose scores are recorded.
const MODULES: [Module; 10] = [
    Module::new("core/schedule", "karpenter-core", "schedule/**"),
    Module::new("core/disruption", "karpenter-core", "disruption/**"),
    Module::new("core/limits", "karpenter-core", "limits.rs"),
    Module::new(
        "core/static_capacity",
        "karpenter-core",
        "static_capacity.rs",
    ),
    Module::new("api", "karpenter-api", "**"),
    Module::new("legacy/conversion", "karpenter-legacy", "conversion/**"),
    Module::new("kube/nodeclaim", "karpenter-kube", "nodeclaim/**"),
    Module::new("kube/node", "karpenter-kube", "node/**"),
    Module::new("kube/disruption", "karpenter-kube", "disruption/**"),
    Module::new("kube/provisioning", "karpenter-kube", "provisioning/**"),
];

/// The packages whose tests judge the mutants of a package that its own tests miss. They take longer.
const ALSO_JUDGED_BY: [(&str, &str); 4] = [
    ("karpenter-core", "karpenter-spec"),
    ("karpenter-legacy", "karpenter-spec"),
    ("karpenter-kube", "karpenter-testbed"),
    ("karpenter-kube", "karpenter-lab"),
];

/// The file of recorded scores.
const RECORDS: &str = "tests/mutants.toml";

impl Module {
    const fn new(name: &'static str, package: &'static str, files: &'static str) -> Self {
        Self {
            name,
            package,
            files,
        }
    }

    fn glob(&self) -> String {
        format!("crates/{}/src/{}", self.package, self.files)
    }
}

/// The score of a module: how many of its mutants were tried, and what became of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Score {
    pub(crate) module: String,
    /// The commit whose source was mutated.
    pub(crate) commit: String,
    /// The part of the module's mutants that was tried: `1/1` for all of them.
    pub(crate) sample: String,
    pub(crate) caught: u64,
    pub(crate) missed: Vec<String>,
    /// Mutants that do not compile, which say nothing about tests.
    pub(crate) unviable: u64,
}

impl Score {
    /// The caught mutants in percent of those that compile; `None` if none does.
    pub(crate) fn percent(&self) -> Option<f64> {
        let missed = self.missed.len() as f64;
        let all = self.caught as f64 + missed;
        (all > 0.0).then(|| self.caught as f64 / all * 100.0)
    }
}

/// All recorded scores, in the order of [`MODULES`].
#[derive(Debug, Default, Serialize, Deserialize)]
struct Records {
    #[serde(default)]
    score: Vec<Score>,
}

/// What cargo-mutants writes into `outcomes.json`, as far as it is of interest.
#[derive(Deserialize)]
struct Outcomes {
    outcomes: Vec<Outcome>,
}

#[derive(Deserialize)]
struct Outcome {
    scenario: serde_json::Value,
    summary: String,
}

impl Outcomes {
    /// Takes what other tests found of the same mutants.
    fn replace(&mut self, second: Self) {
        for outcome in second.outcomes {
            let Some(name) = outcome.name() else { continue };
            let mut known = self.outcomes.iter_mut();
            if let Some(known) = known.find(|known| known.name() == Some(name)) {
                *known = outcome;
            }
        }
    }
}

impl Outcome {
    /// The mutant's name; none for the build without a mutant.
    fn name(&self) -> Option<&str> {
        self.scenario.pointer("/Mutant/name")?.as_str()
    }

    fn is_missed(&self) -> bool {
        self.summary == "MissedMutant"
    }
}

/// The recorded scores.
pub(crate) fn scores(root: &Path) -> anyhow::Result<Vec<Score>> {
    let path = root.join(RECORDS);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let records: Records = toml::from_str(&fs::read_to_string(&path)?)
        .with_context(|| format!("cannot read {}", path.display()))?;
    Ok(records.score)
}

pub(crate) fn run(
    root: &Path,
    names: &[String],
    since: &str,
    sample: &str,
    record: bool,
) -> anyhow::Result<()> {
    let installed = Command::new("cargo")
        .args(["mutants", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    if !installed.success() {
        bail!("cargo-mutants is missing: `cargo install cargo-mutants --locked`");
    }
    if names.is_empty() {
        return changed(root, since);
    }
    let mut scores = Vec::new();
    for module in named(names)? {
        let arguments = [
            "--file",
            &module.glob(),
            "--sharding",
            "round-robin",
            "--shard",
            &shard(sample)?,
        ]
        .map(str::to_owned);
        let output = root.join("target/mutants").join(module.name);
        let outcomes = mutate(root, module.package, &arguments, &output)?;
        let score = score(module.name, &commit(root)?, sample, &outcomes);
        println!("{}", line(&score));
        if record {
            write(root, &score)?;
        }
        scores.push(score);
    }
    Ok(())
}

/// Mutates what changed since a commit, uncommitted changes included.
fn changed(root: &Path, since: &str) -> anyhow::Result<()> {
    let git = |arguments: &[&str]| -> anyhow::Result<String> {
        let output = Command::new("git")
            .args(arguments)
            .current_dir(root)
            .output()?;
        if !output.status.success() {
            bail!(
                "`git {}` failed: {}",
                arguments.join(" "),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let packages = packages(&git(&["diff", "--name-only", since])?);
    if packages.is_empty() {
        println!("no source of a crate has changed since {since}");
        return Ok(());
    }
    let directory = root.join("target/mutants");
    fs::create_dir_all(&directory)?;
    let diff = directory.join("changed.diff");
    fs::write(&diff, git(&["diff", since])?)?;
    let mut missed = Vec::new();
    for package in packages {
        let arguments = ["--in-diff".to_owned(), diff.display().to_string()];
        let outcomes = mutate(root, &package, &arguments, &directory.join(&package))?;
        let score = score(&package, since, "1/1", &outcomes);
        println!("{}", line(&score));
        missed.extend(score.missed);
    }
    if !missed.is_empty() {
        bail!("no test fails on these mutants:\n{}", missed.join("\n"));
    }
    Ok(())
}

/// The crates of the given changed files whose source changed.
fn packages(files: &str) -> Vec<String> {
    let mut packages: Vec<String> = files
        .lines()
        .filter(|file| file.ends_with(".rs"))
        .filter_map(|file| {
            let (package, rest) = file.strip_prefix("crates/")?.split_once('/')?;
            rest.starts_with("src/").then(|| package.to_owned())
        })
        .collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

/// Mutates one package, and reads the outcomes: its own tests judge all mutants, the tests of [`ALSO_JUDGED_BY`] those that are left.
fn mutate(
    root: &Path,
    package: &str,
    arguments: &[String],
    output: &Path,
) -> anyhow::Result<Outcomes> {
    let mut found = judge(root, package, package, arguments, output)?;
    for (_, judging) in ALSO_JUDGED_BY.iter().filter(|(of, _)| *of == package) {
        let missed = found.outcomes.iter().filter(|outcome| outcome.is_missed());
        let missed: Vec<&str> = missed.filter_map(Outcome::name).collect();
        if missed.is_empty() {
            break;
        }
        let output = output.join(judging);
        let second = judge(root, package, judging, &only(&missed), &output)?;
        found.replace(second);
    }
    Ok(found)
}

/// The arguments that select mutants by their names.
fn only(names: &[&str]) -> Vec<String> {
    // Deleted fields are not selected by their names (cargo-mutants 27.1): those of other files are left out by the files.
    let files: BTreeSet<&str> = names
        .iter()
        .filter_map(|name| Some(name.split_once(':')?.0))
        .collect();
    let files = files
        .into_iter()
        .flat_map(|file| ["--file".to_owned(), file.to_owned()]);
    let names = names
        .iter()
        .flat_map(|name| ["--re".to_owned(), format!("^{}$", regex::escape(name))]);
    files.chain(names).collect()
}

/// Runs cargo-mutants on one package with the tests of another, in a copy of the tree that builds into a directory that is kept.
fn judge(
    root: &Path,
    package: &str,
    judging: &str,
    arguments: &[String],
    output: &Path,
) -> anyhow::Result<Outcomes> {
    let path = output.join("mutants.out/outcomes.json");
    fs::create_dir_all(output)?;
    // Without a mutant to try, cargo-mutants leaves the outcomes of an earlier run.
    if path.exists() {
        fs::remove_file(&path)?;
    }
    let status = Command::new("cargo")
        .args(["mutants", "--package", package, "--test-package", judging])
        .args(arguments)
        .arg("--output")
        .arg(output)
        .env("CARGO_TARGET_DIR", root.join("target/mutants/build"))
        .current_dir(root)
        .status()?;
    // 0: all caught, 2: some missed, 3: some timed out. All else is no result.
    if !matches!(status.code(), Some(0 | 2 | 3)) {
        bail!(
            "cargo mutants failed ({status}); its logs are in {}",
            output.display()
        );
    }
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        // Nothing in the diff can be mutated.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => r#"{"outcomes": []}"#.into(),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    serde_json::from_str(&text).with_context(|| format!("cannot read {}", path.display()))
}

fn score(module: &str, commit: &str, sample: &str, outcomes: &Outcomes) -> Score {
    let of = |summary: &'static str| {
        let outcomes = outcomes.outcomes.iter();
        outcomes.filter(move |outcome| outcome.summary == summary)
    };
    let missed = outcomes.outcomes.iter().filter(|one| one.is_missed());
    let mut missed: Vec<String> = missed
        .filter_map(Outcome::name)
        .map(str::to_owned)
        .collect();
    missed.sort_unstable();
    Score {
        module: module.to_owned(),
        commit: commit.to_owned(),
        sample: sample.to_owned(),
        // A mutant that never ends is noticed, too.
        caught: (of("CaughtMutant").count() + of("Timeout").count()) as u64,
        missed,
        unviable: of("Unviable").count() as u64,
    }
}

fn line(score: &Score) -> String {
    let percent = score
        .percent()
        .map_or_else(|| "-".to_owned(), |percent| format!("{percent:.1} %"));
    format!(
        "{}: {percent} of {} mutants caught ({} do not compile), sample {}",
        score.module,
        score.caught + score.missed.len() as u64,
        score.unviable,
        score.sample
    )
}

/// Replaces the score of a module in the file of records.
fn write(root: &Path, score: &Score) -> anyhow::Result<()> {
    let mut known: BTreeMap<String, Score> = scores(root)?
        .into_iter()
        .map(|score| (score.module.clone(), score))
        .collect();
    known.insert(score.module.clone(), score.clone());
    let score = MODULES
        .iter()
        .filter_map(|module| known.remove(module.name))
        .collect();
    let text = format!(
        "# Mutation scores by module. Written by `cargo xtask mutants MODULE --record`.\n\n{}",
        toml::to_string(&Records { score })?
    );
    fs::write(root.join(RECORDS), text).with_context(|| format!("cannot write {RECORDS}"))
}

/// The modules with these names; `all` stands for every one.
fn named(names: &[String]) -> anyhow::Result<Vec<&'static Module>> {
    let mut found = Vec::new();
    for name in names {
        let before = found.len();
        found.extend(
            MODULES
                .iter()
                .filter(|module| name == "all" || module.name == name),
        );
        if found.len() == before {
            let known: Vec<&str> = MODULES.iter().map(|module| module.name).collect();
            bail!("no module `{name}`; there are {} and all", known.join(", "));
        }
    }
    Ok(found)
}

/// The shard that cargo-mutants is given for a sample: it counts from zero.
fn shard(sample: &str) -> anyhow::Result<String> {
    let parts = sample.split_once('/').and_then(|(part, of)| {
        let (part, of): (u64, u64) = (part.parse().ok()?, of.parse().ok()?);
        (1..=of).contains(&part).then_some((part, of))
    });
    let Some((part, of)) = parts else {
        bail!("`{sample}` is not a sample like `1/20`, the first of twenty parts");
    };
    Ok(format!("{}/{of}", part - 1))
}

fn commit(root: &Path) -> anyhow::Result<String> {
    let output = Command::new("git")
        .args(["rev-parse", "--short", "HEAD"])
        .current_dir(root)
        .output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes() -> Outcomes {
        serde_json::from_value(serde_json::json!({"outcomes": [
            {"scenario": "Baseline", "summary": "Success"},
            {"scenario": {"Mutant": {"name": "b"}}, "summary": "MissedMutant"},
            {"scenario": {"Mutant": {"name": "a"}}, "summary": "MissedMutant"},
            {"scenario": {"Mutant": {"name": "c"}}, "summary": "CaughtMutant"},
            {"scenario": {"Mutant": {"name": "d"}}, "summary": "Timeout"},
            {"scenario": {"Mutant": {"name": "e"}}, "summary": "Unviable"},
        ]}))
        .unwrap()
    }

    #[test]
    fn a_score_counts_the_mutants_that_compile() {
        let score = score("core/limits", "abc", "1/2", &outcomes());
        assert_eq!((score.caught, score.unviable), (2, 1));
        assert_eq!(score.missed, ["a", "b"]);
        assert_eq!(score.percent(), Some(50.0));
        assert_eq!(
            line(&score),
            "core/limits: 50.0 % of 4 mutants caught (1 do not compile), sample 1/2"
        );
    }

    #[test]
    fn what_other_tests_catch_of_the_missed_mutants_counts() {
        let mut found = outcomes();
        found.replace(
            serde_json::from_value(serde_json::json!({"outcomes": [
                {"scenario": "Baseline", "summary": "Success"},
                {"scenario": {"Mutant": {"name": "b"}}, "summary": "CaughtMutant"},
                {"scenario": {"Mutant": {"name": "a"}}, "summary": "MissedMutant"},
            ]}))
            .unwrap(),
        );
        let score = score("core/limits", "abc", "1/2", &found);
        assert_eq!((score.caught, score.missed), (3, vec!["a".to_owned()]));
    }

    #[test]
    fn mutants_are_selected_by_file_and_name() {
        let names = [
            "a.rs:1:2: replace + with * in f",
            "a.rs:3:4: delete ! in <g>",
        ];
        assert_eq!(
            only(&names),
            [
                "--file",
                "a.rs",
                "--re",
                r"^a\.rs:1:2: replace \+ with \* in f$",
                "--re",
                r"^a\.rs:3:4: delete ! in <g>$",
            ]
        );
    }

    #[test]
    fn a_recorded_score_replaces_the_one_before_and_keeps_the_others() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("tests")).unwrap();
        assert!(scores(root.path()).unwrap().is_empty());
        for (module, sample) in [("api", "1/9"), ("core/limits", "1/1"), ("api", "1/8")] {
            write(root.path(), &score(module, "abc", sample, &outcomes())).unwrap();
        }
        let known = scores(root.path()).unwrap();
        let known: Vec<_> = known.iter().map(|s| (&*s.module, &*s.sample)).collect();
        assert_eq!(known, [("core/limits", "1/1"), ("api", "1/8")]);
    }

    #[test]
    fn samples_count_from_one() {
        assert_eq!(shard("1/20").unwrap(), "0/20");
        assert_eq!(shard("20/20").unwrap(), "19/20");
        for wrong in ["0/20", "21/20", "1", "a/b", "1/0", ""] {
            assert!(shard(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn changed_files_name_the_crates_to_mutate() {
        let files = "README.md\ncrates/karpenter-core/src/limits.rs\ncrates/karpenter-core/tests/a.rs\ncrates/karpenter-core/src/pod/mod.rs\ncrates/karpenter-api/src/lib.rs\nxtask/src/main.rs\n";
        assert_eq!(packages(files), ["karpenter-api", "karpenter-core"]);
    }

    #[test]
    fn modules_are_chosen_by_name() {
        assert_eq!(named(&["all".into()]).unwrap().len(), MODULES.len());
        assert_eq!(named(&["api".into()]).unwrap()[0].package, "karpenter-api");
        assert!(named(&["apis".into()]).is_err());
    }

    #[test]
    fn every_module_s_files_are_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for module in MODULES {
            let glob = module.glob();
            assert!(root.join(glob.trim_end_matches("/**")).exists(), "{glob}");
        }
    }
}
