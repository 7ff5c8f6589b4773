//! The process of static NodePools.

use karpenter_core::cluster::Snapshot;
use karpenter_core::lifecycle::static_pools::{Settings, StaticPools};
use parking_lot::Mutex;

use crate::model::ModelHandle;

/// The process of static NodePools, which several controllers share.
#[derive(Debug)]
pub struct StaticCapacity(Mutex<StaticPools>);

impl StaticCapacity {
    /// Creates the process.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self(Mutex::new(StaticPools::new(settings)))
    }

    /// Reports whether the feature gate is on.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.0.lock().is_enabled()
    }

    /// Gives access to the process, with the latest snapshot.
    pub fn with<R>(
        &self,
        model: &ModelHandle,
        act: impl FnOnce(&mut StaticPools, &Snapshot) -> R,
    ) -> R {
        let process = &mut *self.0.lock();
        // INVARIANT: the view is read under the lock. It contains what was released before.
        act(process, &model.view().snapshot)
    }
}
