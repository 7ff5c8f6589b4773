//! The readiness probe `/readyz`: whether this replica does its work, or could take it over.
//!
//! A leader, or a replica with a warm model, is ready when its model is in sync. A replica that only waits for the lease
//! watches nothing: it is ready once it could list NodePools and NodeClaims, so that a rollout without CRDs or permissions
//! gets stuck where it is noticed.
//!
//! A replica that converts objects for the API server has only the second check, even as the leader: objects of older
//! versions can be listed only while some replica is ready to convert them.
//!
//! UPSTREAM: pkg/operator/operator.go (the readiness checks `readyz` and `crd`)

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use karpenter_api::v1::{NodeClaim, NodePool};
use kube::api::ListParams;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::lease::Leadership;
use crate::watch_failure_log::WatchFailureLog;

/// Interval between attempts to list the kinds.
const LIST_INTERVAL: Duration = Duration::from_secs(5);
/// Timeout of an attempt.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct Readiness {
    cx: Arc<Context>,
    led: watch::Receiver<Leadership>,
    /// Whether the model runs before the lease is acquired.
    warm: bool,
    /// Whether the API server needs this replica to convert the cluster's objects.
    converts: bool,
    /// Why the kinds could not be listed, until they could. CRDs are not deleted from a cluster in use, so one success
    /// suffices, as in upstream's REST mapper.
    missing: ArcSwapOption<String>,
}

impl Readiness {
    pub(crate) fn new(cx: Arc<Context>, led: watch::Receiver<Leadership>, converts: bool) -> Self {
        let unknown = "nodepools and nodeclaims have not been listed yet";
        Self {
            warm: !cx.options.disable_controller_warmup,
            cx,
            led,
            converts,
            missing: ArcSwapOption::from_pointee(unknown.to_owned()),
        }
    }

    /// Returns whether readiness depends on listing the kinds, and not on the model.
    fn needs_kinds(&self) -> bool {
        self.converts || !self.warm && *self.led.borrow() == Leadership::Following
    }

    /// Returns the reason if the replica is not ready.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.needs_kinds() {
            let missing = self.missing.load_full();
            return missing.map_or(Ok(()), |reason| Err(reason.to_string()));
        }
        match self.cx.view().is_synced() {
            true => Ok(()),
            false => Err("the cluster model is not in sync".into()),
        }
    }

    /// Lists the kinds until it succeeds, or until the replica leads: then readiness depends on the model.
    pub(crate) async fn list_kinds(self: Arc<Self>, stop: CancellationToken) {
        let mut outage = WatchFailureLog::new("controller", "NodePool, NodeClaim");
        while self.needs_kinds() {
            match tokio::time::timeout(LIST_TIMEOUT, self.served()).await {
                Ok(Ok(())) => {
                    outage.worked();
                    self.missing.store(None);
                    return;
                }
                Ok(Err(error)) => {
                    outage.failed(&error);
                    let reason = format!("cannot list nodepools and nodeclaims: {error}");
                    self.missing.store(Some(Arc::new(reason)));
                }
                Err(error) => outage.failed(&error),
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LIST_INTERVAL) => {}
            }
        }
    }

    async fn served(&self) -> kube::Result<()> {
        self.serves::<NodePool>().await?;
        self.serves::<NodeClaim>().await
    }

    /// Lists one object, which requires the CRD and the permission, and little memory.
    async fn serves<K>(&self) -> kube::Result<()>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let api = Api::<K>::all(self.cx.clients.api.clone());
        match api.list_metadata(&ListParams::default().limit(1)).await {
            // The object exists, and needs a conversion that no replica performs yet.
            Err(kube::Error::Api(status)) if status.code == 500 => Ok(()),
            answer => answer.map(drop),
        }
    }
}
