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
use crate::capacity_buffer::Stores;
use crate::context::Context;
use crate::controller::ObjectKey;
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

fn of_claim(claim: &NodeClaim) -> Object<'_> {
    Object {
        meta: &claim.metadata,
        conditions: claim.status.conditions.iter().map(seen).collect(),
    }
}

fn of_pool(pool: &NodePool) -> Object<'_> {
    Object {
        meta: &pool.metadata,
        conditions: pool.status.conditions.iter().map(seen).collect(),
    }
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

fn each_claim(view: &View, visit: &mut dyn FnMut(Object<'_>)) {
    view.snapshot
        .node_claims()
        .for_each(|claim| visit(of_claim(claim)));
}

fn each_pool(view: &View, visit: &mut dyn FnMut(Object<'_>)) {
    view.snapshot
        .node_pools()
        .for_each(|pool| visit(of_pool(pool)));
}

fn each_node(view: &View, visit: &mut dyn FnMut(Object<'_>)) {
    view.nodes().for_each(|node| visit(of_node(node)));
}

/// Metrics of condition transitions.
#[derive(Debug, Clone)]
struct Transitions {
    kind: Kind,
    total: Counter,
    seconds: Histogram,
    terminations: Histogram,
    twins: Option<(Counter, Histogram, Histogram)>,
}

/// Observes the conditions of objects: metrics, and an event for each transition.
pub struct Conditions {
    cx: Arc<Context>,
    claims: Transitions,
    pools: Transitions,
    nodes: Transitions,
    /// Present with the feature gate CapacityBuffer.
    buffers: Option<Transitions>,
    /// The last known version of each buffer; the model does not have them.
    known_buffers: Mutex<BTreeMap<ObjectKey, Arc<CapacityBuffer>>>,
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

/// Observes the conditions of a provider's kind.
#[derive(Debug)]
pub struct Following<K> {
    conditions: Arc<Conditions>,
    transitions: Transitions,
    /// The last known version of each object, by name.
    known: Mutex<BTreeMap<String, Arc<K>>>,
}

impl<K: HasConditions + Resource<DynamicType = ()>> Following<K> {
    /// Records the new version of the object of this name; `None` if it was deleted.
    pub fn observe(&self, name: &str, now: Option<Arc<K>>) {
        let mut known = self.known.lock();
        let before = match &now {
            Some(now) => known.insert(name.to_owned(), Arc::clone(now)),
            None => known.remove(name),
        };
        drop(known);
        let conditions = &self.conditions;
        conditions.changed(
            &self.transitions,
            before.as_deref(),
            now.as_deref(),
            of_any,
            &conditions.cx.view(),
        );
    }
}

impl Conditions {
    /// Registers the metrics. The caller must pass every change of the model and of a buffer to the returned value.
    #[must_use]
    pub fn register(cx: &Arc<Context>, buffers: Option<&Stores>) -> Self {
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
        let kind = |name, twin, extra| Kind { name, twin, extra };
        let claims = kind(
            "nodeclaim",
            Some((labels::GROUP, NodeClaim::KIND)),
            of_claims,
        );
        let pools = kind(
            "nodepool",
            Some((labels::GROUP, NodePool::KIND)),
            Vec::new(),
        );
        let nodes = kind("node", None, of_nodes);
        let mut kinds: Vec<(Kind, Each)> = vec![
            (claims.clone(), Arc::new(each_claim)),
            (pools.clone(), Arc::new(each_pool)),
            (nodes.clone(), Arc::new(each_node)),
        ];
        let buffers = buffers.map(|stores| {
            let stores = stores.clone();
            let kind = kind(
                "capacitybuffer",
                Some(("autoscaling.x-k8s.io", CapacityBuffer::KIND)),
                Vec::new(),
            );
            let each: Each = Arc::new(move |_, visit| {
                stores.each_buffer(&mut |buffer| visit(of_buffer(buffer)));
            });
            kinds.push((kind.clone(), each));
            transitions(cx, kind)
        });
        for (kind, each) in &kinds {
            gauges(cx, kind, each);
        }
        let kinds = Arc::new(Mutex::new(kinds));
        older_gauges(cx, &kinds);
        Self {
            kinds,
            buffers,
            known_buffers: Mutex::default(),
            claims: transitions(cx, claims),
            pools: transitions(cx, pools),
            nodes: transitions(cx, nodes),
            cx: Arc::clone(cx),
        }
    }

    /// Registers the metrics of a provider's kind, with `name` in their names; `each` visits its objects. The caller must
    /// pass every change of an object to the returned value.
    #[must_use]
    pub fn follow<K: HasConditions + Resource<DynamicType = ()>>(
        self: &Arc<Self>,
        name: &'static str,
        (group, kind): (&'static str, &'static str),
        each: impl Fn(&mut dyn FnMut(&K)) + Send + Sync + 'static,
    ) -> Following<K> {
        let kind = Kind {
            name,
            twin: Some((group, kind)),
            extra: Vec::new(),
        };
        let each: Each = Arc::new(move |_, visit| each(&mut |object| visit(of_any(object))));
        gauges(&self.cx, &kind, &each);
        let mut kinds = self.kinds.lock();
        kinds.push((kind.clone(), each));
        drop(kinds);
        Following {
            transitions: transitions(&self.cx, kind),
            conditions: Arc::clone(self),
            known: Mutex::default(),
        }
    }

    /// Records a change of the model; runs on the model's task.
    pub fn observe(&self, change: &Change, view: &View) {
        match change {
            Change::NodeClaim { before, after, .. } => self.changed(
                &self.claims,
                before.as_deref(),
                after.as_deref(),
                of_claim,
                view,
            ),
            Change::NodePool { before, after, .. } => self.changed(
                &self.pools,
                before.as_deref(),
                after.as_deref(),
                of_pool,
                view,
            ),
            Change::Node { before, after, .. } => self.changed(
                &self.nodes,
                before.as_deref(),
                after.as_deref(),
                of_node,
                view,
            ),
            _ => {}
        }
    }

    /// Records the new version of a buffer; `None` if it was deleted.
    pub fn observe_buffer(&self, key: &ObjectKey, now: Option<&Arc<CapacityBuffer>>) {
        let Some(transitions) = &self.buffers else {
            return;
        };
        let mut known = self.known_buffers.lock();
        let before = match now {
            Some(now) => known.insert(key.clone(), Arc::clone(now)),
            None => known.remove(key),
        };
        drop(known);
        let view = self.cx.view();
        self.changed(
            transitions,
            before.as_deref(),
            now.map(|now| &**now),
            of_buffer,
            &view,
        );
    }

    fn changed<'a, K: Resource<DynamicType = ()>>(
        &self,
        transitions: &Transitions,
        before: Option<&'a K>,
        after: Option<&'a K>,
        read: impl Fn(&'a K) -> Object<'a>,
        view: &View,
    ) {
        // Objects that are listed at start changed before, and the leader reports changes while this replica is a standby.
        if !view.is_synced() || self.cx.acting.since().is_none() {
            return;
        }
        let (old, new) = (before.map(&read), after.map(&read));
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
            transitions.terminations.observe(&[], seconds);
            if let (Some((_, _, twin)), Some((group, kind))) =
                (&transitions.twins, transitions.kind.twin)
            {
                twin.observe(&[group, kind], seconds);
            }
        }
    }
}

impl Transitions {
    fn count(&self, condition: &Seen) {
        let (type_, status, reason) = (&*condition.type_, &*condition.status, &*condition.reason);
        self.total.inc(&[type_, status, reason]);
        if let (Some((twin, _, _)), Some((group, kind))) = (&self.twins, self.kind.twin) {
            twin.inc(&[group, kind, type_, status, reason]);
        }
    }

    fn observe(&self, left: &Seen, seconds: f64) {
        self.seconds.observe(&[&left.type_, &left.status], seconds);
        if let (Some((_, twin, _)), Some((group, kind))) = (&self.twins, self.kind.twin) {
            twin.observe(&[group, kind, &left.type_, &left.status], seconds);
        }
    }
}

fn transitions(cx: &Context, kind: Kind) -> Transitions {
    let registry = &cx.metrics.registry;
    let buckets: Vec<f64> = (0..15).map(|n| 0.5 * 2f64.powi(n)).collect();
    let (total, seconds, ends) = (
        "The count of transitions of a condition.",
        "How long a condition was in a state before it left it.",
        "How long objects took to terminate completely.",
    );
    let name = kind.name;
    Transitions {
        total: registry.counter(
            &format!("operator_{name}_status_condition_transitions_total"),
            total,
            &["type", "status", "reason"],
        ),
        seconds: registry.histogram(
            &format!("operator_{name}_status_condition_transition_seconds"),
            seconds,
            &["type", "status"],
            &buckets,
        ),
        terminations: registry.histogram(
            &format!("operator_{name}_termination_duration_seconds"),
            ends,
            &[],
            &buckets,
        ),
        twins: kind.twin.map(|_| {
            (
                registry.counter(
                    "operator_status_condition_transitions_total",
                    total,
                    &["group", "kind", "type", "status", "reason"],
                ),
                registry.histogram(
                    "operator_status_condition_transition_seconds",
                    seconds,
                    &["group", "kind", "type", "status"],
                    &buckets,
                ),
                registry.histogram(
                    "operator_termination_duration_seconds",
                    ends,
                    &["group", "kind"],
                    &buckets,
                ),
            )
        }),
        kind,
    }
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

/// Emits the series of an object; `front` precedes the labels of a condition.
fn emit_object(
    metric: ConditionMetric,
    object: &Object<'_>,
    front: &[&str],
    back: &[&str],
    now: Timestamp,
    emit: &mut Emit<'_>,
) {
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
                let name = object.meta.name.as_deref().unwrap_or_default();
                let namespace = object.meta.namespace.as_deref().unwrap_or_default();
                emit_object(metric, &object, &[namespace, name], &back, now, emit);
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
                    let name = object.meta.name.as_deref().unwrap_or_default();
                    let namespace = object.meta.namespace.as_deref().unwrap_or_default();
                    let front = [namespace, name, group, kind];
                    emit_object(metric, &object, &front, &[], now, emit);
                });
            }
        };
        cx.metrics
            .registry
            .live(&format!("operator_{name}"), help, &names, with(cx, collect));
    }
}
