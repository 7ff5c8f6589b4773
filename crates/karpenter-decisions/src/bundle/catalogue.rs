//! The catalogue: the instance types and offerings of each NodePool, as a JSON document of its own.
//!
//! `karpenter catalogue` prints it for a provider, and `kubectl karpenter capture --catalogue FILE` reads it where no controller of
//! this project runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use karpenter_core::instance_type::InstanceType;
use serde::{Deserialize, Serialize};

use crate::API_VERSION;

/// The kind of the document.
pub const KIND: &str = "Catalogue";

/// Instance types by NodePool.
///
/// ```
/// use karpenter_core::instance_type::InstanceType;
/// use karpenter_core::offering::{Offering, Price};
/// use karpenter_core::resources::Resources;
/// use karpenter_decisions::bundle::catalogue::Catalogue;
///
/// let small = InstanceType::linux("small", "amd64", Resources::new().with("cpu", 4000))
///     .with_offering(Offering::on_demand("hall-1", Price::per_hour(0.1)));
/// let catalogue = Catalogue::new([("default".to_owned(), vec![small])]);
/// assert_eq!(Catalogue::parse(&catalogue.to_json()).unwrap(), catalogue);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Catalogue {
    api_version: String,
    kind: String,
    /// The instance types of each NodePool, before NodeOverlays.
    pub node_pools: BTreeMap<String, Vec<InstanceType>>,
}

/// A document that is not a catalogue.
#[derive(Debug, thiserror::Error)]
#[error("invalid catalogue: {0}")]
pub struct InvalidCatalogue(String);

impl Catalogue {
    /// Creates the catalogue of these NodePools.
    pub fn new(node_pools: impl IntoIterator<Item = (String, Vec<InstanceType>)>) -> Self {
        Self {
            api_version: API_VERSION.to_owned(),
            kind: KIND.to_owned(),
            node_pools: node_pools.into_iter().collect(),
        }
    }

    /// Reads a catalogue.
    ///
    /// # Errors
    /// Fails with the line and column if the text is not a catalogue of this version.
    pub fn parse(text: &str) -> Result<Self, InvalidCatalogue> {
        let invalid = |error: serde_json::Error| InvalidCatalogue(error.to_string());
        let catalogue: Self = serde_json::from_str(text).map_err(invalid)?;
        for (field, value, expected) in [
            ("apiVersion", &catalogue.api_version, API_VERSION),
            ("kind", &catalogue.kind, KIND),
        ] {
            if value != expected {
                let message = format!("{field} is `{}`, not `{expected}`", value.escape_default());
                return Err(InvalidCatalogue(message));
            }
        }
        Ok(catalogue)
    }

    /// Writes the document, for people to read.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Values without maps that have other keys than text are always written.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Returns the instance types of a NodePool as the cluster's model keeps them.
    #[must_use]
    pub fn instance_types(&self, pool: &str) -> Option<Arc<[InstanceType]>> {
        self.node_pools
            .get(pool)
            .map(|types| types.as_slice().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_catalogue_of_another_version_or_kind_is_refused_by_its_field() {
        let written = Catalogue::new([]).to_json();
        let later = written.replace("v1alpha1", "v1");
        let error = Catalogue::parse(&later).unwrap_err().to_string();
        assert_eq!(
            error,
            "invalid catalogue: apiVersion is `decisions.karpenter.sh/v1`, not `decisions.karpenter.sh/v1alpha1`"
        );
        let other = written.replace("Catalogue", "Plan");
        assert!(
            Catalogue::parse(&other)
                .unwrap_err()
                .to_string()
                .contains("kind is `Plan`")
        );
        let error = Catalogue::parse("{\n  \"kind\": 7 }")
            .unwrap_err()
            .to_string();
        assert!(error.contains("line 2 column 11"), "{error}");
    }

    #[test]
    fn a_catalogue_is_read_back_as_it_was() {
        let catalogue = Catalogue::new([(
            "default".to_owned(),
            karpenter_core::fake::instance_types(7).to_vec(),
        )]);
        assert_eq!(Catalogue::parse(&catalogue.to_json()).unwrap(), catalogue);
    }
}
