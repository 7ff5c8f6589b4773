//! IAM permissions of calls, and policies that grant them.
//!
//! Every call records the permissions it would need on AWS: action, resource and condition keys. Tests compare them
//! with the controller's policy; with a policy installed, calls that it does not allow are refused, as on AWS.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::wire::error::AwsError;
use crate::{ACCOUNT, REGION};

/// A permission that a call needs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    /// IAM action, such as `ec2:RunInstances`.
    pub action: String,
    /// ARN of the resource, or `*`.
    pub resource: String,
    /// Condition keys and their values, such as `aws:RequestTag/Name`.
    pub context: BTreeMap<String, Vec<String>>,
}

impl Permission {
    pub(crate) fn new(action: impl Into<String>, resource: impl Into<String>) -> Self {
        Self {
            action: action.into(),
            resource: resource.into(),
            context: BTreeMap::new(),
        }
    }

    pub(crate) fn with(mut self, key: &str, value: &str) -> Self {
        self.context.insert(key.to_owned(), vec![value.to_owned()]);
        self
    }

    pub(crate) fn resource_tags(mut self, tags: &BTreeMap<String, String>) -> Self {
        for (key, value) in tags {
            self = self.with(&format!("aws:ResourceTag/{key}"), value);
        }
        self
    }

    pub(crate) fn request_tags(mut self, tags: &BTreeMap<String, String>) -> Self {
        for (key, value) in tags {
            self = self.with(&format!("aws:RequestTag/{key}"), value);
        }
        if !tags.is_empty() {
            self.context
                .insert("aws:TagKeys".to_owned(), tags.keys().cloned().collect());
        }
        self
    }
}

/// An IAM policy: statements with `Allow` or `Deny`, wildcards and string conditions.
///
/// ```
/// use karpenter_aws_fake::Policy;
/// let policy = Policy::parse(r#"{"Statement": [{"Effect": "Allow", "Action": "ec2:Describe*", "Resource": "*"}]}"#).unwrap();
/// assert!(policy.allows_action("ec2:DescribeSubnets"));
/// assert!(!policy.allows_action("ec2:RunInstances"));
/// ```
#[derive(Debug, Clone, Default)]
pub struct Policy {
    statements: Vec<Statement>,
}

#[derive(Debug, Clone, Deserialize)]
struct Statement {
    #[serde(alias = "Effect", alias = "effect")]
    effect: String,
    #[serde(alias = "Action", alias = "actions")]
    action: OneOrMany,
    #[serde(alias = "Resource", alias = "resources")]
    resource: OneOrMany,
    #[serde(alias = "Condition", alias = "conditions", default)]
    condition: BTreeMap<String, BTreeMap<String, OneOrMany>>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    fn iter(&self) -> impl Iterator<Item = &str> {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many.as_slice(),
        }
        .iter()
        .map(String::as_str)
    }
}

/// The policy cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[error("cannot parse policy: {0}")]
pub struct PolicyError(#[from] serde_json::Error);

impl Policy {
    /// Parses an IAM policy document, or the reference file `iam-policy.json` with its `statements`.
    ///
    /// # Errors
    /// If the text is not JSON, or a statement lacks effect, action or resource.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let document: Value = serde_json::from_str(text)?;
        let statements = document
            .get("Statement")
            .or_else(|| document.get("statements"))
            .cloned()
            .unwrap_or(Value::Null);
        Ok(Self {
            statements: serde_json::from_value(statements)?,
        })
    }

    /// Replaces the variables of a documented policy by the values of a cluster, whose interruption queue has its name.
    #[must_use]
    pub fn fill(text: &str, cluster: &str) -> String {
        let role = format!("arn:aws:iam::{ACCOUNT}:role/KarpenterNodeRole-{cluster}");
        let queue = format!("arn:aws:sqs:{REGION}:{ACCOUNT}:{cluster}");
        [
            ("${AWS::Partition}", "aws"),
            ("${AWS::Region}", REGION),
            ("${AWS::AccountId}", ACCOUNT),
            ("${AWS::URLSuffix}", "amazonaws.com"),
            ("${ClusterName}", cluster),
            ("${KarpenterNodeRole.Arn}", &role),
            ("${KarpenterInterruptionQueue.Arn}", &queue),
        ]
        .iter()
        .fold(text.to_owned(), |text, (name, value)| {
            text.replace(name, value)
        })
    }

    /// Returns whether any statement allows `action` on some resource under some condition.
    #[must_use]
    pub fn allows_action(&self, action: &str) -> bool {
        self.statements
            .iter()
            .any(|s| s.effect == "Allow" && s.action.iter().any(|a| matches(a, action)))
    }

    /// Returns whether the policy grants `permission`: some statement allows it and none denies it.
    #[must_use]
    pub fn allows(&self, permission: &Permission) -> bool {
        let hit = |effect: &str| {
            self.statements
                .iter()
                .any(|s| s.effect == effect && s.applies(permission))
        };
        hit("Allow") && !hit("Deny")
    }
}

impl Statement {
    fn applies(&self, permission: &Permission) -> bool {
        self.action.iter().any(|a| matches(a, &permission.action))
            && self
                .resource
                .iter()
                .any(|r| matches(r, &permission.resource))
            && self.condition.iter().all(|(operator, keys)| {
                keys.iter().all(|(key, wanted)| {
                    let have = permission
                        .context
                        .iter()
                        .find(|(k, _)| k.eq_ignore_ascii_case(key))
                        .map(|(_, v)| v.as_slice());
                    holds(operator, have, wanted)
                })
            })
    }
}

fn holds(operator: &str, have: Option<&[String]>, wanted: &OneOrMany) -> bool {
    let (set, operator) = match operator.split_once(':') {
        Some((set, operator)) => (Some(set), operator),
        None => (None, operator),
    };
    let (operator, if_exists) = match operator.strip_suffix("IfExists") {
        Some(operator) => (operator, true),
        None => (operator, false),
    };
    let any = |value: &String| {
        wanted.iter().any(|w| match operator {
            "StringLike" | "ArnLike" => matches(w, value),
            "StringEqualsIgnoreCase" => w.eq_ignore_ascii_case(value),
            _ => matches_literally(w, value),
        })
    };
    match (have, set) {
        (None | Some([]), Some("ForAllValues")) => true,
        (None | Some([]), _) => if_exists || operator == "StringNotEquals",
        (Some(have), Some("ForAllValues")) => have.iter().all(any),
        (Some(have), _) if operator == "StringNotEquals" => !have
            .iter()
            .any(|v| wanted.iter().any(|w| matches_literally(w, v))),
        (Some(have), _) => have.iter().any(any),
    }
}

/// Compares for equality, where a `${variable}` of the deployment template matches any text.
fn matches_literally(wanted: &str, value: &str) -> bool {
    if wanted.contains("${") {
        matches(wanted, value)
    } else {
        wanted == value
    }
}

/// Matches patterns with `*` and `?`; `${…}` (a variable of the deployment template) matches any text.
fn matches(pattern: &str, text: &str) -> bool {
    let mut glob = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once("${") {
        glob.push_str(before);
        glob.push('*');
        rest = after.split_once('}').map_or("", |(_, r)| r);
    }
    glob.push_str(rest);
    crate::glob::matches(&glob, text)
}

/// Records the permissions of one call, and refuses those not granted.
#[derive(Debug)]
pub(crate) struct Auth<'a> {
    pub(crate) needed: Vec<Permission>,
    pub(crate) policy: Option<&'a Policy>,
    pub(crate) denied: &'a [String],
    pub(crate) denied_resources: &'a [String],
    pub(crate) service: &'static str,
    pub(crate) caller: &'a str,
    pub(crate) region: &'a str,
}

impl Auth<'_> {
    /// Records that the call needs `permission`.
    ///
    /// # Errors
    /// The service's access error if the permission is not granted.
    pub(crate) fn need(&mut self, permission: Permission) -> Result<(), AwsError> {
        let permission = permission.with("aws:RequestedRegion", self.region);
        let any = |globs: &[String], text: &str| {
            globs.iter().any(|glob| crate::glob::matches(glob, text))
        };
        let denied = any(self.denied, &permission.action)
            || any(self.denied_resources, &permission.resource);
        let granted = !denied && self.policy.is_none_or(|p| p.allows(&permission));
        let refusal = (!granted).then(|| self.refusal(&permission, denied));
        self.needed.push(permission);
        refusal.map_or(Ok(()), Err)
    }

    /// Records that the call needs `action` on `*`.
    pub(crate) fn need_any(&mut self, action: &str) -> Result<(), AwsError> {
        self.need(Permission::new(action, "*"))
    }

    fn refusal(&self, permission: &Permission, denied: bool) -> AwsError {
        let why = if denied {
            "with an explicit deny in a service control policy".to_owned()
        } else {
            format!(
                "because no identity-based policy allows the {} action",
                permission.action
            )
        };
        let sentence = format!(
            "User: {} is not authorized to perform: {} on resource: {} {why}",
            self.caller, permission.action, permission.resource
        );
        let (code, status, message) = match self.service {
            "ec2" => (
                "UnauthorizedOperation",
                403,
                format!("You are not authorized to perform this operation. {sentence}"),
            ),
            "iam" | "sts" => ("AccessDenied", 403, sentence),
            "eks" | "arc-zonal-shift" => ("AccessDeniedException", 403, sentence),
            _ => ("AccessDeniedException", 400, sentence),
        };
        AwsError {
            code: code.to_owned(),
            message,
            status,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = r#"{"statements": [
        {"effect": "Allow", "actions": ["ec2:TerminateInstances"], "resources": ["arn:${AWS::Partition}:ec2:${AWS::Region}:*:instance/*"],
         "conditions": {"StringEquals": {"aws:ResourceTag/kubernetes.io/cluster/${ClusterName}": "owned"}}},
        {"effect": "Allow", "actions": ["ec2:CreateTags"], "resources": ["*"],
         "conditions": {"ForAllValues:StringEquals": {"aws:TagKeys": ["Name"]}, "StringEqualsIfExists": {"aws:RequestTag/x": "y"}}}]}"#;

    #[test]
    fn conditions_on_tags_decide_and_template_variables_match_any_text() {
        // The key of a condition may contain a variable; Karpenter's policy has the cluster's name there.
        let policy = Policy::parse(&POLICY.replace("${ClusterName}", "c")).unwrap();
        let instance = "arn:aws:ec2:us-west-2:123456789012:instance/i-1";
        let terminate = Permission::new("ec2:TerminateInstances", instance);
        assert!(!policy.allows(&terminate));
        let owned = BTreeMap::from([("kubernetes.io/cluster/c".to_owned(), "owned".to_owned())]);
        assert!(policy.allows(&terminate.resource_tags(&owned)));
    }

    #[test]
    fn a_set_condition_holds_only_if_every_key_is_listed() {
        let policy = Policy::parse(POLICY).unwrap();
        let tag = |key: &str| {
            Permission::new("ec2:CreateTags", "*")
                .request_tags(&BTreeMap::from([(key.to_owned(), "v".to_owned())]))
        };
        assert!(policy.allows(&tag("Name")));
        assert!(!policy.allows(&tag("Other")));
    }
}
