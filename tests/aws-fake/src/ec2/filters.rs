//! EC2's `Filter` parameter: filters are ANDed, the values of one filter ORed, with wildcards.

use std::collections::BTreeMap;

use crate::glob;
use crate::wire::error::AwsError;
use crate::wire::params::Params;

pub type Tags = BTreeMap<String, String>;

/// The filters of one call.
#[derive(Debug, Default)]
pub(crate) struct Filters<'a>(Vec<(&'a str, Vec<&'a str>)>);

/// EC2's limit on filter values in one call.
const MAX_VALUES: usize = 200;

impl<'a> Filters<'a> {
    /// Parses `Filter.N`, refusing names outside of `known`: those that Karpenter uses. `tag` allows filters of tags.
    pub(crate) fn read(params: Params<'a>, known: &[&str]) -> Result<Self, AwsError> {
        let mut out = Vec::new();
        let mut values = 0;
        for filter in params.list("Filter") {
            let name = filter
                .text("Name")
                .ok_or_else(|| AwsError::missing("Filter.Name"))?;
            let wanted = filter.texts("Value");
            if wanted.is_empty() {
                return Err(AwsError::invalid_value(format!(
                    "The filter '{name}' has no values"
                )));
            }
            values += wanted.len();
            let tag = name == "tag-key" || name.len() > 4 && name.starts_with("tag:");
            if !known.contains(&if tag { "tag" } else { name }) {
                return Err(AwsError::invalid_value(format!(
                    "The filter '{name}' is invalid"
                )));
            }
            out.push((name, wanted));
        }
        if values > MAX_VALUES {
            return Err(AwsError::new(
                "FilterLimitExceeded",
                "The maximum number of filter values specified on a single call is 200",
            ));
        }
        Ok(Self(out))
    }

    /// Returns whether every filter matches a resource with these tags; `values` returns what another filter is compared with.
    pub(crate) fn matches<'v>(&self, tags: &Tags, values: impl Fn(&str) -> Vec<&'v str>) -> bool {
        self.0.iter().all(|(name, wanted)| {
            let any = |value: &str| wanted.iter().any(|w| glob::matches(w, value));
            if *name == "tag-key" {
                tags.keys().any(|k| any(k))
            } else if let Some(key) = name.strip_prefix("tag:") {
                tags.get(key).is_some_and(|v| any(v))
            } else {
                values(name).into_iter().any(any)
            }
        })
    }
}

/// Renders tags as EC2 lists them.
pub(crate) fn tag_set(tags: &Tags) -> serde_json::Value {
    tags.iter()
        .map(|(key, value)| serde_json::json!({"key": key, "value": value}))
        .collect()
}
