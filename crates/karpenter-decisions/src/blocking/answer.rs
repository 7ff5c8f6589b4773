//! The answer, as values that serialize to JSON.

use std::cmp::Ordering;

use jiff::Timestamp;
use karpenter_core::pod::VolumeRef;
use karpenter_core::resources::in_words;
use karpenter_core::schedule::PlannedNodeClaim;
use serde::Serialize;
use serde_json::Value;

use super::atom::{Atom, Side, State};
use super::competition::Competition;
use super::existing::Existing;
use super::probe::Probe;

/// What blocks a pod, and what would help.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Blocking {
    /// The pod alone can be scheduled: it has no place because of the pods that were placed before it.
    pub fits_alone: bool,
    /// The pods that were placed before it, if it fits alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub competition: Option<Competition>,
    /// Where the pod would go alone, if it fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
    /// What its new node would cost in dollars per hour, if it fits alone; 0 on an existing node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delta_per_hour: Option<f64>,
    /// Constraints that block the pod together. Empty if nothing that can be changed blocks it.
    pub blocking: BlockingSet,
    /// Changes that let the pod be scheduled, cheapest first.
    pub relaxations: Vec<Relaxation>,
    /// Why existing nodes do not take the pod.
    pub existing: Existing,
    /// The search ended early; every result was verified in any case.
    #[serde(skip)]
    pub truncated: bool,
}

impl Blocking {
    /// Returns in a sentence what blocks the pod, and the cheapest change that helps; `None` if nothing was found, or the search was cut
    /// short.
    pub fn sentence(&self) -> Option<String> {
        if self.fits_alone {
            let text =
                "The pod would fit alone: pods that were placed before it took the resources.";
            return Some(text.to_owned());
        }
        let atoms = &self.blocking.atoms;
        // A set of a search that was cut short may have constraints that do not matter.
        if atoms.is_empty() || !self.blocking.minimal {
            return None;
        }
        let names: Vec<String> = atoms.iter().map(Constraint::of_whom).collect();
        let together = match names.len() {
            1 => "",
            2 => ", both together",
            _ => ", all together",
        };
        let mut text = format!("In the way: {}{together}.", names.join("; "));
        let harmless = self.relaxations.iter().find(|it| it.affects.is_none());
        if let Some(change) = harmless {
            text.push_str(&format!(" This change alone would help: {}.", change.text));
        }
        Some(text)
    }
}

impl Constraint {
    /// Returns the text with its subject.
    fn of_whom(&self) -> String {
        match self.side {
            Side::Pod if self.text.starts_with("does not") => format!("the pod {}", self.text),
            Side::Pod => format!("the pod's {}", self.text),
            Side::Pool | Side::Offer | Side::Cluster => self.text.clone(),
        }
    }
}

/// Constraints that block a pod together.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BlockingSet {
    /// The pod does not fit while every other constraint is relaxed.
    pub exact: bool,
    /// Without any one of them the others do not block.
    pub minimal: bool,
    /// No smaller set blocks.
    pub minimum: bool,
    pub atoms: Vec<Constraint>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Constraint {
    /// Stable id within the question: `pod.spread[0]`, `pool[default].limits[cpu]`.
    pub id: String,
    pub side: Side,
    /// JSON pointer into the object; absent if it is not a field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    pub text: String,
    /// A likely cause: a label that nothing has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// A change that lets the pod be scheduled.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Relaxation {
    /// Ids of the constraints that it changes.
    pub atoms: Vec<String>,
    /// The side that has to act; for several the last in order.
    pub side: Side,
    pub text: String,
    /// The amount, if a number is changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change: Option<Amount>,
    /// The change as a patch, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch: Option<Patch>,
    /// Where the pod would go.
    pub effect: Effect,
    /// What the new node would cost in dollars per hour; 0 on an existing node.
    pub delta_per_hour: f64,
    /// It was run through the engine in this form.
    pub exact: bool,
    /// Another workload whose constraint would not hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affects: Option<String>,
}

impl Relaxation {
    /// Orders by: no other workload affected, a single change, price, number of changes, side, ids. What needs several changes at
    /// once comes after what one change does, whatever it costs.
    pub(super) fn order(a: &Self, b: &Self) -> Ordering {
        let key = |it: &Self| (it.atoms.len(), it.side, it.atoms.clone());
        (a.affects.is_some().cmp(&b.affects.is_some()))
            .then_with(|| (a.atoms.len() > 1).cmp(&(b.atoms.len() > 1)))
            .then_with(|| a.delta_per_hour.total_cmp(&b.delta_per_hour))
            .then_with(|| key(a).cmp(&key(b)))
    }
}

/// A number that is changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Amount {
    pub from: String,
    /// The smallest change that helps.
    pub to: String,
}

impl Amount {
    pub(super) fn of(from: impl ToString, to: impl ToString) -> Self {
        let (from, to) = (from.to_string(), to.to_string());
        Self { from, to }
    }
}

/// A patch for `kubectl patch`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Patch {
    /// `json`, `merge` or `strategic`, as `kubectl patch --type` has it.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// `Kind/name`, or `Kind/namespace/name`.
    pub target: String,
    pub value: Value,
}

impl Patch {
    pub(crate) fn new(kind: &'static str, target: String, value: Value) -> Self {
        Self {
            kind,
            target,
            value,
        }
    }

    pub(crate) fn merge(target: String, value: Value) -> Self {
        Self::new("merge", target, value)
    }

    pub(crate) fn of_pool(pool: &str, kind: &'static str, value: Value) -> Self {
        Self::new(kind, format!("NodePool/{pool}"), value)
    }
}

/// Where a pod would go.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Effect {
    /// An existing node, or a NodeClaim whose node has not joined.
    Node(String),
    NewNode(NewNode),
}

/// The cheapest new node that would be launched.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NewNode {
    pub node_pool: String,
    /// The cheapest instance type.
    pub instance_type: String,
    /// The number of instance types that could be launched.
    pub instance_types: usize,
    /// Dollars per hour.
    pub price: f64,
}

impl NewNode {
    pub(crate) fn of(claim: &PlannedNodeClaim) -> Self {
        Self {
            node_pool: claim.node_pool.clone(),
            instance_type: claim.instance_types.first().cloned().unwrap_or_default(),
            instance_types: claim.instance_types.len(),
            price: claim.hourly_price,
        }
    }
}

/// Escapes a key for a JSON pointer.
fn pointer(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

pub(super) fn constraint(probe: &Probe<'_>, index: usize) -> Constraint {
    let atom = &probe.atoms[index];
    let (id, path, text) = describe(probe, atom);
    Constraint {
        id,
        side: atom.side(),
        path,
        text,
        hint: None,
    }
}

fn describe(probe: &Probe<'_>, atom: &Atom) -> (String, Option<String>, String) {
    let shape = &probe.pod.shape;
    let at = |path: String| Some(path);
    match atom {
        Atom::NodeSelector(key) => (
            format!("pod.nodeSelector[{key}]"),
            at(format!("/spec/nodeSelector/{}", pointer(key))),
            format!(
                "nodeSelector {key}={}",
                shape.node_selector.get(key).map_or("", String::as_str)
            ),
        ),
        Atom::NodeAffinity(term, index) => {
            let expression = &shape.required_nodes[*term].expressions[*index];
            (
                format!("pod.nodeAffinity[{term}][{index}]"),
                at(format!(
                    "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/{term}/matchExpressions/{index}"
                )),
                format!(
                    "node affinity {} {}{}",
                    expression.key,
                    expression.operator,
                    list(&expression.values)
                ),
            )
        }
        Atom::Spread(index) => {
            let spread = &shape.spread[*index];
            (
                format!("pod.spread[{index}]"),
                at(format!("/spec/topologySpreadConstraints/{index}")),
                format!(
                    "topology spread over {} maxSkew={} (DoNotSchedule)",
                    spread.topology_key, spread.max_skew
                ),
            )
        }
        Atom::DefaultSpread => (
            "pod.defaultSpread".to_owned(),
            None,
            "default topology spread of kube-scheduler (DoNotSchedule)".to_owned(),
        ),
        Atom::Affinity(index) => (
            format!("pod.affinity[{index}]"),
            at(format!(
                "/spec/affinity/podAffinity/requiredDuringSchedulingIgnoredDuringExecution/{index}"
            )),
            format!(
                "pod affinity by {}",
                shape.required_affinity[*index].topology_key
            ),
        ),
        Atom::AntiAffinity(index) => (
            format!("pod.antiAffinity[{index}]"),
            at(format!(
                "/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution/{index}"
            )),
            format!(
                "pod anti-affinity by {}",
                shape.required_anti_affinity[*index].topology_key
            ),
        ),
        Atom::HostPort(index) => {
            let port = &shape.host_ports[*index];
            (
                format!("pod.hostPort[{}/{}]", port.port, port.protocol),
                None,
                format!("host port {}/{}", port.port, port.protocol),
            )
        }
        Atom::Volume(index) => {
            let name = match &shape.volumes[*index] {
                VolumeRef::Claim(name) => name.clone(),
                VolumeRef::Ephemeral { volume, .. } => volume.clone(),
            };
            (
                format!("pod.volume[{name}]"),
                None,
                format!("volume {name}{}", place(probe, &shape.volumes[*index])),
            )
        }
        Atom::ResourceClaim(index) => {
            let name = &shape.resource_claims[*index].name;
            (
                format!("pod.resourceClaim[{name}]"),
                at(format!("/spec/resourceClaims/{index}")),
                format!("resource claim {name}"),
            )
        }
        Atom::Request(resource) => (
            format!("pod.requests[{resource}]"),
            None,
            format!(
                "requests {resource} {}",
                in_words(resource, shape.requests.get(resource))
            ),
        ),
        Atom::Toleration(taint) => (
            format!("pod.toleration[{taint}]"),
            at("/spec/tolerations".to_owned()),
            format!("does not tolerate taint {taint}"),
        ),
        Atom::OtherAntiAffinity(workload, index) => (
            format!("antiAffinity[{workload}][{index}]"),
            None,
            format!("anti-affinity of {workload}"),
        ),
        Atom::DaemonSet(namespace, name) => (
            format!("daemonSet[{namespace}/{name}]"),
            None,
            format!("requests of DaemonSet {namespace}/{name}"),
        ),
        Atom::Unavailable(pool, capacity_type, zone) => {
            (format!("offer[{pool}/{capacity_type}/{zone}]"), None, {
                let until = until(probe, pool, capacity_type, zone);
                let until =
                    until.map_or_else(|| "now".to_owned(), |until| format!("until {until}"));
                format!(
                    "NodePool {pool}: offerings of {capacity_type} in {zone} that are unavailable {until}"
                )
            })
        }
        _ => describe_pool(probe, atom),
    }
}

/// Returns when the first of the offerings of a NodePool, a capacity type and a zone may be available again, if that is known.
pub(super) fn until(
    probe: &Probe<'_>,
    pool: &str,
    capacity_type: &str,
    zone: &str,
) -> Option<Timestamp> {
    let types = probe.snapshot().instance_types(pool)?.as_ref().ok()?;
    let offerings = types.iter().flat_map(|kind| kind.offerings.iter());
    let of_these = offerings.filter(|offering| {
        offering.capacity_type() == Some(capacity_type) && offering.zone() == Some(zone)
    });
    of_these
        .filter_map(|offering| offering.unavailable_until)
        .min()
}

/// Returns the place of a bound volume, as ` in us-west-2a`.
fn place(probe: &Probe<'_>, volume: &VolumeRef) -> String {
    let key = &probe.pod.key;
    let claim = match volume {
        VolumeRef::Claim(name) => name.clone(),
        VolumeRef::Ephemeral { volume, .. } => format!("{}-{volume}", key.name),
    };
    let claim = probe.snapshot().volume_claim(&key.namespace, &claim);
    let name = claim.and_then(|claim| claim.volume_name.as_deref());
    let bound = name.and_then(|name| probe.snapshot().volume(name));
    let terms = bound.into_iter().flat_map(|volume| &volume.alternatives);
    let places: Vec<String> = terms
        .flatten()
        .filter(|expression| expression.operator == "In")
        .map(|expression| expression.values.join(" "))
        .collect();
    match places.is_empty() {
        true => String::new(),
        false => format!(" in {}", places.join(" or ")),
    }
}

fn describe_pool(probe: &Probe<'_>, atom: &Atom) -> (String, Option<String>, String) {
    let name = atom.pool().unwrap_or_default();
    let Some(pool) = probe.pool(name) else {
        return (format!("pool[{name}]"), None, format!("NodePool {name}"));
    };
    let template = &pool.spec.template;
    let (field, path, text) = match atom {
        Atom::PoolState(_, state) => {
            let text = match state {
                State::Deleting => "is being deleted",
                State::NotReady => "is not Ready",
                State::Static => "has a fixed number of replicas",
            };
            (format!("{state:?}"), None, text.to_owned())
        }
        Atom::PoolRequirement(_, index) => {
            let requirement = &template.spec.requirements[*index];
            (
                format!("requirements[{index}]"),
                Some(format!("/spec/template/spec/requirements/{index}")),
                format!(
                    "{} {}{}",
                    requirement.key,
                    requirement.operator.as_str(),
                    list(&requirement.values)
                ),
            )
        }
        Atom::MinValues(_, index) => {
            let requirement = &template.spec.requirements[*index];
            (
                format!("requirements[{index}].minValues"),
                Some(format!(
                    "/spec/template/spec/requirements/{index}/minValues"
                )),
                format!(
                    "minValues {} of {}",
                    requirement.min_values.unwrap_or_default(),
                    requirement.key
                ),
            )
        }
        Atom::PoolLabel(_, key) => (
            format!("labels[{key}]"),
            Some(format!("/spec/template/metadata/labels/{}", pointer(key))),
            format!(
                "label {key}={}",
                template
                    .metadata
                    .labels
                    .as_ref()
                    .and_then(|labels| labels.get(key))
                    .map_or("", String::as_str)
            ),
        ),
        Atom::Limit(_, resource) => (
            format!("limits[{resource}]"),
            Some(format!("/spec/limits/{}", pointer(resource))),
            format!(
                "limits {resource} {}",
                pool.spec
                    .limits
                    .get(resource)
                    .map_or("", |limit| limit.0.as_str())
            ),
        ),
        Atom::PoolTaint(_, index) => {
            let taint = template
                .spec
                .taints
                .iter()
                .flatten()
                .nth(*index)
                .map(karpenter_core::taints::Taint::parse);
            (
                format!("taints[{index}]"),
                Some(format!("/spec/template/spec/taints/{index}")),
                format!(
                    "taint {}",
                    taint.map(|taint| taint.to_string()).unwrap_or_default()
                ),
            )
        }
        _ => (String::new(), None, String::new()),
    };
    (
        format!("pool[{name}].{field}"),
        path,
        format!("NodePool {name}: {text}"),
    )
}

/// Returns values as ` [a b]`, and nothing for none.
fn list(values: &[String]) -> String {
    match values.is_empty() {
        true => String::new(),
        false => format!(" [{}]", values.join(" ")),
    }
}
