//! Stores of buffers and of the objects that they refer to, filled by watches.

use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{PodTemplate, PodTemplateSpec};
use karpenter_api::autoscaling::{CapacityBuffer, ScalableRef};
use karpenter_core::capacity_buffer::Source;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::Event;
use kube::runtime::{reflector, watcher};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::controller::{ObjectKey, Queue};
use crate::events::Recorder;
use crate::watching::Watching;

/// Readers of the kinds that a buffer can refer to.
#[derive(Debug, Clone)]
pub struct Stores {
    pub(super) buffers: Store<CapacityBuffer>,
    templates: Store<PodTemplate>,
    deployments: Store<Deployment>,
    stateful_sets: Store<StatefulSet>,
    replica_sets: Store<ReplicaSet>,
}

/// The watches that fill the stores.
pub struct Watches {
    buffers: Writer<CapacityBuffer>,
    templates: Writer<PodTemplate>,
    deployments: Writer<Deployment>,
    stateful_sets: Writer<StatefulSet>,
    replica_sets: Writer<ReplicaSet>,
}

impl Debug for Watches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watches")
    }
}

/// Why the reference of a buffer cannot be resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// The object does not exist.
    NotFound,
    /// The kind is not supported.
    Unsupported,
}

impl Stores {
    /// Creates empty stores and the watches that fill them.
    #[must_use]
    pub fn new() -> (Self, Watches) {
        let (buffers, buffer_writer) = reflector::store();
        let (templates, template_writer) = reflector::store();
        let (deployments, deployment_writer) = reflector::store();
        let (stateful_sets, stateful_set_writer) = reflector::store();
        let (replica_sets, replica_set_writer) = reflector::store();
        let stores = Self {
            buffers,
            templates,
            deployments,
            stateful_sets,
            replica_sets,
        };
        let watches = Watches {
            buffers: buffer_writer,
            templates: template_writer,
            deployments: deployment_writer,
            stateful_sets: stateful_set_writer,
            replica_sets: replica_set_writer,
        };
        (stores, watches)
    }

    /// Calls `visit` for each buffer.
    pub fn each_buffer(&self, visit: &mut dyn FnMut(&CapacityBuffer)) {
        for buffer in self.buffers.state() {
            visit(&buffer);
        }
    }

    pub(super) fn buffer(&self, key: &ObjectKey) -> Option<Arc<CapacityBuffer>> {
        self.buffers
            .get(&ObjectRef::new(&key.name).within(&key.namespace))
    }

    /// Returns the generation of a PodTemplate and the source of its pods.
    pub(super) fn template(&self, namespace: &str, name: &str) -> Option<(Option<i64>, Source)> {
        let template = self
            .templates
            .get(&ObjectRef::new(name).within(namespace))?;
        Some((
            template.metadata.generation,
            source(template.template.as_ref(), None),
        ))
    }

    /// Returns the source of the pods of a workload.
    pub(super) fn workload(
        &self,
        namespace: &str,
        target: &ScalableRef,
    ) -> Result<Source, Missing> {
        if !matches!(target.api_group.as_str(), "" | "apps") {
            return Err(Missing::Unsupported);
        }
        let name = &target.name;
        // An absent number of replicas is one.
        let found = match target.kind.as_str() {
            "Deployment" => self
                .deployments
                .get(&ObjectRef::new(name).within(namespace))
                .and_then(|d| {
                    d.spec
                        .as_ref()
                        .map(|s| source(Some(&s.template), s.replicas.or(Some(1))))
                }),
            "StatefulSet" => self
                .stateful_sets
                .get(&ObjectRef::new(name).within(namespace))
                .and_then(|d| {
                    d.spec
                        .as_ref()
                        .map(|s| source(Some(&s.template), s.replicas.or(Some(1))))
                }),
            "ReplicaSet" => self
                .replica_sets
                .get(&ObjectRef::new(name).within(namespace))
                .and_then(|d| {
                    d.spec
                        .as_ref()
                        .map(|s| source(s.template.as_ref(), s.replicas.or(Some(1))))
                }),
            _ => return Err(Missing::Unsupported),
        };
        found.ok_or(Missing::NotFound)
    }

    /// Queues the buffers that refer to an object.
    fn affected(&self, kind: &str, key: &ObjectKey, queue: &Queue<ObjectKey>) {
        for buffer in self.buffers.state() {
            let namespace = buffer.metadata.namespace.as_deref().unwrap_or_default();
            let by_template = kind == "PodTemplate"
                && buffer
                    .spec
                    .pod_template_ref
                    .as_ref()
                    .is_some_and(|r| *r.name == *key.name);
            let by_workload = buffer
                .spec
                .scalable_ref
                .as_ref()
                .is_some_and(|r| r.kind == kind && *r.name == *key.name);
            if *namespace == *key.namespace && (by_template || by_workload) {
                queue.add(ObjectKey::namespaced(namespace, buffer.name()));
            }
        }
    }
}

fn source(template: Option<&PodTemplateSpec>, scale: Option<i32>) -> Source {
    Source {
        metadata: template.and_then(|t| t.metadata.clone()),
        spec: template.and_then(|t| t.spec.clone()).unwrap_or_default(),
        scale,
    }
}

impl Watches {
    /// Keeps the stores up to date until `stop`, and queues the buffers that a change affects.
    pub async fn run(
        self,
        client: Client,
        recorder: Recorder,
        stores: Stores,
        queue: Queue<ObjectKey>,
        stop: CancellationToken,
    ) {
        let from = Following {
            client,
            recorder,
            stores,
            queue,
        };
        let all = async {
            tokio::join!(
                from.follow(CapacityBuffer::KIND, self.buffers),
                from.follow("PodTemplate", self.templates),
                from.follow("Deployment", self.deployments),
                from.follow("StatefulSet", self.stateful_sets),
                from.follow("ReplicaSet", self.replica_sets),
            )
        };
        tokio::select! {
            biased;
            _ = all => {}
            () = stop.cancelled() => {}
        }
    }
}

/// The API that fills the stores, and the queue that changes go to.
struct Following {
    client: Client,
    recorder: Recorder,
    stores: Stores,
    queue: Queue<ObjectKey>,
}

impl Following {
    /// Fills a store from a watch and queues the buffers that a change affects.
    async fn follow<K>(&self, kind: &'static str, writer: Writer<K>)
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
    {
        let watching = Watching {
            logger: "capacitybuffer",
            kind,
            recorder: self.recorder.clone(),
        };
        let mut listed = Vec::new();
        let config = watcher::Config::default().any_semantic();
        let changed = |event: &Event<K>| match event {
            Event::Apply(object) | Event::Delete(object) => self.changed(kind, key(object)),
            Event::Init => listed.clear(),
            Event::InitApply(object) => listed.push(key(object)),
            // The store has the list from now on.
            Event::InitDone => {
                for key in std::mem::take(&mut listed) {
                    self.changed(kind, key);
                }
            }
        };
        watching
            .follow(self.client.clone(), config, writer, changed)
            .await;
    }

    fn changed(&self, kind: &str, key: ObjectKey) {
        if kind == CapacityBuffer::KIND {
            self.queue.add(key);
        } else {
            self.stores.affected(kind, &key, &self.queue);
        }
    }
}

fn key<K: Resource>(object: &K) -> ObjectKey {
    let meta = object.meta();
    ObjectKey::namespaced(
        meta.namespace.as_deref().unwrap_or_default(),
        meta.name.as_deref().unwrap_or_default(),
    )
}
