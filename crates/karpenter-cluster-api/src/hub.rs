//! The management cluster: the objects of one Cluster, in its namespace.
//!
//! MachineDeployments and Karpenter's Machines are watched, templates are read when they are needed and kept for half a minute; what
//! decides about the end of an instance is read from the API server.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::{StreamExt, pin_mut};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, DynamicObject};
use kube::discovery::{self, ApiGroup};
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::deployment::TemplateRef;
use crate::machine::{self, CLUSTER_LABEL, UID_LABEL, WITHOUT_DRAIN};

const CLUSTER_API: &str = "cluster.x-k8s.io";
/// How long a template is kept. Infrastructure providers refuse to change the spec of one.
const TEMPLATE_KEPT: Duration = Duration::from_secs(30);

/// Why the management cluster cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// A request has failed.
    #[error("cannot use the management cluster: {0}")]
    Api(#[from] Box<kube::Error>),
    /// The kind is not served.
    #[error("the management cluster serves no kind `{0}`: is Cluster API installed?")]
    Unknown(String),
    /// There is not exactly one Cluster.
    #[error("the management cluster has {0} Clusters: name this one in --cluster-api-cluster")]
    Clusters(usize),
    #[error("invalid Cluster `{0}`: it must be NAMESPACE/NAME")]
    InvalidCluster(String),
}

impl From<kube::Error> for HubError {
    fn from(error: kube::Error) -> Self {
        Self::Api(Box::new(error))
    }
}

impl HubError {
    /// Returns whether there is no such object.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        let Self::Api(error) = self else {
            return false;
        };
        matches!(&**error, kube::Error::Api(status) if status.is_not_found())
    }
}

/// The management cluster. Clones share its state.
#[derive(Clone)]
pub struct Hub(Arc<Inner>);

struct Inner {
    client: Client,
    /// Namespace and name of the Cluster, if they are configured.
    named: Option<(String, String)>,
    found: OnceLock<Found>,
    /// The number of changes of Machines, and whether both stores have been filled.
    changes: watch::Sender<u64>,
    filled: watch::Sender<(bool, bool)>,
    groups: Mutex<BTreeMap<String, Arc<ApiGroup>>>,
    templates: Mutex<BTreeMap<TemplateRef, (Instant, Arc<DynamicObject>)>>,
}

/// What the management cluster serves, the newer version of two, and the Cluster.
struct Found {
    namespace: String,
    cluster: String,
    clusters: ApiResource,
    deployments: ApiResource,
    machines: ApiResource,
    stores: (Store<DynamicObject>, Store<DynamicObject>),
    writers: Mutex<Option<(Writer<DynamicObject>, Writer<DynamicObject>)>>,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hub({})", self.cluster())
    }
}

impl Hub {
    /// Creates it without a request: the management cluster may not answer yet. `cluster` is the Cluster of the nodes, as
    /// `namespace/name`; it may be omitted if there is only one.
    ///
    /// # Errors
    /// If the name of the Cluster is invalid.
    pub fn new(client: Client, cluster: Option<&str>) -> Result<Self, HubError> {
        let parts = |text: &str| {
            let (namespace, name) = text.split_once('/')?;
            let is_complete = !namespace.is_empty() && !name.is_empty();
            is_complete.then(|| (namespace.to_owned(), name.to_owned()))
        };
        let invalid = |text: &str| HubError::InvalidCluster(text.to_owned());
        let named = cluster.map(|text| parts(text).ok_or_else(|| invalid(text)));
        Ok(Self(Arc::new(Inner {
            client,
            named: named.transpose()?,
            found: OnceLock::new(),
            changes: watch::Sender::new(0),
            filled: watch::Sender::new((false, false)),
            groups: Mutex::default(),
            templates: Mutex::default(),
        })))
    }

    /// Returns what the management cluster serves; asks it until it has answered once.
    async fn found(&self) -> Result<&Found, HubError> {
        if let Some(found) = self.0.found.get() {
            return Ok(found);
        }
        let client = &self.0.client;
        let group = discovery::group(client, CLUSTER_API).await?;
        let kind = |kind: &str| {
            let known = group.recommended_kind(kind);
            known
                .map(|(resource, _)| resource)
                .ok_or_else(|| HubError::Unknown(kind.to_owned()))
        };
        let (clusters, deployments) = (kind("Cluster")?, kind("MachineDeployment")?);
        let machines = kind("Machine")?;
        let (namespace, cluster) = match &self.0.named {
            Some(named) => named.clone(),
            None => {
                let all: Api<DynamicObject> = Api::all_with(client.clone(), &clusters);
                let all = all.list(&ListParams::default()).await?.items;
                let [only] = &all[..] else {
                    return Err(HubError::Clusters(all.len()));
                };
                (only.namespace().unwrap_or_default(), only.name_any())
            }
        };
        let writers = (
            Writer::new(deployments.clone()),
            Writer::new(machines.clone()),
        );
        Ok(self.0.found.get_or_init(|| Found {
            namespace,
            cluster,
            clusters,
            deployments,
            machines,
            stores: (writers.0.as_reader(), writers.1.as_reader()),
            writers: Mutex::new(Some(writers)),
        }))
    }

    /// Returns the name of the Cluster; empty if it is not known yet.
    #[must_use]
    pub fn cluster(&self) -> &str {
        let found = self.0.found.get().map(|found| &found.cluster);
        found
            .or(self.0.named.as_ref().map(|(_, name)| name))
            .map_or("", String::as_str)
    }

    /// Returns the kind of Machines.
    ///
    /// # Errors
    /// If the management cluster has never answered.
    pub async fn machine_kind(&self) -> Result<&ApiResource, HubError> {
        Ok(&self.found().await?.machines)
    }

    async fn machine_api(&self) -> Result<Api<DynamicObject>, HubError> {
        let found = self.found().await?;
        Ok(self.api(found, &found.machines))
    }

    fn api(&self, found: &Found, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.0.client.clone(), &found.namespace, resource)
    }

    /// Returns whether the management cluster answers, and whether the Cluster is paused.
    ///
    /// # Errors
    /// Those of the request, also if there is no such Cluster.
    pub async fn is_paused(&self) -> Result<bool, HubError> {
        let found = self.found().await?;
        let cluster = self.api(found, &found.clusters).get(&found.cluster).await?;
        Ok(cluster.data.pointer("/spec/paused") == Some(&json!(true)))
    }

    /// Watches MachineDeployments and Machines until `stop` is cancelled; calls back with each Machine that has changed.
    /// A management cluster that does not answer is asked again, with a back-off.
    pub async fn run(self, changed: impl Fn(&DynamicObject) + Send, stop: CancellationToken) {
        tokio::select! {
            () = self.watch(changed) => {}
            () = stop.cancelled() => {}
        }
    }

    async fn watch(&self, changed: impl Fn(&DynamicObject) + Send) {
        let mut waits = watcher::DefaultBackoff::default();
        let found = loop {
            match self.found().await {
                Ok(found) => break found,
                Err(error) => tracing::warn!(
                    logger = "clusterapi",
                    error = %error,
                    "waiting for the management cluster"
                ),
            }
            tokio::time::sleep(waits.next().unwrap_or_default()).await;
        };
        let Some((deployments, machines)) = found.writers.lock().take() else {
            return;
        };
        let config = watcher::Config::default();
        let of_cluster = format!("{CLUSTER_LABEL}={},{UID_LABEL}", found.cluster);
        let api = self.api(found, &found.deployments);
        let first = follow(api, config.clone(), deployments, |event| {
            if matches!(event, Event::InitDone) {
                self.0.filled.send_modify(|filled| filled.0 = true);
            }
        });
        let second = follow(
            self.api(found, &found.machines),
            config.labels(&of_cluster),
            machines,
            |event| {
                match event {
                    Event::Apply(machine) | Event::Delete(machine) => changed(machine),
                    // A list replaces the content of the store at its end.
                    Event::InitDone => {
                        self.0.filled.send_modify(|filled| filled.1 = true);
                        for machine in found.stores.1.state() {
                            changed(&machine);
                        }
                    }
                    Event::Init | Event::InitApply(_) => {}
                }
                self.0
                    .changes
                    .send_modify(|count| *count = count.wrapping_add(1));
            },
        );
        futures::future::join(first, second).await;
    }

    /// Waits until both watches have listed their objects, for ten seconds; returns whether they have.
    pub async fn filled(&self) -> bool {
        let mut filled = self.0.filled.subscribe();
        let both = filled.wait_for(|filled| filled.0 && filled.1);
        let both = tokio::time::timeout(Duration::from_secs(10), both).await;
        both.is_ok_and(|filled| filled.is_ok())
    }

    /// Returns whether both watches have listed their objects.
    #[must_use]
    pub fn is_filled(&self) -> bool {
        let filled = *self.0.filled.borrow();
        filled.0 && filled.1
    }

    /// Returns the MachineDeployments of the namespace, in the order of their names.
    #[must_use]
    pub fn deployments(&self) -> Vec<Arc<DynamicObject>> {
        let found = self.0.found.get();
        let mut all = found.map_or_else(Vec::new, |found| found.stores.0.state());
        all.sort_by_key(|deployment| deployment.name_any());
        all
    }

    #[must_use]
    pub fn deployment(&self, name: &str) -> Option<Arc<DynamicObject>> {
        let found = self.0.found.get()?;
        let key = ObjectRef::new_with(name, found.deployments.clone()).within(&found.namespace);
        found.stores.0.get(&key)
    }

    /// Returns Karpenter's Machines, as the watch has them.
    #[must_use]
    pub fn machines(&self) -> Vec<Arc<DynamicObject>> {
        let found = self.0.found.get();
        found.map_or_else(Vec::new, |found| found.stores.1.state())
    }

    /// Returns one of Karpenter's Machines, as the watch has it.
    #[must_use]
    pub fn machine(&self, name: &str) -> Option<Arc<DynamicObject>> {
        let found = self.0.found.get()?;
        let key = ObjectRef::new_with(name, found.machines.clone()).within(&found.namespace);
        found.stores.1.get(&key)
    }

    /// Waits until the watch has a Machine for which `holds` returns an answer, for `limit` at most.
    pub async fn wait_for<T>(
        &self,
        name: &str,
        limit: Duration,
        holds: impl Fn(&DynamicObject) -> Option<T>,
    ) -> Option<T> {
        let mut changes = self.0.changes.subscribe();
        let waiting = async {
            loop {
                if let Some(answer) = self.machine(name).and_then(|machine| holds(&machine)) {
                    return Some(answer);
                }
                changes.changed().await.ok()?;
            }
        };
        tokio::time::timeout(limit, waiting).await.ok().flatten()
    }

    /// Reads a Machine.
    ///
    /// # Errors
    /// Those of the request.
    pub async fn read_machine(&self, name: &str) -> Result<Option<DynamicObject>, HubError> {
        Ok(self.machine_api().await?.get_opt(name).await?)
    }

    /// Lists Karpenter's Machines of the Cluster.
    ///
    /// # Errors
    /// Those of the request.
    pub async fn list_machines(&self) -> Result<Vec<DynamicObject>, HubError> {
        let machines = self.machine_api().await?;
        let own = format!("{CLUSTER_LABEL}={},{UID_LABEL}", self.cluster());
        Ok(machines
            .list(&ListParams::default().labels(&own))
            .await?
            .items)
    }

    /// Creates a Machine; returns the one that has its name, if there is one.
    ///
    /// # Errors
    /// Those of the request.
    pub async fn create_machine(&self, machine: &DynamicObject) -> Result<DynamicObject, HubError> {
        let api = self.machine_api().await?;
        match api.create(&PostParams::default(), machine).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                Ok(api.get(&machine.name_any()).await?)
            }
            answer => Ok(answer?),
        }
    }

    /// Deletes a Machine, whose node Cluster API does not drain again.
    ///
    /// # Errors
    /// Those of the requests; a conflict if another Machine has the name now.
    pub async fn delete_machine(&self, machine: &DynamicObject) -> Result<(), HubError> {
        let (api, name) = (self.machine_api().await?, machine.name_any());
        let annotations = json!(
            WITHOUT_DRAIN
                .map(|key| (key, ""))
                .into_iter()
                .collect::<BTreeMap<_, _>>()
        );
        let patch =
            json!({ "metadata": { "uid": machine.metadata.uid, "annotations": annotations } });
        api.patch(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        let only_this = DeleteParams::default().preconditions(Preconditions {
            uid: machine.metadata.uid.clone(),
            resource_version: None,
        });
        api.delete(&name, &only_this).await?;
        Ok(())
    }

    /// Creates the object of a template for a Machine, unless there is one.
    ///
    /// # Errors
    /// Those of the requests.
    pub async fn instantiate(
        &self,
        template: &TemplateRef,
        machine: &DynamicObject,
    ) -> Result<(), HubError> {
        let found = self.found().await?;
        let read = self.template(template).await?;
        let kind = self
            .kind(&template.group, machine::without_template(&template.kind))
            .await?;
        let of = (template.kind.as_str(), template.group.as_str());
        let object = machine::from_template(&kind, &read, of, machine, &found.machines);
        match self
            .api(found, &kind)
            .create(&PostParams::default(), &object)
            .await
        {
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            Err(error) => Err(error.into()),
            Ok(_) => Ok(()),
        }
    }

    /// Returns a template, which is read if it is not kept.
    ///
    /// # Errors
    /// Those of the requests; not found if there is no such template.
    pub async fn template(&self, template: &TemplateRef) -> Result<Arc<DynamicObject>, HubError> {
        let kept = self.0.templates.lock().get(template).cloned();
        if let Some((at, kept)) = kept
            && at.elapsed() < TEMPLATE_KEPT
        {
            return Ok(kept);
        }
        let kind = self.kind(&template.group, &template.kind).await?;
        let found = self.found().await?;
        let read = Arc::new(self.api(found, &kind).get(&template.name).await?);
        let mut all = self.0.templates.lock();
        all.retain(|_, (at, _)| at.elapsed() < TEMPLATE_KEPT * 10);
        all.insert(template.clone(), (Instant::now(), Arc::clone(&read)));
        Ok(read)
    }

    /// Returns a template that was read before.
    #[must_use]
    pub fn kept_template(&self, template: &TemplateRef) -> Option<Arc<DynamicObject>> {
        self.0
            .templates
            .lock()
            .get(template)
            .map(|(_, kept)| Arc::clone(kept))
    }

    async fn kind(&self, group: &str, kind: &str) -> Result<ApiResource, HubError> {
        let kept = self.0.groups.lock().get(group).cloned();
        let known = kept.as_ref().and_then(|group| group.recommended_kind(kind));
        if let Some((resource, _)) = known {
            return Ok(resource);
        }
        let read = Arc::new(discovery::group(&self.0.client, group).await?);
        self.0
            .groups
            .lock()
            .insert(group.to_owned(), Arc::clone(&read));
        let known = read.recommended_kind(kind);
        known
            .map(|(resource, _)| resource)
            .ok_or_else(|| HubError::Unknown(format!("{kind}.{group}")))
    }
}

async fn follow(
    api: Api<DynamicObject>,
    config: watcher::Config,
    writer: Writer<DynamicObject>,
    seen: impl Fn(&Event<DynamicObject>),
) {
    let url = api.resource_url().to_owned();
    let stored = reflector(writer, watcher::watcher(api, config).default_backoff());
    pin_mut!(stored);
    while let Some(event) = stored.next().await {
        match event {
            Ok(event) => seen(&event),
            Err(error) => tracing::warn!(
                logger = "clusterapi",
                url,
                error = %error,
                "watching the management cluster"
            ),
        }
    }
}
