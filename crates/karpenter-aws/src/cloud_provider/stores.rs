//! Node classes and NodePools as the API server has them, for reading without a call.

use std::sync::Arc;

use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_kube::events::Recorder;
use karpenter_kube::watching::Watching;
use kube::Client;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::Event;
use kube::runtime::{reflector, watcher};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::api::EC2NodeClass;
use crate::api::labels::GROUP;

/// Called with the name of a node class that was added, changed or deleted, and its current state.
type Listener = Box<dyn Fn(&str, Option<&Arc<EC2NodeClass>>) + Send + Sync>;

#[derive(Clone, Default)]
struct Listeners(Arc<Mutex<Vec<Listener>>>);

impl std::fmt::Debug for Listeners {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Listeners")
    }
}

impl Listeners {
    fn notify(&self, class: &EC2NodeClass, now: Option<&Arc<EC2NodeClass>>) {
        let name = class.metadata.name.as_deref().unwrap_or_default();
        let listeners = self.0.lock();
        listeners.iter().for_each(|listener| listener(name, now));
    }
}

/// Readers of the stores. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Stores {
    classes: Store<EC2NodeClass>,
    pools: Store<NodePool>,
    listeners: Listeners,
    filled: watch::Receiver<Filled>,
}

/// Signals which stores have been filled once. The stores' own `wait_until_ready` wakes only one of several waiting
/// tasks (kube-runtime 5.0, `DelayedInit`).
#[derive(Debug, Default)]
struct Filled {
    classes: bool,
    pools: bool,
}

/// The watches that fill the stores, to be run.
pub struct Watches {
    classes: Writer<EC2NodeClass>,
    pools: Writer<NodePool>,
    filled: watch::Sender<Filled>,
    stores: Stores,
}

impl std::fmt::Debug for Watches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watches")
    }
}

impl Stores {
    /// Creates empty stores, and the watches that fill them.
    #[must_use]
    pub fn new() -> (Self, Watches) {
        let (classes, class_writer) = reflector::store();
        let (pools, pool_writer) = reflector::store();
        let (filling, filled) = watch::channel(Filled::default());
        let stores = Self {
            classes,
            pools,
            listeners: Listeners::default(),
            filled,
        };
        let watches = Watches {
            classes: class_writer,
            pools: pool_writer,
            filled: filling,
            stores: stores.clone(),
        };
        (stores, watches)
    }

    /// Calls `listener` for every node class that is added, changed or deleted, after the store has been updated. The
    /// listener must not block.
    pub fn on_class(
        &self,
        listener: impl Fn(&str, Option<&Arc<EC2NodeClass>>) + Send + Sync + 'static,
    ) {
        let mut listeners = self.listeners.0.lock();
        listeners.push(Box::new(listener));
    }

    /// Waits until both stores have been filled once. Returns `false` if the watches were stopped before.
    pub async fn filled(&self) -> bool {
        let mut filled = self.filled.clone();
        let both = filled.wait_for(|filled| filled.classes && filled.pools);
        both.await.is_ok()
    }

    #[must_use]
    pub fn class(&self, name: &str) -> Option<Arc<EC2NodeClass>> {
        self.classes.get(&ObjectRef::new(name))
    }

    #[must_use]
    pub fn classes(&self) -> Vec<Arc<EC2NodeClass>> {
        self.classes.state()
    }

    #[must_use]
    pub fn pool(&self, name: &str) -> Option<Arc<NodePool>> {
        self.pools.get(&ObjectRef::new(name))
    }

    #[must_use]
    pub fn pools(&self) -> Vec<Arc<NodePool>> {
        self.pools.state()
    }

    /// Returns the node class a NodePool references, if it is an EC2NodeClass and exists.
    #[must_use]
    pub fn class_of_pool(&self, pool: &NodePool) -> Option<Arc<EC2NodeClass>> {
        let reference = &pool.spec.template.spec.node_class_ref;
        (reference.group == GROUP)
            .then(|| self.class(&reference.name))
            .flatten()
    }

    /// Returns the node class a NodeClaim references, if it is an EC2NodeClass and exists.
    #[must_use]
    pub fn class_of_claim(&self, claim: &NodeClaim) -> Option<Arc<EC2NodeClass>> {
        let reference = &claim.spec.node_class_ref;
        (reference.group == GROUP)
            .then(|| self.class(&reference.name))
            .flatten()
    }
}

impl Watches {
    /// Fills the stores until `stop` is cancelled.
    pub async fn run(self, client: Client, recorder: Recorder, stop: CancellationToken) {
        let of = |kind| Watching {
            logger: "provider",
            kind,
            recorder: recorder.clone(),
        };
        let (class, pool) = (of(EC2NodeClass::KIND), of(NodePool::KIND));
        let stores = self.stores;
        let config = watcher::Config::default;
        let classes = class.follow(
            client.clone(),
            config(),
            self.classes,
            |event| match event {
                Event::Apply(class) => {
                    let name = class.metadata.name.as_deref().unwrap_or_default();
                    let now = stores.class(name);
                    stores.listeners.notify(class, now.as_ref());
                }
                Event::Delete(class) => stores.listeners.notify(class, None),
                // A list replaces the content of the store at its end.
                Event::InitDone => {
                    self.filled.send_modify(|filled| filled.classes = true);
                    for class in stores.classes() {
                        stores.listeners.notify(&class, Some(&class));
                    }
                }
                Event::Init | Event::InitApply(_) => {}
            },
        );
        let pools = pool.follow(client.clone(), config(), self.pools, |event| {
            if matches!(event, Event::InitDone) {
                self.filled.send_modify(|filled| filled.pools = true);
            }
        });
        tokio::select! {
            _ = futures::future::join(classes, pools) => {}
            () = stop.cancelled() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::future::join_all;

    use super::*;

    #[tokio::test]
    async fn every_task_that_waits_for_the_stores_is_woken() {
        let (stores, watches) = Stores::new();
        let waiting = (0..8).map(|_| {
            let stores = stores.clone();
            tokio::spawn(async move { stores.filled().await })
        });
        let waiting: Vec<_> = waiting.collect();
        tokio::task::yield_now().await;
        watches.filled.send_modify(|filled| filled.classes = true);
        assert!(stores.filled().now_or_never().is_none(), "one of two");
        watches.filled.send_modify(|filled| filled.pools = true);
        for filled in join_all(waiting).await {
            assert!(filled.unwrap());
        }
    }

    #[tokio::test]
    async fn waiting_ends_when_the_watches_are_dropped() {
        let (stores, watches) = Stores::new();
        drop(watches);
        assert!(!stores.filled().await);
    }
}
