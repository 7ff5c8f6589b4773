//! One pass: projects all legacy objects and writes the projected objects that differ.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, OwnerReference};
use karpenter_api::conditions::{HasConditions, types};
use karpenter_aws::api::EC2NodeClass;
use karpenter_kube::client::delete::delete_object;
use karpenter_kube::client::patch::{Lock, merge_diff, status_patch};
use karpenter_kube::context::Context;
use karpenter_kube::controller::{Controller, Doing, Next, Queue, ReconcileError};
use karpenter_kube::model::{Change, View};
use karpenter_kube::options::Options;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::status;
use super::status::Fate;
use super::store::{Stores, dynamic};
use crate::alpha;
use crate::alpha::{Projection, ProjectionSettings, project};
use crate::finding::{Finding, Severity, Subject};
use crate::v1alpha1::AWSNodeTemplate;
use crate::v1alpha5::Provisioner;

/// The field manager of projections for server-side apply.
const MANAGER: &str = "karpenter-legacy";
/// Annotation of a projected object: the digest of its projection. If the digest differs, the object is written again.
const DIGEST: &str = "compatibility.karpenter.sh/projection";
/// The requeue interval for a name conflict or an object that is being deleted.
const REQUEUE_AFTER: Duration = Duration::from_secs(5);

/// The only key of the work queue. The projections of Provisioners and AWSNodeTemplates depend on each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Everything;

pub(super) struct Projecting {
    cx: Arc<Context>,
    stores: Stores,
    settings: ProjectionSettings,
}

/// A legacy object and the result of parsing it.
struct Legacy<K> {
    raw: Arc<DynamicObject>,
    read: Result<K, String>,
}

impl<K: DeserializeOwned> Legacy<K> {
    fn read(raw: &Arc<DynamicObject>) -> Self {
        let text = serde_json::to_value(&**raw).unwrap_or_default();
        Self {
            raw: Arc::clone(raw),
            read: serde_json::from_value(text).map_err(|error| error.to_string()),
        }
    }

    fn name(&self) -> &str {
        self.raw.metadata.name.as_deref().unwrap_or_default()
    }
}

/// The objects of the cluster for one pass.
struct Cluster {
    provisioners: Vec<Legacy<Provisioner>>,
    templates: Vec<Legacy<AWSNodeTemplate>>,
    node_classes: BTreeMap<String, Arc<DynamicObject>>,
}

impl Projecting {
    pub(super) fn new(cx: Arc<Context>, stores: Stores, settings: ProjectionSettings) -> Self {
        Self {
            cx,
            stores,
            settings,
        }
    }

    fn client(&self) -> &Client {
        &self.cx.clients.api
    }

    /// Returns all objects, once every kind is listed.
    fn cluster(&self) -> Option<Cluster> {
        if !self.cx.view().is_synced() {
            return None;
        }
        let present = |raw: &&Arc<DynamicObject>| raw.metadata.deletion_timestamp.is_none();
        let provisioners = self.stores.provisioners.objects()?;
        let templates = self.stores.templates.objects()?;
        let node_classes = self.stores.node_classes.objects()?;
        let name = |raw: &DynamicObject| raw.metadata.name.clone().unwrap_or_default();
        Some(Cluster {
            provisioners: provisioners
                .iter()
                .filter(present)
                .map(Legacy::read)
                .collect(),
            templates: templates.iter().filter(present).map(Legacy::read).collect(),
            node_classes: node_classes
                .into_iter()
                .map(|raw| (name(&raw), raw))
                .collect(),
        })
    }

    /// Writes projected objects that differ; returns the subjects with name conflicts, and whether to requeue.
    async fn write(
        &self,
        cluster: &Cluster,
        projection: &Projection,
    ) -> Result<BTreeMap<Subject, String>, ReconcileError> {
        let mut taken = BTreeMap::new();
        let view = self.cx.view();
        for (from, class) in &projection.node_classes {
            let Some(owner) = owner(cluster, from) else {
                continue;
            };
            let current = cluster.node_classes.get(class.name());
            let current = current.map(|raw| (raw.metadata.clone(), raw.data["spec"].clone()));
            let written = self.put(from, class, &class.spec, owner, current).await?;
            if let Some(problem) = written {
                taken.insert(from.clone(), problem);
            }
        }
        for (from, pool) in &projection.node_pools {
            let Some(owner) = owner(cluster, from) else {
                continue;
            };
            let current = view.node_pool(pool.name());
            let current = current.map(|pool| (pool.metadata.clone(), json!(pool.spec)));
            let written = self.put(from, pool, &pool.spec, owner, current).await?;
            if let Some(problem) = written {
                taken.insert(from.clone(), problem);
            }
        }
        Ok(taken)
    }

    /// Creates or updates one object if it differs; returns the problem if another owner created it.
    ///
    /// Server-side apply removes fields that are no longer projected; a merge patch reverts changes of other clients.
    async fn put<K, S>(
        &self,
        from: &Subject,
        wanted: &K,
        spec: &S,
        owner: OwnerReference,
        current: Option<(ObjectMeta, Value)>,
    ) -> Result<Option<String>, ReconcileError>
    where
        K: Resource<DynamicType = ()> + Serialize + Clone,
        S: Serialize + DeserializeOwned,
    {
        let kind = K::kind(&()).into_owned();
        let name = wanted.meta().name.clone().unwrap_or_default();
        let mut wanted = wanted.clone();
        wanted.meta_mut().owner_references = Some(vec![owner.clone()]);
        let digest = digest(&wanted);
        let annotations = &mut wanted.meta_mut().annotations;
        annotations
            .get_or_insert_default()
            .insert(DIGEST.to_owned(), digest.clone());
        let api = dynamic::<K>(self.client());
        let mut applied = None;
        if let Some((metadata, current)) = current {
            let owners = metadata.owner_references.as_deref().unwrap_or_default();
            if !owners.iter().any(|known| known.uid == owner.uid) {
                return Ok(Some(format!(
                    "the {kind} `{name}` exists and was not created for this object; rename or delete one of them"
                )));
            }
            if metadata.deletion_timestamp.is_some() {
                return Ok(None);
            }
            let same = metadata
                .annotations
                .as_ref()
                .is_some_and(|annotations| annotations.get(DIGEST) == Some(&digest));
            if same {
                applied = Some((metadata.resource_version, current));
            }
        }
        let (version, current) = match applied {
            Some(applied) => applied,
            None => {
                let body = serde_json::to_value(&wanted).unwrap_or_default();
                let params = PatchParams::apply(MANAGER).force();
                let object = api
                    .patch(&name, &params, &Patch::Apply(body))
                    .await
                    .doing("applying projection")?;
                tracing::info!(
                    logger = "legacy",
                    from = %from,
                    into = format!("{kind}/{name}"),
                    "projected legacy object"
                );
                (
                    object.metadata.resource_version,
                    object.data["spec"].clone(),
                )
            }
        };
        // Both sides are serialized by the type, so that defaults and the order of fields do not differ.
        let current =
            serde_json::from_value::<S>(current.clone()).map_or(current, |current| json!(current));
        if let Some(change) = merge_diff(&current, &json!(spec)) {
            let patch = json!({ "metadata": { "resourceVersion": version }, "spec": change });
            api.patch(&name, &PatchParams::default(), &Patch::Merge(patch))
                .await
                .doing("restoring projection")?;
        }
        Ok(None)
    }

    /// Deletes projected EC2NodeClasses that are no longer projected.
    async fn delete_unprojected(
        &self,
        cluster: &Cluster,
        projection: &Projection,
    ) -> Result<(), ReconcileError> {
        let wanted: BTreeSet<&str> = projection
            .node_classes
            .iter()
            .map(|(_, class)| class.name())
            .collect();
        let view = self.cx.view();
        let used: BTreeSet<String> = view
            .snapshot
            .node_pools()
            .map(|pool| pool.spec.template.spec.node_class_ref.name.clone())
            .collect();
        // While an object cannot be converted, its earlier projection may still be in use.
        let converted: BTreeSet<&str> = sources(cluster)
            .into_iter()
            .filter(|(subject, _)| !projection.failed(subject))
            .filter_map(|(_, metadata)| metadata.uid.as_deref())
            .collect();
        let api = dynamic::<EC2NodeClass>(self.client());
        for (name, raw) in &cluster.node_classes {
            let mut owners = raw.metadata.owner_references.iter().flatten();
            let ours = owners.any(|owner| converted.contains(owner.uid.as_str()));
            let leave = !ours
                || wanted.contains(name.as_str())
                || used.contains(name)
                || raw.metadata.deletion_timestamp.is_some();
            if leave {
                continue;
            }
            delete_object(&api, raw)
                .await
                .doing("deleting projection")?;
        }
        Ok(())
    }

    /// Updates the status of a Provisioner if it changed.
    async fn update_provisioner_status(
        &self,
        old: &Legacy<Provisioner>,
        projection: &Projection,
        taken: &BTreeMap<Subject, String>,
    ) -> Result<(), ReconcileError> {
        let subject = alpha::provisioner(old.name());
        let malformed = malformed(&old.read, &subject);
        let (fate, findings) = fate(&subject, projection, taken, malformed.as_ref());
        let before = old.read.clone().unwrap_or_else(|_| Provisioner {
            metadata: old.raw.metadata.clone(),
            ..Provisioner::default()
        });
        let mut after = before.clone();
        let view = self.cx.view();
        let pool = view
            .node_pool(old.name())
            .filter(|pool| is_owned(&pool.metadata, &old.raw));
        after.status.resources = pool
            .map(|pool| pool.status.resources.clone())
            .unwrap_or_default();
        after.status.node_pool = pool.map(|pool| pool.name().to_owned());
        after.status.node_class =
            pool.map(|pool| pool.spec.template.spec.node_class_ref.name.clone());
        let ready = pool.and_then(|pool| pool.condition(types::READY));
        status::set(&mut after, &fate, &findings, ready, self.cx.clock.now());
        self.patch(&before, &after).await
    }

    /// Updates the status of an AWSNodeTemplate if it changed.
    async fn update_template_status(
        &self,
        old: &Legacy<AWSNodeTemplate>,
        cluster: &Cluster,
        projection: &Projection,
        taken: &BTreeMap<Subject, String>,
    ) -> Result<(), ReconcileError> {
        let subject = alpha::template(old.name());
        let malformed = malformed(&old.read, &subject);
        let (fate, findings) = fate(&subject, projection, taken, malformed.as_ref());
        let before = old.read.clone().unwrap_or_else(|_| AWSNodeTemplate {
            metadata: old.raw.metadata.clone(),
            ..AWSNodeTemplate::default()
        });
        let mut after = before.clone();
        let class = cluster
            .node_classes
            .get(old.name())
            .filter(|raw| is_owned(&raw.metadata, &old.raw))
            .and_then(|raw| {
                let value = serde_json::to_value(&**raw).ok()?;
                serde_json::from_value::<EC2NodeClass>(value).ok()
            });
        let class_status = class.as_ref().map(|class| &class.status);
        let of = |found: Option<&karpenter_aws::api::EC2NodeClassStatus>| {
            let found = found.cloned().unwrap_or_default();
            (found.subnets, found.security_groups, found.amis)
        };
        (
            after.status.subnets,
            after.status.security_groups,
            after.status.amis,
        ) = of(class_status);
        after.status.node_class = class.as_ref().map(|class| class.name().to_owned());
        let ready: Option<&Condition> = class
            .as_ref()
            .and_then(|class| class.condition(types::READY));
        status::set(&mut after, &fate, &findings, ready, self.cx.clock.now());
        self.patch(&before, &after).await
    }

    async fn patch<K>(&self, before: &K, after: &K) -> Result<(), ReconcileError>
    where
        K: Resource<DynamicType = ()> + Serialize + PartialEq,
    {
        let Some(patch) = status_patch(before, after, Lock::Optimistic) else {
            return Ok(());
        };
        let name = before.meta().name.as_deref().unwrap_or_default();
        let api: Api<DynamicObject> = dynamic::<K>(self.client());
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .doing("updating status of legacy object")?;
        Ok(())
    }
}

impl Controller for Projecting {
    type Key = Everything;
    const NAME: &'static str = "legacy.projection";
    const KIND: &'static str = Provisioner::KIND;

    fn concurrency(&self, _: &Options) -> usize {
        1
    }

    fn triggered_by(&self, change: &Change, _: &View, queue: &Queue<Everything>) {
        if matches!(change, Change::NodePool { .. } | Change::Synced) {
            queue.add(Everything);
        }
    }

    async fn reconcile(&self, _: Everything) -> Result<Next, ReconcileError> {
        let Some(cluster) = self.cluster() else {
            return Ok(Next::Wait);
        };
        let provisioners: Vec<Provisioner> = readable(&cluster.provisioners);
        let templates: Vec<AWSNodeTemplate> = readable(&cluster.templates);
        let projection = project(&provisioners, &templates, &self.settings);
        let taken = self.write(&cluster, &projection).await?;
        self.delete_unprojected(&cluster, &projection).await?;
        let mut errors = Vec::new();
        for old in &cluster.provisioners {
            errors.extend(
                self.update_provisioner_status(old, &projection, &taken)
                    .await
                    .err(),
            );
        }
        for old in &cluster.templates {
            let updated = self.update_template_status(old, &cluster, &projection, &taken);
            errors.extend(updated.await.err());
        }
        errors.retain(|error| !error.is_not_found());
        ReconcileError::collect(errors)?;
        Ok(match taken.is_empty() {
            true => Next::Wait,
            false => Next::After(REQUEUE_AFTER),
        })
    }
}

fn readable<K: Clone>(all: &[Legacy<K>]) -> Vec<K> {
    all.iter().filter_map(|old| old.read.clone().ok()).collect()
}

fn malformed<K>(read: &Result<K, String>, subject: &Subject) -> Option<Finding> {
    let error = read.as_ref().err()?;
    Some(Finding {
        severity: Severity::Error,
        subject: subject.clone(),
        field: "spec".to_owned(),
        problem: format!("cannot be read: {error}"),
        remedy: "compare it with the output of `kubectl explain`".to_owned(),
    })
}

/// Returns the result of converting an object and the findings about it.
fn fate<'a>(
    subject: &'a Subject,
    projection: &'a Projection,
    taken: &BTreeMap<Subject, String>,
    malformed: Option<&'a Finding>,
) -> (Fate, Vec<&'a Finding>) {
    let findings: Vec<&Finding> = projection.about(subject).chain(malformed).collect();
    if let Some(problem) = taken.get(subject) {
        return (Fate::NameTaken(problem.clone()), findings);
    }
    if malformed.is_some() || projection.failed(subject) {
        return (Fate::Refused, findings);
    }
    let classes = projection.node_classes.iter();
    let classes = classes
        .filter(|(from, _)| from == subject)
        .map(|(_, class)| format!("EC2NodeClass {}", class.name()));
    let pools = projection.node_pools.iter();
    let pools = pools
        .filter(|(from, _)| from == subject)
        .map(|(_, pool)| format!("NodePool {}", pool.name()));
    let into: Vec<String> = pools.chain(classes).collect();
    (Fate::Projected(format!("is {}", into.join(", "))), findings)
}

/// Returns the subjects of all legacy objects with their metadata.
fn sources(cluster: &Cluster) -> Vec<(Subject, &ObjectMeta)> {
    let provisioners = cluster.provisioners.iter();
    let provisioners = provisioners
        .filter(|old| old.read.is_ok())
        .map(|old| (alpha::provisioner(old.name()), &old.raw.metadata));
    let templates = cluster.templates.iter();
    let templates = templates
        .filter(|old| old.read.is_ok())
        .map(|old| (alpha::template(old.name()), &old.raw.metadata));
    provisioners.chain(templates).collect()
}

/// Returns the owner reference to the legacy object of a projection.
fn owner(cluster: &Cluster, from: &Subject) -> Option<OwnerReference> {
    let (_, metadata) = sources(cluster)
        .into_iter()
        .find(|(subject, _)| subject == from)?;
    let api_version = match from.kind.as_str() {
        Provisioner::KIND => format!("{}/{}", Provisioner::GROUP, Provisioner::VERSION),
        _ => format!("{}/{}", AWSNodeTemplate::GROUP, AWSNodeTemplate::VERSION),
    };
    Some(OwnerReference {
        api_version,
        kind: from.kind.clone(),
        name: from.name.clone(),
        uid: metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    })
}

fn is_owned(metadata: &ObjectMeta, by: &DynamicObject) -> bool {
    let mut owners = metadata.owner_references.iter().flatten();
    owners.any(|owner| Some(&owner.uid) == by.metadata.uid.as_ref())
}

/// Returns a digest of an object that is the same in every process.
fn digest(object: &impl Serialize) -> String {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    value.sort_all_objects();
    let hash = value
        .to_string()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    format!("{hash:016x}")
}
