//! Flags and environment variables of the binary, from outside. Skipped without a binary.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use skipped::skipped;

/// The binary: the one that `KARPENTER` names, otherwise the one built next to the tests.
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
        skipped("karpenter", format!("{} is not built", binary().display()));
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
    // clap's errors are on standard error; later errors are lines of the log.
    String::from_utf8([output.stderr, output.stdout].concat()).unwrap()
}

/// Conformance: API-149
#[test]
fn an_invalid_environment_variable_is_a_startup_error_that_names_it() {
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
        let error = refused(&[], &[("CLUSTER_NAME", "a"), (variable, value)]);
        assert!(
            error.contains(flag) && error.contains(value),
            "{variable}: {error}"
        );
    }
}

#[test]
fn unknown_flags_and_invalid_settings_are_startup_errors() {
    if is_missing() {
        return;
    }
    let error = refused(&["--cluster-nam=a"], &[]);
    assert!(
        error.contains("--cluster-nam") && error.contains("--cluster-name"),
        "{error}"
    );
    assert!(refused(&[], &[]).contains("cluster-name is required"));
    let error = refused(&["--cluster-name=a", "--reserved-enis=-1"], &[]);
    assert!(
        error.contains("reserved-enis cannot be negative"),
        "{error}"
    );
}

#[test]
fn help_is_grouped_and_names_the_environment_variables() {
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

fn file(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join(path)).unwrap()
}

/// Returns the rows of the tables of docs/settings.md whose first cell is code, by this cell.
fn settings() -> BTreeMap<String, Vec<String>> {
    let page = file("docs/settings.md");
    let rows = page.lines().filter_map(|line| {
        let cells: Vec<String> = line
            .split('|')
            .map(|cell| cell.trim().to_owned())
            .skip(1)
            .collect();
        let first = cells.first()?.strip_prefix('`')?.strip_suffix('`')?;
        Some((first.to_owned(), cells.clone()))
    });
    let mut found = BTreeMap::new();
    for (first, cells) in rows {
        assert_eq!(found.insert(first.clone(), cells), None, "{first} twice");
    }
    found
}

#[test]
fn the_book_has_every_feature_gate_with_its_chart_value_and_default() {
    let rows = settings();
    let values: Value = serde_saphyr::from_str(&file("charts/karpenter/values.yaml")).unwrap();
    let mut gates = 0;
    for group in ["featureGates", "awsFeatureGates"] {
        for (name, on) in values["settings"][group].as_object().unwrap() {
            let value = format!("`settings.{group}.{name}`");
            let row = rows.values().find(|row| row[1] == value);
            assert!(row.is_some(), "{value} is missing in docs/settings.md");
            let default = if on == true { "on" } else { "off" };
            assert_eq!(row.unwrap()[2], default, "{name}");
            gates += 1;
        }
    }
    assert_eq!(rows.len(), gates);
}

#[test]
fn the_chart_has_every_value_of_the_reference() {
    let values: Value = serde_saphyr::from_str(&file("charts/karpenter/values.yaml")).unwrap();
    let page = file("docs/reference/karpenter.md");
    let rows = page.lines().filter(|line| line.starts_with("| `--"));
    let mut found = 0;
    let cells = rows.filter_map(|row| row.split('|').nth(3));
    // Without a value: a field of the pod.
    let values_of = cells.filter_map(|cell| cell.split('`').nth(1));
    for value in values_of {
        // A value of earlier charts.
        if value != "settings.aws.defaultInstanceProfile" {
            let pointer = format!("/{}", value.replace('.', "/"));
            assert!(values.pointer(&pointer).is_some(), "{value}");
        }
        found += 1;
    }
    assert!(found > 40, "{found}");
}

#[test]
fn the_version_is_printed() {
    if is_missing() {
        return;
    }
    let output = karpenter(&["--version"], &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        text.trim(),
        format!("karpenter {}", env!("CARGO_PKG_VERSION"))
    );
}
