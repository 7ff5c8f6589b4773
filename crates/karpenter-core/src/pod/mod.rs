//! The engine's model of a pod.
//!
//! A [`Pod`] is parsed once from the Kubernetes object. All fields that scheduling reads, except its identity, form its [`Shape`]; pods
//! of one workload share one shape (`Arc`), so that a class of pods costs as much as a single one.
//!
//! Parsing never fails: invalid user input is kept as data ([`InvalidPod`]) and reported by [`validate`].

mod constraints;
pub(crate) mod eviction_cost;
mod ports;
mod requests;
mod selection;
mod selector;
mod serialization;
mod validate;

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::k8s_openapi::api::core::v1 as corev1;
use karpenter_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    ManagedFieldsEntry, OwnerReference, Time,
};
use serde::{Deserialize, Serialize};

pub use constraints::{AffinityTerm, LabelExpr, NodeTerm, SpreadConstraint, Toleration, Weighted};
pub use ports::HostPort;
pub(crate) use ports::conflict as ports_conflict;
pub use requests::{Requests, pod_limits, pod_requests};
pub(crate) use selection::may_refuse_disruption;
pub use selection::{DoNotDisrupt, PodIgnored, do_not_disrupt, protected_until};
pub use selector::{LabelSelector, SelectorExpr, SelectorOp};
pub use validate::{InvalidPod, VolumeProblem, validate};

use crate::resources::Resources;
use serialization::is_default;

/// Identifies a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodKey {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's uid.
    pub uid: String,
}

impl PodKey {
    /// Creates a key.
    pub fn new(namespace: &str, name: &str, uid: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
        }
    }
}

impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// `status.phase`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Phase {
    /// Absent or unknown.
    #[default]
    Unknown,
    /// Accepted by the API server, not running yet.
    Pending,
    /// Running.
    Running,
    /// All containers terminated with success.
    Succeeded,
    /// All containers terminated, at least one with a failure.
    Failed,
}

/// A time in whole seconds, as Kubernetes writes the times of objects. A pod has five of them, each stored in four bytes: a
/// `Timestamp` takes six times as much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct UnixSecond(NonZeroU32);

impl UnixSecond {
    /// Returns the start of the second.
    pub fn time(self) -> Timestamp {
        Timestamp::from_second(i64::from(self.0.get())).unwrap_or(Timestamp::MAX)
    }
}

impl From<Timestamp> for UnixSecond {
    /// Converts a time; one before 1970 or after 2106 becomes the first or the last second of these years.
    fn from(time: Timestamp) -> Self {
        let second = time.as_second().clamp(1, i64::from(u32::MAX));
        Self(
            u32::try_from(second)
                .ok()
                .and_then(NonZeroU32::new)
                .unwrap_or(NonZeroU32::MAX),
        )
    }
}

/// An owner reference, reduced to the fields that decisions need.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Owner {
    /// `apps/v1`, `v1`, …
    pub api_version: String,
    /// `ReplicaSet`, `DaemonSet`, `Node`, …
    pub kind: String,
    /// Name of the owner.
    pub name: String,
    /// Uid of the owner.
    pub uid: String,
    /// Whether it is the managing controller.
    pub controller: bool,
}

impl From<&OwnerReference> for Owner {
    fn from(reference: &OwnerReference) -> Self {
        Self {
            api_version: reference.api_version.clone(),
            kind: reference.kind.clone(),
            name: reference.name.clone(),
            uid: reference.uid.clone(),
            controller: reference.controller.unwrap_or(false),
        }
    }
}

/// A volume that can restrict on which nodes a pod runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all_fields = "camelCase")]
pub enum VolumeRef {
    /// A PersistentVolumeClaim by name.
    Claim(String),
    /// A generic ephemeral volume: its claim is named `<pod>-<volume>`.
    Ephemeral {
        /// The volume's name in the pod.
        volume: String,
        /// The storage class of the claim template; absent means the default class.
        storage_class: Option<String>,
        /// The volume name of the claim template, if it is pre-bound.
        volume_name: Option<String>,
    },
}

/// An entry of `spec.resourceClaims[]` with its entry of `status.resourceClaimStatuses[]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClaimRef {
    /// Name inside the pod.
    pub name: String,
    /// The ResourceClaim: named directly, or generated from a template and recorded in the status.
    pub claim: Option<String>,
    /// The template, when the claim is generated.
    pub template: Option<String>,
    /// Whether the status lists the entry; without a claim it then needs none.
    pub made: bool,
}

/// All fields that scheduling reads, except the identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Shape {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's labels.
    pub labels: BTreeMap<String, String>,
    /// The requests of the pod, `pods: 1` included.
    pub requests: Resources,
    /// `spec.nodeSelector`.
    pub node_selector: BTreeMap<String, String>,
    /// Required node affinity: alternatives (OR). Empty means no restriction.
    pub required_nodes: Vec<NodeTerm>,
    /// Preferred node affinity.
    pub preferred_nodes: Vec<Weighted<NodeTerm>>,
    /// Required pod affinity.
    pub required_affinity: Vec<AffinityTerm>,
    /// Preferred pod affinity.
    pub preferred_affinity: Vec<Weighted<AffinityTerm>>,
    /// Required pod anti-affinity.
    pub required_anti_affinity: Vec<AffinityTerm>,
    /// Preferred pod anti-affinity.
    pub preferred_anti_affinity: Vec<Weighted<AffinityTerm>>,
    /// Tolerations.
    pub tolerations: Vec<Toleration>,
    /// Topology spread constraints.
    pub spread: Vec<SpreadConstraint>,
    /// Host ports.
    pub host_ports: Vec<HostPort>,
    /// Volumes with a PersistentVolumeClaim.
    pub volumes: Vec<VolumeRef>,
    /// Resource claims (dynamic resource allocation).
    pub resource_claims: Vec<ClaimRef>,
    /// The managing controller, from which default spread constraints derive their selector.
    pub controller: Option<Owner>,
    /// `spec.priority`; used for disruption cost and reports, never for ordering.
    pub priority: i32,
    /// The error of an invalid quantity, if there is one.
    pub problem: Option<String>,
}

/// A pod, parsed. It is serialized without what other pods share: its shape, limits and owners.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Pod {
    /// Its identity.
    pub key: PodKey,
    /// The fields that scheduling reads.
    #[serde(skip)]
    pub shape: Arc<Shape>,
    /// The sum of the limits of its containers.
    #[serde(skip)]
    pub limits: Arc<Resources>,
    /// Annotations of the `karpenter.sh` domain and the pod deletion cost.
    #[serde(default, skip_serializing_if = "is_default")]
    pub annotations: BTreeMap<String, String>,
    /// `metadata.creationTimestamp`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub created_at: Option<UnixSecond>,
    /// `metadata.deletionTimestamp`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub deleted_at: Option<UnixSecond>,
    /// `status.startTime`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub started_at: Option<UnixSecond>,
    /// `spec.nodeName`, shared by the pods of a node.
    #[serde(
        default,
        skip_serializing_if = "is_default",
        with = "serialization::node_name"
    )]
    pub node_name: Option<Arc<str>>,
    /// `status.nominatedNodeName`: kube-scheduler is preempting pods on this node for it, unless `nominated_by_plan`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub nominated_node: Option<String>,
    /// Whether `nominated_node` is where a plan placed the pod: its managed fields name [`FIELD_MANAGER`].
    #[serde(default, skip_serializing_if = "is_default")]
    pub nominated_by_plan: bool,
    /// `status.phase`.
    pub phase: Phase,
    /// Whether condition PodScheduled has reason Unschedulable.
    #[serde(default, skip_serializing_if = "is_default")]
    pub unschedulable: bool,
    /// Whether condition PodScheduled has reason SchedulingGated: kube-scheduler does not try to schedule the pod.
    #[serde(default, skip_serializing_if = "is_default")]
    pub gated: bool,
    /// Whether condition Ready is True.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ready: bool,
    /// The time since when condition Ready is True.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ready_since: Option<UnixSecond>,
    /// The time since when condition PodScheduled is True.
    #[serde(default, skip_serializing_if = "is_default")]
    pub scheduled_since: Option<UnixSecond>,
    /// All owners.
    #[serde(skip)]
    pub owners: Arc<[Owner]>,
    /// `spec.terminationGracePeriodSeconds`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub termination_grace_seconds: Option<i64>,
    /// `spec.schedulerName`, if it is not that of the default scheduler.
    #[serde(default, skip_serializing_if = "is_default")]
    pub scheduler_name: Option<String>,
}

/// The field manager of writes to the status of pods.
pub const FIELD_MANAGER: &str = "karpenter";

/// Reports whether, by an entry of managed fields, [`FIELD_MANAGER`] wrote `status.nominatedNodeName`.
fn has_nominated(entry: &ManagedFieldsEntry) -> bool {
    let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
    entry.manager.as_deref() == Some(FIELD_MANAGER)
        && fields.is_some_and(|fields| !fields["f:status"]["f:nominatedNodeName"].is_null())
}

/// Annotations outside `karpenter.sh` that decisions read.
const DECISION_ANNOTATIONS: [&str; 1] = ["controller.kubernetes.io/pod-deletion-cost"];

impl Pod {
    /// Returns a pod that kube-scheduler found no node for, for programs without a cluster. Its uid is `namespace/name`.
    ///
    /// ```
    /// use karpenter_core::pod::Pod;
    /// use karpenter_core::resources::Resources;
    ///
    /// let pod = Pod::pending("default", "web-1", Resources::new().with("cpu", 500))
    ///     .with_label("app", "web")
    ///     .with_node_selector("kubernetes.io/arch", "amd64");
    /// assert!(pod.is_provisionable());
    /// ```
    pub fn pending(namespace: &str, name: &str, requests: Resources) -> Self {
        let shape = Shape {
            namespace: namespace.to_owned(),
            requests: requests.with("pods", 1),
            ..Shape::default()
        };
        Self {
            key: PodKey::new(namespace, name, &format!("{namespace}/{name}")),
            shape: Arc::new(shape),
            limits: Arc::default(),
            annotations: BTreeMap::new(),
            created_at: None,
            deleted_at: None,
            started_at: None,
            node_name: None,
            nominated_node: None,
            nominated_by_plan: false,
            phase: Phase::Pending,
            unschedulable: true,
            gated: false,
            ready: false,
            ready_since: None,
            scheduled_since: None,
            owners: Arc::from([]),
            termination_grace_seconds: None,
            scheduler_name: None,
        }
    }

    /// Changes the fields that scheduling reads.
    #[must_use]
    pub fn with_shape(mut self, change: impl FnOnce(&mut Shape)) -> Self {
        change(Arc::make_mut(&mut self.shape));
        self
    }

    /// Adds a label.
    #[must_use]
    pub fn with_label(self, key: &str, value: &str) -> Self {
        self.with_shape(|shape| {
            shape.labels.insert(key.to_owned(), value.to_owned());
        })
    }

    /// Adds a label to the node selector.
    #[must_use]
    pub fn with_node_selector(self, key: &str, value: &str) -> Self {
        self.with_shape(|shape| {
            shape.node_selector.insert(key.to_owned(), value.to_owned());
        })
    }

    /// Adds a toleration.
    #[must_use]
    pub fn with_toleration(self, toleration: Toleration) -> Self {
        self.with_shape(|shape| shape.tolerations.push(toleration))
    }

    /// Adds a topology spread constraint.
    #[must_use]
    pub fn with_spread(self, constraint: SpreadConstraint) -> Self {
        self.with_shape(|shape| shape.spread.push(constraint))
    }

    /// Parses a Kubernetes pod.
    pub fn parse(pod: &corev1::Pod) -> Self {
        let meta = &pod.metadata;
        let spec = pod.spec.as_ref();
        let status = pod.status.as_ref();
        let text = |value: Option<&String>| value.filter(|value| !value.is_empty()).cloned();
        let condition = |name: &str| {
            status
                .and_then(|status| status.conditions.as_ref())
                .and_then(|all| all.iter().find(|condition| condition.type_ == name))
        };
        let second = |time: Option<&Time>| time.map(|time| UnixSecond::from(time.0));
        let unscheduled_for = |reason: &str| {
            condition("PodScheduled")
                .is_some_and(|condition| condition.reason.as_deref() == Some(reason))
        };
        let since = |name: &str| {
            let condition = condition(name).filter(|condition| condition.status == "True")?;
            second(condition.last_transition_time.as_ref())
        };
        let owners: Vec<Owner> = meta
            .owner_references
            .iter()
            .flatten()
            .map(Owner::from)
            .collect();
        let annotations = meta
            .annotations
            .iter()
            .flatten()
            .filter(|(key, _)| {
                key.split_once('/').is_some_and(|(domain, _)| {
                    domain == "karpenter.sh" || domain.ends_with(".karpenter.sh")
                }) || DECISION_ANNOTATIONS.contains(&key.as_str())
            })
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        Self {
            key: PodKey {
                namespace: meta.namespace.clone().unwrap_or_default(),
                name: meta.name.clone().unwrap_or_default(),
                uid: meta.uid.clone().unwrap_or_default(),
            },
            shape: Arc::new(Shape::parse(pod, &owners)),
            limits: Arc::new(pod_limits(pod).unwrap_or_default()),
            annotations,
            created_at: second(meta.creation_timestamp.as_ref()),
            deleted_at: second(meta.deletion_timestamp.as_ref()),
            started_at: second(status.and_then(|status| status.start_time.as_ref())),
            node_name: text(spec.and_then(|spec| spec.node_name.as_ref())).map(Into::into),
            nominated_node: text(status.and_then(|status| status.nominated_node_name.as_ref())),
            nominated_by_plan: meta.managed_fields.iter().flatten().any(has_nominated),
            phase: match status.and_then(|status| status.phase.as_deref()) {
                Some("Pending") => Phase::Pending,
                Some("Running") => Phase::Running,
                Some("Succeeded") => Phase::Succeeded,
                Some("Failed") => Phase::Failed,
                _ => Phase::Unknown,
            },
            unschedulable: unscheduled_for("Unschedulable"),
            gated: unscheduled_for("SchedulingGated"),
            ready: condition("Ready").is_some_and(|condition| condition.status == "True"),
            ready_since: since("Ready"),
            scheduled_since: since("PodScheduled"),
            owners: owners.into(),
            termination_grace_seconds: spec.and_then(|spec| spec.termination_grace_period_seconds),
            scheduler_name: text(spec.and_then(|spec| spec.scheduler_name.as_ref()))
                .filter(|name| name != "default-scheduler"),
        }
    }

    /// Reports whether this is an in-memory pod of a CapacityBuffer.
    pub fn is_buffer(&self) -> bool {
        self.annotations
            .get(karpenter_api::labels::annotations::CAPACITY_BUFFER_FAKE_POD)
            .is_some_and(|value| value == "true")
    }
}

impl Shape {
    fn parse(pod: &corev1::Pod, owners: &[Owner]) -> Self {
        let Some(spec) = pod.spec.as_ref() else {
            return Self {
                namespace: pod.metadata.namespace.clone().unwrap_or_default(),
                requests: Resources::new().with("pods", 1),
                ..Self::default()
            };
        };
        let (requests, problem) = match pod_requests(pod) {
            Ok(requests) => (requests, None),
            Err(problem) => (Resources::new().with("pods", 1), Some(problem.to_string())),
        };
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let labels = pod.metadata.labels.clone().unwrap_or_default();
        let affinity = spec.affinity.as_ref();
        let node_affinity = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
        let pod_affinity = affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
        let anti_affinity = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
        let term = |term: &corev1::PodAffinityTerm| AffinityTerm::parse(term, &namespace, &labels);
        let weighted = |weighted: &corev1::WeightedPodAffinityTerm| Weighted {
            weight: weighted.weight,
            term: AffinityTerm::parse(&weighted.pod_affinity_term, &namespace, &labels),
        };
        let required = |terms: Option<&Vec<corev1::PodAffinityTerm>>| {
            terms.into_iter().flatten().map(term).collect()
        };
        let preferred = |terms: Option<&Vec<corev1::WeightedPodAffinityTerm>>| {
            terms.into_iter().flatten().map(weighted).collect()
        };
        Self {
            requests,
            problem,
            node_selector: spec.node_selector.clone().unwrap_or_default(),
            required_nodes: node_affinity
                .and_then(|affinity| {
                    affinity
                        .required_during_scheduling_ignored_during_execution
                        .as_ref()
                })
                .map(|selector| {
                    selector
                        .node_selector_terms
                        .iter()
                        .map(NodeTerm::parse)
                        .collect()
                })
                .unwrap_or_default(),
            preferred_nodes: node_affinity
                .and_then(|affinity| {
                    affinity
                        .preferred_during_scheduling_ignored_during_execution
                        .as_ref()
                })
                .into_iter()
                .flatten()
                .map(|preferred| Weighted {
                    weight: preferred.weight,
                    term: NodeTerm::parse(&preferred.preference),
                })
                .collect(),
            required_affinity: required(pod_affinity.and_then(|all| {
                all.required_during_scheduling_ignored_during_execution
                    .as_ref()
            })),
            preferred_affinity: preferred(pod_affinity.and_then(|all| {
                all.preferred_during_scheduling_ignored_during_execution
                    .as_ref()
            })),
            required_anti_affinity: required(anti_affinity.and_then(|all| {
                all.required_during_scheduling_ignored_during_execution
                    .as_ref()
            })),
            preferred_anti_affinity: preferred(anti_affinity.and_then(|all| {
                all.preferred_during_scheduling_ignored_during_execution
                    .as_ref()
            })),
            tolerations: spec
                .tolerations
                .iter()
                .flatten()
                .map(Toleration::parse)
                .collect(),
            spread: spec
                .topology_spread_constraints
                .iter()
                .flatten()
                .map(|constraint| SpreadConstraint::parse(constraint, &labels))
                .collect(),
            host_ports: ports::host_ports(spec),
            volumes: volumes(spec),
            resource_claims: resource_claims(pod, spec),
            controller: owners.iter().find(|owner| owner.controller).cloned(),
            priority: spec.priority.unwrap_or(0),
            namespace,
            labels,
        }
    }
}

fn volumes(spec: &corev1::PodSpec) -> Vec<VolumeRef> {
    spec.volumes
        .iter()
        .flatten()
        .filter_map(|volume| {
            if let Some(claim) = &volume.persistent_volume_claim {
                return Some(VolumeRef::Claim(claim.claim_name.clone()));
            }
            volume.ephemeral.as_ref().map(|ephemeral| {
                let template = ephemeral
                    .volume_claim_template
                    .as_ref()
                    .map(|template| &template.spec);
                VolumeRef::Ephemeral {
                    volume: volume.name.clone(),
                    storage_class: template.and_then(|spec| spec.storage_class_name.clone()),
                    volume_name: template.and_then(|spec| spec.volume_name.clone()),
                }
            })
        })
        .collect()
}

fn resource_claims(pod: &corev1::Pod, spec: &corev1::PodSpec) -> Vec<ClaimRef> {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|status| status.resource_claim_statuses.as_ref());
    spec.resource_claims
        .iter()
        .flatten()
        .map(|claim| {
            let status = statuses
                .into_iter()
                .flatten()
                .find(|status| status.name == claim.name);
            let generated = status
                .and_then(|status| status.resource_claim_name.clone())
                .filter(|name| !name.is_empty());
            ClaimRef {
                name: claim.name.clone(),
                claim: claim.resource_claim_name.clone().or(generated),
                template: claim.resource_claim_template_name.clone(),
                made: status.is_some(),
            }
        })
        .collect()
}
