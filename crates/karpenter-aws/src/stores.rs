//! Node classes and NodePools as the API server has them, for reading without asking.

use std::sync::{Arc, Mutex, PoisonError};

use futures::{Stream, StreamExt, TryStreamExt};
use karpenter_api::v1::{NodeClaim, NodePool};
use kube::runtime::reflector::{self, ObjectRef, Store, store::Writer};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

use crate::api::EC2NodeClass;
use crate::api::labels::GROUP;

/// Is told the name of a node class that came, changed or went, and what it is like now.
type Listener = Box<dyn Fn(&str, Option<&Arc<EC2NodeClass>>) + Send + Sync>;

#[derive(Clone, Default)]
struct Listeners(Arc<Mutex<Vec<Listener>>>);

impl std::fmt::Debug for Listeners {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Listeners")
    }
}

impl Listeners {
    fn tell(&self, class: &EC2NodeClass, now: Option<&Arc<EC2NodeClass>>) {
        let name = class.metadata.name.as_deref().unwrap_or_default();
        let listeners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.iter().for_each(|listener| listener(name, now));
    }
}

/// Readers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Stores {
    classes: Store<EC2NodeClass>,
    pools: Store<NodePool>,
    listeners: Listeners,
}

/// What fills the stores, to be run.
pub struct Watches {
    classes: Writer<EC2NodeClass>,
    pools: Writer<NodePool>,
    told: Stores,
}

impl std::fmt::Debug for Watches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watches")
    }
}

impl Stores {
    /// Empty stores, and what fills them.
    #[must_use]
    pub fn new() -> (Self, Watches) {
        let (classes, class_writer) = reflector::store();
        let (pools, pool_writer) = reflector::store();
        let stores = Self {
            classes,
            pools,
            listeners: Listeners::default(),
        };
        let watches = Watches {
            classes: class_writer,
            pools: pool_writer,
            told: stores.clone(),
        };
        (stores, watches)
    }

    /// Tells `listener` of every node class that comes, changes or goes, once the store has it. Be quick.
    pub fn on_class(
        &self,
        listener: impl Fn(&str, Option<&Arc<EC2NodeClass>>) + Send + Sync + 'static,
    ) {
        let mut listeners = self
            .listeners
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        listeners.push(Box::new(listener));
    }

    /// Waits until both stores have been filled once. `false` if what fills them was stopped before.
    pub async fn filled(&self) -> bool {
        self.classes.wait_until_ready().await.is_ok() && self.pools.wait_until_ready().await.is_ok()
    }

    /// The node class of this name.
    #[must_use]
    pub fn class(&self, name: &str) -> Option<Arc<EC2NodeClass>> {
        self.classes.get(&ObjectRef::new(name))
    }

    /// All node classes.
    #[must_use]
    pub fn classes(&self) -> Vec<Arc<EC2NodeClass>> {
        self.classes.state()
    }

    /// The NodePool of this name.
    #[must_use]
    pub fn pool(&self, name: &str) -> Option<Arc<NodePool>> {
        self.pools.get(&ObjectRef::new(name))
    }

    /// All NodePools.
    #[must_use]
    pub fn pools(&self) -> Vec<Arc<NodePool>> {
        self.pools.state()
    }

    /// The node class a NodePool names, if it is one of ours and exists.
    #[must_use]
    pub fn class_of_pool(&self, pool: &NodePool) -> Option<Arc<EC2NodeClass>> {
        let reference = &pool.spec.template.spec.node_class_ref;
        (reference.group == GROUP)
            .then(|| self.class(&reference.name))
            .flatten()
    }

    /// The node class a claim names, if it is one of ours and exists.
    #[must_use]
    pub fn class_of_claim(&self, claim: &NodeClaim) -> Option<Arc<EC2NodeClass>> {
        let reference = &claim.spec.node_class_ref;
        (reference.group == GROUP)
            .then(|| self.class(&reference.name))
            .flatten()
    }
}

impl Watches {
    /// Fills the stores until told to stop.
    pub async fn run(self, client: Client, stop: CancellationToken) {
        let stores = self.told;
        let classes =
            follow(Api::<EC2NodeClass>::all(client.clone()), self.classes).inspect_ok(|event| {
                match event {
                    watcher::Event::Apply(class) => {
                        let name = class.metadata.name.as_deref().unwrap_or_default();
                        let now = stores.class(name);
                        stores.listeners.tell(class, now.as_ref());
                    }
                    watcher::Event::Delete(class) => stores.listeners.tell(class, None),
                    // A list replaces what was known as a whole, at its end.
                    watcher::Event::InitDone => {
                        for class in stores.classes() {
                            stores.listeners.tell(&class, Some(&class));
                        }
                    }
                    watcher::Event::Init | watcher::Event::InitApply(_) => {}
                }
            });
        let pools = follow(Api::<NodePool>::all(client), self.pools);
        let both = futures::future::join(drain(classes), drain(pools));
        tokio::select! {
            _ = both => {}
            () = stop.cancelled() => {}
        }
    }
}

fn follow<K>(
    api: Api<K>,
    writer: Writer<K>,
) -> impl Stream<Item = Result<watcher::Event<K>, watcher::Error>> + Send
where
    K: kube::Resource<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let stream = watcher(api, watcher::Config::default()).default_backoff();
    reflector::reflector(writer, stream)
}

async fn drain<K>(stream: impl Stream<Item = Result<watcher::Event<K>, watcher::Error>>) {
    let mut stream = std::pin::pin!(stream);
    while let Some(event) = stream.next().await {
        if let Err(error) = event {
            tracing::debug!(logger = "provider", error = %error, "a watch was interrupted");
        }
    }
}
