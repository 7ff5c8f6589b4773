//! The documented policy of the controller, for this cluster.

use karpenter_aws_fake::Policy;

use super::{CLUSTER, QUEUE};

/// The documented policy.
pub const POLICY: &str = include_str!("../../../../../docs/iam-policy.json");

/// Returns the documented policy for this cluster.
pub fn policy() -> Policy {
    Policy::parse(&fill(POLICY)).unwrap()
}

/// Replaces the variables of a policy by this cluster's values.
pub fn fill(policy: &str) -> String {
    let account = karpenter_aws_fake::ACCOUNT;
    let role = format!("arn:aws:iam::{account}:role/KarpenterNodeRole-{CLUSTER}");
    let queue = format!("arn:aws:sqs:us-west-2:{account}:{QUEUE}");
    let mut text = policy.to_owned();
    for (name, value) in [
        ("${AWS::Partition}", "aws"),
        ("${AWS::Region}", "us-west-2"),
        ("${AWS::AccountId}", account),
        ("${AWS::URLSuffix}", "amazonaws.com"),
        ("${ClusterName}", CLUSTER),
        ("${KarpenterNodeRole.Arn}", &role),
        ("${KarpenterInterruptionQueue.Arn}", &queue),
    ] {
        text = text.replace(name, value);
    }
    text
}
