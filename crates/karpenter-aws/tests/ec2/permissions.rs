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

const TEMPLATE: &str = include_str!("../../../../docs/getting-started/cloudformation.yaml");

/// The lines of a resource of the template.
fn resource(name: &str) -> String {
    let (_, rest) = TEMPLATE
        .split_once(&format!("\n  {name}:\n"))
        .unwrap_or_else(|| panic!("{name}"));
    let inside = |line: &&str| line.is_empty() || line.starts_with("   ");
    rest.lines()
        .take_while(inside)
        .collect::<Vec<_>>()
        .join("\n")
}

/// Under other logical ids CloudFormation would make policies before it deletes those of the same names.
#[test]
fn the_template_takes_over_the_stack_of_karpenter_in_go() {
    for name in [
        "NodeLifecyclePolicy",
        "IAMIntegrationPolicy",
        "EKSIntegrationPolicy",
        "InterruptionPolicy",
        "ZonalShiftPolicy",
        "ResourceDiscoveryPolicy",
    ] {
        let named =
            format!("ManagedPolicyName: !Sub \"KarpenterController{name}-${{ClusterName}}\"");
        assert!(resource(name).contains(&named), "{name}");
    }
    for name in [
        "KarpenterNodeRole",
        "KarpenterInterruptionQueue",
        "KarpenterInterruptionQueuePolicy",
        "ScheduledChangeRule",
        "SpotInterruptionRule",
        "RebalanceRule",
        "InstanceStateChangeRule",
        "CapacityReservationInterruptionRule",
    ] {
        assert!(resource(name).contains("Type: AWS::"), "{name}");
    }
    for (name, condition) in [
        ("KarpenterControllerRole", "MakesControllerRole"),
        ("KarpenterPodIdentity", "MakesPodIdentity"),
        ("KarpenterNodeAccess", "MakesNodeAccess"),
    ] {
        let made = format!("Condition: {condition}");
        assert!(
            resource(name).contains(&made),
            "{name} collides with eksctl's"
        );
        assert!(
            TEMPLATE.contains(&format!("\n  {condition}: !")),
            "{condition}"
        );
    }
}

#[test]
fn each_policy_of_the_template_fits_iam_s_limit_for_the_longest_name() {
    let longest = "x".repeat(100);
    for name in [
        "NodeLifecyclePolicy",
        "IAMIntegrationPolicy",
        "EKSIntegrationPolicy",
        "InterruptionPolicy",
        "ZonalShiftPolicy",
        "ResourceDiscoveryPolicy",
    ] {
        let resource = resource(name);
        let (_, document) = resource.split_once("PolicyDocument: !Sub |\n").unwrap();
        let document = [
            ("${ClusterName}", longest.as_str()),
            ("${AWS::Partition}", "aws-us-gov"),
            ("${AWS::Region}", "us-gov-west-1"),
            ("${AWS::AccountId}", "123456789012"),
            (
                "${KarpenterNodeRole.Arn}",
                &format!("arn:aws-us-gov:iam::123456789012:role/KarpenterNodeRole-{longest}"),
            ),
            (
                "${KarpenterInterruptionQueue.Arn}",
                &format!("arn:aws-us-gov:sqs:us-gov-west-1:123456789012:{longest}"),
            ),
        ]
        .iter()
        .fold(document.to_owned(), |text, (from, to)| {
            text.replace(from, to)
        });
        assert!(!document.contains("${"), "{name}: {document}");
        let size = document.chars().filter(|c| !c.is_whitespace()).count();
        assert!(size <= 6144, "{name} has {size} characters");
    }
}
