//! What parameters of the Systems Manager held when they were last read.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

/// How long a parameter of an alias is trusted.
const ALIAS: SignedDuration = SignedDuration::from_hours(24);
/// How long a parameter that a user named is trusted: it may change any time.
const CUSTOM: SignedDuration = SignedDuration::from_mins(5);

/// A memory of parameter values. Whether a parameter can change under its name decides for how long.
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
    /// The value, if it was read recently.
    #[must_use]
    pub fn get(&self, name: &str, now: Timestamp) -> Option<&str> {
        let entry = self.entries.get(name)?;
        (entry.expires > now).then_some(entry.value.as_str())
    }

    /// Remembers a parameter of an alias; a mutable one is that of `latest`.
    pub fn insert_alias(&mut self, name: &str, value: &str, mutable: bool, now: Timestamp) {
        self.insert(name, value, mutable, now, ALIAS);
    }

    /// Remembers a parameter a user named.
    pub fn insert_custom(&mut self, name: &str, value: &str, now: Timestamp) {
        self.insert(name, value, true, now, CUSTOM);
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

    /// The images that mutable parameters name: if one of them is deprecated, the parameter names a newer one by now.
    #[must_use]
    pub fn mutable_images(&self) -> Vec<&str> {
        self.entries
            .values()
            .filter(|entry| entry.mutable)
            .map(|entry| entry.value.as_str())
            .collect()
    }

    /// Forgets the mutable parameters that name a deprecated image; says how many.
    pub fn forget_deprecated(&mut self, deprecated: impl Fn(&str) -> bool) -> usize {
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

    /// Conformance: AWS-ami-04
    #[test]
    fn a_mutable_parameter_that_names_a_deprecated_image_is_forgotten() {
        let mut cache = ParameterCache::default();
        cache.insert_alias("/latest", "ami-old", true, hours(0));
        cache.insert_alias("/current", "ami-new", true, hours(0));
        cache.insert_alias("/pinned", "ami-old", false, hours(0));
        assert_eq!(cache.mutable_images(), ["ami-new", "ami-old"]);
        assert_eq!(cache.forget_deprecated(|id| id == "ami-old"), 1);
        assert_eq!(cache.get("/latest", hours(1)), None);
        assert_eq!(cache.get("/current", hours(1)), Some("ami-new"));
        assert_eq!(cache.get("/pinned", hours(1)), Some("ami-old"));
    }

    #[test]
    fn parameters_of_users_are_read_again_soon() {
        let mut cache = ParameterCache::default();
        cache.insert_alias("/alias", "ami-1", true, hours(0));
        cache.insert_custom("/custom", "ami-2", hours(0));
        assert_eq!(cache.get("/custom", hours(0)), Some("ami-2"));
        assert_eq!(cache.get("/custom", hours(1)), None);
        assert_eq!(cache.get("/alias", hours(23)), Some("ami-1"));
        assert_eq!(cache.get("/alias", hours(24)), None);
    }
}
