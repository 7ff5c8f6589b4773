//! The cache of the loops: one watch per kind, one copy of every object, shared by all loops.
//!
//! Each kind's watcher applies events to its table and then sends the change, old and new object, to every subscriber. Pods are
//! stored in a compact form, without the fields that no loop reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, PodSpec, PodStatus,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use parking_lot::RwLock;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;

/// Namespace (empty for cluster-scoped kinds) and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) namespace: Arc<str>,
    pub(crate) name: Arc<str>,
}

impl Key {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// Returns the key of an object with this metadata.
    pub(crate) fn of(meta: &ObjectMeta) -> Self {
        Self::new(
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default(),
        )
    }
}

#[derive(Debug, Clone)]
pub(crate) struct PodRecord {
    pub(crate) meta: ObjectMeta,
    /// The spec without `nodeName`.
    pub(crate) spec: PodSpec,
    pub(crate) node: Option<Arc<str>>,
    pub(crate) status: PodStatus,
}

impl PodRecord {
    pub(crate) fn key(&self) -> Key {
        Key::of(&self.meta)
    }

    pub(crate) fn uid(&self) -> &str {
        self.meta.uid.as_deref().unwrap_or_default()
    }

    pub(crate) fn name(&self) -> &str {
        self.meta.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn namespace(&self) -> &str {
        self.meta.namespace.as_deref().unwrap_or_default()
    }

    /// `status.phase`, `Pending` while unset.
    pub(crate) fn phase(&self) -> &str {
        self.status.phase.as_deref().unwrap_or("Pending")
    }

    pub(crate) fn is_terminal(&self) -> bool {
        matches!(self.phase(), "Succeeded" | "Failed")
    }

    pub(crate) fn is_terminating(&self) -> bool {
        self.meta.deletion_timestamp.is_some()
    }

    /// Whether the pod has neither ended nor is being deleted.
    pub(crate) fn is_active(&self) -> bool {
        !self.is_terminal() && !self.is_terminating()
    }

    /// Whether its `Ready` condition is true.
    pub(crate) fn is_ready(&self) -> bool {
        self.condition("Ready").is_some_and(|c| c.status == "True")
    }

    pub(crate) fn condition(
        &self,
        type_: &str,
    ) -> Option<&k8s_openapi::api::core::v1::PodCondition> {
        self.status
            .conditions
            .iter()
            .flatten()
            .find(|c| c.type_ == type_)
    }

    pub(crate) fn controller(&self) -> Option<&OwnerReference> {
        controller_of(&self.meta)
    }
}

pub(crate) fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references
        .iter()
        .flatten()
        .find(|o| o.controller == Some(true))
}

/// One change of one object. `None` is "did not exist" or "does not exist any more".
#[derive(Debug, Clone)]
pub(crate) struct Diff<K> {
    pub(crate) old: Option<Arc<K>>,
    pub(crate) new: Option<Arc<K>>,
}

impl<K> Diff<K> {
    /// Returns the object after the change, or its last state.
    pub(crate) fn latest(&self) -> Option<&Arc<K>> {
        self.new.as_ref().or(self.old.as_ref())
    }
}

impl<K: Resource> Diff<K> {
    pub(crate) fn key(&self) -> Key {
        self.latest()
            .map_or_else(|| Key::new("", ""), |object| Key::of(object.meta()))
    }
}

#[derive(Debug, Default)]
pub(crate) struct PodTable {
    by_key: FxHashMap<Key, Arc<PodRecord>>,
    by_node: FxHashMap<Arc<str>, FxHashSet<Key>>,
    /// By the UID of the controller.
    by_controller: FxHashMap<String, FxHashSet<Key>>,
    by_namespace: FxHashMap<Arc<str>, FxHashSet<Key>>,
}

impl PodTable {
    fn record(pod: Pod) -> PodRecord {
        let Pod {
            mut metadata,
            spec,
            status,
        } = pod;
        trim(&mut metadata);
        let mut spec = spec.unwrap_or_default();
        let node = spec
            .node_name
            .take()
            .filter(|n| !n.is_empty())
            .map(Arc::from);
        for container in spec
            .containers
            .iter_mut()
            .chain(spec.init_containers.iter_mut().flatten())
        {
            container.env = None;
            container.env_from = None;
            container.command = None;
            container.args = None;
            container.volume_mounts = None;
            container.lifecycle = None;
            container.liveness_probe = None;
            container.startup_probe = None;
            container.security_context = None;
        }
        PodRecord {
            meta: metadata,
            spec,
            node,
            status: status.unwrap_or_default(),
        }
    }

    fn set(&mut self, key: &Key, new: Option<Arc<PodRecord>>) -> Option<Arc<PodRecord>> {
        let old = match &new {
            Some(pod) => self.by_key.insert(key.clone(), pod.clone()),
            None => self.by_key.remove(key),
        };
        if let Some(pod) = &old {
            self.index(key, pod, false);
        }
        if let Some(pod) = &new {
            self.index(key, pod, true);
        }
        old
    }

    fn index(&mut self, key: &Key, pod: &PodRecord, add: bool) {
        if let Some(node) = &pod.node {
            enter(&mut self.by_node, node.clone(), key, add);
        }
        if let Some(owner) = pod.controller() {
            enter(&mut self.by_controller, owner.uid.clone(), key, add);
        }
        enter(&mut self.by_namespace, key.namespace.clone(), key, add);
    }

    fn pick(&self, keys: Option<&FxHashSet<Key>>) -> Vec<Arc<PodRecord>> {
        keys.into_iter()
            .flatten()
            .filter_map(|k| self.by_key.get(k).cloned())
            .collect()
    }
}

fn enter<I: std::hash::Hash + Eq>(
    index: &mut FxHashMap<I, FxHashSet<Key>>,
    at: I,
    key: &Key,
    add: bool,
) {
    if add {
        index.entry(at).or_default().insert(key.clone());
    } else if let Some(set) = index.get_mut(&at) {
        set.remove(key);
        if set.is_empty() {
            index.remove(&at);
        }
    }
}

/// Objects of one kind.
#[derive(Debug)]
pub(crate) struct Table<K> {
    objects: RwLock<FxHashMap<Key, Arc<K>>>,
}

impl<K> Default for Table<K> {
    fn default() -> Self {
        Self {
            objects: RwLock::new(FxHashMap::default()),
        }
    }
}

impl<K> Table<K> {
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.objects.read().get(key).cloned()
    }

    /// Returns the cluster-scoped object of this name.
    pub(crate) fn named(&self, name: &str) -> Option<Arc<K>> {
        self.get(&Key::new("", name))
    }

    pub(crate) fn all(&self) -> Vec<Arc<K>> {
        self.objects.read().values().cloned().collect()
    }

    /// Returns all objects of a namespace, unordered.
    pub(crate) fn in_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        self.objects
            .read()
            .iter()
            .filter(|(k, _)| &*k.namespace == namespace)
            .map(|(_, v)| v.clone())
            .collect()
    }

    fn set(&self, key: &Key, new: Option<Arc<K>>) -> Option<Arc<K>> {
        let mut objects = self.objects.write();
        match new {
            Some(object) => objects.insert(key.clone(), object),
            None => objects.remove(key),
        }
    }

    fn keys(&self) -> Vec<Key> {
        self.objects.read().keys().cloned().collect()
    }
}

/// How a kind is watched and stored in the cache.
trait Cached:
    Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static
{
    /// Stores (or removes) the object and returns the change.
    fn store(cache: &Cache, key: &Key, object: Option<Self>) -> Change;
    fn keys(cache: &Cache) -> Vec<Key>;
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $field:ident: $kind:ident,)*) => {
        /// The shared copy of the cluster.
        #[derive(Debug, Default)]
        pub(crate) struct Cache {
            pods: RwLock<PodTable>,
            $($(#[$doc])* pub(crate) $field: Table<$kind>,)*
            subscribers: RwLock<Vec<mpsc::UnboundedSender<Change>>>,
            /// Number of kinds that have been listed.
            listed: AtomicUsize,
            /// Wakes waiters for a listed kind, in the order of their arrival.
            newly_listed: Notify,
        }

        #[derive(Debug, Clone)]
        pub(crate) enum Change {
            Pod(Diff<PodRecord>),
            $(
                /// An object of this kind.
                $kind(Diff<$kind>),
            )*
        }

        $(impl Cached for $kind {
            fn store(cache: &Cache, key: &Key, object: Option<Self>) -> Change {
                let new = object.map(|mut o| {
                    trim(o.meta_mut());
                    Arc::new(o)
                });
                let old = cache.$field.set(key, new.clone());
                Change::$kind(Diff { old, new })
            }

            fn keys(cache: &Cache) -> Vec<Key> {
                cache.$field.keys()
            }
        })*

        /// The number of kinds of the cache.
        const KINDS: usize = 1 + [$(stringify!($kind)),*].len();

        impl Cache {
            /// Watches every kind until canceled.
            pub(crate) fn start(
                self: &Arc<Self>,
                client: &Client,
                clock: Clock,
                token: &CancellationToken,
                tasks: &mut tokio::task::JoinSet<()>,
            ) {
                tasks.spawn(follow::<Pod>(self.clone(), client.clone(), clock, token.clone()));
                $(tasks.spawn(follow::<$kind>(self.clone(), client.clone(), clock, token.clone()));)*
            }
        }
    };
}

kinds! {
    nodes: Node,
    leases: Lease,
    namespaces: Namespace,
    deployments: Deployment,
    replica_sets: ReplicaSet,
    stateful_sets: StatefulSet,
    daemon_sets: DaemonSet,
    jobs: Job,
    budgets: PodDisruptionBudget,
    claims: PersistentVolumeClaim,
    volumes: PersistentVolume,
    storage_classes: StorageClass,
}

impl Cached for Pod {
    fn store(cache: &Cache, key: &Key, object: Option<Self>) -> Change {
        let mut pods = cache.pods.write();
        let new = object.map(|pod| Arc::new(PodTable::record(pod)));
        let old = pods.set(key, new.clone());
        Change::Pod(Diff { old, new })
    }

    fn keys(cache: &Cache) -> Vec<Key> {
        cache.pods.read().by_key.keys().cloned().collect()
    }
}

impl Cache {
    /// Waits until every kind has been listed once.
    pub(crate) async fn synced(&self) {
        loop {
            let mut woken = std::pin::pin!(self.newly_listed.notified());
            woken.as_mut().enable();
            if self.listed.load(Ordering::SeqCst) >= KINDS {
                return;
            }
            woken.await;
        }
    }

    /// Subscribes to all changes from now on.
    pub(crate) fn subscribe(&self) -> mpsc::UnboundedReceiver<Change> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.subscribers.write().push(sender);
        receiver
    }

    fn publish(&self, change: &Change) {
        let subscribers = self.subscribers.read();
        for subscriber in subscribers.iter() {
            // A loop that has ended no longer receives.
            let _closed = subscriber.send(change.clone()).is_err();
        }
    }

    pub(crate) fn pod(&self, key: &Key) -> Option<Arc<PodRecord>> {
        self.pods.read().by_key.get(key).cloned()
    }

    /// The pods bound to a node.
    pub(crate) fn pods_on(&self, node: &str) -> Vec<Arc<PodRecord>> {
        let pods = self.pods.read();
        pods.pick(pods.by_node.get(node))
    }

    /// The pods whose controller has this UID.
    pub(crate) fn pods_of(&self, uid: &str) -> Vec<Arc<PodRecord>> {
        let pods = self.pods.read();
        pods.pick(pods.by_controller.get(uid))
    }

    pub(crate) fn pods_in(&self, namespace: &str) -> Vec<Arc<PodRecord>> {
        let pods = self.pods.read();
        pods.pick(pods.by_namespace.get(namespace))
    }
}

/// Drops fields that no loop reads.
fn trim(meta: &mut ObjectMeta) {
    meta.managed_fields = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}

/// Keeps one kind's table current until canceled.
async fn follow<K: Cached>(
    cache: Arc<Cache>,
    client: Client,
    clock: Clock,
    token: CancellationToken,
) {
    let api: Api<K> = Api::all(client);
    let mut events = std::pin::pin!(watcher(api, watcher::Config::default().any_semantic()));
    let mut listed: Vec<K> = Vec::new();
    let mut first = true;
    let mut failures = 0u32;
    loop {
        let event = tokio::select! {
            biased;
            () = token.cancelled() => return,
            event = events.next() => event,
        };
        match event {
            Some(Ok(event)) => {
                failures = 0;
                match event {
                    watcher::Event::Init => listed.clear(),
                    watcher::Event::InitApply(object) => listed.push(object),
                    watcher::Event::InitDone => {
                        replace_all(&cache, std::mem::take(&mut listed));
                        if std::mem::take(&mut first) {
                            cache.listed.fetch_add(1, Ordering::SeqCst);
                            cache.newly_listed.notify_waiters();
                        }
                    }
                    watcher::Event::Apply(object) => {
                        let key = Key::of(object.meta());
                        cache.publish(&K::store(&cache, &key, Some(object)));
                    }
                    watcher::Event::Delete(object) => {
                        let key = Key::of(object.meta());
                        cache.publish(&K::store(&cache, &key, None));
                    }
                }
            }
            Some(Err(error)) => {
                tracing::debug!(kind = %K::kind(&()), %error, "watch failed");
                let pause = Duration::from_millis(100u64 << failures.min(8));
                failures += 1;
                tokio::select! {
                    biased;
                    () = token.cancelled() => return,
                    () = clock.sleep(pause) => {}
                }
            }
            None => return,
        }
    }
}

/// After a list, objects that are not in it are deleted.
fn replace_all<K: Cached>(cache: &Cache, listed: Vec<K>) {
    let mut gone: FxHashSet<Key> = K::keys(cache).into_iter().collect();
    for object in listed {
        let key = Key::of(object.meta());
        gone.remove(&key);
        cache.publish(&K::store(cache, &key, Some(object)));
    }
    for key in gone {
        cache.publish(&K::store(cache, &key, None));
    }
}

/// An API for one object's namespace.
pub(crate) fn api<K>(client: &Client, key: &Key) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    Api::namespaced(client.clone(), &key.namespace)
}
