//! The recorded admissions of a real API server, repeated with these definitions.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::Admission;

/// Returns the recordings of the kinds of this crate.
fn recordings() -> Vec<(Value, Admission)> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden/crd-validation-golden.jsonl");
    let text = fs::read_to_string(path).expect("the recordings are part of the repository");
    let cases = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("a recording is JSON"));
    let admission = |case: &Value| match case["object"]["kind"].as_str() {
        Some("NodePool") => Some(Admission::node_pool()),
        Some("NodeClaim") => Some(Admission::node_claim()),
        _ => None,
    };
    cases
        .filter_map(|case| admission(&case).map(|admission| (case, admission)))
        .collect()
}

/// Conformance: API-110
#[test]
fn every_recorded_object_is_admitted_or_rejected_as_recorded() {
    let recordings = recordings();
    assert_eq!(recordings.len(), 23);
    for (case, admission) in recordings {
        let refusals = admission.refusals(&case["object"], None);
        assert_eq!(
            refusals.is_empty(),
            case["accepted"] == true,
            "{}: {refusals:?}",
            case["name"]
        );
        // The CEL library words a failed conversion, not the rule.
        if case["name"] == "Gt text" {
            continue;
        }
        for cause in case["causes"].as_array().into_iter().flatten() {
            let recorded = cause["message"].as_str().unwrap_or_default();
            assert!(
                refusals
                    .iter()
                    .any(|message| recorded.ends_with(message.as_str())),
                "{recorded}: {refusals:?}"
            );
        }
    }
}

/// Conformance: API-111
#[test]
fn the_defaulted_specs_match_the_recordings() {
    let accepted = recordings()
        .into_iter()
        .filter(|(case, _)| case["accepted"] == true);
    let mut compared = 0;
    for (case, admission) in accepted {
        assert_eq!(
            admission.defaulted(&case["object"])["spec"],
            case["defaulted_spec"],
            "{}",
            case["name"]
        );
        compared += 1;
    }
    assert_eq!(compared, 8);
}

/// The types deserialize and serialize stored objects without loss.
#[test]
fn a_defaulted_object_survives_the_types() {
    for (case, admission) in recordings()
        .into_iter()
        .filter(|(case, _)| case["accepted"] == true)
    {
        let stored = admission.defaulted(&case["object"]);
        let read: karpenter_api::v1::NodePool =
            serde_json::from_value(stored.clone()).expect("a stored object is readable");
        let written = serde_json::to_value(&read).expect("an object is writable");
        assert_eq!(written, stored, "{}", case["name"]);
    }
}
