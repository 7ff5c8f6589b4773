//! Whether this replica does its work, or could take it over: what `/readyz` says.
//!
//! Who leads, or is warm, must know the cluster. A replica that only waits for the lease watches nothing: it is ready once it
//! has been shown NodePools and NodeClaims, so that a rollout without definitions or permissions gets stuck where it can be seen.
//!
//! A replica that converts objects for the API server is asked no more than that, whoever leads: objects of older versions can
//! be listed only while some replica is ready to convert them.
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
use crate::outage::Outage;

/// How long to wait before the kinds are looked for again.
const PAUSE: Duration = Duration::from_secs(5);
/// How long a look may take.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Readiness {
    cx: Arc<Context>,
    led: watch::Receiver<Leadership>,
    /// Whether the model runs before the lease is won.
    warm: bool,
    /// Whether the API server needs this replica before it can show the cluster.
    converts: bool,
    /// Why the kinds are not known to be served, until they are. Definitions are not taken away from a cluster in use, so
    /// that is found out once, as upstream's REST mapper does.
    missing: ArcSwapOption<String>,
}

impl Readiness {
    pub(crate) fn new(cx: Arc<Context>, led: watch::Receiver<Leadership>, converts: bool) -> Self {
        let unknown = "nodepools and nodeclaims have not been looked for yet";
        Self {
            warm: !cx.options.disable_controller_warmup,
            cx,
            led,
            converts,
            missing: ArcSwapOption::from_pointee(unknown.to_owned()),
        }
    }

    /// Whether the kinds are what counts, and not what the model knows.
    fn looks(&self) -> bool {
        self.converts || !self.warm && *self.led.borrow() == Leadership::Following
    }

    /// Whether the replica is ready, and why not.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.looks() {
            let missing = self.missing.load_full();
            return missing.map_or(Ok(()), |reason| Err(reason.to_string()));
        }
        match self.cx.view().is_synced() {
            true => Ok(()),
            false => Err("the cluster model is not in sync".into()),
        }
    }

    /// Looks for the kinds until they are found, or until the replica leads: the model tells then.
    pub(crate) async fn look(self: Arc<Self>, stop: CancellationToken) {
        let mut outage = Outage::new("controller", "NodePool, NodeClaim");
        while self.looks() {
            match tokio::time::timeout(PATIENCE, self.served()).await {
                Ok(Ok(())) => {
                    outage.worked();
                    self.missing.store(None);
                    return;
                }
                Ok(Err(error)) => {
                    outage.failed(&error);
                    let reason = format!("nodepools and nodeclaims cannot be listed, {error}");
                    self.missing.store(Some(Arc::new(reason)));
                }
                Err(error) => outage.failed(&error),
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    async fn served(&self) -> kube::Result<()> {
        self.serves::<NodePool>().await?;
        self.serves::<NodeClaim>().await
    }

    /// Lists one object, which needs the definition and the permission, and no room.
    async fn serves<K>(&self) -> kube::Result<()>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let api = Api::<K>::all(self.cx.clients.api.clone());
        match api.list_metadata(&ListParams::default().limit(1)).await {
            // The object is there, and needs a conversion that nobody does yet.
            Err(kube::Error::Api(status)) if status.code == 500 => Ok(()),
            answer => answer.map(drop),
        }
    }
}
