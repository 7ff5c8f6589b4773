//! The policy in `docs/iam-policy.json` allows the calls of the code.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use karpenter_aws_fake::Policy;
use serde_json::{Value, json};

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

/// Returns the actions of all calls in the sources: all of them are made through methods named after their service.
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

/// Conformance: AWS-iam-02
#[test]
fn every_called_action_is_allowed() {
    let policy = Policy::parse(POLICY).unwrap();
    let called = called();
    assert!(called.len() > 15, "{called:?}");
    let denied: Vec<&String> = called.iter().filter(|a| !policy.allows_action(a)).collect();
    assert!(denied.is_empty(), "called and not allowed: {denied:?}");
}

#[test]
fn the_policy_of_a_shadow_grants_the_reads_that_the_code_makes() {
    let text = include_str!("../../../../docs/iam-policy-shadow.json");
    let document: Value = serde_json::from_str(text).unwrap();
    let statements = document["Statement"].as_array().unwrap().iter();
    let listed = |action: &Value| match action {
        Value::String(one) => vec![one.clone()],
        list => serde_json::from_value(list.clone()).unwrap(),
    };
    let granted: BTreeSet<String> = statements.flat_map(|it| listed(&it["Action"])).collect();
    let (whole, called) = (Policy::parse(POLICY).unwrap(), called());
    assert!(!granted.is_empty());
    for action in &granted {
        let (_, operation) = action.split_once(':').unwrap();
        let reads = ["Describe", "Get"]
            .iter()
            .any(|it| operation.starts_with(it));
        assert!(reads && !action.contains('*'), "{action}");
        assert!(called.contains(action), "{action} is not called");
        assert!(whole.allows_action(action), "{action}");
    }
}

/// What upstream's template grants, by policy and statement.
fn upstream() -> BTreeMap<(String, String), Value> {
    let text = include_str!("../data/controller-policy.json");
    let file: Value = serde_json::from_str(text).unwrap();
    let statements = file["statements"].as_array().unwrap().iter();
    statements
        .map(|s| {
            let text = |key: &str| s[key].as_str().unwrap().to_owned();
            let statement = json!({
                "Effect": s["effect"], "Action": s["actions"], "Resource": s["resources"],
                "Condition": s["conditions"],
            });
            ((text("policy"), text("sid")), sorted(statement))
        })
        .collect()
}

/// The controller's policies in the template.
const POLICIES: [&str; 6] = [
    "NodeLifecyclePolicy",
    "IAMIntegrationPolicy",
    "EKSIntegrationPolicy",
    "InterruptionPolicy",
    "ZonalShiftPolicy",
    "ResourceDiscoveryPolicy",
];

/// A statement of ours in the same form.
fn sorted(mut statement: Value) -> Value {
    let members = statement.as_object_mut().unwrap();
    members.remove("Sid");
    members.entry("Condition").or_insert_with(|| json!({}));
    for member in ["Action", "Resource"] {
        let list = match members[member].take() {
            Value::String(one) => vec![one],
            list => serde_json::from_value(list).unwrap(),
        };
        members[member] = list
            .into_iter()
            .collect::<BTreeSet<String>>()
            .into_iter()
            .collect();
    }
    statement
}

fn statements(document: &Value) -> impl Iterator<Item = (String, Value)> {
    let all = document["Statement"].as_array().unwrap().iter();
    all.map(|s| (s["Sid"].as_str().unwrap().to_owned(), sorted(s.clone())))
}

/// Conformance: AWS-iam-01
#[test]
fn the_controller_is_granted_what_upstream_s_template_grants() {
    let upstream = upstream();
    assert_eq!(upstream.len(), 18);
    let by_sid: BTreeMap<_, _> = upstream
        .iter()
        .map(|((_, sid), s)| (sid.clone(), s.clone()))
        .collect();
    let document: Value = serde_json::from_str(POLICY).unwrap();
    assert_eq!(statements(&document).collect::<BTreeMap<_, _>>(), by_sid);
    let mut template = BTreeMap::new();
    for name in POLICIES {
        let document: Value = serde_json::from_str(&document_of(name)).unwrap();
        let policy = format!("KarpenterController{name}-<cluster>");
        template.extend(statements(&document).map(|(sid, s)| ((policy.clone(), sid), s)));
    }
    assert_eq!(template, upstream);
}

/// Conformance: AWS-cfn-03
#[test]
fn the_template_makes_the_role_of_nodes_the_queue_and_the_rules() {
    let role = resource("KarpenterNodeRole");
    let attached: Vec<&str> = role
        .lines()
        .filter_map(|line| line.split_once("iam::aws:policy/"))
        .map(|(_, name)| name.trim_end_matches('"'))
        .collect();
    assert_eq!(
        attached,
        [
            "AmazonEKS_CNI_Policy",
            "AmazonEKSWorkerNodePolicy",
            "AmazonEC2ContainerRegistryPullOnly",
            "AmazonSSMManagedInstanceCore",
        ]
    );
    let queue = resource("KarpenterInterruptionQueue");
    for line in [
        "QueueName: !Ref ClusterName",
        "MessageRetentionPeriod: 300",
        "SqsManagedSseEnabled: true",
    ] {
        assert!(queue.contains(line), "{line}");
    }
    let policy = resource("KarpenterInterruptionQueuePolicy");
    let (allow, deny) = policy.split_once("- Sid: DenyHTTP").unwrap();
    for line in [
        "Effect: Allow",
        "- events.amazonaws.com",
        "- sqs.amazonaws.com",
        "Action: sqs:SendMessage",
    ] {
        assert!(allow.contains(line), "{line}");
    }
    for line in [
        "Effect: Deny",
        "Action: sqs:*",
        "aws:SecureTransport: false",
        "Principal: \"*\"",
    ] {
        assert!(deny.contains(line), "{line}");
    }
    for (name, source, kind) in [
        ("ScheduledChangeRule", "aws.health", "AWS Health Event"),
        (
            "SpotInterruptionRule",
            "aws.ec2",
            "EC2 Spot Instance Interruption Warning",
        ),
        (
            "RebalanceRule",
            "aws.ec2",
            "EC2 Instance Rebalance Recommendation",
        ),
        (
            "InstanceStateChangeRule",
            "aws.ec2",
            "EC2 Instance State-change Notification",
        ),
        (
            "CapacityReservationInterruptionRule",
            "aws.ec2",
            "EC2 Capacity Reservation Instance Interruption Warning",
        ),
    ] {
        let rule = resource(name);
        for line in [
            format!("- {source}\n"),
            format!("- {kind}\n"),
            "Arn: !GetAtt KarpenterInterruptionQueue.Arn".to_owned(),
        ] {
            assert!(rule.contains(&line), "{name}: {line}");
        }
    }
}

const TEMPLATE: &str = include_str!("../../../../docs/getting-started/cloudformation.yaml");

/// Returns the lines of a resource of the template.
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

fn document_of(policy: &str) -> String {
    let resource = resource(policy);
    let (_, document) = resource.split_once("PolicyDocument: !Sub |\n").unwrap();
    document.to_owned()
}

/// With other logical IDs CloudFormation would create policies before it deletes those of the same names.
/// Conformance: AWS-cfn-01
#[test]
fn the_template_can_update_the_stack_of_karpenter_in_go() {
    for name in POLICIES {
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

/// Conformance: AWS-cfn-02
#[test]
fn each_policy_of_the_template_is_within_iam_s_limit_for_the_longest_name() {
    let longest = "x".repeat(100);
    for name in POLICIES {
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
        .fold(document_of(name), |text, (from, to)| text.replace(from, to));
        assert!(!document.contains("${"), "{name}: {document}");
        let size = document.chars().filter(|c| !c.is_whitespace()).count();
        assert!(size <= 6144, "{name} has {size} characters");
    }
}
