//! Converts an AWSNodeTemplate into an EC2NodeClass.
//!
//! UPSTREAM: tools/karpenter-convert of v0.32, and the migration guides of v1beta1 and v1

use std::collections::BTreeMap;

use karpenter_aws::api::labels::tags;
use karpenter_aws::api::{
    AmiFamily, AmiSelectorTerm, BlockDevice, BlockDeviceMapping, EC2NodeClassSpec, MetadataOptions,
    SecurityGroupSelectorTerm, SubnetSelectorTerm,
};

use super::selector::Terms;
use super::{ProjectionSettings, selector, volume};
use crate::finding::Notebook;
use crate::{names, v1alpha1};

/// Converts the settings of AWS at the path `at`. Returns `None` if an error was recorded.
pub(super) fn spec(
    old: &v1alpha1::AWSNodeTemplateSpec,
    settings: &ProjectionSettings,
    at: &str,
    notes: &mut Notebook,
) -> Option<EC2NodeClassSpec> {
    let field = |name: &str| format!("{at}.{name}");
    if old.launch_template.is_some() {
        notes.error(
            &field("launchTemplate"),
            "custom launch templates have no equivalent",
            "move its user data, image, security groups, devices and metadata options into userData, amiSelector, \
             securityGroupSelector, blockDeviceMappings and metadataOptions",
        );
    }
    let subnets = terms(&old.subnet_selector, false, &field("subnetSelector"), notes);
    let groups = terms(
        &old.security_group_selector,
        false,
        &field("securityGroupSelector"),
        notes,
    );
    for (name, selector) in [
        ("subnetSelector", &old.subnet_selector),
        ("securityGroupSelector", &old.security_group_selector),
    ] {
        if selector.is_empty() && old.launch_template.is_none() {
            notes.error(&field(name), "is missing", "select by tags or by `aws-ids`");
        }
    }
    let instance_profile = old
        .instance_profile
        .clone()
        .or_else(|| settings.default_instance_profile.clone());
    if instance_profile.is_none() {
        notes.error(
            &field("instanceProfile"),
            "is missing, and so is the setting aws.defaultInstanceProfile",
            "set one of them",
        );
    }
    let mut new = EC2NodeClassSpec {
        subnet_selector_terms: subnets.into_iter().map(subnet_term).collect(),
        security_group_selector_terms: groups.into_iter().map(group_term).collect(),
        instance_profile,
        user_data: old.user_data.clone(),
        context: old.context.clone(),
        detailed_monitoring: old.detailed_monitoring,
        metadata_options: Some(metadata_options(old.metadata_options.as_ref())),
        tags: tags_of(old, settings, &field("tags"), notes),
        block_device_mappings: block_devices(old, &field("blockDeviceMappings"), notes),
        ..EC2NodeClassSpec::default()
    };
    images(old, &mut new, &field, notes);
    (!notes.failed()).then_some(new)
}

fn terms(
    selector: &BTreeMap<String, String>,
    images: bool,
    at: &str,
    notes: &mut Notebook,
) -> Vec<selector::Term> {
    match selector::expand(selector, images) {
        Ok(Terms { terms, ignored }) => {
            if !ignored.is_empty() {
                let problem = format!("{} is ignored next to ids", list(&ignored));
                notes.loss(at, problem, "select either by ids or by the others");
            }
            terms
        }
        Err(error) => {
            notes.error(at, error.to_string(), error.remedy());
            Vec::new()
        }
    }
}

fn list(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}

fn tags_of_term(term: &selector::Term) -> Option<BTreeMap<String, String>> {
    (!term.tags.is_empty()).then(|| term.tags.clone())
}

fn subnet_term(term: selector::Term) -> SubnetSelectorTerm {
    SubnetSelectorTerm {
        tags: tags_of_term(&term),
        id: term.id,
    }
}

fn group_term(term: selector::Term) -> SecurityGroupSelectorTerm {
    SecurityGroupSelectorTerm {
        tags: tags_of_term(&term),
        id: term.id,
        name: None,
    }
}

/// Converts metadataOptions: if absent, hardened defaults with two hops apply; if present, missing fields have EC2's defaults.
fn metadata_options(old: Option<&v1alpha1::MetadataOptions>) -> MetadataOptions {
    let (old, hops, tokens) = match old {
        None => (&v1alpha1::MetadataOptions::default(), 2, "required"),
        Some(old) => (old, 1, "optional"),
    };
    let or = |value: &Option<String>, default: &str| {
        Some(value.clone().unwrap_or_else(|| default.to_owned()))
    };
    MetadataOptions {
        http_endpoint: or(&old.http_endpoint, "enabled"),
        http_protocol_ipv6: or(&old.http_protocol_ipv6, "disabled"),
        http_put_response_hop_limit: Some(old.http_put_response_hop_limit.unwrap_or(hops)),
        http_tokens: or(&old.http_tokens, tokens),
    }
}

fn tags_of(
    old: &v1alpha1::AWSNodeTemplateSpec,
    settings: &ProjectionSettings,
    at: &str,
    notes: &mut Notebook,
) -> Option<BTreeMap<String, String>> {
    let mut all = settings.tags.clone();
    all.extend(old.tags.clone());
    all.retain(|key, _| {
        let restricted =
            tags::restriction(key).is_some() || names::OWN_TAGS.contains(&key.as_str());
        if restricted {
            notes.loss(
                at,
                format!("the tag `{key}` is reserved by Karpenter and is left out"),
                "use another key",
            );
        }
        !restricted
    });
    (!all.is_empty()).then_some(all)
}

fn block_devices(
    old: &v1alpha1::AWSNodeTemplateSpec,
    at: &str,
    notes: &mut Notebook,
) -> Option<Vec<BlockDeviceMapping>> {
    if old.block_device_mappings.is_empty() {
        return None;
    }
    let mut new = Vec::new();
    for (index, mapping) in old.block_device_mappings.iter().enumerate() {
        let ebs = mapping.ebs.as_ref().map(|ebs| BlockDevice {
            delete_on_termination: ebs.delete_on_termination,
            encrypted: ebs.encrypted,
            iops: ebs.iops,
            kms_key_id: ebs.kms_key_id.clone(),
            snapshot_id: ebs.snapshot_id.clone(),
            throughput: ebs.throughput,
            volume_size: ebs.volume_size.as_ref().and_then(|size| {
                volume::noted(size, &format!("{at}[{index}].ebs.volumeSize"), notes)
            }),
            volume_type: ebs.volume_type.clone(),
            ..BlockDevice::default()
        });
        new.push(BlockDeviceMapping {
            device_name: mapping.device_name.clone(),
            ebs,
            root_volume: false,
        });
    }
    Some(new)
}

fn images(
    old: &v1alpha1::AWSNodeTemplateSpec,
    new: &mut EC2NodeClassSpec,
    field: &impl Fn(&str) -> String,
    notes: &mut Notebook,
) {
    let name = old.ami_family.as_deref().unwrap_or("AL2");
    let selected = terms(&old.ami_selector, true, &field("amiSelector"), notes);
    if selected.iter().any(|term| !term.tags.is_empty()) {
        notes.note(
            &field("amiSelector"),
            "tags of images no longer restrict the instance types of an image",
            "if images have tags such as kubernetes.io/arch, write a NodeClass for each",
        );
    }
    new.ami_selector_terms = selected
        .into_iter()
        .map(|term| AmiSelectorTerm {
            tags: tags_of_term(&term),
            id: term.id,
            name: term.name,
            owner: term.owner,
            ..AmiSelectorTerm::default()
        })
        .collect();
    let by_alias = new.ami_selector_terms.is_empty();
    match (name, AmiFamily::from_name(name)) {
        ("Ubuntu", _) => {
            new.ami_family = Some(AmiFamily::Al2.as_str().to_owned());
            if by_alias {
                notes.error(
                    &field("amiFamily"),
                    "the image family Ubuntu no longer exists",
                    "name them in amiSelector, such as `aws::name: ubuntu-eks/k8s_1.30/*` with `aws::owners: \"099720109477\"`",
                );
            }
            if new.block_device_mappings.is_none() {
                new.block_device_mappings = Some(vec![ubuntu_root()]);
            }
            notes.note(
                &field("amiFamily"),
                "Ubuntu becomes AL2, which has the same user data, with Ubuntu's root volume",
                "",
            );
        }
        (_, Some(AmiFamily::Custom)) if by_alias => notes.error(
            &field("amiSelector"),
            "is missing, though amiFamily is Custom",
            "select the images",
        ),
        (_, Some(family)) if by_alias => {
            new.ami_selector_terms = vec![AmiSelectorTerm {
                alias: Some(alias(family)),
                ..AmiSelectorTerm::default()
            }];
        }
        (_, Some(family)) => new.ami_family = Some(family.as_str().to_owned()),
        (_, None) => notes.error(
            &field("amiFamily"),
            format!("unknown image family `{name}`"),
            "use AL2, Bottlerocket, Windows2019, Windows2022 or Custom",
        ),
    }
}

/// Returns the alias of a family that resolves to its latest release.
fn alias(family: AmiFamily) -> String {
    format!("{}@latest", family.as_str().to_ascii_lowercase())
}

/// Returns the root volume of instances of the family Ubuntu.
fn ubuntu_root() -> BlockDeviceMapping {
    BlockDeviceMapping {
        device_name: Some("/dev/sda1".to_owned()),
        ebs: Some(BlockDevice {
            encrypted: Some(true),
            volume_size: Some("20Gi".to_owned()),
            volume_type: Some("gp3".to_owned()),
            ..BlockDevice::default()
        }),
        root_volume: true,
    }
}
