//! What the results of passes mean for records and index.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use karpenter_core::disruption::{Candidate, Command, Method};
use karpenter_core::pod::{Pod, PodKey, Shape};
use karpenter_core::reason::{Reason, pod_reason, pool_reasons};
use karpenter_core::schedule::{PlannedNodeClaim, Unschedulable};
use rustc_hash::{FxHashMap, FxHasher};

use crate::index::Known;
use crate::prices::finite;
use crate::record::{Item, NAMED, NAMED_TYPES, clipped};

/// Returns the names of at most [`NAMED`] objects.
pub(crate) fn named<T: ToString>(objects: impl IntoIterator<Item = T>) -> Vec<String> {
    let names = objects.into_iter().take(NAMED);
    names.map(|name| clipped(name.to_string())).collect()
}

/// The classes of pods: pods of one workload with the same specification are alike.
#[derive(Default)]
pub(crate) struct Classes {
    /// Pods of one workload share their shape.
    by_shape: FxHashMap<*const Shape, String>,
}

impl Classes {
    /// Returns the class of a pod: eight hexadecimal digits.
    pub(crate) fn of(&mut self, pod: &Pod) -> &str {
        let known = self.by_shape.entry(Arc::as_ptr(&pod.shape));
        known.or_insert_with(|| class(&pod.shape))
    }
}

/// Returns the class of pods with a shape.
pub(crate) fn class(shape: &Shape) -> String {
    short_hash(shape)
}

/// Returns eight hexadecimal digits.
fn short_hash(value: &(impl Hash + ?Sized)) -> String {
    let mut hasher = FxHasher::default();
    value.hash(&mut hasher);
    let hash = hasher.finish();
    format!("{:08x}", (hash >> 32) ^ (hash & u64::from(u32::MAX)))
}

/// Pods that have a result in common.
#[derive(Default)]
pub(crate) struct Group {
    pub(crate) count: usize,
    pub(crate) names: Vec<String>,
    pub(crate) nodes: Vec<String>,
    pub(crate) text: String,
}

impl Group {
    pub(crate) fn add(&mut self, pod: &PodKey) {
        self.count += 1;
        if self.names.len() < NAMED {
            self.names.push(clipped(pod.to_string()));
        }
    }

    pub(crate) fn add_node(&mut self, node: &str) {
        if self.nodes.len() < NAMED && !self.nodes.iter().any(|known| known == node) {
            self.nodes.push(node.to_owned());
        }
    }
}

/// Reasons of pods; those of one class share one value.
#[derive(Default)]
pub(crate) struct Whys<'a> {
    last: FxHashMap<*const Shape, (&'a Unschedulable, Arc<Known>)>,
}

impl<'a> Whys<'a> {
    pub(crate) fn of(&mut self, pod: &Pod, why: &'a Unschedulable) -> Arc<Known> {
        let shape = Arc::as_ptr(&pod.shape);
        if let Some((same, known)) = self.last.get(&shape)
            && *same == why
        {
            return Arc::clone(known);
        }
        let pools = pool_reasons(why).map(|(name, why)| (name.to_owned(), why));
        let known = Arc::new(Known::reason(pod_reason(why), pools.collect()));
        self.last.insert(shape, (why, Arc::clone(&known)));
        known
    }
}

/// Reasons of nodes; equal ones share one value.
#[derive(Default)]
pub(crate) struct NodeReasons {
    by_json: BTreeMap<String, Arc<Known>>,
}

impl NodeReasons {
    pub(crate) fn of(&mut self, reason: Reason) -> Arc<Known> {
        let json = serde_json::to_string(&reason).unwrap_or_default();
        let known = self.by_json.entry(json);
        Arc::clone(known.or_insert_with(|| Arc::new(Known::reason(reason, Vec::new()))))
    }
}

/// Returns the item of a planned node, with the NodeClaim that was created for it.
pub(crate) fn launched(planned: &PlannedNodeClaim, node_claim: Option<&str>) -> Item {
    let types = &planned.instance_types;
    Item::Launched {
        node_pool: planned.node_pool.clone(),
        node_claim: node_claim.map(str::to_owned),
        pods: planned.pods.len() + planned.buffer_pods.len(),
        names: named(&planned.pods),
        instance_types: types.iter().take(NAMED_TYPES).cloned().collect(),
        more_instance_types: types.len().saturating_sub(NAMED_TYPES),
        price_per_hour: finite(planned.hourly_price),
        chosen: None,
    }
}

/// Returns the id of a command in records, by the names of its NodeClaims.
pub(crate) fn command_id(claims: &[String]) -> String {
    short_hash(claims)
}

/// Returns the reason of a method, as in records.
pub(crate) fn disruption_reason(method: Method) -> &'static str {
    match method {
        Method::Emptiness => "empty",
        Method::StaticDrift | Method::Drift => "drifted",
        Method::MultiNode | Method::SingleNode => "underutilized",
    }
}

/// Returns the item of a command; `rejected` if validation did.
pub(crate) fn disrupted(command: &Command, rejected: Option<&Reason>) -> Item {
    let types = command.replacements.iter();
    let types = types.flat_map(|planned| planned.instance_types.iter());
    Item::Disrupted {
        reason: disruption_reason(command.method),
        command: command_id(command.id().claims()),
        decision: command.decision().as_str(),
        count: command.candidates.len(),
        names: named(command.candidates.iter().map(Candidate::name)),
        replacements: command.replacements.len(),
        instance_types: types.take(NAMED_TYPES).cloned().collect(),
        pods: command.pods().count(),
        savings_per_hour: finite(command.savings),
        rejected: rejected.map(Reason::id),
        outcome: None,
    }
}
