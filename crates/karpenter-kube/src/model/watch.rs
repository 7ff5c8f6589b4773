//! Watches the API server: one task per kind feeds the model.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::apps::v1::{DaemonSet, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{
    Namespace, PersistentVolume, PersistentVolumeClaim, Pod, ReplicationController, Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass, VolumeAttachment};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_api::v1alpha1::NodeOverlay;
use karpenter_core::pod;
use karpenter_core::provider::NodeClassKind;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};
use rustc_hash::FxHashSet;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::handle::{ModelHandle, Stopped};
use super::update::{Key, Object, ObjectKind, OtherKind, Update};
use super::view::NodeClass;
use super::watched::{WatchedNode, WatchedPod};
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

/// Starts a watcher for each kind.
pub fn spawn_watchers(
    client: &Client,
    kinds: &Kinds,
    model: &ModelHandle,
    recorder: &Recorder,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) {
    let watchers = Watchers {
        client: client.clone(),
        model: model.clone(),
        recorder: recorder.clone(),
        tasks,
        stop,
    };
    watchers.pods();
    watchers.nodes();
    watchers.guarded::<NodeClaim>(ObjectKind::NodeClaim);
    watchers.guarded::<NodePool>(ObjectKind::NodePool);
    macro_rules! other {
        ($($kind:ident),+) => {
            $(watchers.plain::<$kind>(ObjectKind::Other(OtherKind::$kind));)+
        };
    }
    other!(DaemonSet, PodDisruptionBudget, Namespace);
    other!(
        PersistentVolumeClaim,
        PersistentVolume,
        StorageClass,
        CSINode
    );
    if kinds.workload_selectors {
        other!(Service, ReplicaSet, StatefulSet, ReplicationController);
    }
    if kinds.devices {
        other!(ResourceSlice, ResourceClaim, DeviceClass);
    }
    if kinds.node_overlays {
        watchers.guarded::<NodeOverlay>(ObjectKind::Other(OtherKind::NodeOverlay));
    }
    watchers.plain::<VolumeAttachment>(ObjectKind::VolumeAttachment);
    for class in &kinds.node_classes {
        watchers.node_class(class);
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
    model: ModelHandle,
    recorder: Recorder,
    tasks: &'a TaskTracker,
    stop: &'a CancellationToken,
}

impl Watchers<'_> {
    fn pods(&self) {
        let api = Api::<WatchedPod>::all(self.client.clone());
        self.spawn(api, ObjectKind::Pod, |pod| {
            let pod = pod.into();
            Some(Object::Pod {
                pod: Box::new(pod::Pod::parse(&pod)),
                refusal: refusal(&pod),
            })
        });
    }

    fn nodes(&self) {
        let api = Api::<WatchedNode>::all(self.client.clone());
        self.spawn(api, ObjectKind::Node, |node| {
            Some(Object::Node(Arc::new(node.into())))
        });
    }

    fn plain<K>(&self, kind: ObjectKind)
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Into<Object> + 'static,
        K: Send,
    {
        let api = Api::<K>::all(self.client.clone());
        self.spawn(api, kind, |mut object| {
            object.meta_mut().managed_fields = None;
            Some(object.into())
        });
    }

    /// Watches a kind that users write: an object that cannot be parsed is reported on itself and skipped, and its last
    /// valid version stays.
    fn guarded<K>(&self, kind: ObjectKind)
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Into<Object> + 'static,
        K: Send,
    {
        let watching = Watching {
            logger: "model",
            kind: kind.as_str(),
            recorder: self.recorder.clone(),
        };
        let api = Api::<Guarded<K>>::all(self.client.clone());
        self.spawn(api, kind, move |object| {
            watching.read(object).map(Into::into)
        });
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
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let (group, kind) = (class.group.clone(), class.kind.clone());
        let object_kind = ObjectKind::NodeClass {
            group: group.clone(),
            kind: kind.clone(),
        };
        self.spawn(api, object_kind, move |object| {
            let class = NodeClass::parse(&group, &object, &kind);
            Some(Object::NodeClass(Arc::new(class)))
        });
    }

    /// Watches objects of `W`; `read` returns the object for the model, or `None`.
    fn spawn<W>(
        &self,
        api: Api<W>,
        kind: ObjectKind,
        read: impl Fn(W) -> Option<Object> + Send + Sync + 'static,
    ) where
        W: Resource + DeserializeOwned + Clone + Debug + Send + 'static,
    {
        let (feeder, stop) = (Feeder::new(kind, self.model.clone()), self.stop.clone());
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = follow(api, feeder, read) => {}
                () = stop.cancelled() => {}
            }
        });
    }
}

fn key_of<W: Resource>(object: &W) -> Key {
    let meta = object.meta();
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let name = meta.name.as_deref().unwrap_or_default();
    format!("{namespace}/{name}").into()
}

/// Number of listed objects that go into the model at a time: they share no memory before, and take far more of it.
const PORTION: usize = 250;

/// The objects that a list can miss because they were deleted.
enum Known {
    /// Keys that this watch reported, each with the last list that contained it. The model can have more objects: NodeClaims
    /// that this process created, which an older list does not contain.
    Reported {
        keys: BTreeMap<Key, u32>,
        /// Number of the current or last list.
        list: u32,
    },
    /// All pods of the model, which only this watch reports: a million keys of their own would take 100 MB.
    Pods {
        /// Keys of the current list; empty during the first one, before which the model has no pods.
        listed: FxHashSet<Key>,
        /// Number of the current or last list.
        list: u32,
    },
}

impl Known {
    fn of(kind: &ObjectKind) -> Self {
        match kind {
            ObjectKind::Pod => Self::Pods {
                listed: FxHashSet::default(),
                list: 0,
            },
            _ => Self::Reported {
                keys: BTreeMap::new(),
                list: 0,
            },
        }
    }
}

/// Feeds objects of one kind into the model.
struct Feeder {
    kind: ObjectKind,
    model: ModelHandle,
    known: Known,
    /// Objects of the list that are not in the model yet.
    portion: Vec<Object>,
}

impl Feeder {
    fn new(kind: ObjectKind, model: ModelHandle) -> Self {
        Self {
            known: Known::of(&kind),
            kind,
            model,
            portion: Vec::new(),
        }
    }

    fn begin_list(&mut self) {
        match &mut self.known {
            Known::Reported { list, .. } => *list = list.wrapping_add(1),
            Known::Pods { listed, list } => {
                *list = list.saturating_add(1);
                listed.clear();
            }
        }
        self.portion.clear();
    }

    async fn listed(&mut self, key: Key, object: Option<Object>) -> Result<(), Stopped> {
        match &mut self.known {
            Known::Reported { keys, list } => {
                keys.insert(key, *list);
            }
            Known::Pods { listed, list } if *list > 1 => {
                listed.insert(key);
            }
            Known::Pods { .. } => {}
        }
        self.portion.extend(object);
        if self.portion.len() < PORTION {
            return Ok(());
        }
        // The next page is read afterwards: the whole list must not accumulate in front of the model.
        let portion = self.take_portion();
        self.model.apply(portion).await
    }

    fn take_portion(&mut self) -> Update {
        Update::Portion(std::mem::take(&mut self.portion))
    }

    /// Removes the objects that a finished list did not contain.
    async fn end_list(&mut self) -> Result<(), Stopped> {
        let deleted = match &mut self.known {
            Known::Reported { keys, list } => {
                let unseen = keys.iter().filter(|(_, seen)| *seen != list);
                let deleted = unseen.map(|(key, _)| key.clone()).collect();
                keys.retain(|_, seen| *seen == *list);
                deleted
            }
            Known::Pods { .. } => self.missing_pods().await?,
        };
        let listed = Update::Listed {
            kind: self.kind.clone(),
            deleted,
            objects: std::mem::take(&mut self.portion),
        };
        self.model.queue(listed).await
    }

    /// Returns the pods of the model that a finished list did not contain.
    async fn missing_pods(&mut self) -> Result<Vec<Key>, Stopped> {
        // The view has then all that this watch passed on before.
        let portion = self.take_portion();
        self.model.update(portion).await?;
        let listed = match &mut self.known {
            Known::Pods { listed, list } if *list > 1 => std::mem::take(listed),
            _ => return Ok(Vec::new()),
        };
        let view = self.model.view();
        let keys = view.snapshot.pods().map(|pod| pod.key.to_string());
        let missing = keys.map(Key::from).filter(|key| !listed.contains(key));
        Ok(missing.collect())
    }

    async fn applied(&mut self, key: Key, object: Option<Object>) -> Result<(), Stopped> {
        if let Known::Reported { keys, list } = &mut self.known {
            keys.insert(key, *list);
        }
        match object {
            Some(object) => self.model.queue(Update::Apply(object)).await,
            None => Ok(()),
        }
    }

    async fn deleted(&mut self, key: Key) -> Result<(), Stopped> {
        if let Known::Reported { keys, .. } = &mut self.known {
            keys.remove(&key);
        }
        let removed = Update::Remove(self.kind.clone(), key);
        self.model.queue(removed).await
    }
}

/// Turns watch events into updates of the model until the model stops.
async fn follow<W>(api: Api<W>, mut feeder: Feeder, read: impl Fn(W) -> Option<Object>)
where
    W: Resource + DeserializeOwned + Clone + Debug + Send + 'static,
{
    // Lists are read in pages and are consistent. A list from the API server's cache (`any_semantic` without a page size)
    // could be older than the writes of an earlier process, and is one response however large it is.
    let config = watcher::Config::default();
    let mut events = watcher::watcher(api, config).default_backoff().boxed();
    let mut outage = WatchFailureLog::new("model", feeder.kind.as_str());
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
    use karpenter_core::cluster::ClusterConfig;
    use karpenter_core::resources::Resources;

    use super::*;
    use crate::model::{Model, View};

    /// A model of objects of one kind.
    struct Running {
        stop: CancellationToken,
        task: tokio::task::JoinHandle<()>,
    }

    impl Running {
        fn of(kind: ObjectKind) -> (Self, ModelHandle, Feeder) {
            let (model, handle) = Model::new(ClusterConfig::default(), &[kind.as_str()]);
            let stop = CancellationToken::new();
            let task = tokio::spawn(model.run(stop.clone()));
            let feeder = Feeder::new(kind, handle.clone());
            (Self { stop, task }, handle, feeder)
        }

        async fn end(self) {
            self.stop.cancel();
            assert!(self.task.await.is_ok());
        }
    }

    /// The model applies updates in order: after this one the view has all before it.
    async fn catch_up(handle: &ModelHandle) {
        assert!(handle.update(Update::Portion(Vec::new())).await.is_ok());
    }

    fn namespace(name: &str) -> Object {
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some(name.to_owned());
        namespace.into()
    }

    fn pod(name: &str) -> Object {
        Object::Pod {
            pod: Box::new(pod::Pod::pending("", name, Resources::new())),
            refusal: None,
        }
    }

    #[tokio::test]
    async fn objects_of_a_broken_list_are_removed_by_the_next_list_without_them() {
        let kind = ObjectKind::Other(OtherKind::Namespace);
        broken_list(kind, namespace, |view| view.snapshot.namespaces().count()).await;
    }

    #[tokio::test]
    async fn pods_of_a_broken_list_are_removed_by_the_next_list_without_them() {
        broken_list(ObjectKind::Pod, pod, |view| view.snapshot.pod_count()).await;
    }

    #[tokio::test]
    async fn pods_that_a_later_list_lacks_are_removed_and_watched_ones_stay() {
        let (running, handle, mut feeder) = Running::of(ObjectKind::Pod);
        let list = async |feeder: &mut Feeder, names: &[&str]| {
            feeder.begin_list();
            for name in names {
                let key = format!("/{name}").into();
                assert!(feeder.listed(key, Some(pod(name))).await.is_ok());
            }
            assert!(feeder.end_list().await.is_ok());
            catch_up(&handle).await;
        };
        let names = || {
            let view = handle.view();
            let names = view.snapshot.pods().map(|pod| pod.key.name.clone());
            let mut names: Vec<String> = names.collect();
            names.sort();
            names
        };
        list(&mut feeder, &["a", "b"]).await;
        assert_eq!(names(), ["a", "b"]);
        assert!(feeder.applied("/c".into(), Some(pod("c"))).await.is_ok());
        assert!(feeder.deleted("/a".into()).await.is_ok());
        list(&mut feeder, &["c", "d"]).await;
        assert_eq!(names(), ["c", "d"]);
        list(&mut feeder, &[]).await;
        assert_eq!(names(), [""; 0]);
        running.end().await;
    }

    #[tokio::test]
    async fn a_nodeclaim_created_while_a_list_is_read_stays_in_the_model() {
        let (running, handle, mut feeder) = Running::of(ObjectKind::NodeClaim);
        let claim = karpenter_fixtures::node_claim("new").build();
        let is_known = async || {
            catch_up(&handle).await;
            handle.view().node_claim("new").is_some()
        };
        feeder.begin_list();
        assert!(handle.created_node_claim(claim.clone()).await.is_ok());
        assert!(feeder.end_list().await.is_ok());
        assert!(is_known().await, "the list is older");
        let object = Object::NodeClaim(Arc::new(claim));
        assert!(feeder.applied("/new".into(), Some(object)).await.is_ok());
        feeder.begin_list();
        assert!(feeder.end_list().await.is_ok());
        assert!(!is_known().await, "the list is newer than what was watched");
        running.end().await;
    }

    /// Lists more than a portion of objects of a kind, then breaks off and lists ten of them.
    async fn broken_list(
        kind: ObjectKind,
        object: impl Fn(&str) -> Object,
        number: impl Fn(&View) -> usize,
    ) {
        let (running, handle, mut feeder) = Running::of(kind);
        let shows = async |feeder: &mut Feeder, count: usize| {
            feeder.begin_list();
            for n in 0..count {
                let object = object(&n.to_string());
                let key = format!("/{n}").into();
                assert!(feeder.listed(key, Some(object)).await.is_ok());
            }
        };
        let count = || number(&handle.view());
        shows(&mut feeder, PORTION + 1).await;
        // Before the model is in sync, a view waits for this update, not for a portion.
        catch_up(&handle).await;
        assert_eq!(count(), PORTION, "the list has not ended");
        shows(&mut feeder, 10).await;
        assert!(feeder.end_list().await.is_ok());
        handle.synced().await;
        assert_eq!(count(), 10);
        running.end().await;
        assert!(
            feeder.deleted("/1".into()).await.is_err(),
            "the model has stopped"
        );
    }
}
