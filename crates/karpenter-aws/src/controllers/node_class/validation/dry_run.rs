//! Dry run of a launch: a launch template is created as for a launch, then CreateFleet and RunInstances are called with
//! DryRun.
//!
//! UPSTREAM: pkg/controllers/nodeclass/validation.go

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_ec2::types as ec2;
use karpenter_api::labels as core_labels;
use karpenter_api::v1::{NodeClaim, NodeClaimSpec, NodeClassReference};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::requirements::Requirements;

use super::candidates::{candidate, is_launchable};
use super::{Undecided, Validation, Verdict, invalid, reasons};
use crate::api::{EC2NodeClass, Subnet};
use crate::providers::instance::fleet;
use crate::providers::instance::fleet::{Config, Fleet, Override, Purchase};
use crate::providers::instance::launcher::launch_tags;
use crate::providers::instance_type::Resolved;
use crate::providers::launch_template::request::{interfaces, tag_specification};
use crate::providers::launch_template::{Launch, Reserved, Template, TemplateError};
use crate::providers::placement_group::PlacementGroup;
use crate::sdk::AwsError;
use crate::user_data::UserDataError;

impl Validation {
    /// Checks with dry runs whether EC2 would launch an instance for the class.
    pub(super) async fn dry_run(
        &self,
        class: &EC2NodeClass,
        resolved: &Resolved,
        group: Option<&PlacementGroup>,
    ) -> Result<Verdict, Undecided> {
        let pools = self.aws.stores.pools();
        let Some(candidate) = candidate(class, &resolved.types, &pools, &self.well_known) else {
            return Ok(invalid(
                reasons::NO_INSTANCE_TYPES,
                "no instance type can boot an image of the EC2NodeClass in its subnets: change spec.amiSelectorTerms or spec.subnetSelectorTerms",
            ));
        };
        let type_ = candidate.type_;
        let tags = launch_tags(class, &self.aws.settings.cluster, "");
        let claim = claim(class);
        let launch = Launch {
            class,
            claim: &claim,
            requirements: &Requirements::new(),
            capacity_type: core_labels::CAPACITY_TYPE_ON_DEMAND,
            tenancy: candidate.tenancy,
            placement_group: group,
            partition: None,
            tags: &tags,
        };
        let settings = self.aws.cluster.get();
        let types = std::slice::from_ref(type_);
        let reserved_of = |t: &InstanceType| Reserved::of(resolved, &t.name);
        let templates = self
            .aws
            .templates
            .resolve(&launch, &settings, types, reserved_of);
        let template = match templates {
            Ok(templates) => templates.into_iter().next().map(|r| r.template),
            Err(error) => return template_verdict(&error),
        };
        let Some(template) = template else {
            return Err(Undecided::Transient("no launch template".to_owned()));
        };
        if let Err(error) = self.aws.templates.ensure(&template).await {
            return self.refused(error, reasons::CREATE_LAUNCH_TEMPLATE, class, &template);
        }
        let subnets = subnets(class, type_);
        let asked = fleet(class, &template, type_, &subnets, &tags);
        if let Err(error) = fleet::dry_run(&self.aws.clients, &asked).await {
            return self.refused(error, reasons::CREATE_FLEET, class, &template);
        }
        let mut first = None;
        for subnet in subnets {
            match self
                .run_instance(&template, &type_.name, subnet, &tags)
                .await
            {
                Ok(()) => return Ok(Verdict::Valid),
                Err(error) => first = first.or(Some(error)),
            }
        }
        match first {
            Some(error) => self.refused(error, reasons::RUN_INSTANCES, class, &template),
            None => Err(Undecided::Waiting),
        }
    }

    /// Maps an error of a dry run to a verdict.
    fn refused(
        &self,
        error: AwsError,
        unauthorized: &'static str,
        class: &EC2NodeClass,
        template: &Template,
    ) -> Result<Verdict, Undecided> {
        if !error.is_refusal() {
            return Err(Undecided::Transient(error.to_string()));
        }
        if error.is_forbidden() {
            // CreateFleet also needs the permission to run instances.
            let (reason, operation) = match error.denied_action() {
                Some("ec2:RunInstances") => (reasons::RUN_INSTANCES, "RunInstances"),
                _ => (unauthorized, error.operation),
            };
            let message = format!(
                "Controller isn't authorized to call ec2:{operation}: {}",
                error.denial()
            );
            tracing::error!(logger = "nodeclass", EC2NodeClass = class.metadata.name, error = %error, "aws-error-code" = error.code.as_deref(), "unauthorized to call EC2");
            return Ok(invalid(reason, message));
        }
        if error.is_user_data_too_large() {
            let message = format!("{}: shorten spec.userData", error.sentence());
            return Ok(invalid(reasons::USER_DATA_SIZE, message));
        }
        if error.is_instance_profile_not_found() {
            // EC2 sees a new instance profile of IAM after some seconds.
            return Err(match &class.spec.instance_profile {
                Some(name) => Undecided::Suspect {
                    reason: reasons::INSTANCE_PROFILE,
                    message: format!(
                        "Instance profile \"{name}\" does not exist: create it, or change spec.instanceProfile"
                    ),
                },
                None => Undecided::Transient(error.to_string()),
            });
        }
        if error.is_launch_template_not_found() {
            self.aws.templates.invalidate(&template.name());
            return Err(Undecided::Transient(error.to_string()));
        }
        Err(Undecided::Refused {
            reason: reasons::REFUSED,
            error,
        })
    }

    async fn run_instance(
        &self,
        template: &Template,
        type_: &str,
        subnet: &Subnet,
        tags: &BTreeMap<String, String>,
    ) -> Result<(), AwsError> {
        let by = ec2::LaunchTemplateSpecification::builder()
            .launch_template_name(template.name())
            .version("$Latest")
            .build();
        let interfaces = in_subnet(template, subnet);
        let tags = [
            ec2::ResourceType::Instance,
            ec2::ResourceType::Volume,
            ec2::ResourceType::NetworkInterface,
        ]
        .map(|kind| tag_specification(kind, tags));
        let answer = self
            .aws
            .clients
            .ec2_once("RunInstances", |client| {
                client
                    .run_instances()
                    .dry_run(true)
                    .min_count(1)
                    .max_count(1)
                    .launch_template(by)
                    .instance_type(type_.into())
                    .set_network_interfaces(Some(interfaces))
                    .set_tag_specifications(Some(tags.to_vec()))
                    .send()
            })
            .await;
        match answer {
            Err(error) if !error.is_dry_run() => Err(error),
            _ => Ok(()),
        }
    }
}

/// Maps an error of the template resolution to a verdict.
fn template_verdict(error: &TemplateError) -> Result<Verdict, Undecided> {
    match error {
        TemplateError::UserData(data) if data.is_transient() => {
            Err(Undecided::Transient(error.to_string()))
        }
        TemplateError::UserData(UserDataError::TooLarge { .. }) => {
            Ok(invalid(reasons::USER_DATA_SIZE, error.to_string()))
        }
        TemplateError::UserData(_) => Ok(invalid(reasons::USER_DATA, error.to_string())),
        other => Err(Undecided::Transient(other.to_string())),
    }
}

/// Returns a NodeClaim of the class without a NodePool.
fn claim(class: &EC2NodeClass) -> NodeClaim {
    let reference = NodeClassReference {
        group: EC2NodeClass::GROUP.to_owned(),
        kind: EC2NodeClass::KIND.to_owned(),
        name: class.metadata.name.clone().unwrap_or_default(),
    };
    NodeClaim::new(
        "",
        NodeClaimSpec {
            node_class_ref: reference,
            ..NodeClaimSpec::default()
        },
    )
}

/// Returns the subnets of the class, first those in zones where the type has an available offering.
fn subnets<'a>(class: &'a EC2NodeClass, type_: &InstanceType) -> Vec<&'a Subnet> {
    let zones: BTreeSet<&str> = type_
        .offerings
        .iter()
        .filter(|o| is_launchable(o))
        .filter_map(|o| o.zone())
        .collect();
    let all = class.status.subnets.iter();
    let (launchable, others): (Vec<_>, Vec<_>) = all.partition(|s| zones.contains(s.zone.as_str()));
    launchable.into_iter().chain(others).collect()
}

fn fleet(
    class: &EC2NodeClass,
    template: &Template,
    type_: &InstanceType,
    subnets: &[&Subnet],
    tags: &BTreeMap<String, String>,
) -> Fleet {
    let overrides = subnets.iter().map(|subnet| Override {
        type_: type_.name.clone(),
        zone: subnet.zone.clone(),
        subnet: subnet.id.clone(),
        image: template.image_id.clone(),
        price: 0.0.into(),
    });
    Fleet {
        configs: vec![Config {
            template: template.name(),
            reservation: None,
            overrides: overrides.collect(),
        }],
        purchase: Purchase::OnDemand,
        prioritized: false,
        tags: tags.clone(),
        context: class.spec.context.clone(),
    }
}

/// Returns the template's network interfaces in a subnet.
fn in_subnet(
    template: &Template,
    subnet: &Subnet,
) -> Vec<ec2::InstanceNetworkInterfaceSpecification> {
    let place = |i: ec2::LaunchTemplateInstanceNetworkInterfaceSpecificationRequest| {
        ec2::InstanceNetworkInterfaceSpecification::builder()
            .set_device_index(i.device_index())
            .set_network_card_index(i.network_card_index())
            .set_interface_type(i.interface_type().map(str::to_owned))
            .set_groups(Some(i.groups().to_vec()))
            .subnet_id(&subnet.id)
            .build()
    };
    interfaces(template).into_iter().map(place).collect()
}
