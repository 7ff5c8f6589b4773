//! The final log line of a process. It is a separate test target: a process has one log and one panic hook.

use std::panic::catch_unwind;
use std::process::ExitCode;

use karpenter_core::provider::ErrorCode;
use karpenter_kube::operator::OperatorError;
use karpenter_kube::options::Options;
use karpenter_kube::process::{exit_with, log};
use serde_json::Value;

#[derive(Debug, thiserror::Error)]
#[error("cannot start")]
struct Started(#[source] Refused);

#[derive(Debug, thiserror::Error)]
#[error("the call failed, {0}")]
struct Refused(#[source] ErrorCode);

#[test]
fn errors_that_end_the_process_and_panics_are_lines_of_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("log");
    let options = Options {
        log_output_paths: file.to_str().unwrap().to_owned(),
        ..Options::default()
    };
    log(&options, "1.2.3").unwrap();

    assert!(catch_unwind(|| panic!("no {}", "node")).is_err());
    assert_eq!(exit_with(Err(OperatorError::LeaseLost)), ExitCode::FAILURE);
    assert_eq!(exit_with::<OperatorError>(Ok(())), ExitCode::SUCCESS);
    let code = ErrorCode {
        field: "some-error-code",
        code: "Denied".into(),
    };
    let failed = std::io::Error::other(Started(Refused(code)));
    assert_eq!(exit_with(Err(failed)), ExitCode::FAILURE);

    let text = std::fs::read_to_string(&file).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let lines: Vec<Value> = lines.collect();
    let messages = lines.iter().map(|line| line["message"].as_str().unwrap());
    let expected = [
        "Observed a panic",
        "leader election lost",
        "cannot start: the call failed, Denied",
    ];
    assert_eq!(messages.collect::<Vec<_>>(), expected);
    assert_eq!(lines[0]["panic"], "no node");
    assert_eq!(lines[1]["some-error-code"], Value::Null);
    assert_eq!(lines[2]["some-error-code"], "Denied");
    let location = lines[0]["location"].as_str().unwrap();
    assert!(location.contains("tests/process.rs:"), "{location}");
    for line in &lines {
        assert_eq!(line["level"], "ERROR");
        assert_eq!(line["logger"], "controller");
    }
}
