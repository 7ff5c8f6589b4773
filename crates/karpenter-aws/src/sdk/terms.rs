//! Filters and tags of requests, filters of selector terms, and answers that are cached for a while.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::Duration;

use aws_sdk_ec2::types::{Filter, Tag};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::api::EC2NodeClass;

pub(crate) fn filter<'a>(name: &str, values: impl IntoIterator<Item = &'a str>) -> Filter {
    Filter::builder()
        .name(name)
        .set_values(Some(values.into_iter().map(str::to_owned).collect()))
        .build()
}

/// Converts tags into the SDK's type.
pub(crate) fn sdk_tags(tags: &BTreeMap<String, String>) -> Vec<Tag> {
    tags.iter()
        .map(|(key, value)| Tag::builder().key(key).value(value).build())
        .collect()
}

/// Returns the filters for resources with all of these tags; `*` matches any value.
#[must_use]
pub fn tag_filters(tags: &BTreeMap<String, String>) -> Vec<Filter> {
    let filter = |(key, value): (&String, &String)| match value.as_str() {
        "*" => Filter::builder().name("tag-key").values(key).build(),
        value => Filter::builder()
            .name(format!("tag:{key}"))
            .values(value)
            .build(),
    };
    tags.iter().map(filter).collect()
}

/// Cache key of a node class: its uid and generation.
pub type ClassVersion = (String, i64);

/// Returns the cache key of a node class.
#[must_use]
pub fn class_version(class: &EC2NodeClass) -> ClassVersion {
    let uid = class.metadata.uid.clone().unwrap_or_default();
    (uid, class.metadata.generation.unwrap_or(0))
}

/// Answers that are cached for a fixed time.
#[derive(Debug)]
pub struct TtlCache<K, V> {
    ttl: Duration,
    answers: Mutex<HashMap<K, (Instant, V)>>,
}

impl<K: Eq + Hash, V: Clone> TtlCache<K, V> {
    /// Creates a cache whose answers expire after this time.
    #[must_use]
    pub fn new(ttl: Duration) -> Self {
        Self {
            ttl,
            answers: Mutex::default(),
        }
    }

    /// Returns the answer, if it has not expired.
    pub fn get(&self, key: &K) -> Option<V> {
        let answers = self.answers.lock();
        answers
            .get(key)
            .filter(|(until, _)| Instant::now() < *until)
            .map(|(_, answer)| answer.clone())
    }

    /// Caches an answer, and removes expired ones.
    pub fn put(&self, key: K, answer: V) {
        let now = Instant::now();
        let mut answers = self.answers.lock();
        answers.retain(|_, (until, _)| now < *until);
        answers.insert(key, (now + self.ttl, answer));
    }

    /// Removes an answer.
    pub fn forget(&self, key: &K) {
        let mut answers = self.answers.lock();
        answers.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: AWS-api-29
    #[test]
    fn a_star_filters_by_tag_key_and_anything_else_by_value() {
        let tags = [("a", "*"), ("b", "x*")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into();
        let filters = tag_filters(&tags);
        assert_eq!(filters[0].name(), Some("tag-key"));
        assert_eq!(filters[0].values(), ["a"]);
        assert_eq!(filters[1].name(), Some("tag:b"));
        assert_eq!(filters[1].values(), ["x*"]);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_expire() {
        let cache = TtlCache::new(Duration::from_secs(60));
        cache.put("k", 1);
        assert_eq!(cache.get(&"k"), Some(1));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(cache.get(&"k"), None);
        cache.put("other", 2);
        cache.forget(&"other");
        assert_eq!(cache.get(&"other"), None);
    }
}
