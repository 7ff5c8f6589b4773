//! Cache of SSM parameter values.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

/// How long the parameter of an alias is cached.
const ALIAS_TTL: SignedDuration = SignedDuration::from_hours(24);
/// How long a parameter from a selector term is cached: its value may change at any time.
const CUSTOM_TTL: SignedDuration = SignedDuration::from_mins(5);

/// Cached values of SSM parameters. The lifetime depends on whether the value of a parameter can change.
// UPSTREAM: pkg/providers/ssm, pkg/controllers/providers/ssm/invalidation
#[derive(Debug, Default)]
pub struct ParameterCache {
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    value: String,
    mutable: bool,
    expires: Timestamp,
}

impl ParameterCache {
    /// Returns the value, if it is cached and has not expired.
    #[must_use]
    pub fn get(&self, name: &str, now: Timestamp) -> Option<&str> {
        let entry = self.entries.get(name)?;
        (entry.expires > now).then_some(entry.value.as_str())
    }

    /// Caches the value of an alias's parameter. `mutable` parameters are those of the version `latest`.
    pub fn insert_alias(&mut self, name: &str, value: &str, mutable: bool, now: Timestamp) {
        self.insert(name, value, mutable, now, ALIAS_TTL);
    }

    /// Caches the value of a parameter from a selector term.
    pub fn insert_custom(&mut self, name: &str, value: &str, now: Timestamp) {
        self.insert(name, value, true, now, CUSTOM_TTL);
    }

    fn insert(
        &mut self,
        name: &str,
        value: &str,
        mutable: bool,
        now: Timestamp,
        lifetime: SignedDuration,
    ) {
        self.entries.retain(|_, entry| entry.expires > now);
        let entry = Entry {
            value: value.to_owned(),
            mutable,
            expires: now.saturating_add(lifetime).unwrap_or(Timestamp::MAX),
        };
        self.entries.insert(name.to_owned(), entry);
    }

    /// Returns the AMI IDs in mutable parameters. If one of these AMIs is deprecated, its parameter has changed.
    #[must_use]
    pub fn mutable_images(&self) -> Vec<&str> {
        self.entries
            .values()
            .filter(|entry| entry.mutable)
            .map(|entry| entry.value.as_str())
            .collect()
    }

    /// Removes the mutable parameters whose AMI is deprecated; returns their number.
    pub fn invalidate_deprecated(&mut self, deprecated: impl Fn(&str) -> bool) -> usize {
        let before = self.entries.len();
        self.entries
            .retain(|_, entry| !(entry.mutable && deprecated(&entry.value)));
        before - self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hours(hours: i64) -> Timestamp {
        Timestamp::from_second(hours * 3600).unwrap()
    }

    fn minutes(minutes: i64) -> Timestamp {
        Timestamp::from_second(minutes * 60).unwrap()
    }

    /// Conformance: AWS-ami-04
    #[test]
    fn a_mutable_parameter_with_a_deprecated_image_is_removed() {
        let mut cache = ParameterCache::default();
        cache.insert_alias("/latest", "ami-old", true, hours(0));
        cache.insert_alias("/current", "ami-new", true, hours(0));
        cache.insert_alias("/pinned", "ami-old", false, hours(0));
        assert_eq!(cache.mutable_images(), ["ami-new", "ami-old"]);
        assert_eq!(cache.invalidate_deprecated(|id| id == "ami-old"), 1);
        assert_eq!(cache.get("/latest", hours(1)), None);
        assert_eq!(cache.get("/current", hours(1)), Some("ami-new"));
        assert_eq!(cache.get("/pinned", hours(1)), Some("ami-old"));
    }

    /// Conformance: AWS-ami-13
    #[test]
    fn parameters_of_selector_terms_expire_early() {
        let mut cache = ParameterCache::default();
        cache.insert_alias("/alias", "ami-1", true, hours(0));
        cache.insert_custom("/custom", "ami-2", hours(0));
        assert_eq!(cache.get("/custom", hours(0)), Some("ami-2"));
        assert_eq!(cache.get("/custom", minutes(4)), Some("ami-2"));
        assert_eq!(cache.get("/custom", minutes(5)), None);
        assert_eq!(cache.get("/alias", minutes(24 * 60 - 1)), Some("ami-1"));
        assert_eq!(cache.get("/alias", hours(24)), None);
    }
}
