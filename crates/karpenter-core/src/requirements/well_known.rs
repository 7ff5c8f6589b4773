//! Canonical label names of a provider, for the requirement algebra.

use karpenter_api::validation::WellKnown;

use super::set::LabelNames;

impl LabelNames for WellKnown {
    fn canonical_key<'a>(&'a self, key: &'a str) -> &'a str {
        self.normalize_key(key)
    }

    fn canonical_value<'a>(&'a self, key: &str, value: &'a str) -> &'a str {
        self.normalize_value(key, value)
    }
}
