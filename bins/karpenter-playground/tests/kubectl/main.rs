//! The playground as users run it: the binary, and a real kubectl. Skipped, with a message, without a recent kubectl.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

#[path = "../../../../crates/karpenter-testbed/tests/kubectl/usable.rs"]
mod usable;

mod book;
mod demo;
mod examples;
mod marked;
mod playground;

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::playground::{Playground, kubectl_is_missing};

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
fn nodes_for_a_hundred_pods_are_launched_and_terminated_with_kubectl() {
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
fn invalid_manifests_are_rejected_with_the_field() {
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

#[cfg(unix)]
#[test]
fn the_kubeconfig_with_an_administrators_token_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let playground = Playground::start(&[]);
    let metadata = std::fs::metadata(playground.kubeconfig()).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
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
