//! The texts of findings, for readers who do not know Karpenter.

use super::evidence::Evidence;

fn plural(count: usize, one: &str) -> String {
    if count == 1 {
        format!("1 {one}")
    } else {
        format!("{count} {one}s")
    }
}

/// Returns minutes as a duration: `3h20m`.
fn minutes(minutes: i64) -> String {
    let hours = minutes / 60;
    match hours {
        0 => format!("{minutes}m"),
        1..48 => format!("{hours}h{}m", minutes % 60),
        _ => format!("{}d", hours / 24),
    }
}

impl Evidence {
    /// Returns what is wrong, in one line.
    pub fn what(&self) -> String {
        match self {
            Self::PdbImpossible { pdb, .. } => {
                format!("PodDisruptionBudget {pdb} can never allow an eviction")
            }
            Self::PdbSelectsNothing { pdb } => format!("PodDisruptionBudget {pdb} selects no pod"),
            Self::PdbSelectsEverything { pdb, namespace } => {
                format!("PodDisruptionBudget {pdb} selects every pod of namespace {namespace}")
            }
            Self::SeveralPdbs { pdbs, pods } => format!(
                "{} PodDisruptionBudgets select the same {}: {}",
                pdbs.len(),
                plural(*pods, "pod"),
                pdbs.join(", ")
            ),
            Self::PdbStatusStale { pdb, .. } => {
                format!("PodDisruptionBudget {pdb} has an outdated status")
            }
            Self::ProtectedPods { workload, pods, .. } => format!(
                "{} of {workload} must not be disrupted, without an end",
                plural(*pods, "pod")
            ),
            Self::ProtectedNode { node } => {
                format!("node {node} must not be disrupted, without an end")
            }
            Self::BarePods { namespace, pods } => format!(
                "{} in namespace {namespace} without a controller",
                plural(*pods, "pod")
            ),
            Self::StuckPods {
                namespace,
                pods,
                minutes: late,
            } => format!(
                "{} in namespace {namespace} stuck terminating, the oldest for {}",
                plural(*pods, "pod"),
                minutes(*late)
            ),
            Self::StuckNode {
                node,
                minutes: late,
                ..
            } => format!("node {node} stuck terminating for {}", minutes(*late)),
            Self::ZoneGone {
                workload, zones, ..
            } => format!(
                "volumes of {workload} are in {}, where no NodePool launches nodes",
                zones.join(", ")
            ),
            Self::OneZoneLeft { zone, workloads } => format!(
                "all NodePools together launch nodes in {zone} only, and {} there",
                match workloads {
                    1 => "1 workload has volumes".to_owned(),
                    several => format!("{several} workloads have volumes"),
                }
            ),
            Self::LocalVolume { workload, .. } => {
                format!("{workload} keeps data on the disk of a node")
            }
            Self::BudgetNeverOpens {
                node_pool, reasons, ..
            } => format!(
                "NodePool {node_pool} never allows a disruption for {}",
                reasons.join(", ")
            ),
            Self::ContradictoryRequirements { node_pool, key, .. } => {
                format!("NodePool {node_pool} has requirements on {key} that exclude each other")
            }
            Self::NoInstanceTypes { node_pool, .. } => {
                format!("NodePool {node_pool} has no instance type to launch")
            }
            Self::LimitNearlyReached {
                node_pool,
                resource,
                used,
                limit,
                ..
            } => format!("NodePool {node_pool} uses {used} of {limit} {resource}, its limit"),
            Self::OverlappingNodePools { node_pools, .. } => format!(
                "NodePools {} accept the same pods and have the same weight",
                node_pools.join(", ")
            ),
            Self::MinValuesUnreachable {
                node_pool,
                key,
                min_values,
                available,
            } => format!(
                "NodePool {node_pool} requires {min_values} values of {key}, and there are {available}"
            ),
            Self::ConsolidationNever { node_pool } => {
                format!("NodePool {node_pool} never removes nodes that are not needed")
            }
            Self::ExpireAfterShort {
                node_pool,
                expire_after,
                ..
            } => format!("nodes of NodePool {node_pool} live for {expire_after} only"),
            Self::DaemonSetOverhead {
                node_pool,
                instance_type,
                resource,
                percent,
                ..
            } => format!(
                "DaemonSets take {percent}% of the {resource} of {instance_type}, the smallest type of NodePool {node_pool}"
            ),
            Self::NoMemoryLimit {
                namespace,
                workloads,
                ..
            } => format!(
                "{} in namespace {namespace} without a memory limit",
                plural(*workloads, "workload")
            ),
            Self::NodeClassNotReady {
                node_pool,
                node_class,
                ..
            } => format!("NodePool {node_pool} cannot launch nodes: {node_class} is not ready"),
            Self::SubnetAddressesLow {
                node_class,
                zone,
                free,
                ..
            } => format!(
                "NodeClass {node_class} has {} left in {zone}",
                match free {
                    0 => "no address".to_owned(),
                    1 => "1 address".to_owned(),
                    several => format!("{several} addresses"),
                }
            ),
            Self::PermissionMissing { verb, resource } => {
                format!("Karpenter may not {verb} {resource}")
            }
            Self::CrdMissing { gate, crd } => {
                format!("feature gate {gate} is on, but {crd} is not installed")
            }
            Self::UnreadableKnob {
                object, annotation, ..
            } => format!("annotation {annotation} of {object} cannot be read"),
        }
    }

    /// Returns why it is a problem, with the evidence.
    pub fn why(&self) -> String {
        match self {
            Self::PdbImpossible { rule, pods, .. } => format!(
                "It demands {rule} of {pods}, so that no pod may be evicted, ever. The node of such a pod can neither be removed nor replaced, not even for a security update."
            ),
            Self::PdbSelectsNothing { .. } => {
                "Its selector matches no pod of its namespace: it protects nothing. Often a label is misspelt, or the workload is gone.".to_owned()
            }
            Self::PdbSelectsEverything { namespace, .. } => format!(
                "Its selector is empty. Every pod of namespace {namespace} counts, and one that is not ready can block the eviction of all others."
            ),
            Self::SeveralPdbs { .. } => {
                "The API server rejects every eviction of a pod that more than one PodDisruptionBudget selects.".to_owned()
            }
            Self::PdbStatusStale { message, .. } => {
                let why = if message.is_empty() {
                    "Kubernetes' disruption controller has not processed the latest change"
                        .to_owned()
                } else {
                    format!("Kubernetes' disruption controller reports: {message}")
                };
                format!("{why}. Until it has, the number of allowed evictions is not known, and evictions may be rejected.")
            }
            Self::ProtectedPods { annotation, .. } => format!(
                "Annotation {annotation}: \"true\" keeps the nodes of these pods for as long as the pods exist."
            ),
            Self::ProtectedNode { .. } => {
                "Annotation karpenter.sh/do-not-disrupt: \"true\" of the node keeps it until it expires or is deleted by hand.".to_owned()
            }
            Self::BarePods { .. } => {
                "Nothing creates such a pod again. It is gone once its node is removed.".to_owned()
            }
            Self::StuckPods { .. } => {
                "They were deleted and their grace period is over, but they still exist: a finalizer is not removed, or the kubelet of their node does not answer.".to_owned()
            }
            Self::StuckNode {
                finalizers, pods, ..
            } => {
                let mut why = String::from("It was deleted but still exists, and is still paid for");
                if *pods > 0 {
                    why.push_str(&format!("; {} on it would have to be moved", plural(*pods, "pod")));
                }
                if !finalizers.is_empty() {
                    why.push_str(&format!("; finalizers: {}", finalizers.join(", ")));
                }
                why.push('.');
                why
            }
            Self::ZoneGone { offered, .. } => format!(
                "A volume can be attached in its zone only. The NodePools launch nodes in {}: once the pods leave their nodes, they cannot run anywhere else.",
                match offered.is_empty() {
                    true => "no zone".to_owned(),
                    false => offered.join(", "),
                }
            ),
            Self::OneZoneLeft { .. } => {
                "A volume can be attached in its zone only. If capacity in this zone runs out, these workloads wait.".to_owned()
            }
            Self::LocalVolume { volumes, .. } => format!(
                "{} {} on one node. When that node is removed the data is lost, and the pod waits until its claim is deleted.",
                match volumes.len() {
                    1 => format!("Volume {}", volumes.join(", ")),
                    _ => format!("Volumes {}", volumes.join(", ")),
                },
                if volumes.len() == 1 { "exists" } else { "exist" }
            ),
            Self::BudgetNeverOpens { days, reasons, .. } => {
                let drift = reasons.iter().any(|reason| reason == "Drifted");
                let updates = if drift { " Nodes are not updated to new images or settings either." } else { "" };
                format!("Its disruption budgets allow 0 nodes now and at any time of the next {days} days.{updates}")
            }
            Self::ContradictoryRequirements { requirements, .. } => format!(
                "No node can meet all of these, so that none is launched: {}.",
                requirements.join("; ")
            ),
            Self::NoInstanceTypes { offered, error, .. } => {
                if error.is_empty() {
                    format!("Its requirements exclude all {offered} instance types that the provider offers: no node is launched.")
                } else {
                    format!("The provider cannot list its instance types: {error}.")
                }
            }
            Self::LimitNearlyReached { is_reached, .. } => {
                if *is_reached {
                    "The limit is used up: pods that need another node of this NodePool wait.".to_owned()
                } else {
                    "Less than 5 % is left: soon pods that need another node of this NodePool will wait.".to_owned()
                }
            }
            Self::OverlappingNodePools { node_pools, .. } => format!(
                "A pod that fits several of them gets a node of {}, because its name comes last in the alphabet. Another NodePool may change that.",
                node_pools.first().map_or("", String::as_str)
            ),
            Self::MinValuesUnreachable { .. } => {
                "It demands a choice among more values than its instance types have: no node is launched.".to_owned()
            }
            Self::ConsolidationNever { .. } => {
                "It has consolidateAfter: Never. Empty nodes and nodes whose pods would fit elsewhere are kept and paid for.".to_owned()
            }
            Self::ExpireAfterShort { than, of, .. } => format!(
                "That is shorter than {of} ({than}): its pods are restarted over and over."
            ),
            Self::DaemonSetOverhead { daemon_sets, .. } => format!(
                "Each node runs these, whatever its size: {}. Small nodes have little room left for anything else.",
                daemon_sets.join(", ")
            ),
            Self::NoMemoryLimit { pods, .. } => format!(
                "{} can use more memory than requested. When a node runs out of memory, the kernel kills processes, perhaps of another team; nodes that are packed tightly make that more likely.",
                match pods {
                    1 => "1 pod".to_owned(),
                    several => format!("{several} pods"),
                }
            ),
            Self::NodeClassNotReady { message, .. } => {
                if message.is_empty() {
                    "Its condition NodeClassReady is not True.".to_owned()
                } else {
                    format!("Its condition NodeClassReady says: {message}")
                }
            }
            Self::SubnetAddressesLow {
                subnet,
                instance_type,
                pods,
                ..
            } => format!(
                "{subnet} has the most free addresses of the subnets there. A node of {instance_type}, the smallest type, may take {pods}, one for each pod: fewer than five nodes can be launched, or pods on them wait for an address."
            ),
            Self::PermissionMissing { .. } => {
                "The API server denies it to Karpenter's ServiceAccount.".to_owned()
            }
            Self::CrdMissing { .. } => "The feature has no effect.".to_owned(),
            Self::UnreadableKnob { value, why, .. } => {
                format!("The value \"{value}\" counts as absent: {why}.")
            }
        }
    }

    /// Returns what to do.
    pub fn fix(&self) -> String {
        let text = match self {
            Self::PdbImpossible { pods, .. } if *pods <= 1 => {
                "Run 2 replicas, or set maxUnavailable: 1 in the PodDisruptionBudget (the pod is then restarted elsewhere, with a short outage)."
            }
            Self::PdbImpossible { .. } => {
                "Set maxUnavailable: 1 in the PodDisruptionBudget, or a minAvailable below the number of replicas."
            }
            Self::PdbSelectsNothing { .. } => "Correct its selector, or delete it.",
            Self::PdbSelectsEverything { .. } => {
                "Give each workload a PodDisruptionBudget of its own."
            }
            Self::SeveralPdbs { .. } => "Keep one of them, or make their selectors distinct.",
            Self::PdbStatusStale { .. } => {
                "See the PodDisruptionBudget's events, and the log of kube-controller-manager."
            }
            Self::ProtectedPods { .. } => {
                "Give the annotation a duration, such as \"4h\", or remove it from the pod template."
            }
            Self::ProtectedNode { node } => {
                return format!("kubectl annotate node {node} karpenter.sh/do-not-disrupt-");
            }
            Self::BarePods { .. } => "Create them by a Deployment or a Job.",
            Self::StuckPods { .. } => {
                "Find out who has to remove their finalizers (kubectl get pod -o yaml); if their node is gone, kubectl delete pod --force."
            }
            Self::StuckNode { pods, .. } if *pods > 0 => {
                "Look at what keeps its pods (kubectl karpenter why node); a terminationGracePeriod of the NodePool bounds the wait in future."
            }
            Self::StuckNode { .. } => {
                "Find out who has to remove its finalizers, and whether volumes are still attached (kubectl get volumeattachments)."
            }
            Self::ZoneGone { zones, .. } => {
                return format!(
                    "Add zone {} to the requirements of a NodePool, or move the data.",
                    zones.first().map_or("", String::as_str)
                );
            }
            Self::OneZoneLeft { .. } => "Add a zone to a NodePool.",
            Self::LocalVolume { .. } => {
                "Use a network volume, or protect the pods while they need the data (karpenter.sh/do-not-disrupt)."
            }
            Self::BudgetNeverOpens { .. } => {
                "Give a budget that allows 0 nodes a schedule and a duration, so that there is a window outside of it."
            }
            Self::ContradictoryRequirements { .. } => {
                "Keep one of the requirements, or give them common values."
            }
            Self::NoInstanceTypes { error, .. } if !error.is_empty() => {
                "See the events of the NodePool and its NodeClass, and Karpenter's log."
            }
            Self::NoInstanceTypes { .. } => {
                "Relax the requirements of the NodePool: instance types, sizes, zones, architecture."
            }
            Self::LimitNearlyReached { resource, .. } => {
                return format!("Raise spec.limits.{resource}, or remove workloads.");
            }
            Self::OverlappingNodePools { .. } => {
                "Give them different weights, or taints and requirements that exclude each other."
            }
            Self::MinValuesUnreachable { .. } => "Lower minValues, or allow more instance types.",
            Self::ConsolidationNever { .. } => {
                "Set spec.disruption.consolidateAfter to a duration, such as 5m."
            }
            Self::ExpireAfterShort { .. } => "Raise expireAfter.",
            Self::DaemonSetOverhead { .. } => {
                "Exclude the smallest instance types in the NodePool's requirements, or lower the DaemonSets' requests."
            }
            Self::NoMemoryLimit { .. } => {
                "Set limits.memory, best equal to requests.memory; a LimitRange sets a default."
            }
            Self::NodeClassNotReady { .. } => {
                "Correct what the message says; kubectl describe shows all conditions of the NodeClass."
            }
            Self::SubnetAddressesLow { .. } => {
                "Let the NodeClass select a larger subnet of the zone, or add one from another address range to the network."
            }
            Self::PermissionMissing { .. } => {
                "Add the rule to Karpenter's ClusterRole; the chart of this release has it."
            }
            Self::CrdMissing { .. } => "Install the chart karpenter-crd, or turn the gate off.",
            Self::UnreadableKnob { .. } => "Correct the value, or remove the annotation.",
        };
        text.to_owned()
    }
}
