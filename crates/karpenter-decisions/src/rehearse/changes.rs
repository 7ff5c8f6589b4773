//! Makes the changes of a request: objects in a copy of the snapshot, pods and nodes as the stepper's first events.

use std::collections::BTreeSet;

use karpenter_api::hash;
use karpenter_api::k8s_openapi::api::apps::v1 as apps;
use karpenter_api::k8s_openapi::api::core::v1::PodTemplateSpec;
use karpenter_api::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karpenter_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karpenter_api::v1::{NodeClassReference, NodePool};
use karpenter_api::v1alpha1::NodeOverlay;
use karpenter_api::validation;
use karpenter_core::cluster::{Cluster, DaemonSet, Snapshot};
use karpenter_core::disruption::DisruptionRequest;
use serde::Serialize;
use serde_json::Value;

use super::fields::changed_fields;
use super::request::{Intent, ObjectReference, PlanRequest, Scale};
use super::workloads::{Workloads, same_shape};
use super::{Gates, InvalidPlan, Settings, admission, buffers};
use crate::change::{self, Change, InvalidChange};
use crate::workload::Workload;

/// How deep lists may be nested in lists.
const NESTED: usize = 4;

/// The changes of a request, ready to be rehearsed.
pub(super) struct Intended {
    /// The cluster with the changed objects; its pods are unchanged.
    pub(super) snapshot: Snapshot,
    /// The settings of disruption passes after the changes.
    pub(super) disruption: DisruptionRequest,
    /// The pods that are added and removed.
    pub(super) workloads: Workloads,
    /// The NodeClaims that are deleted.
    pub(super) deleted_claims: BTreeSet<String>,
    /// The namespaces in which PodDisruptionBudgets changed.
    pub(super) budgets: BTreeSet<String>,
    /// The changes, one text each.
    pub(super) described: Vec<String>,
    /// What is approximate in them.
    pub(super) notes: Vec<String>,
    changed: bool,
}

impl Intended {
    /// Makes the changes of a request.
    pub(super) fn of(
        snapshot: &Snapshot,
        settings: &Settings,
        request: &PlanRequest,
    ) -> Result<Self, InvalidPlan> {
        request.check()?;
        let start = request.at.unwrap_or(settings.now);
        let mut applier = RequestApplier {
            cluster: Cluster::from(snapshot.fork()),
            templates: buffers::PodTemplates::new(),
            gates: settings.gates,
            intended: Self {
                snapshot: snapshot.fork(),
                disruption: settings.disruption.clone(),
                workloads: Workloads::new(start),
                deleted_claims: BTreeSet::new(),
                budgets: BTreeSet::new(),
                described: Vec::new(),
                notes: Vec::new(),
                changed: false,
            },
        };
        for intent in &request.changes {
            applier.apply_one(intent)?;
        }
        applier.stamp_hashes(snapshot);
        let mut intended = applier.intended;
        intended.snapshot = applier.cluster.snapshot();
        intended.notes.sort();
        intended.notes.dedup();
        Ok(intended)
    }

    /// Reports whether the request changes nothing.
    pub(super) fn is_nothing(&self) -> bool {
        !self.changed
    }
}

/// The namespace and the name of an object.
type Key<'a> = (&'a str, &'a str);

/// Applies what a request asks for, one after another.
struct RequestApplier {
    cluster: Cluster,
    templates: buffers::PodTemplates,
    gates: Gates,
    intended: Intended,
}

/// Returns the text of an object in a request.
fn text<'v>(object: &'v Value, pointer: &str) -> &'v str {
    let value = object.pointer(pointer).and_then(Value::as_str);
    value.unwrap_or_default()
}

fn namespace_or_default(namespace: Option<&str>) -> String {
    let namespace = namespace.filter(|namespace| !namespace.is_empty());
    namespace.unwrap_or("default").to_owned()
}

impl RequestApplier {
    fn apply_one(&mut self, intent: &Intent) -> Result<(), InvalidPlan> {
        match intent {
            Intent::Apply(object) => self.apply(object, 0),
            Intent::Delete(reference) => self.delete(reference),
            Intent::Scale(scale) => self.scale(scale),
            Intent::RemoveNode(name) => self.remove_node(name),
            Intent::If(text) => self.if_(text),
            Intent::Manifest(_) => {
                let why = "a manifest has to be read first";
                Err(InvalidPlan::field("request", "changes", why))
            }
        }
    }

    fn describe(&mut self, object: &str, change: &str) {
        self.intended.changed |= change != UNCHANGED;
        self.intended.described.push(format!("{object}: {change}"));
    }

    fn note(&mut self, note: String) {
        self.intended.notes.push(note);
    }

    fn apply(&mut self, object: &Value, depth: usize) -> Result<(), InvalidPlan> {
        let (version, kind) = (text(object, "/apiVersion"), text(object, "/kind"));
        let group = version.split_once('/').map_or("", |(group, _)| group);
        if kind == "List" && depth < NESTED {
            let items = object["items"].as_array();
            let mut items = items.into_iter().flatten();
            return items.try_for_each(|item| self.apply(item, depth + 1));
        }
        let name = text(object, "/metadata/name");
        if name.is_empty() && !kind.is_empty() {
            return Err(InvalidPlan::field(kind, "metadata.name", "is missing"));
        }
        let namespace = namespace_or_default(Some(text(object, "/metadata/namespace")));
        let key = (namespace.as_str(), name);
        match (version, kind) {
            ("karpenter.sh/v1", "NodePool") => self.apply_node_pool(name, object),
            ("karpenter.sh/v1alpha1", "NodeOverlay") => self.apply_overlay(name, object),
            ("policy/v1", "PodDisruptionBudget") => self.apply_budget(key, object),
            ("apps/v1", "Deployment") => self.apply_deployment(key, object),
            ("apps/v1", "StatefulSet") => self.apply_stateful_set(key, object),
            ("apps/v1", "DaemonSet") => self.apply_daemon_set(key, object),
            ("autoscaling.x-k8s.io/v1beta1", "CapacityBuffer") => self.apply_buffer(key, object),
            ("v1", "PodTemplate") => {
                let of = format!("PodTemplate {namespace}/{name}");
                let template = buffers::pod_template(&of, object)?;
                let key = (namespace.clone(), name.to_owned());
                self.templates.insert(key, template);
                self.note(format!(
                    "{of} is read for the CapacityBuffers after it only."
                ));
                self.describe(&of, "unchanged");
                Ok(())
            }
            _ if self.is_node_class(group, kind) => {
                self.note(format!(
                    "{kind} {name} is taken as it is in the cluster: its instance types are not recomputed."
                ));
                self.describe(&format!("{kind} {name}"), "unchanged");
                Ok(())
            }
            _ => Err(InvalidPlan::UnknownKind {
                kind: format!("{version}, {kind}").chars().take(128).collect(),
            }),
        }
    }

    fn is_node_class(&self, group: &str, kind: &str) -> bool {
        let mut classes = self.cluster.config().node_classes.iter();
        classes.any(|class| class.group == group && class.kind == kind)
    }

    fn apply_node_pool(&mut self, name: &str, object: &Value) -> Result<(), InvalidPlan> {
        let of = format!("NodePool {name}");
        let snapshot = self.cluster.snapshot();
        let known = snapshot.node_pool(name);
        let old = known.map(|known| json(known.as_ref()));
        let mut pool: NodePool = admission::node_pool(&of, object, old.as_ref())?;
        let findings = validation::node_pool(&pool, &self.cluster.config().well_known);
        if !findings.is_ok() {
            return Err(InvalidPlan::field(&of, "spec.template", findings.message()));
        }
        let given = pool.metadata.annotations.take().unwrap_or_default();
        if let Some(known) = known {
            pool.metadata = known.metadata.clone();
        }
        let annotations = pool.metadata.annotations.get_or_insert_default();
        annotations.extend(given);
        if pool.is_static() && !self.gates.static_pools.enabled {
            self.note(format!(
                "{of} launches no nodes: it has `replicas`, and the feature gate StaticCapacity is off."
            ));
        }
        let Some(known) = known else {
            self.add_pool(&of, pool)?;
            self.describe(&of, "created");
            return Ok(());
        };
        let what = match pool.metadata == known.metadata {
            true => difference(Some(&known.spec), &pool.spec),
            false => changed_fields(&json(&known.spec), &json(&pool.spec)),
        };
        if what != UNCHANGED {
            self.add_pool(&of, pool)?;
        }
        self.describe(&of, &what);
        Ok(())
    }

    /// Adds or replaces a NodePool as the change `pool=` does.
    fn add_pool(&mut self, of: &str, pool: NodePool) -> Result<(), InvalidPlan> {
        let class = pool.spec.template.spec.node_class_ref.clone();
        self.make_change(&Change::Pool(Box::new(pool)))
            .map_err(|_| {
                let NodeClassReference { kind, name, .. } = class;
                let why = format!("no NodePool of the cluster has {kind} {name}, so its instance types are not known");
                InvalidPlan::field(of, "spec.template.spec.nodeClassRef", why)
            })
    }

    /// Makes a change in the language of `--if`.
    fn make_change(&mut self, change: &Change) -> Result<(), InvalidChange> {
        let changed = change::apply(
            std::slice::from_ref(change),
            &self.cluster.snapshot(),
            &self.intended.disruption,
        )?;
        self.cluster = Cluster::from(changed.snapshot);
        self.intended.disruption = changed.request;
        Ok(())
    }

    fn if_(&mut self, text: &str) -> Result<(), InvalidPlan> {
        let change: Change = text.parse()?;
        match &change {
            Change::Tolerate(_) | Change::Drop(_) => {
                let only = "questions about one pod";
                return Err(InvalidChange::NotApplicable {
                    change: change.to_string(),
                    only,
                }
                .into());
            }
            Change::Now(_) => {
                let why = "use the time of the request (--at)";
                return Err(InvalidPlan::field("change", "now", why));
            }
            Change::Pool(pool) => {
                let object = json(pool.as_ref());
                return self.apply(&object, 0);
            }
            _ => {}
        }
        self.make_change(&change)?;
        if let Change::WithoutPdb(namespace, _) = &change {
            self.intended.budgets.insert(namespace.clone());
        }
        self.intended.changed = true;
        self.intended.described.push(change.to_string());
        Ok(())
    }

    fn apply_overlay(&mut self, name: &str, object: &Value) -> Result<(), InvalidPlan> {
        let of = format!("NodeOverlay {name}");
        let snapshot = self.cluster.snapshot();
        let mut overlays = snapshot.node_overlays();
        let known = overlays.find(|known| known.metadata.name.as_deref() == Some(name));
        let old = known.map(|known| json(known.as_ref()));
        let overlay: NodeOverlay = admission::node_overlay(&of, object, old.as_ref())?;
        let findings = validation::node_overlay(&overlay, &self.cluster.config().well_known);
        if !findings.is_ok() {
            return Err(InvalidPlan::field(&of, "spec", findings.message()));
        }
        self.note_overlays();
        let what = difference(known.map(|known| &known.spec), &overlay.spec);
        if what != UNCHANGED {
            self.cluster.apply_node_overlay(&overlay);
        }
        self.describe(&of, &what);
        Ok(())
    }

    /// Notes that overlays change nothing, unless the cluster's instance types are those without overlays.
    fn note_overlays(&mut self) {
        let why = match self.gates.node_overlays {
            _ if self.cluster.config().node_overlays => return,
            true => {
                "Changes of NodeOverlays are not rehearsed: instance types keep the NodeOverlays that the cluster has."
            }
            false => "NodeOverlays have no effect: the feature gate NodeOverlay is off.",
        };
        self.note(why.into());
    }

    fn apply_budget(
        &mut self,
        (namespace, name): Key<'_>,
        object: &Value,
    ) -> Result<(), InvalidPlan> {
        let of = format!("PodDisruptionBudget {namespace}/{name}");
        let mut budget: PodDisruptionBudget = admission::read(&of, object)?;
        let spec = budget.spec.as_ref();
        let both = spec.is_some_and(|s| s.min_available.is_some() && s.max_unavailable.is_some());
        if both {
            let why = "minAvailable and maxUnavailable cannot be both set";
            return Err(InvalidPlan::field(&of, "spec", why));
        }
        budget.metadata.namespace = Some(namespace.to_owned());
        budget.status = None;
        let snapshot = self.cluster.snapshot();
        let mut budgets = snapshot.pdbs_of(namespace);
        let known = budgets.find(|known| known.metadata.name.as_deref() == Some(name));
        let what = difference(known.map(|known| &known.spec), &budget.spec);
        if what != UNCHANGED {
            self.cluster.apply_pdb(&budget);
            self.intended.budgets.insert(namespace.to_owned());
        }
        self.describe(&of, &what);
        Ok(())
    }

    fn apply_deployment(
        &mut self,
        (namespace, name): Key<'_>,
        object: &Value,
    ) -> Result<(), InvalidPlan> {
        let workload = workload("Deployment", namespace, name);
        let deployment: apps::Deployment = admission::read(&workload.to_string(), object)?;
        let spec = deployment.spec.unwrap_or_default();
        if self.apply_workload(&workload, spec.replicas, &spec.template)? {
            let set = apps::ReplicaSet {
                metadata: ObjectMeta {
                    name: Some(format!("{name}-plan")),
                    namespace: Some(namespace.to_owned()),
                    ..ObjectMeta::default()
                },
                spec: Some(apps::ReplicaSetSpec {
                    selector: spec.selector,
                    ..apps::ReplicaSetSpec::default()
                }),
                status: None,
            };
            self.cluster.apply_replica_set(&set);
        }
        Ok(())
    }

    fn apply_stateful_set(
        &mut self,
        (namespace, name): Key<'_>,
        object: &Value,
    ) -> Result<(), InvalidPlan> {
        let workload = workload("StatefulSet", namespace, name);
        let set: apps::StatefulSet = admission::read(&workload.to_string(), object)?;
        let spec = set.spec.unwrap_or_default();
        self.apply_workload(&workload, spec.replicas, &spec.template)
            .map(drop)
    }

    /// Applies replicas and template of a workload; returns whether the template is new.
    fn apply_workload(
        &mut self,
        workload: &Workload,
        replicas: Option<i32>,
        template: &PodTemplateSpec,
    ) -> Result<bool, InvalidPlan> {
        let (snapshot, workloads) = (self.cluster.snapshot(), &mut self.intended.workloads);
        let applied = workloads.apply(&snapshot, workload, replicas, template)?;
        let is_new = applied.new_template;
        self.applied(workload, applied);
        Ok(is_new)
    }

    fn applied(&mut self, workload: &Workload, applied: super::workloads::Applied) {
        if applied.rolls_out {
            self.note(format!(
                "The rollout of {workload} is taken as done at once."
            ));
        }
        if applied.without_volumes {
            self.note(format!(
                "New pods of {workload} are rehearsed without their own volumes."
            ));
        }
        if !self.intended.disruption.query.buffer_pods.is_empty() {
            self.note("A CapacityBuffer keeps its number of pods: a percentage of a workload is not followed.".into());
        }
        self.describe(&workload.to_string(), &applied.what);
    }

    fn apply_daemon_set(
        &mut self,
        (namespace, name): Key<'_>,
        object: &Value,
    ) -> Result<(), InvalidPlan> {
        let of = format!("DaemonSet {namespace}/{name}");
        let mut set: apps::DaemonSet = admission::read(&of, object)?;
        set.metadata.namespace = Some(namespace.to_owned());
        let snapshot = self.cluster.snapshot();
        let mut sets = snapshot.daemon_sets().map(|(set, _)| set);
        let known = sets.find(|set| set.namespace == namespace && set.name == name);
        let (what, which) = match known {
            None => ("created", "are not added to existing nodes"),
            Some(known) => {
                let new = DaemonSet::parse(&set);
                if same_shape(&known.template.shape, &new.template.shape) {
                    self.describe(&of, UNCHANGED);
                    return Ok(());
                }
                ("template changed", "on existing nodes are not replaced")
            }
        };
        // Another uid: the pods that run have the old template.
        set.metadata.uid = Some(format!("rehearsed/{namespace}/{name}"));
        self.cluster.apply_daemon_set(&set);
        self.note(format!("Pods of {of} {which}."));
        self.describe(&of, what);
        Ok(())
    }

    fn apply_buffer(
        &mut self,
        (namespace, name): Key<'_>,
        object: &Value,
    ) -> Result<(), InvalidPlan> {
        let of = format!("CapacityBuffer {namespace}/{name}");
        let known = (&self.cluster.snapshot(), &self.intended.workloads);
        let pods = buffers::resolve(&of, (namespace, name), object, &self.templates, known)?;
        if !self.gates.capacity_buffers {
            self.note(
                "CapacityBuffers have no effect: the feature gate CapacityBuffer is off.".into(),
            );
            self.describe(&of, "unchanged");
            return Ok(());
        }
        let all = &mut self.intended.disruption.query.buffer_pods;
        let before = buffers::replace(all, (namespace, name), pods.clone());
        self.describe(&of, &buffers::described(&before, &pods));
        Ok(())
    }

    fn scale(&mut self, scale: &Scale) -> Result<(), InvalidPlan> {
        let namespace = namespace_or_default(scale.namespace.as_deref());
        if !["Deployment", "StatefulSet", "ReplicaSet"].contains(&scale.kind.as_str()) {
            let why = "Deployment, StatefulSet and ReplicaSet can be scaled";
            return Err(InvalidPlan::field("scale", "kind", why));
        }
        let workload = workload(&scale.kind, &namespace, &scale.name);
        let (snapshot, workloads) = (self.cluster.snapshot(), &mut self.intended.workloads);
        let applied = workloads.scale(&snapshot, &workload, scale.replicas)?;
        self.applied(&workload, applied);
        Ok(())
    }

    fn delete(&mut self, reference: &ObjectReference) -> Result<(), InvalidPlan> {
        let ObjectReference { kind, name, .. } = reference;
        let namespace = namespace_or_default(reference.namespace.as_deref());
        let mut of = format!("{kind} {namespace}/{name}");
        let existed = match kind.as_str() {
            "NodePool" => {
                of = format!("NodePool {name}");
                let snapshot = self.cluster.snapshot();
                let claims = snapshot.node_claims_of_pool(name);
                let claims = claims.map(|claim| claim.name().to_owned());
                self.intended.deleted_claims.extend(claims);
                self.cluster.remove_node_pool(name).before.is_some()
            }
            "NodeOverlay" => {
                of = format!("NodeOverlay {name}");
                self.note_overlays();
                self.cluster.remove_node_overlay(name).before.is_some()
            }
            "PodDisruptionBudget" => self.cluster.remove_pdb(&namespace, name).before.is_some(),
            "CapacityBuffer" => {
                let all = &mut self.intended.disruption.query.buffer_pods;
                !buffers::replace(all, (&namespace, name), Vec::new()).is_empty()
            }
            "DaemonSet" => (self.cluster.remove_daemon_set(&namespace, name).before).is_some(),
            "Deployment" | "StatefulSet" => {
                let workload = workload(kind, &namespace, name);
                let (snapshot, workloads) = (self.cluster.snapshot(), &mut self.intended.workloads);
                workloads.scale(&snapshot, &workload, 0).is_ok()
            }
            _ => {
                let kind = kind.chars().take(128).collect();
                return Err(InvalidPlan::UnknownKind { kind });
            }
        };
        if !existed {
            return Err(InvalidPlan::field(&of, "", "does not exist"));
        }
        self.describe(&of, "deleted");
        Ok(())
    }

    fn remove_node(&mut self, name: &str) -> Result<(), InvalidPlan> {
        let of = format!("Node {name}");
        let snapshot = self.cluster.snapshot();
        let node = snapshot.node(name);
        let node = node.ok_or_else(|| InvalidPlan::field(&of, "", "does not exist"))?;
        let claim = node.claim_name();
        let claim = claim.ok_or_else(|| InvalidPlan::field(&of, "", "has no NodeClaim"))?;
        self.intended.deleted_claims.insert(claim.to_owned());
        self.describe(&of, "deleted");
        Ok(())
    }

    /// Writes the hash of each NodePool whose template changed, as the controllers do.
    fn stamp_hashes(&mut self, before: &Snapshot) {
        let snapshot = self.cluster.snapshot();
        for pool in snapshot.node_pools() {
            let known = before.node_pool(pool.name());
            if known.is_none_or(|known| known.spec.template != pool.spec.template) {
                let mut stamped = NodePool::clone(pool);
                hash::stamp(&mut stamped);
                self.cluster.apply_node_pool(&stamped);
            }
        }
    }
}

fn workload(kind: &str, namespace: &str, name: &str) -> Workload {
    Workload {
        kind: kind.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

const UNCHANGED: &str = "unchanged";

/// Returns what differs between a specification and the known one.
fn difference<T: Serialize>(known: Option<&T>, new: &T) -> String {
    let (known, new) = (known.map(json), json(new));
    match known {
        None => "created".to_owned(),
        Some(known) if known == new => UNCHANGED.to_owned(),
        Some(known) => changed_fields(&known, &new),
    }
}

fn json(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}
