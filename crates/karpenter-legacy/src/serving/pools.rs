//! The expiry of NodePools, for NodeClaims of v1beta1. Every replica answers the API server, and only the leader has a model.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use futures::{StreamExt, pin_mut};
use karpenter_api::v1::NodePool;
use karpenter_kube::watch_failure_log::WatchFailureLog;
use kube::Client;
use kube::api::DynamicObject;
use kube::runtime::watcher::{Event, watcher as watch};
use kube::runtime::{WatchStreamExt, watcher};

use crate::controller::dynamic;
use crate::conversion::Lookup;

/// The default expiry of NodePools.
const DEFAULT: &str = "720h";

/// The expiry of each NodePool, once they are listed.
#[derive(Clone, Debug, Default)]
pub(super) struct Pools(Arc<ArcSwapOption<BTreeMap<String, String>>>);

impl Pools {
    pub(super) async fn follow(&self, client: Client) {
        let config = watcher::Config::default().any_semantic();
        let events = watch(dynamic::<NodePool>(&client), config);
        let events = events.backoff(watcher::DefaultBackoff::default());
        pin_mut!(events);
        let mut known = BTreeMap::new();
        let mut listed = false;
        let mut outage = WatchFailureLog::new("webhook", NodePool::KIND);
        while let Some(event) = events.next().await {
            outage.saw(&event);
            match event {
                Ok(Event::Init) => {
                    known.clear();
                    listed = false;
                }
                Ok(Event::InitApply(pool) | Event::Apply(pool)) => {
                    known.insert(name(&pool), expire_after(&pool));
                }
                Ok(Event::Delete(pool)) => {
                    known.remove(&name(&pool));
                }
                Ok(Event::InitDone) => listed = true,
                Err(_) => continue,
            }
            if listed {
                self.0.store(Some(Arc::new(known.clone())));
            }
        }
    }
}

fn name(pool: &DynamicObject) -> String {
    pool.metadata.name.clone().unwrap_or_default()
}

fn expire_after(pool: &DynamicObject) -> String {
    let expiry = pool.data["spec"]["template"]["spec"]["expireAfter"].as_str();
    expiry.unwrap_or(DEFAULT).to_owned()
}

impl Lookup for Pools {
    fn expire_after(&self, node_pool: &str) -> Option<String> {
        self.0.load().as_ref()?.get(node_pool).cloned()
    }

    fn is_ready(&self) -> bool {
        self.0.load().is_some()
    }
}
