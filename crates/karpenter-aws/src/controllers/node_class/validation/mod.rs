//! Validation of a node class beyond admission, and dry runs of a launch in EC2.
//!
//! 1. Errors in the class itself are reported at once, without a call.
//! 2. The dry runs start once everything that the class selects is resolved. A verdict is cached for half an hour,
//!    unless something changes that it depends on.
//! 3. Transient errors are retried with back-off, and not reported.
//!
//! UPSTREAM: pkg/controllers/nodeclass/validation.go

mod candidates;
mod dry_run;

use std::time::Duration;

use jiff::Timestamp;
use karpenter_api::conditions::{HasConditions, Status};
use karpenter_api::validation::WellKnown;
use karpenter_core::provider::CloudProviderError;
use karpenter_kube::controller::ReconcileError;

use super::outcome::Outcome;
use super::status::StatusUpdate;
use crate::api::labels::tags;
use crate::api::{AmiFamily, EC2NodeClass, condition_types as types};
use crate::context::AwsContext;
use crate::kubelet::{Evaluator, Kubelet, unsupported_fields, violations};
use crate::providers::instance::launcher::launch_tags;
use crate::providers::instance_type::{ResolveError, Resolved};
use crate::providers::launch_template::template::fnv64;
use crate::providers::placement_group::PlacementGroup;
use crate::providers::version::control_plane;
use crate::sdk::AwsError;
use crate::sdk::terms::TtlCache;

/// Reasons of the condition ValidationSucceeded.
pub mod reasons {
    /// AL2023 needs the service CIDR, and EKS does not report it.
    pub const CLUSTER_CIDR: &str = "ClusterCIDRResolutionFailed";
    /// The kubelet settings are invalid for every family.
    pub const KUBELET: &str = "InvalidKubeletConfiguration";
    /// The kubelet settings have fields that the family does not support.
    pub const KUBELET_UNSUPPORTED: &str = "UnsupportedKubeletConfiguration";
    /// The kubelet settings have expressions, and the feature gate is off.
    pub const EXPRESSIONS_DISABLED: &str = "KubeletExpressionsDisabled";
    /// An expression does not compile.
    pub const EXPRESSION_INVALID: &str = "KubeletExpressionInvalid";
    /// An expression has no value for some instance type.
    pub const EXPRESSION_FAILED: &str = "KubeletExpressionEvaluationFailed";
    /// A selector has not been resolved, or matches nothing.
    pub const DEPENDENCIES: &str = "DependenciesNotReady";
    /// The spec has a tag that only Karpenter may set.
    pub const TAGS: &str = "TagValidationFailed";
    /// Launch templates may not be created.
    pub const CREATE_LAUNCH_TEMPLATE: &str = "CreateLaunchTemplateAuthCheckFailed";
    /// Fleets may not be launched.
    pub const CREATE_FLEET: &str = "CreateFleetAuthCheckFailed";
    /// Instances may not be launched.
    pub const RUN_INSTANCES: &str = "RunInstancesAuthCheckFailed";
    /// User data is larger than EC2 takes.
    pub const USER_DATA_SIZE: &str = "UserDataSizeLimitExceeded";
    /// User data cannot be merged with ours.
    pub const USER_DATA: &str = "UserDataInvalid";
    /// A block device mapping is incomplete.
    pub const DEVICES: &str = "BlockDeviceMappingInvalid";
    /// `spec.instanceProfile` does not exist.
    pub const INSTANCE_PROFILE: &str = "InstanceProfileNotFound";
    /// No instance type can boot an AMI of the class and be launched in its subnets.
    pub const NO_INSTANCE_TYPES: &str = "NoCompatibleInstanceTypes";
    /// EC2 refuses the launch for another reason.
    pub const REFUSED: &str = "LaunchRefused";
}

/// How long a verdict is cached, and how often a class is validated again.
const VERDICT_TTL: Duration = Duration::from_secs(30 * 60);
const INTERVAL: Duration = Duration::from_secs(10 * 60);

/// Conditions that must be True before the dry runs.
const DEPENDENCIES: [&str; 4] = [
    types::AMIS_READY,
    types::INSTANCE_PROFILE_READY,
    types::SECURITY_GROUPS_READY,
    types::SUBNETS_READY,
];
const AWAITING: &str = "Awaiting AMI, Instance Profile, Security Group, and Subnet resolution";

/// Result of a validation.
#[derive(Clone, Debug)]
pub(super) enum Verdict {
    /// Instances can be launched.
    Valid,
    /// Instances cannot be launched, and the user has to change something.
    Invalid {
        reason: &'static str,
        message: String,
    },
}

/// A validation without result.
#[derive(Debug)]
pub(super) enum Undecided {
    /// A selector has not been resolved yet.
    Waiting,
    /// A transient error: retried soon, and not reported.
    Transient(String),
    /// Retried soon, and reported until then.
    Suspect {
        reason: &'static str,
        message: String,
    },
    /// AWS refused a call; a condition that is True for the current spec stays True.
    Refused {
        reason: &'static str,
        error: AwsError,
    },
}

#[derive(Debug)]
pub(super) struct Validation {
    aws: AwsContext,
    well_known: WellKnown,
    /// The last verdict on each class, with a digest of what it depends on.
    verdicts: TtlCache<String, (u64, Verdict)>,
}

fn invalid(reason: &'static str, message: impl Into<String>) -> Verdict {
    Verdict::Invalid {
        reason,
        message: message.into(),
    }
}

impl Validation {
    pub(super) fn new(aws: AwsContext) -> Self {
        Self {
            aws,
            well_known: crate::api::well_known(),
            verdicts: TtlCache::new(VERDICT_TTL),
        }
    }

    /// Removes the cached verdict of a deleted class.
    pub(super) fn forget(&self, class: &str) {
        self.verdicts.forget(&class.to_owned());
        self.aws.templates.forget(class);
    }

    /// Validates a class and sets its condition.
    pub(super) async fn validate(
        &self,
        class: &mut EC2NodeClass,
        now: Timestamp,
        outcome: &mut Outcome,
    ) {
        let decided = self.decide(class, now).await;
        let condition = types::VALIDATION_SUCCEEDED;
        let mut update = StatusUpdate { class, now };
        match decided {
            Ok(verdict) => {
                match verdict {
                    Verdict::Valid => {
                        update.class.set_true(condition, now);
                    }
                    Verdict::Invalid { reason, message } => {
                        update.set_false(condition, reason, &message)
                    }
                }
                outcome.requeue(INTERVAL);
            }
            Err(Undecided::Waiting) => {
                let failed = DEPENDENCIES.iter().any(|c| update.class.is_false(c));
                let status = if failed {
                    Status::False
                } else {
                    Status::Unknown
                };
                let reason = reasons::DEPENDENCIES;
                update
                    .class
                    .set_condition(condition, status, reason, AWAITING, now);
                outcome.requeue(INTERVAL);
            }
            Err(Undecided::Transient(why)) => outcome.record(Err(ReconcileError::Refused(why))),
            Err(Undecided::Suspect { reason, message }) => {
                update.set_false(condition, reason, &message);
                outcome.record(Err(ReconcileError::Refused(message)));
            }
            Err(Undecided::Refused { reason, error }) => {
                update.set_error(condition, reason, &error);
                outcome.failed("validating ec2nodeclass", error);
            }
        }
    }

    async fn decide(&self, class: &EC2NodeClass, now: Timestamp) -> Result<Verdict, Undecided> {
        if class.ami_family() == AmiFamily::Al2023 {
            self.service_cidr().await?;
        }
        if let Err(verdict) = self.kubelet(class) {
            return Ok(verdict);
        }
        if let Some(problem) = incomplete_device(class) {
            return Ok(invalid(reasons::DEVICES, problem));
        }
        if !DEPENDENCIES.iter().all(|c| class.is_true(c)) {
            return Err(Undecided::Waiting);
        }
        let group = self.placement_group(class).await;
        let resolved = match self.resolve(class, group.clone(), now)? {
            Ok(resolved) => resolved,
            Err(verdict) => return Ok(verdict),
        };
        let restricted = class.spec.tags.iter().flatten();
        for (key, _) in restricted {
            if let Some(why) = tags::restriction(key) {
                return Ok(invalid(
                    reasons::TAGS,
                    format!("{why}: remove \"{key}\" from spec.tags"),
                ));
            }
        }
        let name = class.metadata.name.clone().unwrap_or_default();
        let key = self.depends_on(class, group.as_ref());
        let known = self.verdicts.get(&name).filter(|known| known.0 == key);
        if let Some((_, verdict)) = known {
            return Ok(verdict);
        }
        let verdict = if self.aws.settings.disable_dry_run {
            Verdict::Valid
        } else {
            self.dry_run(class, &resolved, group.as_ref()).await?
        };
        self.verdicts.put(name, (key, verdict.clone()));
        Ok(verdict)
    }

    /// Discovers the service CIDR, if it is not known. Clusters outside of EKS have none.
    async fn service_cidr(&self) -> Result<(), Undecided> {
        let shared = &self.aws.cluster;
        if shared.get().cluster.service_cidr.is_some() {
            return Ok(());
        }
        let name = &self.aws.settings.cluster;
        match control_plane(&self.aws.clients, name).await {
            Ok(described) => match described.service_cidr {
                Some(cidr) => {
                    tracing::debug!(
                        logger = "nodeclass",
                        "cluster-cidr" = cidr,
                        "discovered cluster CIDR"
                    );
                    shared.set_service_cidr(&cidr);
                    Ok(())
                }
                None => Err(Undecided::Suspect {
                    reason: reasons::CLUSTER_CIDR,
                    message: format!(
                        "Failed to detect the cluster CIDR: EKS reports none for cluster `{name}`"
                    ),
                }),
            },
            Err(error) if !error.is_refusal() => Err(Undecided::Transient(error.to_string())),
            Err(error) => Err(Undecided::Suspect {
                reason: reasons::CLUSTER_CIDR,
                message: format!("Failed to detect the cluster CIDR: {}", error.sentence()),
            }),
        }
    }

    /// Validates the kubelet settings without instance types.
    fn kubelet(&self, class: &EC2NodeClass) -> Result<(), Verdict> {
        let object = class.spec.kubelet.as_ref();
        let problems = violations(object);
        if !problems.is_empty() {
            return Err(invalid(reasons::KUBELET, problems.join("; ")));
        }
        let kubelet = Kubelet::parse(object)
            .map_err(|problems| invalid(reasons::KUBELET, problems.join("; ")))?;
        if kubelet.has_expressions() {
            if !self.aws.settings.expressions {
                return Err(invalid(
                    reasons::EXPRESSIONS_DISABLED,
                    "spec.kubelet has expressions, and the feature gate NodeClassCEL is off: set --aws-feature-gates=NodeClassCEL=true, or use plain values",
                ));
            }
            if let Err(errors) = Evaluator::new(&kubelet, true) {
                return Err(invalid(reasons::EXPRESSION_INVALID, joined(&errors)));
            }
        }
        let unsupported = unsupported_fields(class.ami_family(), object);
        if !unsupported.is_empty() {
            return Err(invalid(
                reasons::KUBELET_UNSUPPORTED,
                unsupported.join("; "),
            ));
        }
        Ok(())
    }

    /// Returns the placement group, if the class selects one that exists. Its own condition reports one that does not.
    async fn placement_group(&self, class: &EC2NodeClass) -> Option<PlacementGroup> {
        let selector = class.spec.placement_group_selector.as_ref()?;
        match self.aws.placement_groups.get(selector).await {
            Ok(group) => group,
            Err(unanswered) => unanswered.last,
        }
    }

    /// Resolves the instance types of the class; `Err` is the verdict if expressions fail for some of them.
    fn resolve(
        &self,
        class: &EC2NodeClass,
        group: Option<PlacementGroup>,
        now: Timestamp,
    ) -> Result<Result<Resolved, Verdict>, Undecided> {
        let failed = reasons::EXPRESSION_FAILED;
        match self.aws.offered.resolve(class, group, now) {
            Ok(resolved) if resolved.problems.is_empty() => Ok(Ok(resolved)),
            Ok(resolved) => Ok(Err(invalid(failed, joined(&resolved.problems)))),
            Err(error) => {
                if let CloudProviderError::Other(source) = &error
                    && let Some(ResolveError::Expressions(errors)) = source.downcast_ref()
                {
                    return Ok(Err(invalid(failed, joined(errors))));
                }
                Err(Undecided::Transient(error.to_string()))
            }
        }
    }

    /// Returns a digest of everything a verdict depends on.
    fn depends_on(&self, class: &EC2NodeClass, group: Option<&PlacementGroup>) -> u64 {
        let status = &class.status;
        // The order of subnets follows their free addresses.
        let mut subnets: Vec<&str> = status.subnets.iter().map(|s| s.id.as_str()).collect();
        subnets.sort_unstable();
        let all = serde_json::json!([
            subnets,
            status.security_groups,
            status.amis,
            status.instance_profile,
            group.map(|g| &g.id),
            class.metadata.annotations,
            class.spec,
            launch_tags(class, &self.aws.settings.cluster, ""),
        ]);
        fnv64(all.to_string().as_bytes())
    }
}

/// Returns what is missing in a block device mapping. The schema requires neither name nor volume; upstream panics on a
/// mapping without volume.
fn incomplete_device(class: &EC2NodeClass) -> Option<String> {
    let mappings = class.spec.block_device_mappings.iter().flatten();
    mappings.enumerate().find_map(|(n, mapping)| {
        let path = format!("spec.blockDeviceMappings[{n}]");
        match mapping.device_name.as_deref().unwrap_or_default() {
            "" => Some(format!(
                "{path} has no deviceName: set the name of the device"
            )),
            name if mapping.ebs.is_none() => Some(format!(
                "{path}, `{name}`, has no ebs: set the volume, or remove the mapping"
            )),
            _ => None,
        }
    })
}

/// Joins a few errors; there may be one for each of a thousand instance types.
fn joined(errors: &[impl ToString]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<String> = errors.iter().take(SHOWN).map(ToString::to_string).collect();
    match errors.len().saturating_sub(SHOWN) {
        0 => shown.join("; "),
        more => format!("{}; and {more} more", shown.join("; ")),
    }
}
