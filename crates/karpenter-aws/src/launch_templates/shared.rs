//! What launch templates have in common, for those who share it: the range of service addresses may be found out late.

use std::sync::{Arc, PoisonError, RwLock};

use super::ClusterSettings;

/// The settings as they are known now. Cheap to clone; clones agree.
#[derive(Clone, Debug)]
pub struct SharedSettings(Arc<RwLock<Arc<ClusterSettings>>>);

impl SharedSettings {
    /// The settings.
    #[must_use]
    pub fn get(&self) -> Arc<ClusterSettings> {
        let settings = self.0.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&settings)
    }

    /// Takes note of the range of service addresses.
    pub fn learn_service_cidr(&self, cidr: &str) {
        let mut settings = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let mut known = ClusterSettings::clone(&settings);
        known.cluster.service_cidr = Some(cidr.to_owned());
        *settings = Arc::new(known);
    }
}

impl From<ClusterSettings> for SharedSettings {
    fn from(settings: ClusterSettings) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(settings))))
    }
}
