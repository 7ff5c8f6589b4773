//! The command line, without a control plane.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::process::{Command, Output};

fn real_cluster(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_real-cluster"))
        .args(arguments)
        .env("KUBEBUILDER_ASSETS", "/nonexistent")
        .output()
        .unwrap()
}

#[test]
fn help_names_every_command() {
    let help = String::from_utf8(real_cluster(&["--help"]).stdout).unwrap();
    for command in [
        "build", "up", "down", "test", "burst", "scale", "idle", "versions",
    ] {
        let line = format!("\n  {command} ");
        assert!(help.contains(&line), "{command} in {help}");
    }
}

#[test]
fn an_unknown_scenario_is_an_error() {
    let ended = real_cluster(&["test", "no-such-scenario"]);
    assert!(!ended.status.success());
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(said.contains("no-such-scenario"), "{said}");
}
