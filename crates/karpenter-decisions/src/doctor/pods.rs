//! Pods that keep their nodes, that are lost with them, or that do not terminate; and nodes that do not.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use karpenter_api::labels::annotations;
use karpenter_api::pause::Pause;
use karpenter_core::cluster::NodeState;
use karpenter_core::disruption::cost::POD_DELETION_COST;
use karpenter_core::pod::{DoNotDisrupt, Pod, UnixSecond, do_not_disrupt};

use super::evidence::Evidence;
use super::savings::Release;
use super::scan::{Hold, Protection, Scan};
use super::{Draft, Subject};
use crate::workload::Workload;

/// How long after its end an object counts as stuck.
const STUCK: SignedDuration = SignedDuration::from_mins(15);
/// Characters of a value that are told.
const SHOWN: usize = 40;

/// Pods that share a finding.
#[derive(Default)]
struct Group {
    subjects: BTreeSet<Subject>,
    pods: usize,
    workloads: BTreeSet<Workload>,
    oldest: Option<Timestamp>,
}

impl Group {
    fn add(&mut self, pod: &Pod, since: Option<Timestamp>) {
        self.subjects.insert(subject(pod));
        self.count(pod, since);
    }

    /// Adds a pod by its workload.
    fn add_workload(&mut self, pod: &Pod) {
        let workload = Workload::of(pod);
        self.subjects.insert(Subject::namespaced(
            &workload.kind,
            &workload.namespace,
            &workload.name,
        ));
        self.count(pod, pod.created_at.map(UnixSecond::time));
    }

    fn count(&mut self, pod: &Pod, since: Option<Timestamp>) {
        self.pods += 1;
        self.workloads.insert(Workload::of(pod));
        self.oldest = match (self.oldest, since) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }

    fn draft(self, evidence: Evidence, owner: String) -> Draft {
        let mut draft = Draft::new(evidence).since(self.oldest).owned_by(owner);
        draft.subjects = self.subjects;
        draft
    }
}

fn subject(pod: &Pod) -> Subject {
    Subject::namespaced("Pod", &pod.key.namespace, &pod.key.name)
}

pub(super) fn check(scan: &Scan<'_>, found: &mut Vec<Draft>) {
    protected(scan, found);
    on_nodes(scan, found);
    stuck_pods(scan, found);
    stuck_nodes(scan, found);
    knobs(scan, found);
}

/// Finds pods and nodes that are protected from disruption without an end.
fn protected(scan: &Scan<'_>, found: &mut Vec<Draft>) {
    let mut groups: BTreeMap<(Workload, &'static str), Group> = BTreeMap::new();
    for (node, pods) in scan.nodes() {
        let Some(holds) = scan.holds().get(node.name()) else {
            continue;
        };
        if holds.contains(&Hold::ProtectedNode) {
            let created = node.node.as_ref().and_then(|node| node.created_at);
            let evidence = Evidence::ProtectedNode {
                node: node.name().to_owned(),
            };
            let draft = Draft::new(evidence)
                .about(Subject::cluster("Node", node.name()))
                .since(created);
            let kept = [node.name().to_owned()].into();
            found.push(draft.keeps(kept, Release::Eviction(Hold::ProtectedNode)));
        }
        for pod in pods {
            if let Some(Hold::Protected(workload, Protection::Endless(key))) = scan.hold_of(pod) {
                let group = groups.entry((workload, key)).or_default();
                group.add(pod, pod.created_at.map(UnixSecond::time));
            }
        }
    }
    for ((workload, annotation), group) in groups {
        let evidence = Evidence::ProtectedPods {
            workload: workload.to_string(),
            annotation,
            pods: group.pods,
        };
        let owner = workload.to_string();
        let hold = Hold::Protected(workload, Protection::Endless(annotation));
        let nodes = scan.kept_by(&hold);
        let draft = group.draft(evidence, owner);
        found.push(draft.keeps(nodes, Release::Eviction(hold)));
    }
}

/// Finds pods without a controller, and pods without a memory limit.
fn on_nodes(scan: &Scan<'_>, found: &mut Vec<Draft>) {
    let mut bare: BTreeMap<&str, Group> = BTreeMap::new();
    let mut unlimited: BTreeMap<&str, Group> = BTreeMap::new();
    for (_, pods) in scan.nodes() {
        let pods = pods.iter().filter(|pod| {
            pod.is_active() && !pod.is_mirror() && !pod.is_owned_by_daemon_set() && !pod.is_buffer()
        });
        for pod in pods {
            let namespace = pod.key.namespace.as_str();
            if pod.owners.is_empty() {
                bare.entry(namespace)
                    .or_default()
                    .add(pod, pod.created_at.map(UnixSecond::time));
            }
            if !pod.limits.contains("memory") {
                unlimited.entry(namespace).or_default().add_workload(pod);
            }
        }
    }
    for (namespace, group) in bare {
        let evidence = Evidence::BarePods {
            namespace: namespace.to_owned(),
            pods: group.pods,
        };
        found.push(group.draft(evidence, format!("namespace {namespace}")));
    }
    for (namespace, group) in unlimited {
        let evidence = Evidence::NoMemoryLimit {
            namespace: namespace.to_owned(),
            workloads: group.workloads.len(),
            pods: group.pods,
        };
        found.push(group.draft(evidence, format!("namespace {namespace}")));
    }
}

fn minutes_since(scan: &Scan<'_>, time: Timestamp) -> i64 {
    scan.now.duration_since(time).as_mins()
}

/// Finds pods that exist 15 minutes after the end of their grace period, which is their deletion time.
fn stuck_pods(scan: &Scan<'_>, found: &mut Vec<Draft>) {
    let mut groups: BTreeMap<&str, Group> = BTreeMap::new();
    for pod in scan.snapshot.pods() {
        let Some(end) = pod.deleted_at.map(UnixSecond::time) else {
            continue;
        };
        if scan.now.duration_since(end) > STUCK {
            let group = groups.entry(&pod.key.namespace).or_default();
            group.add(pod, Some(end));
        }
    }
    for (namespace, group) in groups {
        let evidence = Evidence::StuckPods {
            namespace: namespace.to_owned(),
            pods: group.pods,
            minutes: group.oldest.map_or(0, |oldest| minutes_since(scan, oldest)),
        };
        found.push(group.draft(evidence, format!("namespace {namespace}")));
    }
}

/// Finds nodes that exist 15 minutes after their deletion was requested.
fn stuck_nodes(scan: &Scan<'_>, found: &mut Vec<Draft>) {
    for node in scan.snapshot.nodes() {
        let Some(since) = deleted_at(node) else {
            continue;
        };
        if scan.now.duration_since(since) <= STUCK {
            continue;
        }
        let pods = scan.snapshot.pods_on(node.name()).iter();
        let object = scan.snapshot.node_object(node.name());
        let of_node = object.and_then(|node| node.metadata.finalizers.clone());
        let claim = node.claim.as_ref();
        let of_claim = claim.and_then(|claim| claim.metadata.finalizers.clone());
        let finalizers: BTreeSet<String> = of_node.into_iter().chain(of_claim).flatten().collect();
        let evidence = Evidence::StuckNode {
            node: node.name().to_owned(),
            minutes: minutes_since(scan, since),
            finalizers: finalizers.into_iter().collect(),
            pods: pods.filter(|pod| pod.is_reschedulable()).count(),
        };
        let subject = match (&node.node, node.claim_name()) {
            (None, Some(claim)) => Subject::cluster("NodeClaim", claim),
            _ => Subject::cluster("Node", node.name()),
        };
        let draft = Draft::new(evidence).about(subject).since(Some(since));
        found.push(draft.keeps([node.name().to_owned()].into(), Release::Deleted));
    }
}

/// Returns when the deletion of a node was requested.
fn deleted_at(node: &NodeState) -> Option<Timestamp> {
    let of_node = node.node.as_ref().and_then(|node| node.deleted_at);
    let claim = node.claim.as_ref()?;
    let of_claim = claim.metadata.deletion_timestamp.as_ref();
    match (of_node, of_claim.map(|time| time.0)) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Finds annotations whose values cannot be read.
fn knobs(scan: &Scan<'_>, found: &mut Vec<Draft>) {
    for pool in scan.pools() {
        if let Err(error) = Pause::of(pool.pool, scan.now) {
            let annotations = pool.pool.metadata.annotations.as_ref();
            let value = annotations.and_then(|all| all.get(annotations::PAUSED));
            let evidence = unreadable(
                format!("NodePool {}", pool.name()),
                annotations::PAUSED,
                value.map_or("", String::as_str),
                error.to_string(),
            );
            found.push(Draft::new(evidence).about(Subject::cluster("NodePool", pool.name())));
        }
    }
    for (node, _) in scan.nodes() {
        let value = node.annotations().get(annotations::DO_NOT_DISRUPT);
        if let Some(value) = value.filter(|value| !matches!(*value, "true" | "false")) {
            let why = "it must be true".to_owned();
            let object = format!("node {}", node.name());
            let evidence = unreadable(object, annotations::DO_NOT_DISRUPT, value, why);
            found.push(Draft::new(evidence).about(Subject::cluster("Node", node.name())));
        }
    }
    let mut of_workloads: BTreeMap<(Workload, &'static str, String), (String, Group)> =
        BTreeMap::new();
    for pod in scan.snapshot.pods().filter(|pod| pod.is_active()) {
        for (key, value, why) in unreadable_of(scan, pod) {
            let key = (Workload::of(pod), key, value.to_owned());
            let (_, group) = of_workloads
                .entry(key)
                .or_insert_with(|| (why.to_owned(), Group::default()));
            group.add_workload(pod);
        }
    }
    for ((workload, key, value), (why, group)) in of_workloads {
        let owner = workload.to_string();
        let evidence = unreadable(owner.clone(), key, &value, why);
        found.push(group.draft(evidence, owner));
    }
}

fn unreadable_of<'p>(
    scan: &Scan<'_>,
    pod: &'p Pod,
) -> impl Iterator<Item = (&'static str, &'p str, &'static str)> {
    let protects = pod.annotations.get(annotations::DO_NOT_DISRUPT);
    // Not to be protected is no mistake.
    let protects = protects.filter(|value| {
        value.as_str() != "false" && do_not_disrupt(pod, scan.now) == DoNotDisrupt::Invalid
    });
    let cost = pod.annotations.get(POD_DELETION_COST);
    let cost = cost.filter(|value| value.parse::<i32>().is_err());
    let protects = protects.map(|value| {
        let why = "it must be true or a duration, such as 4h";
        (annotations::DO_NOT_DISRUPT, value.as_str(), why)
    });
    let cost = cost.map(|value| {
        let why = "it must be a whole number";
        (POD_DELETION_COST, value.as_str(), why)
    });
    protects.into_iter().chain(cost)
}

fn unreadable(object: String, annotation: &str, value: &str, why: String) -> Evidence {
    Evidence::UnreadableKnob {
        object,
        annotation: annotation.to_owned(),
        value: value.chars().take(SHOWN).collect(),
        why,
    }
}
