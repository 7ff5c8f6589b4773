//! Metrics and events about status conditions of NodeClaims, NodePools, Nodes, CapacityBuffers, and of kinds that a
//! provider adds.
//!
//! Every metric exists per kind (`operator_nodeclaim_…`), and once more without the kind in its name but with labels
//! `group` and `kind`, for older dashboards (not for Nodes).
//!
//! UPSTREAM: awslabs/operatorpkg status/controller.go

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use karpenter_api::autoscaling::CapacityBuffer;
use karpenter_api::conditions::HasConditions;
use karpenter_api::events::FINALIZED;
use karpenter_api::labels;
use karpenter_api::v1::{NodeClaim, NodePool};
use kube::Resource;
use parking_lot::Mutex;

use super::series::with;
use crate::context::Context;
use crate::events::{Event, reference};
use crate::metrics::{Counter, Emit, Histogram};
use crate::model::{Change, View};

/// A condition of an object of any kind.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    type_: String,
    status: String,
    reason: String,
    message: String,
    since: Option<Timestamp>,
}

/// The fields of an object of any kind that the metrics use.
struct Object<'a> {
    meta: &'a ObjectMeta,
    conditions: Vec<Seen>,
}

fn of_node(node: &Node) -> Object<'_> {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    let seen = |c: &k8s_openapi::api::core::v1::NodeCondition| Seen {
        type_: c.type_.clone(),
        status: c.status.clone(),
        reason: c.reason.clone().unwrap_or_default(),
        message: c.message.clone().unwrap_or_default(),
        since: c.last_transition_time.as_ref().map(|t| t.0),
    };
    Object {
        meta: &node.metadata,
        conditions: conditions.into_iter().flatten().map(seen).collect(),
    }
}

fn of_buffer(buffer: &CapacityBuffer) -> Object<'_> {
    Object {
        meta: &buffer.metadata,
        conditions: buffer.status.conditions.iter().map(seen).collect(),
    }
}

fn of_any<K: HasConditions>(object: &K) -> Object<'_> {
    Object {
        meta: object.meta(),
        conditions: object.conditions().iter().map(seen).collect(),
    }
}

fn seen(condition: &Condition) -> Seen {
    Seen {
        type_: condition.type_.clone(),
        status: condition.status.clone(),
        reason: condition.reason.clone(),
        message: condition.message.clone(),
        since: Some(condition.last_transition_time.0),
    }
}

/// A kind whose conditions are reported.
#[derive(Debug, Clone)]
struct Kind {
    /// Name in metric names.
    name: &'static str,
    /// API group and kind in the older metrics; `None` for kinds without them.
    twin: Option<(&'static str, &'static str)>,
    /// Metric label and object label of additional labels.
    extra: Vec<(String, String)>,
}

/// Calls back for each object of a kind.
type Each = Arc<dyn Fn(&View, &mut dyn FnMut(Object<'_>)) + Send + Sync>;

/// Reads the conditions of an object.
type Read<K> = fn(&K) -> Object<'_>;

/// The metrics of condition transitions of a kind: once for the kind, and once with its labels in the older metrics.
#[derive(Debug, Clone)]
struct Transitions(Vec<Series>);

#[derive(Debug, Clone)]
struct Series {
    /// The labels before those of a condition.
    front: Vec<&'static str>,
    total: Counter,
    seconds: Histogram,
    terminations: Histogram,
}

/// Observes the conditions of objects: metrics, and an event for each transition.
pub struct Conditions {
    cx: Arc<Context>,
    claims: Transitions,
    pools: Transitions,
    nodes: Transitions,
    /// The kinds of the older gauges.
    kinds: Kinds,
}

/// Reported kinds with their iterators.
type Kinds = Arc<Mutex<Vec<(Kind, Each)>>>;

impl std::fmt::Debug for Conditions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Conditions")
    }
}

/// Observes the conditions of a kind that the model does not have.
#[derive(Debug)]
pub struct Following<K> {
    conditions: Arc<Conditions>,
    transitions: Transitions,
    read: Read<K>,
    /// The last known version of each object, by name.
    known: Mutex<BTreeMap<String, Arc<K>>>,
}

impl<K: Resource<DynamicType = ()>> Following<K> {
    /// Records the new version of the object of this name; `None` if it was deleted.
    pub fn observe(&self, name: &str, now: Option<Arc<K>>) {
        let mut known = self.known.lock();
        let before = match &now {
            Some(now) => known.insert(name.to_owned(), Arc::clone(now)),
            None => known.remove(name),
        };
        drop(known);
        let (all, transitions) = (&self.conditions, &self.transitions);
        all.changed(transitions, &before, &now, self.read, &all.cx.view());
    }
}

impl Conditions {
    /// Registers the metrics. The caller must pass every change of the model to the returned value.
    #[must_use]
    pub fn register(cx: &Arc<Context>) -> Self {
        let metric = |key: &str| key.replace(['/', '.', '-'], "_");
        let label = |key: String| (metric(&key), key);
        let mut of_claims: Vec<_> = cx
            .provider
            .profile()
            .node_classes
            .iter()
            .map(|class| label(labels::node_class(&class.group, &class.kind)))
            .collect();
        of_claims.push(label(labels::NODE_POOL.to_owned()));
        let mut of_nodes = of_claims.clone();
        of_nodes.push(label(labels::INITIALIZED.to_owned()));
        let kinds = Kinds::default();
        older_gauges(cx, &kinds);
        let report = |name, twin, extra, each| report(cx, &kinds, Kind { name, twin, extra }, each);
        let twin = |kind| Some((labels::GROUP, kind));
        let claims: Each = Arc::new(|view, visit| {
            view.snapshot
                .node_claims()
                .for_each(|claim| visit(of_any::<NodeClaim>(claim)));
        });
        let pools: Each = Arc::new(|view, visit| {
            view.snapshot
                .node_pools()
                .for_each(|pool| visit(of_any::<NodePool>(pool)));
        });
        let nodes: Each =
            Arc::new(|view, visit| view.nodes().for_each(|node| visit(of_node(node))));
        Self {
            claims: report("nodeclaim", twin(NodeClaim::KIND), of_claims, claims),
            pools: report("nodepool", twin(NodePool::KIND), Vec::new(), pools),
            nodes: report("node", None, of_nodes, nodes),
            cx: Arc::clone(cx),
            kinds,
        }
    }

    /// Registers the metrics of a provider's kind, with `name` in their names; `each` visits its objects. The caller must
    /// pass every change of an object to the returned value.
    #[must_use]
    pub fn follow<K: HasConditions + Resource<DynamicType = ()> + 'static>(
        self: &Arc<Self>,
        name: &'static str,
        kind: (&'static str, &'static str),
        each: impl Fn(&mut dyn FnMut(&K)) + Send + Sync + 'static,
    ) -> Following<K> {
        self.following(name, kind, of_any, each)
    }

    /// Registers the metrics of buffers. The caller must pass every change of a buffer to the returned value.
    pub(crate) fn follow_buffers(
        self: &Arc<Self>,
        each: impl Fn(&mut dyn FnMut(&CapacityBuffer)) + Send + Sync + 'static,
    ) -> Following<CapacityBuffer> {
        let kind = ("autoscaling.x-k8s.io", CapacityBuffer::KIND);
        self.following("capacitybuffer", kind, of_buffer, each)
    }

    fn following<K: 'static>(
        self: &Arc<Self>,
        name: &'static str,
        kind: (&'static str, &'static str),
        read: Read<K>,
        each: impl Fn(&mut dyn FnMut(&K)) + Send + Sync + 'static,
    ) -> Following<K> {
        let kind = Kind {
            name,
            twin: Some(kind),
            extra: Vec::new(),
        };
        let each: Each = Arc::new(move |_, visit| each(&mut |object| visit(read(object))));
        Following {
            transitions: report(&self.cx, &self.kinds, kind, each),
            conditions: Arc::clone(self),
            read,
            known: Mutex::default(),
        }
    }

    /// Records a change of the model; runs on the model's task.
    pub fn observe(&self, change: &Change, view: &View) {
        match change {
            Change::NodeClaim { before, after, .. } => {
                self.changed(&self.claims, before, after, of_any, view);
            }
            Change::NodePool { before, after, .. } => {
                self.changed(&self.pools, before, after, of_any, view);
            }
            Change::Node { before, after, .. } => {
                self.changed(&self.nodes, before, after, of_node, view);
            }
            _ => {}
        }
    }

    fn changed<K: Resource<DynamicType = ()>>(
        &self,
        transitions: &Transitions,
        before: &Option<Arc<K>>,
        after: &Option<Arc<K>>,
        read: Read<K>,
        view: &View,
    ) {
        let (before, after) = (before.as_deref(), after.as_deref());
        // Objects that are listed at start changed before, and the leader reports changes while this replica is a standby.
        if !view.is_synced() || self.cx.acting.since().is_none() {
            return;
        }
        let (old, new) = (before.map(read), after.map(read));
        match (&old, &new, after) {
            (Some(old), None, _) => {
                self.ended(transitions, old);
                if let Some(before) = before.filter(|b| b.meta().deletion_timestamp.is_some()) {
                    // The last finalizer is removed with the object.
                    self.finalized(before.meta(), &ObjectMeta::default(), &reference(before));
                }
            }
            (_, Some(new), Some(object)) => {
                let known = old.map(|old| old.conditions).unwrap_or_default();
                self.transitioned(transitions, &known, &new.conditions, &reference(object));
                if let (Some(before), Some(after)) = (before, after) {
                    self.finalized(before.meta(), after.meta(), &reference(object));
                }
            }
            _ => {}
        }
    }

    fn transitioned(
        &self,
        transitions: &Transitions,
        before: &[Seen],
        after: &[Seen],
        about: &ObjectReference,
    ) {
        for condition in after {
            let known = before.iter().find(|c| c.type_ == condition.type_);
            if known.is_some_and(|known| known.status == condition.status) {
                continue;
            }
            transitions.count(condition);
            let Some(known) = known else { continue };
            let lasted = condition.since.zip(known.since);
            let seconds = lasted.map_or(0.0, |(to, from)| to.duration_since(from).as_secs_f64());
            transitions.observe(known, seconds.max(0.0));
            let message = match condition.message.as_str() {
                "" => String::new(),
                message => format!(", Message: {message}"),
            };
            let text = format!(
                "Status condition transitioned, Type: {}, Status: {} -> {}, Reason: {}{message}",
                condition.type_, known.status, condition.status, condition.reason
            );
            let event = Event::normal(about.clone(), &condition.type_, text);
            self.cx.recorder.publish(event.always());
        }
    }

    fn finalized(&self, before: &ObjectMeta, after: &ObjectMeta, about: &ObjectReference) {
        let held = after.finalizers.clone().unwrap_or_default();
        for finalizer in before
            .finalizers
            .iter()
            .flatten()
            .filter(|f| !held.contains(f))
        {
            let event = Event::normal(about.clone(), FINALIZED, format!("Finalized {finalizer}"));
            self.cx.recorder.publish(event.always());
        }
    }

    fn ended(&self, transitions: &Transitions, object: &Object<'_>) {
        if let Some(deleted) = &object.meta.deletion_timestamp {
            let seconds = self.cx.clock.since(deleted.0).as_secs_f64();
            for series in &transitions.0 {
                series.terminations.observe(&series.front, seconds);
            }
        }
    }
}

impl Series {
    fn labels<'a>(&self, own: &[&'a str]) -> Vec<&'a str> {
        [&self.front[..], own].concat()
    }
}

impl Transitions {
    fn count(&self, seen: &Seen) {
        for series in &self.0 {
            let own = [&*seen.type_, &*seen.status, &*seen.reason];
            series.total.inc(&series.labels(&own));
        }
    }

    fn observe(&self, left: &Seen, seconds: f64) {
        for series in &self.0 {
            let labels = series.labels(&[&left.type_, &left.status]);
            series.seconds.observe(&labels, seconds);
        }
    }
}

/// Registers the metrics of a kind.
fn report(cx: &Arc<Context>, kinds: &Kinds, kind: Kind, each: Each) -> Transitions {
    gauges(cx, &kind, &each);
    let registry = &cx.metrics.registry;
    let buckets: Vec<f64> = (0..15).map(|n| 0.5 * 2f64.powi(n)).collect();
    let series = |of: &str, front: &[&str], values: &[&'static str]| {
        let name = |name: &str| format!("operator_{of}{name}");
        let labels = |own: &[&'static str]| [front, own].concat();
        Series {
            front: values.to_vec(),
            total: registry.counter(
                &name("status_condition_transitions_total"),
                "The count of transitions of a condition.",
                &labels(&["type", "status", "reason"]),
            ),
            seconds: registry.histogram(
                &name("status_condition_transition_seconds"),
                "How long a condition was in a state before it left it.",
                &labels(&["type", "status"]),
                &buckets,
            ),
            terminations: registry.histogram(
                &name("termination_duration_seconds"),
                "How long objects took to terminate completely.",
                front,
                &buckets,
            ),
        }
    };
    let own = series(&format!("{}_", kind.name), &[], &[]);
    let older = kind
        .twin
        .map(|(group, kind)| series("", &["group", "kind"], &[group, kind]));
    kinds.lock().push((kind, each));
    Transitions(older.into_iter().chain([own]).collect())
}

/// A gauge about conditions.
#[derive(Debug, Clone, Copy)]
enum ConditionMetric {
    Count,
    Seconds,
    Termination,
}

const CONDITION_METRICS: [(ConditionMetric, &str, &str); 3] = [
    (
        ConditionMetric::Count,
        "status_condition_count",
        "1 for each condition of an object.",
    ),
    (
        ConditionMetric::Seconds,
        "status_condition_current_status_seconds",
        "How long a condition has been in its state.",
    ),
    (
        ConditionMetric::Termination,
        "termination_current_time_seconds",
        "How long an object has been terminating.",
    ),
];

fn condition_labels(metric: ConditionMetric) -> &'static [&'static str] {
    match metric {
        ConditionMetric::Termination => &[],
        ConditionMetric::Count | ConditionMetric::Seconds => &["type", "status", "reason"],
    }
}

/// Emits the series of an object; `front` follows its name, and `back` the labels of a condition.
fn emit_object(
    metric: ConditionMetric,
    object: &Object<'_>,
    front: &[&str],
    back: &[&str],
    now: Timestamp,
    emit: &mut Emit<'_>,
) {
    let (namespace, name) = (&object.meta.namespace, &object.meta.name);
    let named = [namespace, name].map(|part| part.as_deref().unwrap_or_default());
    let front = [&named[..], front].concat();
    let since =
        |at: Option<Timestamp>| at.map_or(0.0, |at| now.duration_since(at).as_secs_f64().max(0.0));
    if let ConditionMetric::Termination = metric {
        if let Some(deleted) = &object.meta.deletion_timestamp {
            let values: Vec<&str> = front.iter().chain(back).copied().collect();
            emit.set(&values, since(Some(deleted.0)));
        }
        return;
    }
    for condition in &object.conditions {
        let own: [&str; 3] = [&condition.type_, &condition.status, &condition.reason];
        let values: Vec<&str> = front.iter().chain(&own).chain(back).copied().collect();
        let value = match metric {
            ConditionMetric::Seconds => since(condition.since),
            ConditionMetric::Count | ConditionMetric::Termination => 1.0,
        };
        emit.set(&values, value);
    }
}

fn gauges(cx: &Arc<Context>, kind: &Kind, each: &Each) {
    for (metric, name, help) in CONDITION_METRICS {
        let each = Arc::clone(each);
        let mut names = vec!["namespace", "name"];
        names.extend(condition_labels(metric));
        names.extend(kind.extra.iter().map(|(name, _)| name.as_str()));
        let extra = kind.extra.clone();
        let collect = move |cx: &Context, emit: &mut Emit<'_>| {
            let now = cx.clock.now();
            each(&cx.view(), &mut |object| {
                let labels = object.meta.labels.as_ref();
                let value =
                    |key: &String| labels.and_then(|l| l.get(key)).map_or("", String::as_str);
                let back: Vec<&str> = extra.iter().map(|(_, key)| value(key)).collect();
                emit_object(metric, &object, &[], &back, now, emit);
            });
        };
        let name = format!("operator_{}_{name}", kind.name);
        cx.metrics
            .registry
            .live(&name, help, &names, with(cx, collect));
    }
}

fn older_gauges(cx: &Arc<Context>, kinds: &Kinds) {
    for (metric, name, help) in CONDITION_METRICS {
        let mut names = vec!["namespace", "name", "group", "kind"];
        names.extend(condition_labels(metric));
        let kinds = Arc::clone(kinds);
        let collect = move |cx: &Context, emit: &mut Emit<'_>| {
            let kinds = kinds.lock().clone();
            let (view, now) = (cx.view(), cx.clock.now());
            for (kind, each) in &kinds {
                let Some((group, kind)) = kind.twin else {
                    continue;
                };
                each(&view, &mut |object| {
                    emit_object(metric, &object, &[group, kind], &[], now, emit);
                });
            }
        };
        cx.metrics
            .registry
            .live(&format!("operator_{name}"), help, &names, with(cx, collect));
    }
}
