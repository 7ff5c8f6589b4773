//! The binary's flags and environment, from outside. Without a binary they say so and pass.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::path::PathBuf;
use std::process::{Command, Output};

/// The binary: what `KARPENTER` names, else what was built next to the tests.
fn binary() -> PathBuf {
    if let Some(named) = std::env::var_os("KARPENTER") {
        return named.into();
    }
    let tests = std::env::current_exe().unwrap();
    let target = tests.parent().unwrap();
    target.with_file_name("karpenter")
}

fn is_missing() -> bool {
    let missing = !binary().exists();
    if missing {
        println!("skipped: {} is not built", binary().display());
    }
    missing
}

fn karpenter(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    Command::new(binary())
        .args(arguments)
        .env_clear()
        .envs(environment.iter().copied())
        .output()
        .unwrap()
}

fn refused(arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let output = karpenter(arguments, environment);
    assert!(!output.status.success(), "{arguments:?} {environment:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_value_in_the_environment_that_cannot_be_read_stops_the_start_and_is_named() {
    if is_missing() {
        return;
    }
    for (variable, flag, value) in [
        ("METRICS_PORT", "--metrics-port", "many"),
        ("KUBE_CLIENT_QPS", "--kube-client-qps", "-1"),
        ("BATCH_MAX_DURATION", "--batch-max-duration", "10"),
        (
            "DISABLE_LEADER_ELECTION",
            "--disable-leader-election",
            "maybe",
        ),
        ("LOG_LEVEL", "--log-level", "loud"),
        ("FEATURE_GATES", "--feature-gates", "NodeRepair"),
        (
            "VM_MEMORY_OVERHEAD_PERCENT",
            "--vm-memory-overhead-percent",
            "much",
        ),
        ("ISOLATED_VPC", "--isolated-vpc", "perhaps"),
        ("AMI_REFRESH_INTERVAL", "--ami-refresh-interval", "often"),
        ("WEBHOOK_PORT", "--webhook-port", "99999"),
        ("DISABLE_WEBHOOK", "--disable-webhook", "sometimes"),
    ] {
        let said = refused(&[], &[("CLUSTER_NAME", "a"), (variable, value)]);
        assert!(
            said.contains(flag) && said.contains(value),
            "{variable}: {said}"
        );
    }
}

#[test]
fn unknown_flags_and_settings_that_make_no_sense_stop_the_start() {
    if is_missing() {
        return;
    }
    let said = refused(&["--cluster-nam=a"], &[]);
    assert!(
        said.contains("--cluster-nam") && said.contains("--cluster-name"),
        "{said}"
    );
    assert!(refused(&[], &[]).contains("cluster-name is required"));
    let said = refused(&["--cluster-name=a", "--reserved-enis=-1"], &[]);
    assert!(said.contains("reserved-enis cannot be negative"), "{said}");
}

#[test]
fn help_is_in_groups_and_names_the_environment() {
    if is_missing() {
        return;
    }
    let output = karpenter(&["--help"], &[]);
    assert!(output.status.success());
    let help = String::from_utf8(output.stdout).unwrap();
    for heading in [
        "Process:",
        "API server:",
        "Replicas:",
        "Logging:",
        "Scheduling:",
        "Features:",
        "AWS:",
        "Older generations:",
    ] {
        assert!(
            help.contains(&format!("\n{heading}\n")),
            "{heading} in {help}"
        );
    }
    assert!(help.contains("[env: CLUSTER_NAME="));
}

#[test]
fn the_version_is_told() {
    if is_missing() {
        return;
    }
    let output = karpenter(&["--version"], &[]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        said.trim(),
        format!("karpenter {}", env!("CARGO_PKG_VERSION"))
    );
}
