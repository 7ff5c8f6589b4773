//! The garbage collector and the namespace controller.
//!
//! Watches the metadata of every served kind (kinds of the shared cache are read from there), deletes objects whose owners no
//! longer exist, executes foreground and orphaning deletion, and empties namespaces that are being deleted. An owner counts as
//! deleted only when the API server says so. Not implemented: events for invalid owner references; `Event`s are not collected by
//! owner.
//!
//! UPSTREAM: pkg/controller/garbagecollector, pkg/controller/namespace

mod actions;
mod graph;
mod watches;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::ApiResource;
use kube::core::{DynamicObject, PartialObjectMeta};
use rustc_hash::FxHashSet;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::actions::{carry_out, finalize};
use self::graph::{Action, Graph, Item, Kind, Owner, Uid};
use self::watches::{Seen, discover, watch};
use super::cache::{Change, cached_kinds};
use super::driver::Context;

const DISCOVER_EVERY: Duration = Duration::from_secs(600);
const RETRY_AFTER: Duration = Duration::from_millis(500);
const IN_FLIGHT: usize = 64;

type MetaApi = Api<PartialObjectMeta<DynamicObject>>;

type KindKey = (String, String);

fn key_of(resource: &ApiResource) -> KindKey {
    (resource.group.clone(), resource.kind.clone())
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
