//! Tags: on creation and later, and EC2's rules for them.

use std::collections::BTreeSet;

use serde_json::json;

use super::Ec2Call;
use super::filters::Tags;
use crate::services::permissions::Permission;
use crate::wire::Reply;
use crate::wire::error::AwsError;
use crate::wire::params::Params;

/// Maximum number of tags of a resource.
const MAX_TAGS: usize = 50;

/// Parses the tags of a `Tag.N` list, and checks them by EC2's rules.
pub(crate) fn read(p: Params<'_>) -> Result<Tags, AwsError> {
    let mut tags = Tags::new();
    for tag in p.list("Tag") {
        let key = tag.text("Key").unwrap_or_default();
        let value = tag.text("Value").unwrap_or_default();
        if key.is_empty() {
            return Err(AwsError::invalid_value("Tag key cannot be null or empty."));
        }
        if key.chars().count() > 128 {
            return Err(AwsError::invalid_value(format!(
                "Tag key exceeds the maximum length of 128 characters: '{key}'"
            )));
        }
        if value.chars().count() > 256 {
            return Err(AwsError::invalid_value(
                "Tag value exceeds the maximum length of 256 characters",
            ));
        }
        if key.to_ascii_lowercase().starts_with("aws:") {
            return Err(AwsError::invalid_value(
                "Tag keys starting with 'aws:' are reserved for internal use",
            ));
        }
        if tags.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(AwsError::invalid_value(format!(
                "Duplicate tag key '{key}' specified."
            )));
        }
    }
    check_count(tags.len())?;
    Ok(tags)
}

fn check_count(count: usize) -> Result<(), AwsError> {
    if count > MAX_TAGS {
        return Err(AwsError::new(
            "TagLimitExceeded",
            format!("More than {MAX_TAGS} tags specified"),
        ));
    }
    Ok(())
}

pub(crate) fn check_specification(specification: Params<'_>) -> Result<(), AwsError> {
    if specification.text("ResourceType").is_none() {
        return Err(AwsError::missing("TagSpecification.ResourceType"));
    }
    let tags = read(specification)?;
    if tags.is_empty() {
        return Err(AwsError::invalid_value(
            "Tag specification must have at least one tag",
        ));
    }
    Ok(())
}

/// Returns the tags in `p`'s `TagSpecification` for resources of `kind`.
pub(crate) fn of_specifications(p: Params<'_>, kind: &str) -> Result<Tags, AwsError> {
    let mut tags = Tags::new();
    let mut seen = Vec::new();
    for specification in p.list("TagSpecification") {
        check_specification(specification)?;
        let of = specification.text("ResourceType").unwrap_or_default();
        if seen.contains(&of) {
            return Err(AwsError::invalid_value(format!(
                "Duplicate tag specification for resource type '{of}'"
            )));
        }
        seen.push(of);
        if of == kind {
            tags.extend(read(specification)?);
        }
    }
    Ok(tags)
}

impl Ec2Call<'_> {
    /// Checks the permission to tag a new resource of `kind`.
    pub(crate) fn need_create_tags(&mut self, kind: &str, tags: &Tags) -> Result<(), AwsError> {
        if tags.is_empty() {
            return Ok(());
        }
        let permission = Permission::new("ec2:CreateTags", self.arn(kind, "*"))
            .request_tags(tags)
            .with("ec2:CreateAction", &self.action);
        self.auth.need(permission)
    }

    pub(crate) fn create_tags(&mut self, p: Params<'_>) -> Result<Reply, AwsError> {
        let tags = read(p)?;
        let ids = p.texts("ResourceId");
        if let Some(other) = ids.iter().find(|id| !id.starts_with("i-")) {
            return Err(AwsError::unsupported(other));
        }
        for id in &ids {
            let Some(instance) = self.ec2.instances.get(id) else {
                continue;
            };
            let total = instance.tags.keys().chain(tags.keys());
            check_count(total.collect::<BTreeSet<_>>().len())?;
            let permission = Permission::new("ec2:CreateTags", self.arn("instance", id))
                .resource_tags(&instance.tags)
                .request_tags(&tags);
            self.auth.need(permission)?;
        }
        self.check_instances(&ids)?;
        self.check_dry_run(p)?;
        for id in ids {
            if let Some(instance) = self.ec2.instances.get_mut(id) {
                instance.touch();
                instance.tags.extend(tags.clone());
            }
        }
        Ok(Reply::Tree(json!({"return": true})))
    }
}
