//! Pods that keep their nodes, that are lost with them, or that do not terminate; and nodes that do not.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use karpenter_api::labels::annotations;
use karpenter_api::pause::Pause;
use karpenter_core::cluster::NodeState;
use karpenter_core::disruption::cost::POD_DELETION_COST;
use karpenter_core::pod::{DoNotDisrupt, Pod, UnixSecond, do_not_disrupt};
use serde_json::json;

use super::check::Check;
use super::finding::{Draft, Release, Subject, plural};
use super::scan::{Blocker, Protection, Scan};
use crate::workload::Workload;

/// How long after its end an object counts as stuck.
const STUCK_AFTER: SignedDuration = SignedDuration::from_mins(15);
/// Characters of a value in a finding.
const MAX_VALUE: usize = 40;

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

    fn add_workload(&mut self, pod: &Pod) {
        self.subjects.insert(Subject::workload(&Workload::of(pod)));
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

    /// Returns the draft about the group.
    fn of(self, draft: Draft, owner: String) -> Draft {
        Draft {
            subjects: self.subjects,
            since: self.oldest,
            owner,
            ..draft
        }
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
        let Some(blockers) = scan.blockers().get(node.name()) else {
            continue;
        };
        if blockers.contains(&Blocker::ProtectedNode) {
            let name = node.name();
            let draft = Draft {
                what: format!("node {name} must not be disrupted, without an end"),
                why: "Annotation karpenter.sh/do-not-disrupt: \"true\" of the node keeps it until it expires or is deleted by hand.".into(),
                fix: format!("kubectl annotate node {name} karpenter.sh/do-not-disrupt-"),
                subjects: [Subject::cluster("Node", name)].into(),
                since: node.node.as_ref().and_then(|node| node.created_at),
                ..Draft::of(Check::DoNotDisruptWithoutEnd, json!({ "node": name }))
            };
            found.push(draft.blocks(
                [name.to_owned()].into(),
                Release::Eviction(Blocker::ProtectedNode),
            ));
        }
        for pod in pods {
            if let Some(Blocker::Protected(workload, Protection::Endless(key))) =
                scan.blocker_of(pod)
            {
                let group = groups.entry((workload, key)).or_default();
                group.add(pod, pod.created_at.map(UnixSecond::time));
            }
        }
    }
    for ((workload, annotation), group) in groups {
        let (name, pods) = (workload.to_string(), group.pods);
        let draft = Draft {
            what: format!("{} of {name} must not be disrupted, without an end", plural(pods, "pod")),
            why: format!("Annotation {annotation}: \"true\" keeps the nodes of these pods for as long as the pods exist."),
            fix: "Give the annotation a duration, such as \"4h\", or remove it from the pod template.".into(),
            ..Draft::of(
                Check::DoNotDisruptWithoutEnd,
                json!({ "workload": name, "annotation": annotation, "pods": pods }),
            )
        };
        let blocker = Blocker::Protected(workload, Protection::Endless(annotation));
        found.push(
            group
                .of(draft, name)
                .blocks(scan.blocked_by(&blocker), Release::Eviction(blocker)),
        );
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
        let pods = group.pods;
        let draft = Draft {
            what: format!(
                "{} in namespace {namespace} without a controller",
                plural(pods, "pod")
            ),
            why: "Nothing creates such a pod again. It is gone once its node is removed.".into(),
            fix: "Create them by a Deployment or a Job.".into(),
            ..Draft::of(
                Check::BarePods,
                json!({ "namespace": namespace, "pods": pods }),
            )
        };
        found.push(group.of(draft, format!("namespace {namespace}")));
    }
    for (namespace, group) in unlimited {
        let (workloads, pods) = (group.workloads.len(), group.pods);
        let draft = Draft {
            what: format!(
                "{} in namespace {namespace} without a memory limit",
                plural(workloads, "workload")
            ),
            why: format!(
                "{} can use more memory than requested. When a node runs out of memory, the kernel kills processes, perhaps of another team; nodes that are packed tightly make that more likely.",
                plural(pods, "pod")
            ),
            fix: "Set limits.memory, best equal to requests.memory; a LimitRange sets a default."
                .into(),
            ..Draft::of(
                Check::NoMemoryLimit,
                json!({ "namespace": namespace, "workloads": workloads, "pods": pods }),
            )
        };
        found.push(group.of(draft, format!("namespace {namespace}")));
    }
}

/// Returns minutes as a duration: `3h20m`.
fn minutes_text(minutes: i64) -> String {
    let hours = minutes / 60;
    match hours {
        0 => format!("{minutes}m"),
        1..48 => format!("{hours}h{}m", minutes % 60),
        _ => format!("{}d", hours / 24),
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
        if scan.now.duration_since(end) > STUCK_AFTER {
            let group = groups.entry(&pod.key.namespace).or_default();
            group.add(pod, Some(end));
        }
    }
    for (namespace, group) in groups {
        let pods = group.pods;
        let minutes = group.oldest.map_or(0, |oldest| minutes_since(scan, oldest));
        let draft = Draft {
            what: format!("{} in namespace {namespace} stuck terminating, the oldest for {}", plural(pods, "pod"), minutes_text(minutes)),
            why: "They were deleted and their grace period is over, but they still exist: a finalizer is not removed, or the kubelet of their node does not answer.".into(),
            fix: "Find out who has to remove their finalizers (kubectl get pod -o yaml); if their node is gone, kubectl delete pod --force.".into(),
            ..Draft::of(
                Check::StuckTerminating,
                json!({ "namespace": namespace, "pods": pods, "minutes": minutes }),
            )
        };
        found.push(group.of(draft, format!("namespace {namespace}")));
    }
}

/// Finds nodes that exist 15 minutes after their deletion was requested.
fn stuck_nodes(scan: &Scan<'_>, found: &mut Vec<Draft>) {
    for node in scan.snapshot.nodes() {
        let Some(since) = deleted_at(node) else {
            continue;
        };
        if scan.now.duration_since(since) <= STUCK_AFTER {
            continue;
        }
        let pods = scan.snapshot.pods_on(node.name()).iter();
        let object = scan.snapshot.node_object(node.name());
        let of_node = object.and_then(|node| node.metadata.finalizers.clone());
        let claim = node.claim.as_ref();
        let of_claim = claim.and_then(|claim| claim.metadata.finalizers.clone());
        let finalizers: BTreeSet<String> = of_node.into_iter().chain(of_claim).flatten().collect();
        let finalizers: Vec<String> = finalizers.into_iter().collect();
        let pods = pods.filter(|pod| pod.is_reschedulable()).count();
        let (name, minutes) = (node.name(), minutes_since(scan, since));
        let mut why = String::from("It was deleted but still exists, and is still paid for");
        if pods > 0 {
            why.push_str(&format!(
                "; {} on it would have to be moved",
                plural(pods, "pod")
            ));
        }
        if !finalizers.is_empty() {
            why.push_str(&format!("; finalizers: {}", finalizers.join(", ")));
        }
        let fix = match pods {
            0 => {
                "Find out who has to remove its finalizers, and whether volumes are still attached (kubectl get volumeattachments)."
            }
            _ => {
                "Look at what keeps its pods (kubectl karpenter why node); a terminationGracePeriod of the NodePool bounds the wait in future."
            }
        };
        let subject = match (&node.node, node.claim_name()) {
            (None, Some(claim)) => Subject::cluster("NodeClaim", claim),
            _ => Subject::cluster("Node", name),
        };
        let draft = Draft {
            what: format!(
                "node {name} stuck terminating for {}",
                minutes_text(minutes)
            ),
            why: why + ".",
            fix: fix.into(),
            subjects: [subject].into(),
            since: Some(since),
            ..Draft::of(
                Check::StuckTerminating,
                json!({ "node": name, "minutes": minutes, "finalizers": finalizers, "pods": pods }),
            )
        };
        found.push(draft.blocks([name.to_owned()].into(), Release::Deleted));
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
            let draft = unreadable(
                format!("NodePool {}", pool.name()),
                annotations::PAUSED,
                value.map_or("", String::as_str),
                &error.to_string(),
            );
            found.push(Draft {
                subjects: [Subject::pool(pool)].into(),
                ..draft
            });
        }
    }
    for (node, _) in scan.nodes() {
        let value = node.annotations().get(annotations::DO_NOT_DISRUPT);
        if let Some(value) = value.filter(|value| !matches!(*value, "true" | "false")) {
            let object = format!("node {}", node.name());
            let draft = unreadable(
                object,
                annotations::DO_NOT_DISRUPT,
                value,
                "it must be true",
            );
            found.push(Draft {
                subjects: [Subject::cluster("Node", node.name())].into(),
                ..draft
            });
        }
    }
    let mut of_workloads: BTreeMap<(Workload, &str, &str, &str), Group> = BTreeMap::new();
    for pod in scan.snapshot.pods().filter(|pod| pod.is_active()) {
        for (key, value, why) in unreadable_of(scan, pod) {
            let key = (Workload::of(pod), key, value, why);
            of_workloads.entry(key).or_default().add_workload(pod);
        }
    }
    for ((workload, key, value, why), group) in of_workloads {
        let owner = workload.to_string();
        let draft = unreadable(owner.clone(), key, value, why);
        found.push(group.of(draft, owner));
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

fn unreadable(object: String, annotation: &str, value: &str, why: &str) -> Draft {
    let value: String = value.chars().take(MAX_VALUE).collect();
    Draft {
        what: format!("annotation {annotation} of {object} cannot be read"),
        why: format!("The value \"{value}\" counts as absent: {why}."),
        fix: "Correct the value, or remove the annotation.".into(),
        ..Draft::of(
            Check::UnreadableKnob,
            json!({ "object": object, "annotation": annotation, "value": value, "why": why }),
        )
    }
}
