//! Watches the API server: one task per kind feeds the model.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::apps::v1::{DaemonSet, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ReplicationController, Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass, VolumeAttachment};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_api::v1alpha1::NodeOverlay;
use karpenter_core::provider::NodeClassKind;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::task::{ModelHandle, State, Update};
use super::view::{Change, NodeClass};
use super::watched_pod::WatchedPod;
use crate::events::Recorder;
use crate::watch_failure_log::WatchFailureLog;
use crate::watching::{Guarded, Watching};

/// The optional kinds that are watched.
#[derive(Debug, Clone, Default)]
pub struct Kinds {
    /// Kinds of the provider's NodeClasses.
    pub node_classes: Vec<NodeClassKind>,
    /// Whether NodeOverlays are watched.
    pub node_overlays: bool,
    /// Whether device allocation is simulated (DRA kinds).
    pub devices: bool,
    /// Whether workloads are watched, for the selectors of default spread constraints.
    pub workload_selectors: bool,
}

/// Kinds that must be listed before plans are made.
pub(super) const AWAITED: &[&str] = &[
    "Pod",
    "Node",
    "NodeClaim",
    "NodePool",
    "DaemonSet",
    "PodDisruptionBudget",
    "PersistentVolumeClaim",
    "PersistentVolume",
    "StorageClass",
    "CSINode",
    "VolumeAttachment",
    "Namespace",
];

impl Kinds {
    /// Returns the kinds that must be listed before plans are made.
    #[must_use]
    pub fn awaited(&self) -> Vec<&'static str> {
        let mut awaited = AWAITED.to_vec();
        if !self.node_classes.is_empty() {
            awaited.push("NodeClass");
        }
        awaited
    }
}

type Apply<K> = Arc<dyn Fn(&mut State, K) + Send + Sync>;
type Remove = Arc<dyn Fn(&mut State, &str, &str) + Send + Sync>;

/// Callbacks that add and remove objects of one kind.
struct Feed<K> {
    kind: &'static str,
    apply: Apply<K>,
    remove: Remove,
}

/// Starts a watcher for each kind.
pub fn spawn_watchers(
    client: &Client,
    kinds: &Kinds,
    model: &ModelHandle,
    recorder: &Recorder,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) {
    let watcher = Watchers {
        client: client.clone(),
        updates: model.sender(),
        recorder: recorder.clone(),
        tasks,
        stop,
    };
    watcher.pods();
    watcher.plain("Node", trim_node, State::apply_node, |s, _, name| {
        s.remove_node(name)
    });
    watcher.guarded::<NodeClaim>(
        "NodeClaim",
        |s, o| s.apply_node_claim(o),
        |s, _, name| s.remove_node_claim(name),
    );
    watcher.guarded::<NodePool>(
        "NodePool",
        |s, o| s.apply_node_pool(&o),
        |s, _, name| s.remove_node_pool(name),
    );

    macro_rules! engine {
        ($kind:ident, $apply:ident, $remove:ident, namespaced) => {
            watcher.plain(
                stringify!($kind),
                |_: &mut $kind| {},
                |s: &mut State, o: $kind| {
                    if s.cluster.$apply(&o).is_change() {
                        s.changed(Change::Other(stringify!($kind)));
                    }
                },
                |s, namespace, name| {
                    if s.cluster.$remove(namespace, name).is_change() {
                        s.changed(Change::Other(stringify!($kind)));
                    }
                },
            );
        };
        ($kind:ident, $apply:ident, $remove:ident, cluster) => {
            watcher.plain(
                stringify!($kind),
                |_: &mut $kind| {},
                |s: &mut State, o: $kind| {
                    if s.cluster.$apply(&o).is_change() {
                        s.changed(Change::Other(stringify!($kind)));
                    }
                },
                |s, _, name| {
                    if s.cluster.$remove(name).is_change() {
                        s.changed(Change::Other(stringify!($kind)));
                    }
                },
            );
        };
    }
    engine!(DaemonSet, apply_daemon_set, remove_daemon_set, namespaced);
    engine!(PodDisruptionBudget, apply_pdb, remove_pdb, namespaced);
    engine!(
        PersistentVolumeClaim,
        apply_volume_claim,
        remove_volume_claim,
        namespaced
    );
    engine!(PersistentVolume, apply_volume, remove_volume, cluster);
    engine!(
        StorageClass,
        apply_storage_class,
        remove_storage_class,
        cluster
    );
    engine!(CSINode, apply_csi_node, remove_csi_node, cluster);
    engine!(Namespace, apply_namespace, remove_namespace, cluster);
    if kinds.workload_selectors {
        engine!(Service, apply_service, remove_service, namespaced);
        engine!(
            ReplicaSet,
            apply_replica_set,
            remove_replica_set,
            namespaced
        );
        engine!(
            StatefulSet,
            apply_stateful_set,
            remove_stateful_set,
            namespaced
        );
        engine!(
            ReplicationController,
            apply_replication_controller,
            remove_replication_controller,
            namespaced
        );
    }
    if kinds.devices {
        engine!(
            ResourceSlice,
            apply_resource_slice,
            remove_resource_slice,
            cluster
        );
        engine!(
            ResourceClaim,
            apply_resource_claim,
            remove_resource_claim,
            namespaced
        );
        engine!(
            DeviceClass,
            apply_device_class,
            remove_device_class,
            cluster
        );
    }
    if kinds.node_overlays {
        watcher.guarded::<NodeOverlay>(
            "NodeOverlay",
            |s, o| {
                if s.cluster.apply_node_overlay(&o).is_change() {
                    s.changed(Change::Other("NodeOverlay"));
                }
            },
            |s, _, name| {
                if s.cluster.remove_node_overlay(name).is_change() {
                    s.changed(Change::Other("NodeOverlay"));
                }
            },
        );
    }
    watcher.plain(
        "VolumeAttachment",
        |_: &mut VolumeAttachment| {},
        |s: &mut State, o: VolumeAttachment| s.apply_attachment(&o),
        |s, _, name| s.remove_attachment(name),
    );
    for class in &kinds.node_classes {
        watcher.node_class(class);
    }
}

/// Removes the parts of a Node that no controller reads: more than half of it, and timestamps that change with every heartbeat.
fn trim_node(node: &mut Node) {
    if let Some(status) = &mut node.status {
        status.images = None;
        status.volumes_in_use = None;
        for condition in status.conditions.iter_mut().flatten() {
            condition.last_heartbeat_time = None;
        }
    }
}

/// Returns why kube-scheduler did not schedule a pod: the message of condition PodScheduled while it is False.
fn refusal(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let scheduled = conditions.iter().find(|c| c.type_ == "PodScheduled")?;
    let message = scheduled.message.clone();
    message.filter(|message| scheduled.status == "False" && !message.is_empty())
}

struct Watchers<'a> {
    client: Client,
    updates: mpsc::Sender<Update>,
    recorder: Recorder,
    tasks: &'a TaskTracker,
    stop: &'a CancellationToken,
}

impl Watchers<'_> {
    fn pods(&self) {
        let feed = Feed {
            kind: "Pod",
            apply: Arc::new(|s: &mut State, (pod, refusal)| {
                s.refused(&pod, refusal);
                s.apply_pod(pod);
            }),
            remove: Arc::new(|s: &mut State, namespace, name| s.remove_pod(namespace, name)),
        };
        // Parsed here, not on the model's task.
        self.spawn(Api::<WatchedPod>::all(self.client.clone()), feed, |pod| {
            let pod = pod.into();
            Some((karpenter_core::pod::Pod::parse(&pod), refusal(&pod)))
        });
    }

    fn plain<K>(
        &self,
        kind: &'static str,
        trim: impl Fn(&mut K) + Send + Sync + 'static,
        apply: impl Fn(&mut State, K) + Send + Sync + 'static,
        remove: impl Fn(&mut State, &str, &str) + Send + Sync + 'static,
    ) where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + 'static,
    {
        let feed = Feed {
            kind,
            apply: Arc::new(apply),
            remove: Arc::new(remove),
        };
        self.spawn(
            Api::<K>::all(self.client.clone()),
            feed,
            move |mut object| {
                object.meta_mut().managed_fields = None;
                trim(&mut object);
                Some(object)
            },
        );
    }

    /// Watches a kind that users write: an object that cannot be parsed is reported on itself and skipped, and its last
    /// valid version stays.
    fn guarded<K>(
        &self,
        kind: &'static str,
        apply: impl Fn(&mut State, K) + Send + Sync + 'static,
        remove: impl Fn(&mut State, &str, &str) + Send + Sync + 'static,
    ) where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + 'static,
    {
        let feed = Feed {
            kind,
            apply: Arc::new(apply),
            remove: Arc::new(remove),
        };
        let watching = Watching {
            logger: "model",
            kind,
            recorder: self.recorder.clone(),
        };
        let api = Api::<Guarded<K>>::all(self.client.clone());
        self.spawn(api, feed, move |object| watching.read(object));
    }

    fn node_class(&self, class: &NodeClassKind) {
        let resource = ApiResource {
            plural: class.plural.clone(),
            ..ApiResource::from_gvk(&GroupVersionKind::gvk(
                &class.group,
                &class.version,
                &class.kind,
            ))
        };
        let (group, kind) = (class.group.clone(), class.kind.clone());
        let (removed_group, removed_kind) = (group.clone(), kind.clone());
        let feed = Feed {
            kind: "NodeClass",
            apply: Arc::new(|s: &mut State, class| s.apply_node_class(class)),
            remove: Arc::new(move |s: &mut State, _, name| {
                s.remove_node_class(&removed_group, &removed_kind, name)
            }),
        };
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        self.spawn(api, feed, move |object| {
            Some(NodeClass::parse(&group, &object, &kind))
        });
    }

    /// Watches objects of `W`; `read` returns the object that the model keeps, or `None`.
    fn spawn<W, K>(
        &self,
        api: Api<W>,
        feed: Feed<K>,
        read: impl Fn(W) -> Option<K> + Send + Sync + 'static,
    ) where
        W: Resource + DeserializeOwned + Clone + Debug + Send + 'static,
        K: Send + 'static,
    {
        let (updates, stop) = (self.updates.clone(), self.stop.clone());
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = follow(api, feed, read, updates) => {}
                () = stop.cancelled() => {}
            }
        });
    }
}

/// `namespace/name`; compact, because a large cluster has many.
type Key = Box<str>;

fn key_of<W: Resource>(object: &W) -> Key {
    let meta = object.meta();
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let name = meta.name.as_deref().unwrap_or_default();
    format!("{namespace}/{name}").into()
}

/// Number of listed objects that go into the model at a time: they share no memory before, and take far more of it.
const PORTION: usize = 250;

/// Feeds objects of one kind into the model.
struct Feeder<K> {
    feed: Feed<K>,
    updates: mpsc::Sender<Update>,
    /// Keys in the model, each with the last list that contained it.
    known: BTreeMap<Key, u32>,
    /// Number of the current or last list.
    list: u32,
    /// Objects of the list that are not in the model yet.
    portion: Vec<K>,
}

struct ModelStopped;

impl<K: Send + 'static> Feeder<K> {
    async fn send(
        &mut self,
        update: impl FnOnce(&mut State) + Send + 'static,
    ) -> Result<(), ModelStopped> {
        let update: Update = Box::new(update);
        self.updates.send(update).await.map_err(|_| ModelStopped)
    }

    fn begin_list(&mut self) {
        self.list = self.list.wrapping_add(1);
        self.portion.clear();
    }

    async fn listed(&mut self, key: Key, object: Option<K>) -> Result<(), ModelStopped> {
        self.known.insert(key, self.list);
        self.portion.extend(object);
        if self.portion.len() < PORTION {
            return Ok(());
        }
        let (apply, objects) = (Arc::clone(&self.feed.apply), self.take_portion());
        let (done, applied) = oneshot::channel();
        self.send(move |state| {
            objects.into_iter().for_each(|object| apply(state, object));
            // The receiver is dropped once the watcher has been stopped.
            let _ = done.send(());
        })
        .await?;
        // The next page is read afterwards: the whole list must not accumulate in front of the model.
        applied.await.map_err(|_| ModelStopped)
    }

    fn take_portion(&mut self) -> Vec<K> {
        std::mem::take(&mut self.portion)
    }

    /// Removes the objects that a finished list did not contain.
    async fn end_list(&mut self) -> Result<(), ModelStopped> {
        let list = self.list;
        let unseen = self.known.iter().filter(|(_, seen)| **seen != list);
        let deleted: Vec<Key> = unseen.map(|(key, _)| key.clone()).collect();
        self.known.retain(|_, seen| *seen == list);
        let objects = self.take_portion();
        let (apply, remove) = (Arc::clone(&self.feed.apply), Arc::clone(&self.feed.remove));
        let kind = self.feed.kind;
        self.send(move |state| {
            deleted.iter().for_each(|key| removed(&remove, state, key));
            objects.into_iter().for_each(|object| apply(state, object));
            state.listed(kind);
        })
        .await
    }

    async fn applied(&mut self, key: Key, object: Option<K>) -> Result<(), ModelStopped> {
        self.known.insert(key, self.list);
        let Some(object) = object else { return Ok(()) };
        let apply = Arc::clone(&self.feed.apply);
        self.send(move |state| apply(state, object)).await
    }

    async fn deleted(&mut self, key: Key) -> Result<(), ModelStopped> {
        self.known.remove(&key);
        let remove = Arc::clone(&self.feed.remove);
        self.send(move |state| removed(&remove, state, &key)).await
    }
}

fn removed(remove: &Remove, state: &mut State, key: &str) {
    let (namespace, name) = key.split_once('/').unwrap_or(("", key));
    remove(state, namespace, name);
}

/// Turns watch events into updates of the model until the model stops.
async fn follow<W, K>(
    api: Api<W>,
    feed: Feed<K>,
    read: impl Fn(W) -> Option<K>,
    updates: mpsc::Sender<Update>,
) where
    W: Resource + DeserializeOwned + Clone + Debug + Send + 'static,
    K: Send + 'static,
{
    // Lists are read in pages and are consistent. A list from the API server's cache (`any_semantic` without a page size)
    // could be older than the writes of an earlier process, and is one response however large it is.
    let config = watcher::Config::default();
    let mut events = watcher::watcher(api, config).default_backoff().boxed();
    let mut outage = WatchFailureLog::new("model", feed.kind);
    let mut feeder = Feeder {
        feed,
        updates,
        known: BTreeMap::new(),
        list: 0,
        portion: Vec::new(),
    };
    loop {
        let Some(event) = events.next().await else {
            return;
        };
        outage.saw(&event);
        let fed = match event {
            // The watcher lists again after a pause; a missing CRD has the same error and may be installed later.
            Err(_) => Ok(()),
            Ok(Event::Init) => {
                feeder.begin_list();
                Ok(())
            }
            Ok(Event::InitApply(object)) => feeder.listed(key_of(&object), read(object)).await,
            Ok(Event::InitDone) => feeder.end_list().await,
            Ok(Event::Apply(object)) => feeder.applied(key_of(&object), read(object)).await,
            Ok(Event::Delete(object)) => feeder.deleted(key_of(&object)).await,
        };
        if fed.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    use karpenter_core::cluster::ClusterConfig;

    use super::*;

    #[tokio::test]
    async fn objects_of_a_broken_list_are_removed_by_the_next_list_without_them() {
        let there: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let (adding, removing) = (Arc::clone(&there), Arc::clone(&there));
        let feed = Feed {
            kind: "Thing",
            apply: Arc::new(move |_: &mut State, key: String| {
                adding.lock().unwrap().insert(key);
            }),
            remove: Arc::new(move |_: &mut State, namespace: &str, name: &str| {
                let key = format!("{namespace}/{name}");
                removing.lock().unwrap().remove(&key);
            }),
        };
        let (updates, mut queue) = mpsc::channel::<Update>(4);
        let model = tokio::spawn(async move {
            let mut state = State::new(ClusterConfig::default(), &["Thing"]);
            while let Some(update) = queue.recv().await {
                update(&mut state);
            }
            state.view().is_synced()
        });
        let mut feeder = Feeder {
            feed,
            updates,
            known: BTreeMap::new(),
            list: 0,
            portion: Vec::new(),
        };
        let shows = async |feeder: &mut Feeder<String>, count: usize| {
            feeder.begin_list();
            for n in 0..count {
                let key = format!("default/{n}");
                assert!(feeder.listed(key.as_str().into(), Some(key)).await.is_ok());
            }
        };
        shows(&mut feeder, PORTION + 1).await;
        assert_eq!(
            there.lock().unwrap().len(),
            PORTION,
            "the list has not ended"
        );
        shows(&mut feeder, 10).await;
        assert!(feeder.end_list().await.is_ok());
        drop(feeder);
        assert!(model.await.unwrap());
        assert_eq!(there.lock().unwrap().len(), 10);
    }
}
