//! Cluster settings that all launch templates share. The service CIDR may be discovered after the start.

use std::sync::Arc;

use parking_lot::RwLock;

use super::ClusterSettings;

/// The current settings. Cheap to clone; clones share the value.
#[derive(Clone, Debug)]
pub struct SharedSettings(Arc<RwLock<Arc<ClusterSettings>>>);

impl SharedSettings {
    #[must_use]
    pub fn get(&self) -> Arc<ClusterSettings> {
        let settings = self.0.read();
        Arc::clone(&settings)
    }

    pub fn set_service_cidr(&self, cidr: &str) {
        let mut settings = self.0.write();
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
