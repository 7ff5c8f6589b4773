//! SSM parameters.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::services::permissions::{Auth, Permission};
use crate::wire::Reply;
use crate::wire::error::AwsError;
use crate::wire::params::Params;

/// A parameter with all its values; version n is at index n - 1.
#[derive(Debug, Clone, Default)]
struct Parameter {
    values: Vec<(String, Timestamp)>,
}

/// The parameters of a region.
#[derive(Debug, Default)]
pub(crate) struct Ssm(BTreeMap<String, Parameter>);

impl Ssm {
    pub(crate) fn put(&mut self, name: &str, value: &str, now: Timestamp) {
        let parameter = self.0.entry(name.to_owned()).or_default();
        if parameter.values.last().is_none_or(|(v, _)| v != value) {
            parameter.values.push((value.to_owned(), now));
        }
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// Returns the value of `name`, which may end in `:VERSION`.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.find(name).map(|(_, _, (value, _))| value.as_str())
    }

    /// Returns the parameter's name, version and value.
    fn find(&self, selector: &str) -> Option<(&str, usize, &(String, Timestamp))> {
        if let Some((name, parameter)) = self.0.get_key_value(selector) {
            return Some((name, parameter.values.len(), parameter.values.last()?));
        }
        let (name, version) = selector.rsplit_once(':')?;
        let version: usize = version.parse().ok()?;
        let (name, parameter) = self.0.get_key_value(name)?;
        Some((
            name,
            version,
            parameter.values.get(version.checked_sub(1)?)?,
        ))
    }
}

#[derive(Debug)]
pub(crate) struct SsmCall<'a> {
    pub(crate) action: String,
    pub(crate) region: &'a str,
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
        match self.action.as_str() {
            "GetParameter" => {
                let name = p
                    .text("Name")
                    .ok_or_else(|| validation("Name is required"))?;
                check_name(name)?;
                self.need("ssm:GetParameter", name)?;
                let row = self
                    .row(name)
                    .ok_or_else(|| AwsError::new("ParameterNotFound", ""))?;
                Ok(Reply::Tree(json!({"Parameter": row})))
            }
            other => Err(AwsError::new(
                "UnknownOperationException",
                format!("no operation {other}"),
            )),
        }
    }

    fn arn(&self, name: &str) -> String {
        // The ARNs of public parameters have no account.
        let account = if name.starts_with("/aws/") {
            ""
        } else {
            self.account
        };
        let slash = if name.starts_with('/') { "" } else { "/" };
        format!(
            "arn:aws:ssm:{}:{account}:parameter{slash}{name}",
            self.region
        )
    }

    fn need(&mut self, action: &str, name: &str) -> Result<(), AwsError> {
        let arn = self.arn(name.split(':').next().unwrap_or_default());
        self.auth.need(Permission::new(action, arn))
    }

    fn row(&self, selector: &str) -> Option<Value> {
        let (name, version, (value, at)) = self.ssm.find(selector)?;
        let mut row = json!({
            "ARN": self.arn(name),
            "DataType": "text",
            "LastModifiedDate": at.as_millisecond() as f64 / 1000.0,
            "Name": name,
            "Type": "String",
            "Value": value,
            "Version": version,
        });
        if name != selector {
            row["Selector"] = json!(selector[name.len()..]);
        }
        Some(row)
    }
}
