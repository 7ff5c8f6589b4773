//! Whether machines could be launched for a node class: what admission cannot check, and what AWS says to a dry run.
//!
//! 1. What is wrong with the class itself is said at once, without a call.
//! 2. AWS is asked once everything the class selects is known, and the verdict is good for half an hour unless something
//!    changes that it depends on.
//! 3. What only time can cure is asked again with back-off, and says nothing.
//!
//! UPSTREAM: pkg/controllers/nodeclass/validation.go

mod candidates;
mod trial;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use karpenter_api::conditions::{HasConditions, Status};
use karpenter_api::validation::WellKnown;
use karpenter_core::provider::CloudProviderError;
use karpenter_kube::context::Context;
use karpenter_kube::controller::ReconcileError;
use karpenter_kube::metrics::Gauge;

use super::controller::Outcome;
use super::status::Seen;
use crate::api::labels::tags;
use crate::api::{AmiFamily, EC2NodeClass, condition_types as types};
use crate::discovery;
use crate::instance_types::{ResolveError, Resolved};
use crate::kubelet::{Evaluator, Kubelet, unsupported_fields, violations};
use crate::launch_templates::template::fnv64;
use crate::launcher::launch_tags;
use crate::operator::Parts;
use crate::placement_groups::PlacementGroup;
use crate::sdk::AwsError;
use crate::sdk::terms::Remembered;

/// Reasons of the condition ValidationSucceeded.
pub mod reasons {
    /// AL2023 needs the range of service addresses, and EKS does not tell it.
    pub const CLUSTER_CIDR: &str = "ClusterCIDRResolutionFailed";
    /// Settings of the kubelet that no kubelet takes.
    pub const KUBELET: &str = "InvalidKubeletConfiguration";
    /// Settings of the kubelet that the family cannot apply.
    pub const KUBELET_UNSUPPORTED: &str = "UnsupportedKubeletConfiguration";
    /// There are expressions, and the gate is off.
    pub const EXPRESSIONS_DISABLED: &str = "KubeletExpressionsDisabled";
    /// An expression does not compile.
    pub const EXPRESSION_INVALID: &str = "KubeletExpressionInvalid";
    /// An expression has no value for some instance type.
    pub const EXPRESSION_FAILED: &str = "KubeletExpressionEvaluationFailed";
    /// What the class selects is not known, or not there.
    pub const DEPENDENCIES: &str = "DependenciesNotReady";
    /// A tag that only Karpenter sets.
    pub const TAGS: &str = "TagValidationFailed";
    /// Launch templates may not be made.
    pub const CREATE_LAUNCH_TEMPLATE: &str = "CreateLaunchTemplateAuthCheckFailed";
    /// Fleets may not be launched.
    pub const CREATE_FLEET: &str = "CreateFleetAuthCheckFailed";
    /// Instances may not be launched.
    pub const RUN_INSTANCES: &str = "RunInstancesAuthCheckFailed";
    /// User data is larger than EC2 takes.
    pub const USER_DATA_SIZE: &str = "UserDataSizeLimitExceeded";
    /// User data cannot be merged with ours.
    pub const USER_DATA: &str = "UserDataInvalid";
    /// A disk that EC2 would take from nobody.
    pub const DEVICES: &str = "BlockDeviceMappingInvalid";
    /// `spec.instanceProfile` does not exist.
    pub const INSTANCE_PROFILE: &str = "InstanceProfileNotFound";
    /// No instance type can boot an image of the class and be launched in its subnets.
    pub const NO_INSTANCE_TYPES: &str = "NoCompatibleInstanceTypes";
    /// EC2 refuses the launch for another reason.
    pub const REFUSED: &str = "LaunchRefused";
}

/// How long a verdict is good, and how often it is looked at.
const VERDICT: Duration = Duration::from_secs(30 * 60);
const AGAIN: Duration = Duration::from_secs(10 * 60);

/// What the class waits for.
const DEPENDENCIES: [&str; 4] = [
    types::AMIS_READY,
    types::INSTANCE_PROFILE_READY,
    types::SECURITY_GROUPS_READY,
    types::SUBNETS_READY,
];
const AWAITING: &str = "Awaiting AMI, Instance Profile, Security Group, and Subnet resolution";

/// What is to be said of a class.
#[derive(Clone, Debug)]
pub(super) enum Verdict {
    /// Machines can be launched.
    Valid,
    /// They cannot, and somebody has to change something.
    Invalid {
        reason: &'static str,
        message: String,
    },
}

/// Why there is no verdict.
#[derive(Debug)]
pub(super) enum Undecided {
    /// What the class selects is not known yet.
    Waiting,
    /// It is asked again soon, and nothing is said.
    Later(String),
    /// It is asked again soon, and this is said until then.
    Suspect {
        reason: &'static str,
        message: String,
    },
    /// AWS refused; what held for the present spec goes on to hold.
    Refused {
        reason: &'static str,
        error: AwsError,
    },
}

/// Judges node classes.
#[derive(Debug)]
pub(super) struct Validation {
    parts: Parts,
    well_known: WellKnown,
    /// The last verdict on each class, with what it depends on.
    verdicts: Remembered<String, (u64, Verdict)>,
    user_data: Gauge,
}

fn invalid(reason: &'static str, message: impl Into<String>) -> Verdict {
    Verdict::Invalid {
        reason,
        message: message.into(),
    }
}

impl Validation {
    pub(super) fn new(parts: Parts, cx: &Arc<Context>) -> Self {
        let user_data = cx.metrics.registry.gauge(
            "karpenter_ec2nodeclasses_userdata_bytes",
            "Size of the user data of an EC2NodeClass in bytes, of which EC2 takes 16384",
            &["nodeclass"],
        );
        Self {
            parts,
            well_known: crate::api::well_known(),
            verdicts: Remembered::for_(VERDICT),
            user_data,
        }
    }

    /// Forgets a class that is gone.
    pub(super) fn forget(&self, class: &str) {
        self.verdicts.forget(&class.to_owned());
        self.user_data.remove_matching(&[("nodeclass", class)]);
    }

    /// Writes the condition of a class.
    pub(super) async fn judge(
        &self,
        class: &mut EC2NodeClass,
        now: Timestamp,
        outcome: &mut Outcome,
    ) {
        let decided = self.decide(class, now).await;
        let condition = types::VALIDATION_SUCCEEDED;
        let mut seen = Seen { class, now };
        match decided {
            Ok(verdict) => {
                match verdict {
                    Verdict::Valid => {
                        seen.class.set_true(condition, now);
                    }
                    Verdict::Invalid { reason, message } => seen.fails(condition, reason, &message),
                }
                outcome.again(AGAIN);
            }
            Err(Undecided::Waiting) => {
                let failed = DEPENDENCIES.iter().any(|c| seen.class.is_false(c));
                let status = if failed {
                    Status::False
                } else {
                    Status::Unknown
                };
                let reason = reasons::DEPENDENCIES;
                seen.class
                    .set_condition(condition, status, reason, AWAITING, now);
                outcome.again(AGAIN);
            }
            Err(Undecided::Later(why)) => outcome.note(Err(ReconcileError::Refused(why))),
            Err(Undecided::Suspect { reason, message }) => {
                seen.fails(condition, reason, &message);
                outcome.note(Err(ReconcileError::Refused(message)));
            }
            Err(Undecided::Refused { reason, error }) => {
                seen.unknown(condition, reason, &error);
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
        let verdict = if self.parts.settings.disable_dry_run {
            Verdict::Valid
        } else {
            self.try_out(class, &resolved, group.as_ref()).await?
        };
        self.verdicts.put(name, (key, verdict.clone()));
        Ok(verdict)
    }

    /// Finds out the range of service addresses, unless it is known. Clusters that are not EKS's come without.
    async fn service_cidr(&self) -> Result<(), Undecided> {
        let shared = &self.parts.cluster;
        if shared.get().cluster.service_cidr.is_some() {
            return Ok(());
        }
        let name = &self.parts.settings.cluster;
        match discovery::control_plane(&self.parts.aws, name).await {
            Ok(told) => match told.service_cidr {
                Some(cidr) => {
                    tracing::debug!(
                        logger = "nodeclass",
                        "cluster-cidr" = cidr,
                        "discovered cluster CIDR"
                    );
                    shared.learn_service_cidr(&cidr);
                    Ok(())
                }
                None => Err(Undecided::Suspect {
                    reason: reasons::CLUSTER_CIDR,
                    message: format!(
                        "Failed to detect the cluster CIDR: EKS tells none for cluster `{name}`"
                    ),
                }),
            },
            Err(error) if !error.is_refusal() => Err(Undecided::Later(error.to_string())),
            Err(error) => Err(Undecided::Suspect {
                reason: reasons::CLUSTER_CIDR,
                message: format!("Failed to detect the cluster CIDR: {}", error.sentence()),
            }),
        }
    }

    /// Checks the settings of the kubelet as far as that needs no instance type.
    fn kubelet(&self, class: &EC2NodeClass) -> Result<(), Verdict> {
        let object = class.spec.kubelet.as_ref();
        let problems = violations(object);
        if !problems.is_empty() {
            return Err(invalid(reasons::KUBELET, problems.join("; ")));
        }
        let kubelet = Kubelet::parse(object)
            .map_err(|problems| invalid(reasons::KUBELET, problems.join("; ")))?;
        if kubelet.has_expressions() {
            if !self.parts.settings.expressions {
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

    /// The placement group, if the class has one that is known to be there. One that is not is told by its own condition.
    async fn placement_group(&self, class: &EC2NodeClass) -> Option<PlacementGroup> {
        let selector = class.spec.placement_group_selector.as_ref()?;
        match self.parts.placement_groups.get(selector).await {
            Ok(group) => group,
            Err(unanswered) => unanswered.last,
        }
    }

    /// The instance types of the class; a verdict if its expressions have no value for some.
    fn resolve(
        &self,
        class: &EC2NodeClass,
        group: Option<PlacementGroup>,
        now: Timestamp,
    ) -> Result<Result<Resolved, Verdict>, Undecided> {
        let failed = reasons::EXPRESSION_FAILED;
        match self.parts.offered.resolve(class, group, now) {
            Ok(resolved) if resolved.problems.is_empty() => Ok(Ok(resolved)),
            Ok(resolved) => Ok(Err(invalid(failed, joined(&resolved.problems)))),
            Err(error) => {
                if let CloudProviderError::Other(source) = &error
                    && let Some(ResolveError::Expressions(errors)) = source.downcast_ref()
                {
                    return Ok(Err(invalid(failed, joined(errors))));
                }
                Err(Undecided::Later(error.to_string()))
            }
        }
    }

    /// A digest of everything a verdict depends on.
    fn depends_on(&self, class: &EC2NodeClass, group: Option<&PlacementGroup>) -> u64 {
        let status = &class.status;
        // Their order follows their free addresses.
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
            launch_tags(class, &self.parts.settings.cluster, ""),
        ]);
        fnv64(all.to_string().as_bytes())
    }
}

/// What is missing of a disk. The schema asks for neither name nor volume; upstream falls over a disk without volume.
fn incomplete_device(class: &EC2NodeClass) -> Option<String> {
    let mappings = class.spec.block_device_mappings.iter().flatten();
    mappings.enumerate().find_map(|(n, mapping)| {
        let path = format!("spec.blockDeviceMappings[{n}]");
        match mapping.device_name.as_deref().unwrap_or_default() {
            "" => Some(format!("{path} has no deviceName: say which device it is")),
            name if mapping.ebs.is_none() => Some(format!(
                "{path}, `{name}`, has no ebs: say what volume it is, or take the mapping out"
            )),
            _ => None,
        }
    })
}

/// A few errors as one sentence; there may be one for each of a thousand instance types.
fn joined(errors: &[impl ToString]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<String> = errors.iter().take(SHOWN).map(ToString::to_string).collect();
    match errors.len().saturating_sub(SHOWN) {
        0 => shown.join("; "),
        more => format!("{}; and {more} more", shown.join("; ")),
    }
}
