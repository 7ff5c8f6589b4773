//! Tags: on creation and later, and EC2's rules for them.

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

    /// Returns a resource's ARN kind and tags, or the error if it does not exist.
    fn tagged(&self, id: &str) -> Result<(&'static str, &Tags), AwsError> {
        let missing = |code: &str, what: &str| {
            AwsError::new(code, format!("The {what} '{id}' does not exist"))
        };
        let ec2 = &self.ec2;
        let prefix = id.split('-').next().unwrap_or_default();
        match prefix {
            "i" => self
                .ec2
                .instances
                .get(id)
                .map(|i| ("instance", &i.tags))
                .ok_or_else(|| missing("InvalidInstanceID.NotFound", "instance ID")),
            "subnet" => ec2
                .subnets
                .get(id)
                .map(|s| ("subnet", &s.tags))
                .ok_or_else(|| missing("InvalidSubnetID.NotFound", "subnet ID")),
            "sg" => ec2
                .groups
                .get(id)
                .map(|g| ("security-group", &g.tags))
                .ok_or_else(|| missing("InvalidGroup.NotFound", "security group")),
            "ami" => ec2
                .images
                .get(id)
                .map(|i| ("image", &i.tags))
                .ok_or_else(|| missing("InvalidAMIID.NotFound", "image id")),
            "lt" => ec2
                .templates
                .get(id)
                .map(|t| ("launch-template", &t.tags))
                .ok_or_else(|| missing("InvalidLaunchTemplateId.NotFound", "launch template ID")),
            "cr" => ec2
                .reservations
                .get(id)
                .map(|r| ("capacity-reservation", &r.tags))
                .ok_or_else(|| {
                    missing(
                        "InvalidCapacityReservationId.NotFound",
                        "capacity reservation",
                    )
                }),
            "pg" => ec2
                .placement_groups
                .get(id)
                .map(|g| ("placement-group", &g.tags))
                .ok_or_else(|| missing("InvalidPlacementGroup.Unknown", "placement group")),
            _ => Err(AwsError::new(
                "InvalidID",
                format!("The ID '{id}' is not valid"),
            )),
        }
    }

    fn tags_mut(&mut self, id: &str) -> Option<&mut Tags> {
        let ec2 = &mut *self.ec2;
        if let Some(instance) = ec2.instances.get_mut(id) {
            instance.touch();
            return Some(&mut instance.tags);
        }
        None.or_else(|| ec2.subnets.get_mut(id).map(|s| &mut s.tags))
            .or_else(|| ec2.groups.get_mut(id).map(|g| &mut g.tags))
            .or_else(|| ec2.images.get_mut(id).map(|i| &mut i.tags))
            .or_else(|| ec2.templates.get_mut(id).map(|t| &mut t.tags))
            .or_else(|| ec2.reservations.get_mut(id).map(|r| &mut r.tags))
            .or_else(|| ec2.placement_groups.get_mut(id).map(|g| &mut g.tags))
    }

    pub(crate) fn create_tags(&mut self, p: Params<'_>) -> Result<Reply, AwsError> {
        let tags = read(p)?;
        let ids = p.texts("ResourceId");
        let mut first_error = None;
        for id in &ids {
            match self.tagged(id) {
                Ok((kind, existing)) => {
                    let permission = Permission::new("ec2:CreateTags", self.arn(kind, id))
                        .resource_tags(existing)
                        .request_tags(&tags);
                    let total = existing
                        .keys()
                        .chain(tags.keys())
                        .collect::<std::collections::BTreeSet<_>>()
                        .len();
                    self.auth.need(permission)?;
                    if let Err(error) = check_count(total) {
                        first_error.get_or_insert(error);
                    }
                }
                Err(error) => {
                    first_error.get_or_insert(error);
                }
            }
        }
        if let Some(error) = first_error {
            return Err(error);
        }
        self.check_dry_run(p)?;
        for id in ids {
            if let Some(existing) = self.tags_mut(id) {
                existing.extend(tags.clone());
            }
        }
        Ok(Reply::Tree(json!({"return": true})))
    }
}
