//! The labels of a provider, as the requirement algebra reads them.

use karpenter_api::validation::WellKnown;

use crate::requirements::LabelNames;

impl LabelNames for WellKnown {
    fn canonical_key<'a>(&'a self, key: &'a str) -> &'a str {
        self.normalise_key(key)
    }

    fn canonical_value<'a>(&'a self, key: &str, value: &'a str) -> &'a str {
        self.normalise_value(key, value)
    }
}
