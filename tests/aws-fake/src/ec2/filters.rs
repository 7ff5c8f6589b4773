//! EC2's `Filter` parameter: filters are ANDed, the values of one filter ORed, with wildcards.

use std::collections::BTreeMap;

use crate::glob;
use crate::wire::error::AwsError;
use crate::wire::params::Params;

pub type Tags = BTreeMap<String, String>;

/// A resource that filters apply to.
pub(crate) trait Filterable {
    /// Returns the values that the filter `name` is compared with; [`Filters`] handles tags.
    fn values(&self, name: &str) -> Vec<String>;
    fn tags(&self) -> &Tags;
}

/// The filters of one call.
#[derive(Debug, Default)]
pub(crate) struct Filters<'a>(Vec<(&'a str, Vec<&'a str>)>);

/// EC2's limit on filter values in one call.
const MAX_VALUES: usize = 200;

impl<'a> Filters<'a> {
    /// Parses `Filter.N`, refusing names outside of `known`. A trailing `.*` in `known` allows any continuation.
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
            let allowed = known.iter().any(|k| {
                *k == name
                    || k.strip_suffix('*')
                        .is_some_and(|prefix| name.starts_with(prefix))
            });
            let tagged = known.contains(&"tag");
            if !(allowed || tag && tagged) {
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

    /// Returns whether every filter matches `subject`.
    pub(crate) fn matches(&self, subject: &impl Filterable) -> bool {
        self.0.iter().all(|(name, wanted)| {
            let any = |value: &str| wanted.iter().any(|w| glob::matches(w, value));
            if *name == "tag-key" {
                subject.tags().keys().any(|k| any(k))
            } else if let Some(key) = name.strip_prefix("tag:") {
                subject.tags().get(key).is_some_and(|v| any(v))
            } else {
                subject.values(name).iter().any(|v| any(v))
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
