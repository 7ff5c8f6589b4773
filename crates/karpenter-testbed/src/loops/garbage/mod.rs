//! The garbage collector and the namespace controller.
//!
//! Watches the metadata of every served kind (kinds of the shared cache are read from there), deletes objects whose owners no
//! longer exist, executes foreground and orphaning deletion, and empties namespaces that are being deleted. An owner counts as
//! deleted only when the API server says so. Not implemented: events for invalid owner references; `Event`s are not collected by
//! owner.
//!
//! UPSTREAM: pkg/controller/garbagecollector, pkg/controller/namespace

mod graph;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DeleteParams, Patch, PatchParams, Preconditions, PropagationPolicy};
use kube::core::{DynamicObject, PartialObjectMeta};
use kube::discovery::{Discovery, Scope, verbs};
use kube::runtime::watcher;
use kube::{Api, Client};
use rustc_hash::FxHashSet;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::graph::{Action, FOREGROUND, Graph, Item, Kind, ORPHAN, Owner, Uid};
use super::cache::{Change, cached_kinds};
use super::driver::Context;
use super::{ignore_not_found, is_not_found};

const DISCOVER_EVERY: Duration = Duration::from_secs(600);
const RETRY_AFTER: Duration = Duration::from_millis(500);
const IN_FLIGHT: usize = 64;

type MetaApi = Api<PartialObjectMeta<DynamicObject>>;
/// Group and kind.
type KindKey = (String, String);

fn api_for(client: Client, kind: &Kind, namespace: &str) -> MetaApi {
    if kind.namespaced {
        Api::namespaced_with(client, namespace, &kind.resource)
    } else {
        Api::all_with(client, &kind.resource)
    }
}

fn key_of(resource: &ApiResource) -> KindKey {
    (resource.group.clone(), resource.kind.clone())
}

/// A change from the watcher of one kind.
enum Seen {
    Listed(Arc<Kind>, Vec<ObjectMeta>),
    Applied(Arc<Kind>, ObjectMeta),
    Removed(Arc<Kind>, ObjectMeta),
}

/// The result of an action.
enum Outcome {
    Acted(Uid),
    Failed(Uid),
    RetryNow(Uid),
    NamespaceFailed(Arc<str>),
    NamespaceDone,
    Discovered(Result<Vec<Kind>, kube::Error>),
}

type Work = FuturesUnordered<BoxFuture<'static, Outcome>>;

struct Collector {
    context: Context,
    token: CancellationToken,
    graph: Graph,
    dirty: Vec<Uid>,
    /// Objects that are being changed or wait for a retry.
    busy: FxHashSet<Uid>,
    /// Objects that changed meanwhile.
    again: FxHashSet<Uid>,
    kinds: BTreeMap<KindKey, Arc<Kind>>,
    watched: BTreeMap<KindKey, CancellationToken>,
    unlisted: FxHashSet<KindKey>,
    /// Namespaces that are being deleted, and those of them to reconcile.
    ending: FxHashSet<Arc<str>>,
    ending_dirty: FxHashSet<Arc<str>>,
    rediscover: bool,
    sender: mpsc::UnboundedSender<Seen>,
    watches: JoinSet<()>,
}

/// Runs the collector until canceled.
pub(crate) async fn run(
    context: Context,
    mut changes: mpsc::UnboundedReceiver<Change>,
    token: CancellationToken,
) {
    let (sender, mut seen) = mpsc::unbounded_channel();
    let kinds = cached_kinds()
        .into_iter()
        .map(|(resource, namespaced)| {
            (
                key_of(&resource),
                Arc::new(Kind {
                    resource,
                    namespaced,
                }),
            )
        })
        .collect();
    let mut collector = Collector {
        context,
        token: token.clone(),
        graph: Graph::default(),
        dirty: Vec::new(),
        busy: FxHashSet::default(),
        again: FxHashSet::default(),
        kinds,
        watched: BTreeMap::new(),
        unlisted: FxHashSet::default(),
        ending: FxHashSet::default(),
        ending_dirty: FxHashSet::default(),
        rediscover: false,
        sender,
        watches: JoinSet::new(),
    };
    let mut work: Work = FuturesUnordered::new();
    work.push(collector.discover(Duration::ZERO, false));
    let mut discovered = false;
    loop {
        // Before every kind was listed once, an owner may not have been observed yet.
        if discovered && collector.unlisted.is_empty() {
            collector.act(&mut work);
        }
        if std::mem::take(&mut collector.rediscover) {
            work.push(collector.discover(Duration::from_millis(100), false));
        }
        tokio::select! {
            biased;
            () = token.cancelled() => return,
            change = changes.recv() => match change {
                Some(change) => collector.take_in_change(&change),
                None => return,
            },
            Some(seen) = seen.recv() => collector.take_in(seen),
            Some(outcome) = work.next(), if !work.is_empty() => {
                if let Outcome::Discovered(result) = outcome {
                    let pause = match result {
                        Ok(kinds) => {
                            collector.follow(kinds);
                            discovered = true;
                            DISCOVER_EVERY
                        }
                        Err(error) => {
                            tracing::debug!(%error, "discovery failed");
                            Duration::from_secs(1)
                        }
                    };
                    work.push(collector.discover(pause, true));
                } else {
                    collector.conclude(outcome, &work);
                }
            },
        }
    }
}

impl Collector {
    // ---- watched kinds ----------------------------------------------------------------------------------------

    fn discover(&self, pause: Duration, wait: bool) -> BoxFuture<'static, Outcome> {
        let client = self.context.client();
        let clock = self.context.clock;
        Box::pin(async move {
            if wait || !pause.is_zero() {
                clock.sleep(pause).await;
            }
            Outcome::Discovered(discover(client).await)
        })
    }

    /// Watches new kinds, and stops watching removed ones.
    fn follow(&mut self, found: Vec<Kind>) {
        let cached: FxHashSet<KindKey> = cached_kinds()
            .iter()
            .map(|(resource, _)| key_of(resource))
            .collect();
        let mut present = FxHashSet::default();
        for kind in found {
            let key = key_of(&kind.resource);
            present.insert(key.clone());
            let same = self.kinds.get(&key).is_some_and(|known| **known == kind);
            if cached.contains(&key) || (same && self.watched.contains_key(&key)) {
                continue;
            }
            let kind = Arc::new(kind);
            self.kinds.insert(key.clone(), kind.clone());
            let token = self.token.child_token();
            if let Some(old) = self.watched.insert(key.clone(), token.clone()) {
                old.cancel();
            }
            self.unlisted.insert(key);
            self.watches.spawn(watch(
                self.context.clone(),
                kind,
                self.sender.clone(),
                token,
            ));
        }
        let gone: Vec<KindKey> = self
            .watched
            .keys()
            .filter(|k| !present.contains(*k))
            .cloned()
            .collect();
        for key in gone {
            if let Some(token) = self.watched.remove(&key) {
                token.cancel();
            }
            self.unlisted.remove(&key);
            if let Some(kind) = self.kinds.remove(&key) {
                for uid in self.graph.of_kind(&kind) {
                    self.graph.remove(&uid, &mut self.dirty);
                }
            }
        }
    }

    fn take_in_change(&mut self, change: &Change) {
        let parts = change.parts();
        let Some(kind) = self.kinds.get(&(parts.group, parts.kind)).cloned() else {
            return;
        };
        if let Some(old) = parts.old
            && parts.new.is_none_or(|new| new.uid != old.uid)
        {
            self.removed(&kind, old);
        }
        if let Some(new) = parts.new {
            self.applied(&kind, new);
        }
    }

    fn take_in(&mut self, seen: Seen) {
        match seen {
            Seen::Applied(kind, meta) => self.applied(&kind, &meta),
            Seen::Removed(kind, meta) => self.removed(&kind, &meta),
            Seen::Listed(kind, metas) => {
                let mut gone: FxHashSet<Uid> = self.graph.of_kind(&kind).into_iter().collect();
                for meta in &metas {
                    gone.remove(meta.uid.as_deref().unwrap_or_default());
                    self.applied(&kind, meta);
                }
                for uid in gone {
                    self.graph.remove(&uid, &mut self.dirty);
                }
                self.unlisted.remove(&key_of(&kind.resource));
            }
        }
    }

    fn applied(&mut self, kind: &Arc<Kind>, meta: &ObjectMeta) {
        let Some(uid) = meta.uid.as_deref() else {
            return;
        };
        let is_new = self.graph.get(uid).is_none();
        self.graph
            .apply(uid, Item::new(kind, meta), &mut self.dirty);
        self.note(kind, meta, is_new);
    }

    fn removed(&mut self, kind: &Arc<Kind>, meta: &ObjectMeta) {
        if let Some(uid) = meta.uid.as_deref() {
            self.graph.remove(uid, &mut self.dirty);
            self.busy.remove(uid);
            self.again.remove(uid);
        }
        self.note(kind, meta, true);
        if kind.resource.kind == "Namespace" && kind.resource.group.is_empty() {
            self.ending.remove(meta.name.as_deref().unwrap_or_default());
        }
    }

    /// Namespaces and CRDs affect other objects.
    fn note(&mut self, kind: &Kind, meta: &ObjectMeta, comes_or_goes: bool) {
        if let Some(namespace) = meta.namespace.as_deref()
            && let Some(namespace) = self.ending.get(namespace)
        {
            self.ending_dirty.insert(namespace.clone());
        }
        match kind.resource.kind.as_str() {
            "CustomResourceDefinition" if comes_or_goes => self.rediscover = true,
            "Namespace" if kind.resource.group.is_empty() && meta.deletion_timestamp.is_some() => {
                let name: Arc<str> = meta.name.as_deref().unwrap_or_default().into();
                self.ending.insert(name.clone());
                self.ending_dirty.insert(name);
            }
            _ => {}
        }
    }

    // ---- actions ----------------------------------------------------------------------------------------------

    fn act(&mut self, work: &mut Work) {
        while work.len() < IN_FLIGHT
            && let Some(uid) = self.dirty.pop()
        {
            if self.busy.contains(&uid) {
                self.again.insert(uid);
                continue;
            }
            let action = self.graph.decide(&uid);
            if action != Action::Keep {
                self.start(uid, action, work);
            }
        }
        if self.dirty.is_empty() {
            for namespace in std::mem::take(&mut self.ending_dirty) {
                self.empty(namespace, work);
            }
        }
    }

    fn start(&mut self, uid: Uid, action: Action, work: &Work) {
        let Some(item) = self.graph.get(&uid).cloned() else {
            return;
        };
        let find = |owner: &Owner| {
            let group = owner
                .api_version
                .rsplit_once('/')
                .map_or("", |(group, _)| group);
            self.kinds
                .get(&(group.to_owned(), owner.kind.clone()))
                .cloned()
        };
        let unknown: Vec<(Owner, Option<Arc<Kind>>)> = match &action {
            Action::Delete { unknown, .. } | Action::Disown { unknown, .. } => {
                unknown.iter().map(|o| (o.clone(), find(o))).collect()
            }
            _ => Vec::new(),
        };
        let dependents: Vec<Item> = match &action {
            Action::Orphan { dependents } => dependents
                .iter()
                .filter_map(|d| self.graph.get(d).cloned())
                .collect(),
            _ => Vec::new(),
        };
        self.busy.insert(uid.clone());
        let client = self.context.client();
        work.push(Box::pin(async move {
            match carry_out(client, &uid, &item, action, unknown, dependents).await {
                Ok(true) => Outcome::Acted(uid),
                Ok(false) => Outcome::Failed(uid),
                Err(error) => {
                    tracing::debug!(name = %item.name, %error, "collection failed");
                    Outcome::Failed(uid)
                }
            }
        }));
    }

    fn conclude(&mut self, outcome: Outcome, work: &Work) {
        match outcome {
            Outcome::Acted(uid) => {
                self.busy.remove(&uid);
                if self.again.remove(&uid) {
                    self.dirty.push(uid);
                }
            }
            Outcome::Failed(uid) => {
                let clock = self.context.clock;
                work.push(Box::pin(async move {
                    clock.sleep(RETRY_AFTER).await;
                    Outcome::RetryNow(uid)
                }));
            }
            Outcome::RetryNow(uid) => {
                self.busy.remove(&uid);
                self.again.remove(&uid);
                self.dirty.push(uid);
            }
            Outcome::NamespaceFailed(namespace) => {
                if self.ending.contains(&namespace) {
                    self.ending_dirty.insert(namespace);
                }
            }
            Outcome::NamespaceDone | Outcome::Discovered(_) => {}
        }
    }

    /// Deletes the objects in the namespace, and removes its finalizer when none is left.
    fn empty(&mut self, namespace: Arc<str>, work: &Work) {
        let uids = self.graph.in_namespace(&namespace);
        if uids.is_empty() {
            let client = self.context.client();
            let clock = self.context.clock;
            work.push(Box::pin(async move {
                match finalize(client, &namespace).await {
                    Ok(()) => Outcome::NamespaceDone,
                    Err(error) => {
                        tracing::debug!(%namespace, %error, "namespace not finalized");
                        clock.sleep(RETRY_AFTER).await;
                        Outcome::NamespaceFailed(namespace)
                    }
                }
            }));
            return;
        }
        for uid in uids {
            let waits = self.graph.get(&uid).is_none_or(|item| item.deleting);
            if waits || self.busy.contains(&uid) {
                continue;
            }
            let action = Action::Delete {
                foreground: false,
                unknown: Vec::new(),
            };
            self.start(uid, action, work);
        }
    }
}

/// Returns every kind that can be listed, watched and deleted, in its preferred version.
async fn discover(client: Client) -> Result<Vec<Kind>, kube::Error> {
    let discovery = Discovery::new(client).run().await?;
    let kinds = discovery
        .groups()
        .flat_map(kube::discovery::ApiGroup::resources_by_stability)
        .filter(|(resource, capabilities)| {
            let can = |verb| capabilities.supports_operation(verb);
            // Events expire by themselves.
            can(verbs::LIST) && can(verbs::WATCH) && can(verbs::DELETE) && resource.kind != "Event"
        })
        .map(|(resource, capabilities)| Kind {
            resource,
            namespaced: capabilities.scope == Scope::Namespaced,
        })
        .collect();
    Ok(kinds)
}

async fn watch(
    context: Context,
    kind: Arc<Kind>,
    sender: mpsc::UnboundedSender<Seen>,
    token: CancellationToken,
) {
    let api: MetaApi = Api::all_with(context.client(), &kind.resource);
    let mut events = std::pin::pin!(watcher(api, watcher::Config::default().any_semantic()));
    let mut listed = Vec::new();
    let mut failures = 0u32;
    loop {
        let event = tokio::select! {
            biased;
            () = token.cancelled() => return,
            event = events.next() => event,
        };
        let seen = match event {
            Some(Ok(event)) => {
                failures = 0;
                match event {
                    watcher::Event::Init => {
                        listed.clear();
                        continue;
                    }
                    watcher::Event::InitApply(object) => {
                        listed.push(object.metadata);
                        continue;
                    }
                    watcher::Event::InitDone => {
                        Seen::Listed(kind.clone(), std::mem::take(&mut listed))
                    }
                    watcher::Event::Apply(object) => Seen::Applied(kind.clone(), object.metadata),
                    watcher::Event::Delete(object) => Seen::Removed(kind.clone(), object.metadata),
                }
            }
            Some(Err(error)) => {
                tracing::debug!(kind = kind.resource.kind, %error, "watch failed");
                let pause = Duration::from_millis(100u64 << failures.min(8));
                failures += 1;
                tokio::select! {
                    biased;
                    () = token.cancelled() => return,
                    () = context.clock.sleep(pause) => {}
                }
                continue;
            }
            None => return,
        };
        if sender.send(seen).is_err() {
            return;
        }
    }
}

/// Whether the owner no longer exists. `None` if this cannot be determined.
async fn is_gone(
    client: &Client,
    namespace: &str,
    owner: &Owner,
    kind: Option<&Kind>,
) -> Result<Option<bool>, kube::Error> {
    let Some(kind) = kind else {
        return Ok(None);
    };
    let found = api_for(client.clone(), kind, namespace)
        .get_opt(&owner.name)
        .await?;
    Ok(Some(found.is_none_or(|o| {
        o.metadata.uid.as_deref() != Some(&*owner.uid)
    })))
}

/// Executes an action. `false`: not possible now.
async fn carry_out(
    client: Client,
    uid: &Uid,
    item: &Item,
    action: Action,
    unknown: Vec<(Owner, Option<Arc<Kind>>)>,
    dependents: Vec<Item>,
) -> Result<bool, kube::Error> {
    for (owner, kind) in &unknown {
        if is_gone(&client, &item.namespace, owner, kind.as_deref()).await? != Some(true) {
            return Ok(false);
        }
    }
    match action {
        Action::Keep => Ok(true),
        Action::Delete { foreground, .. } => {
            let policy = if foreground || item.finalizers.iter().any(|f| f == FOREGROUND) {
                PropagationPolicy::Foreground
            } else if item.finalizers.iter().any(|f| f == ORPHAN) {
                PropagationPolicy::Orphan
            } else {
                PropagationPolicy::Background
            };
            let params = DeleteParams {
                propagation_policy: Some(policy),
                preconditions: Some(Preconditions {
                    uid: Some(uid.to_string()),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            };
            let api = api_for(client, &item.kind, &item.namespace);
            ignore_not_found(api.delete(&item.name, &params).await)?;
            Ok(true)
        }
        Action::Disown { uids, .. } => disown(client, item, &uids).await.map(|()| true),
        Action::Release { finalizer } => release(client, uid, item, finalizer).await.map(|()| true),
        Action::Orphan { .. } => {
            for dependent in &dependents {
                disown(client.clone(), dependent, std::slice::from_ref(uid)).await?;
            }
            release(client, uid, item, ORPHAN).await.map(|()| true)
        }
    }
}

async fn disown(client: Client, item: &Item, owners: &[Uid]) -> Result<(), kube::Error> {
    let api = api_for(client, &item.kind, &item.namespace);
    let Some(object) = api.get_opt(&item.name).await? else {
        return Ok(());
    };
    let mut left = object.metadata.owner_references.unwrap_or_default();
    left.retain(|o| !owners.iter().any(|uid| **uid == o.uid));
    let patch = json!({"metadata": {
        "uid": object.metadata.uid,
        "resourceVersion": object.metadata.resource_version,
        "ownerReferences": left,
    }});
    ignore_not_found(
        api.patch(&item.name, &PatchParams::default(), &Patch::Merge(patch))
            .await,
    )
}

async fn release(
    client: Client,
    uid: &Uid,
    item: &Item,
    finalizer: &str,
) -> Result<(), kube::Error> {
    let api = api_for(client, &item.kind, &item.namespace);
    let Some(object) = api.get_opt(&item.name).await? else {
        return Ok(());
    };
    let mut left = object.metadata.finalizers.unwrap_or_default();
    if object.metadata.uid.as_deref() != Some(&**uid) || !left.iter().any(|f| f == finalizer) {
        return Ok(());
    }
    left.retain(|f| f != finalizer);
    let patch = json!({"metadata": {
        "resourceVersion": object.metadata.resource_version,
        "finalizers": left,
    }});
    ignore_not_found(
        api.patch(&item.name, &PatchParams::default(), &Patch::Merge(patch))
            .await,
    )
}

/// Deletes the events of a namespace and removes its finalizer `kubernetes`.
async fn finalize(client: Client, name: &str) -> Result<(), kube::Error> {
    use http::Request;
    let path = format!("/api/v1/namespaces/{name}");
    let request = |method: &str, path: &str, body: Vec<u8>| {
        Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json")
            .body(body)
            .map_err(kube::Error::HttpError)
    };
    let events = request("DELETE", &format!("{path}/events"), Vec::new())?;
    client.request::<Value>(events).await?;
    let mut namespace: Value = match client.request(request("GET", &path, Vec::new())?).await {
        Ok(found) => found,
        Err(error) if is_not_found(&error) => return Ok(()),
        Err(error) => return Err(error),
    };
    if let Some(finalizers) = namespace["spec"]["finalizers"].as_array_mut() {
        finalizers.retain(|f| f != "kubernetes");
    }
    let body = serde_json::to_vec(&namespace).map_err(kube::Error::SerdeError)?;
    let done: Result<Value, _> = client
        .request(request("PUT", &format!("{path}/finalize"), body)?)
        .await;
    ignore_not_found(done)
}
