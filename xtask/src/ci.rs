//! `cargo xtask ci`: the checks for every commit. All checks run, and the last lines show the result of each.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;
use std::{fmt, fs};

use anyhow::{Context as _, bail};

use crate::{
    circles, conformance, crds, docs, layout, pinned, plots, realcluster, vendor_web, words,
};

/// Crates that must stay free of I/O, clients and runtimes, and the dependencies that they must not have.
const PURE: [&str; 5] = [
    "karpenter-api",
    "karpenter-core",
    "karpenter-decisions",
    "karpenter-fixtures",
    "karpenter-spec",
];
const IMPURE: [&str; 4] = ["tokio", "hyper", "kube-client", "aws-"];

/// Stand-ins that share no code with what they test: a mistake made twice would go unseen.
const STAND_INS: [(&str, &[&str]); 2] = [
    (
        "karpenter-testbed",
        &["karpenter-core", "karpenter-kube", "karpenter-spec"],
    ),
    ("karpenter-aws-fake", &["karpenter-aws"]),
];

/// Runs the checks; with `quick` only those that build nothing.
pub(crate) fn run(root: &Path, quick: bool) -> anyhow::Result<()> {
    let mut checks = Checks::default();
    checks.step("format", || command(root, "cargo fmt --all --check"));
    checks.step("crds", || crds::run(root, true).map(silent));
    checks.step("conformance", || conformance::run(root, true).map(silent));
    checks.step("reference", || docs::run(root, true).map(silent));
    checks.step("plots", || plots::run(root, true).map(silent));
    checks.step("dependencies", || dependencies(root));
    checks.step("vendored", || vendor_web::check(root));
    checks.step("words", || words::check(root));
    checks.step("circles", || circles::run(root));
    checks.step("layout", || layout::check(root));
    checks.step("pinned", || pinned::check(root));
    let mut all_skipped = Vec::new();
    if !quick {
        building(root, &mut checks, &mut all_skipped);
    }
    checks.finish(root, &all_skipped)
}

/// The checks that build the workspace, which takes most of an hour from a fresh clone. Where a check leaves a core idle, another
/// runs beside it, but none beside the tests: many of them wait for processes that work in real time.
fn building(root: &Path, checks: &mut Checks, all_skipped: &mut Vec<Skipped>) {
    // Some tests need a real API server; the program that builds one is built with them.
    checks.step("build", || {
        command(root, "cargo test --workspace --no-run --quiet")
    });
    // Both wait for one core for a long time: for the linker of Go, and for the API of the AWS SDK.
    checks.beside(
        ("control plane", || realcluster::build_control_plane(root)),
        ("rustdoc", || rustdoc(root)),
    );
    checks.step("tests", || tests(root, all_skipped));
    // The scenarios mostly wait, and get the processor when they want it.
    let clippy = "nice -n 19 cargo clippy --workspace --all-targets --features karpenter-spec/bound --quiet -- -D warnings";
    checks.beside(
        ("realcluster", || realcluster::ci(root, all_skipped)),
        ("clippy", || command(root, clippy)),
    );
    checks.step("deny", || {
        command(
            root,
            "cargo deny --log-level error check bans licenses sources",
        )
    });
    checks.step("skipped", || judge_skipped(all_skipped));
}

/// For checks without a result to print.
fn silent((): ()) -> String {
    String::new()
}

/// The results so far: a line of the summary for each check, and the reasons of those that failed.
#[derive(Default)]
struct Checks {
    summary: Vec<String>,
    failed: Vec<&'static str>,
    problems: Vec<String>,
}

impl Checks {
    fn step(&mut self, name: &'static str, check: impl FnOnce() -> anyhow::Result<String>) {
        let result = timed(name, check);
        self.record(name, result);
    }

    /// Runs two checks at the same time.
    fn beside(
        &mut self,
        (name, check): (&'static str, impl FnOnce() -> anyhow::Result<String> + Send),
        (other, other_check): (&'static str, impl FnOnce() -> anyhow::Result<String>),
    ) {
        std::thread::scope(|scope| {
            let check = scope.spawn(|| timed(name, check));
            self.step(other, other_check);
            let result = check.join();
            let panicked = |_| (Err(anyhow::anyhow!("the check panicked")), 0);
            self.record(name, result.unwrap_or_else(panicked));
        });
    }

    fn record(&mut self, name: &'static str, (result, seconds): (anyhow::Result<String>, u64)) {
        match result {
            Ok(note) if note.is_empty() => {
                self.summary.push(format!("ok      {name} ({seconds} s)"));
            }
            Ok(note) => {
                self.summary
                    .push(format!("ok      {name} ({seconds} s): {note}"));
            }
            Err(problem) => {
                println!("{problem:#}");
                self.summary.push(format!("FAILED  {name} ({seconds} s)"));
                self.problems.push(format!("--- {name}\n{problem:#}"));
                self.failed.push(name);
            }
        }
    }

    /// Prints the summary. Often only the end of the output can be read: the reasons of failures are repeated there.
    fn finish(self, root: &Path, all_skipped: &[Skipped]) -> anyhow::Result<()> {
        if !self.problems.is_empty() {
            println!("=== failures");
            for problem in &self.problems {
                println!("{problem}");
            }
            println!("--- free disk space\n{}", disk_space(root));
        }
        println!("=== summary");
        for line in &self.summary {
            println!("{line}");
        }
        for skipped in all_skipped {
            println!("skipped {skipped}");
        }
        if !self.failed.is_empty() {
            bail!("failed: {}", self.failed.join(", "));
        }
        Ok(())
    }
}

/// Runs a check, and returns how many seconds it took.
fn timed(
    name: &str,
    check: impl FnOnce() -> anyhow::Result<String>,
) -> (anyhow::Result<String>, u64) {
    println!("=== {name}");
    let start = Instant::now();
    let result = check();
    (result, start.elapsed().as_secs())
}

/// A test, or a part of the checks, that was skipped because a program is missing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Skipped {
    pub(crate) program: String,
    pub(crate) what: String,
    pub(crate) why: String,
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, without {}: {}", self.what, self.program, self.why)
    }
}

impl Skipped {
    /// Parses a line that [`skipped::skipped`] wrote.
    fn read(line: &str) -> Option<Self> {
        let mut parts = line.strip_prefix(skipped::PREFIX)?.splitn(3, ": ");
        let mut part = || parts.next().map(str::to_owned);
        Some(Self {
            program: part()?,
            what: part()?,
            why: part()?,
        })
    }
}

/// Fails in CI (`CI=true`) if something was skipped because of a missing program that `.ci/run` does not list in
/// `KARPENTER_CI_WITHOUT` as not installable. Outside of CI any test may be skipped.
fn judge_skipped(skipped: &[Skipped]) -> anyhow::Result<String> {
    let is_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    let without = std::env::var("KARPENTER_CI_WITHOUT").unwrap_or_default();
    let unexpected = unexpected(skipped, is_ci, &without);
    if !unexpected.is_empty() {
        bail!(
            "tests were skipped because these programs are missing: {}. Install them in .ci/run, or list them in KARPENTER_CI_WITHOUT",
            unexpected.join(", ")
        );
    }
    Ok(match skipped.len() {
        0 => "nothing".to_owned(),
        number => format!("{number}, listed below"),
    })
}

/// Returns the missing programs whose tests should have run.
fn unexpected<'s>(skipped: &'s [Skipped], is_ci: bool, without: &str) -> Vec<&'s str> {
    if !is_ci {
        return Vec::new();
    }
    let without: Vec<&str> = without.split_whitespace().collect();
    let programs = skipped.iter().map(|skipped| skipped.program.as_str());
    let mut programs: Vec<&str> = programs.filter(|p| !without.contains(p)).collect();
    programs.sort_unstable();
    programs.dedup();
    programs
}

/// Runs a command whose arguments have no spaces.
fn command(root: &Path, line: &str) -> anyhow::Result<String> {
    let mut words = line.split(' ');
    let program = words.next().unwrap_or_default();
    logged(Command::new(program).args(words).current_dir(root))
        .with_context(|| format!("`{line}` failed"))?;
    Ok(String::new())
}

/// The last lines of the error output of a command that failed.
const LAST_LINES: usize = 15;

/// Runs a command. If it fails, the error has the last lines of its error output.
fn logged(command: &mut Command) -> anyhow::Result<()> {
    let mut child = command.stderr(Stdio::piped()).spawn()?;
    let errors = child
        .stderr
        .take()
        .context("cannot read the error output of the command")?;
    let mut last = VecDeque::new();
    for line in BufReader::new(errors).lines().map_while(Result::ok) {
        eprintln!("{line}");
        if last.len() == LAST_LINES {
            last.pop_front();
        }
        last.push_back(line);
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("{status}\n{}", Vec::from(last).join("\n"));
    }
    Ok(())
}

/// Returns the free space of the file system of the repository, as `df` shows it.
fn disk_space(root: &Path) -> String {
    let output = Command::new("df").arg("-h").arg(root).output();
    output.map_or_else(
        |error| format!("cannot run df: {error}"),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

/// Builds the documentation of all public items; warnings are errors.
fn rustdoc(root: &Path) -> anyhow::Result<String> {
    logged(
        Command::new("cargo")
            .args(["doc", "--workspace", "--no-deps", "--quiet"])
            .env("RUSTDOCFLAGS", "-D warnings")
            .current_dir(root),
    )
    .context("`cargo doc` has warnings")?;
    Ok(String::new())
}

/// Runs the test command of the README, and repeats its summary lines. Tests that need a real API server use the one that was
/// built here, if there is one.
fn tests(root: &Path, all_skipped: &mut Vec<Skipped>) -> anyhow::Result<String> {
    let readme = fs::read_to_string(root.join("README.md"))?;
    let command =
        test_command(&readme).context("cannot find a line `cargo test …` in README.md")?;
    println!("{command}");
    let mut cargo = Command::new("cargo");
    cargo
        .args(command.split_whitespace().skip(1))
        .current_dir(root)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // Many tests wait for processes that work in real time.
    let cores = std::thread::available_parallelism()?.get();
    cargo.env("RUST_TEST_THREADS", (2 * cores).to_string());
    let built = root.join("target/realcluster/bin");
    if std::env::var_os("KUBEBUILDER_ASSETS").is_none() && built.is_dir() {
        cargo.env("KUBEBUILDER_ASSETS", built);
    }
    let mut child = cargo.spawn()?;
    let errors = child
        .stderr
        .take()
        .context("cannot read the error output of cargo")?;
    let errors = std::thread::spawn(move || {
        let mut found = Vec::new();
        for line in BufReader::new(errors).lines().map_while(Result::ok) {
            found.extend(Skipped::read(&line));
            eprintln!("{line}");
        }
        found
    });
    let mut closing = Vec::new();
    let mut failed_tests = Vec::new();
    for line in BufReader::new(
        child
            .stdout
            .take()
            .context("cannot read the output of cargo")?,
    )
    .lines()
    {
        let line = line?;
        if line.starts_with("test result:") {
            closing.push(line.clone());
        }
        failed_tests.extend(failed_test(&line).map(str::to_owned));
        println!("{line}");
    }
    let status = child.wait()?;
    all_skipped.extend(errors.join().unwrap_or_default());
    println!("--- summary of `{command}`");
    closing.iter().for_each(|line| println!("{line}"));
    let totals = totals(&closing);
    if !status.success() {
        bail!("`{command}` failed: {totals}\n{}", failed_tests.join("\n"));
    }
    Ok(match all_skipped.len() {
        0 => totals,
        number => {
            format!(
                "{totals}; {number} of the passed tests were skipped because a program is missing"
            )
        }
    })
}

/// Returns the line of the README that runs the whole test suite.
fn test_command(readme: &str) -> Option<&str> {
    readme
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with("cargo test"))
}

/// Returns the name of the test that a line such as `test NAME ... FAILED` reports.
fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

/// Sums lines like `test result: ok. 12 passed; 0 failed; 1 ignored; …`.
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

/// Checks that the pure crates have no dependency that performs I/O or blocks, and fakes none on what they test.
fn dependencies(root: &Path) -> anyhow::Result<String> {
    for package in PURE {
        let tree = tree(root, package)?;
        let found = impure(&tree);
        if !found.is_empty() {
            bail!("{package} depends on {}", found.join(", "));
        }
    }
    for (package, tested) in STAND_INS {
        let tree = tree(root, package)?;
        let mut names = tree
            .lines()
            .filter_map(|line| line.split_whitespace().next());
        if let Some(found) = names.find(|name| tested.contains(name)) {
            bail!("{package} depends on {found}, which it tests");
        }
    }
    Ok(String::new())
}

/// The dependencies of a package, one a line.
fn tree(root: &Path, package: &str) -> anyhow::Result<String> {
    let tree = Command::new("cargo")
        .args(["tree", "--package", package, "--edges", "normal"])
        .args(["--prefix", "none", "--format", "{p}"])
        .current_dir(root)
        .output()?;
    if !tree.status.success() {
        bail!(
            "`cargo tree` failed for {package}: {}",
            String::from_utf8_lossy(&tree.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&tree.stdout).into_owned())
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
    fn a_failed_command_is_reported_with_its_last_errors() {
        let script = "for i in $(seq 20); do echo error $i >&2; done; exit 3";
        let error = logged(Command::new("sh").args(["-c", script])).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("exit status: 3\nerror 6\n"), "{text}");
        assert!(text.ends_with("\nerror 20"), "{text}");
        assert!(logged(Command::new("sh").args(["-c", "true"])).is_ok());
    }

    #[test]
    fn failed_tests_are_named() {
        assert_eq!(failed_test("test a::b ... FAILED"), Some("a::b"));
        assert_eq!(failed_test("test a::b ... ok"), None);
        assert_eq!(failed_test("test result: FAILED. 1 passed"), None);
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

    fn skipped(program: &str) -> Skipped {
        Skipped {
            program: program.into(),
            what: "charts::render".into(),
            why: "it is not in PATH".into(),
        }
    }

    #[test]
    fn the_line_of_a_skipped_test_names_program_test_and_reason() {
        let line = "skipped, missing program helm: charts::render: it is not in PATH";
        assert_eq!(Skipped::read(line), Some(skipped("helm")));
        assert_eq!(Skipped::read("warning: helm: it: is"), None);
    }

    #[test]
    fn ci_may_skip_only_what_ci_run_could_not_install() {
        let all = [skipped("helm"), skipped("moto"), skipped("helm")];
        assert_eq!(unexpected(&all, true, "moto kubectl"), ["helm"]);
        assert_eq!(unexpected(&all, true, ""), ["helm", "moto"]);
        assert_eq!(unexpected(&all, true, "moto helm"), [""; 0]);
        assert_eq!(unexpected(&all, false, ""), [""; 0]);
    }

    #[test]
    fn clients_and_runtimes_are_impure() {
        let tree = "karpenter-core v0.1.0 (/x)\ntokio v1.0.0\ntokio-util v0.7.0\naws-config v1.0.0\nawsome v1.0.0\nkube-core v5.0.0\ntokio v1.0.0 (*)";
        assert_eq!(impure(tree), ["aws-config", "tokio"]);
    }
}
