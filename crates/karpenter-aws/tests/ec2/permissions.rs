//! The policy in `docs/iam-policy.json` grants what the code calls.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use karpenter_aws_fake::Policy;

const POLICY: &str = include_str!("../../../../docs/iam-policy.json");

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// The actions of all calls in the sources: all of them are made through methods named after their service.
fn called() -> BTreeSet<String> {
    let mut files = Vec::new();
    sources(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut files,
    );
    let services = [
        (".ec2(", "ec2"),
        (".ec2_once(", "ec2"),
        (".eks(", "eks"),
        (".iam(", "iam"),
        (".pricing(", "pricing"),
        (".sqs(", "sqs"),
        (".ssm(", "ssm"),
        (".zonal_shift(", "arc-zonal-shift"),
    ];
    let mut actions = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(file).unwrap();
        for (method, service) in services {
            for (at, _) in text.match_indices(method) {
                let rest = text[at + method.len()..].trim_start();
                let operation = match rest.strip_prefix('"') {
                    Some(rest) => rest.split('"').next().unwrap(),
                    // The fleet's operation is a constant.
                    None if rest.starts_with("OPERATION") => "CreateFleet",
                    None => continue,
                };
                let action = match operation {
                    "DeleteMessageBatch" => "DeleteMessage",
                    other => other,
                };
                actions.insert(format!("{service}:{action}"));
            }
        }
    }
    actions
}

#[test]
fn what_is_called_is_granted() {
    let policy = Policy::parse(POLICY).unwrap();
    let called = called();
    assert!(called.len() > 15, "{called:?}");
    let denied: Vec<&String> = called.iter().filter(|a| !policy.allows_action(a)).collect();
    assert!(denied.is_empty(), "called and not granted: {denied:?}");
}
