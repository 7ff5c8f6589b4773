//! SSM parameters.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::REGION;
use crate::services::permissions::{Auth, Permission};
use crate::wire::Reply;
use crate::wire::error::AwsError;
use crate::wire::params::Params;

/// The values of the parameters, with the times of their changes.
#[derive(Debug, Default)]
pub(crate) struct Ssm(pub(crate) BTreeMap<String, (String, Timestamp)>);

#[derive(Debug)]
pub(crate) struct SsmCall<'a> {
    pub(crate) action: String,
    pub(crate) account: &'a str,
    pub(crate) ssm: &'a Ssm,
    pub(crate) auth: Auth<'a>,
}

fn validation(message: impl Into<String>) -> AwsError {
    AwsError::new("ValidationException", message)
}

fn check_name(name: &str) -> Result<(), AwsError> {
    let ok = |c: char| c.is_ascii_alphanumeric() || "._-/:".contains(c);
    if name.is_empty() || name.len() > 2048 || !name.chars().all(ok) {
        return Err(validation(
            "Parameter name: can't be prefixed with \"ssm\" (case-insensitive). If formed as a path, it can consist of sub-paths divided by slash symbol; each sub-path can be formed as a mix of letters, numbers and the following 3 symbols .-_",
        ));
    }
    Ok(())
}

impl SsmCall<'_> {
    pub(crate) fn run(&mut self, params: &Value) -> Result<Reply, AwsError> {
        let p = Params(params);
        if self.action != "GetParameter" {
            return Err(AwsError::new(
                "UnknownOperationException",
                format!("no operation {}", self.action),
            ));
        }
        let name = p
            .text("Name")
            .ok_or_else(|| validation("Name is required"))?;
        check_name(name)?;
        let arn = self.arn(name);
        self.auth
            .need(Permission::new("ssm:GetParameter", arn.clone()))?;
        let Some((value, at)) = self.ssm.0.get(name) else {
            return Err(AwsError::new("ParameterNotFound", ""));
        };
        Ok(Reply::Tree(json!({"Parameter": {
            "ARN": arn,
            "LastModifiedDate": at.as_millisecond() as f64 / 1000.0,
            "Name": name,
            "Type": "String",
            "Value": value,
            "Version": 1,
        }})))
    }

    fn arn(&self, name: &str) -> String {
        // The ARNs of public parameters have no account.
        let account = if name.starts_with("/aws/") {
            ""
        } else {
            self.account
        };
        let slash = if name.starts_with('/') { "" } else { "/" };
        format!("arn:aws:ssm:{REGION}:{account}:parameter{slash}{name}")
    }
}
