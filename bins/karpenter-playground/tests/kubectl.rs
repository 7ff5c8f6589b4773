//! The playground as users run it: the binary, and a real kubectl. Skipped, with a message, without a recent kubectl.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

#[path = "../../../crates/karpenter-testbed/tests/kubectl/usable.rs"]
mod usable;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// The process of the playground, killed on drop.
struct Playground {
    child: Child,
    home: TempDir,
}

impl Drop for Playground {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn kubectl_is_missing() -> bool {
    usable::kubectl_is_missing(Path::new("kubectl"))
}

impl Playground {
    fn start(args: &[&str]) -> Self {
        let home = TempDir::new().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_karpenter-playground"))
            .args(["--listen", "127.0.0.1:0", "--kubeconfig"])
            .arg(home.path().join("kubeconfig"))
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"));
        // The output must be read, or the process blocks.
        std::thread::spawn(move || lines.count());
        Self { child, home }
    }

    fn kubectl(&self, args: &[&str], input: Option<&str>) -> Output {
        let mut child = Command::new("kubectl")
            .args(args)
            .env("KUBECONFIG", self.home.path().join("kubeconfig"))
            .env("HOME", self.home.path())
            .stdin(if input.is_some() {
                Stdio::piped()
            } else {
                Stdio::null()
            })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
            stdin.write_all(input.as_bytes()).unwrap();
        }
        child.wait_with_output().unwrap()
    }

    fn succeeds(&self, args: &[&str], input: Option<&str>) -> String {
        let output = self.kubectl(args, input);
        assert!(
            output.status.success(),
            "kubectl {args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    fn fails(&self, args: &[&str], input: Option<&str>) -> String {
        let output = self.kubectl(args, input);
        assert!(
            !output.status.success(),
            "kubectl {args:?} succeeded: {}",
            String::from_utf8_lossy(&output.stdout)
        );
        String::from_utf8(output.stderr).unwrap()
    }

    /// Runs kubectl until the answer is as expected.
    fn until(&self, args: &[&str], right: impl Fn(&str) -> bool) -> String {
        let start = Instant::now();
        loop {
            let answer = self.succeeds(args, None);
            if right(&answer) {
                return answer;
            }
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "kubectl {args:?} still prints {answer}"
            );
        }
    }
}

fn seed(name: &str) -> String {
    let root: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/seeds");
    std::fs::read_to_string(root.join(name)).unwrap()
}

/// Returns the Deployment of a walkthrough without its node selector, which names instance types of another cloud.
fn inflate() -> String {
    let text = seed("3-inflate.yaml");
    let (head, rest) = text.split_once("      nodeSelector:\n").unwrap();
    let rest: Vec<_> = rest
        .lines()
        .skip_while(|line| line.starts_with("        "))
        .collect();
    format!("{head}{}\n", rest.join("\n"))
}

#[test]
fn nodes_for_a_hundred_pods_are_launched_and_terminated_with_a_real_kubectl() {
    if kubectl_is_missing() {
        return;
    }
    let playground = Playground::start(&["--speed", "10"]);
    playground.succeeds(&["apply", "-f", "-"], Some(&seed("kwok-pool.yaml")));
    playground.succeeds(&["apply", "-f", "-"], Some(&inflate()));
    playground.succeeds(
        &["scale", "deployment", "inflate", "--replicas", "100"],
        None,
    );
    playground.succeeds(
        &[
            "rollout",
            "status",
            "deployment",
            "inflate",
            "--timeout",
            "60s",
        ],
        None,
    );
    let pods = playground.succeeds(&["get", "pods", "--no-headers"], None);
    assert_eq!(
        pods.lines().filter(|line| line.contains("Running")).count(),
        100
    );

    let heading = |kinds: &str| {
        let table = playground.succeeds(&["get", kinds], None);
        table
            .lines()
            .next()
            .unwrap()
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        heading("nodeclaims"),
        ["NAME", "TYPE", "CAPACITY", "ZONE", "NODE", "READY", "AGE"]
    );
    assert_eq!(
        heading("nodepools"),
        ["NAME", "NODECLASS", "NODES", "READY", "AGE"]
    );
    assert_eq!(
        heading("nodes"),
        ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]
    );
    let claims = playground.until(&["get", "nodeclaims", "--no-headers"], |text| {
        text.lines().all(|l| l.contains("True"))
    });
    assert!(!claims.is_empty());

    playground.succeeds(&["scale", "deployment", "inflate", "--replicas", "0"], None);
    playground.until(&["get", "nodeclaims,nodes", "--no-headers"], str::is_empty);
    let pools = playground.until(
        &[
            "get",
            "nodepool",
            "default",
            "-o",
            "jsonpath={.status.nodes}",
        ],
        |nodes| nodes == "0",
    );
    assert_eq!(pools, "0");
}

#[test]
fn invalid_manifests_are_rejected_with_the_field_and_the_server_keeps_running() {
    if kubectl_is_missing() {
        return;
    }
    let playground = Playground::start(&[]);
    let pool = seed("kwok-pool.yaml");
    let apply = ["apply", "-f", "-"];
    let refusals = [
        (pool.replace("cpu: 1000", "cpu: [1]"), "limits"),
        (pool.replace("limits:", "limitz:"), "limitz"),
        (
            pool.replace("consolidateAfter: 0s", "consolidateAfter: soon"),
            "consolidateAfter",
        ),
        (pool.replace("operator: In", "operator: Within"), "operator"),
        (
            pool.replace("values: [\"amd64\"]", "values: []"),
            "requirements with operator 'In'",
        ),
    ];
    for (manifest, expected) in refusals {
        let error = playground.fails(&apply, Some(&manifest));
        assert!(error.contains(expected), "{expected}: {error}");
    }
    let long = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: long\n  annotations:\n    a: {}\n",
        "x".repeat(1 << 20)
    );
    assert!(
        playground
            .fails(&["create", "-f", "-"], Some(&long))
            .contains("annotations")
    );
    let negative = inflate().replace("cpu: 1", "cpu: -1");
    let error = playground.fails(&apply, Some(&negative));
    assert!(
        error.contains("requests[cpu]") && error.contains("must be greater than or equal to 0"),
        "{error}"
    );
    playground.succeeds(&apply, Some(&pool));
    playground.until(
        &[
            "get",
            "nodepool",
            "default",
            "-o",
            "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}",
        ],
        |ready| ready == "True",
    );
}

#[test]
fn a_run_with_exit_when_idle_ends_with_a_summary() {
    let home = TempDir::new().unwrap();
    let manifest = home.path().join("all.yaml");
    let all = format!(
        "{}---\n{}",
        seed("kwok-pool.yaml"),
        inflate().replace("replicas: 0", "replicas: 5")
    );
    std::fs::write(&manifest, all).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_karpenter-playground"))
        .args(["--speed", "20", "--exit-when-idle", "--kubeconfig"])
        .arg(home.path().join("kubeconfig"))
        .arg("--apply")
        .arg(&manifest)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.contains("pods:      5 running, 0 pending"), "{text}");
    assert!(text.contains("per hour"), "{text}");
}

/// Returns the fenced blocks of a language in the book and the README, each with its position.
fn blocks(language: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
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

#[test]
fn every_manifest_of_the_book_is_accepted() {
    if kubectl_is_missing() {
        return;
    }
    let playground = Playground::start(&["--speed", "10"]);
    let definitions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crds");
    let of_aws = definitions.join("karpenter.k8s.aws_ec2nodeclasses.yaml");
    let of_aws = std::fs::read_to_string(of_aws).unwrap();
    playground.succeeds(&["apply", "--server-side", "-f", "-"], Some(&of_aws));
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
