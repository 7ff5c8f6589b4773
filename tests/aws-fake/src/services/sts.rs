//! STS: credentials for a service account.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::clock::{later, rfc3339};
use crate::ids::Ids;
use crate::wire::Reply;
use crate::wire::error::AwsError;
use crate::wire::params::Params;

/// Returns credentials: access key ID, secret access key, token.
pub(crate) fn credentials(ids: &mut Ids) -> (String, String, String) {
    (
        ids.upper("ASIA"),
        ids.hex("secret", 32),
        ids.hex("token", 32),
    )
}

/// Executes a call to STS. None of them needs a permission.
pub(crate) fn run(
    action: &str,
    params: &Value,
    account: &str,
    ids: &mut Ids,
    now: Timestamp,
) -> Result<Reply, AwsError> {
    let p = Params(params);
    match action {
        "AssumeRoleWithWebIdentity" => {
            let role = p.text("RoleArn").unwrap_or_default();
            let session = p.text("RoleSessionName").unwrap_or_default();
            let name = role.rsplit('/').next().unwrap_or_default();
            if !role.starts_with("arn:") || !role.contains(":role/") {
                return Err(AwsError::new(
                    "ValidationError",
                    format!("{role} is invalid"),
                ));
            }
            if session.chars().count() < 2 || session.chars().count() > 64 {
                return Err(AwsError::new(
                    "ValidationError",
                    "1 validation error detected: Value at 'roleSessionName' failed to satisfy constraint: Member must have length greater than or equal to 2",
                ));
            }
            if p.text("WebIdentityToken").unwrap_or_default().len() < 4 {
                return Err(AwsError::new(
                    "InvalidIdentityToken",
                    "The ID Token provided is not a valid JWT. (You may see this error if you sent an Access Token)",
                ));
            }
            let seconds = p.int("DurationSeconds").unwrap_or(3600).clamp(900, 43_200);
            let lifetime = Duration::from_secs(u64::try_from(seconds).unwrap_or(3600));
            let (key, secret, token) = credentials(ids);
            Ok(Reply::Tree(json!({
                "Credentials": {
                    "AccessKeyId": key,
                    "SecretAccessKey": secret,
                    "SessionToken": token,
                    "Expiration": rfc3339(later(now, lifetime)),
                },
                "AssumedRoleUser": {
                    "AssumedRoleId": format!("AROAEXAMPLE:{session}"),
                    "Arn": format!("arn:aws:sts::{account}:assumed-role/{name}/{session}"),
                },
                "SubjectFromWebIdentityToken": "system:serviceaccount:kube-system:karpenter",
                "Audience": "sts.amazonaws.com",
                "Provider": "arn:aws:iam::aws:oidc-provider/oidc.eks.amazonaws.com",
            })))
        }
        other => Err(AwsError::new(
            "InvalidAction",
            format!("Could not find operation {other} for version 2011-06-15"),
        )),
    }
}
