//! Launch templates and their versions.

use serde_json::{Value, json};

use crate::clock::rfc3339;
use crate::ec2::filters::{Filters, Tags, tag_set};
use crate::ec2::{Ec2Call, tags};
use crate::services::permissions::Permission;
use crate::wire::Reply;
use crate::wire::error::AwsError;
use crate::wire::params::Params;

/// A launch template with its only version.
#[derive(Debug, Clone, PartialEq)]
pub struct LaunchTemplate {
    /// ID of the template, `lt-…`.
    pub id: String,
    pub name: String,
    pub created: jiff::Timestamp,
    /// Launch data, with the request's parameter names.
    pub data: Value,
    pub tags: Tags,
}

impl LaunchTemplate {
    /// Returns the tags that EC2 adds to instances launched from the template.
    pub(crate) fn launch_tags(&self) -> Tags {
        let id = self.id.clone();
        [("id", id), ("version", "1".to_owned())]
            .map(|(key, value)| (format!("aws:ec2launchtemplate:{key}"), value))
            .into()
    }
}

/// EC2's limit on decoded user data.
pub(crate) const MAX_USER_DATA: usize = 16_384;

/// Refuses user data that is not base64 or too large.
pub(crate) fn check_user_data(text: &str) -> Result<(), AwsError> {
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    let compact: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    let decoded = BASE64_STANDARD.decode(compact).map_err(|_| {
        AwsError::new(
            "InvalidUserData.Malformed",
            "Invalid BASE64 encoding of user data.",
        )
    })?;
    if decoded.len() > MAX_USER_DATA {
        return Err(AwsError::invalid_value(format!(
            "User data is limited to {MAX_USER_DATA} bytes"
        )));
    }
    Ok(())
}

/// Returns the error for a template that does not exist, by name or ID.
pub(crate) fn template_missing(name: Option<&str>, id: Option<&str>) -> AwsError {
    match (name, id) {
        (_, Some(id)) => AwsError::new(
            "InvalidLaunchTemplateId.NotFound",
            format!("The specified launch template, with template ID {id}, does not exist."),
        ),
        (name, None) => AwsError::new(
            "InvalidLaunchTemplateName.NotFoundException",
            format!(
                "The specified launch template, with template name {}, does not exist.",
                name.unwrap_or_default()
            ),
        ),
    }
}

impl Ec2Call<'_> {
    pub(crate) fn create_launch_template(&mut self, p: Params<'_>) -> Result<Reply, AwsError> {
        let name = p.text("LaunchTemplateName").unwrap_or_default();
        let tags = tags::of_specifications(p, "launch-template")?;
        let permission =
            Permission::new("ec2:CreateLaunchTemplate", self.arn("launch-template", "*"))
                .request_tags(&tags);
        self.auth.need(permission)?;
        self.need_create_tags("launch-template", &tags)?;
        for resource in p.list("TagSpecification") {
            if let Some(kind) = resource.text("ResourceType")
                && kind != "launch-template"
            {
                return Err(AwsError::invalid_value(format!(
                    "'{kind}' is not a valid taggable resource type for this operation."
                )));
            }
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || "(.)-_/".contains(c);
        if !(3..=128).contains(&name.len()) || !name.chars().all(allowed) {
            return Err(AwsError::new(
                "InvalidLaunchTemplateName.MalformedException",
                "Launch template names must be between 3 and 128 characters in length, and may contain letters, numbers, and the following characters: - ( ) . / _.",
            ));
        }
        let data = p.inner("LaunchTemplateData");
        if let Some(user_data) = data.text("UserData") {
            check_user_data(user_data)?;
        }
        for specification in data.list("TagSpecification") {
            tags::check_specification(specification)?;
        }
        self.check_dry_run(p)?;
        if let Some(replay) = self.replay(p)? {
            return Ok(replay);
        }
        if self.ec2.template_by_name(name).is_some() {
            return Err(AwsError::new(
                "InvalidLaunchTemplateName.AlreadyExistsException",
                "Launch template name already in use.",
            ));
        }
        let template = LaunchTemplate {
            id: self.ids.hex("lt-", 17),
            name: name.to_owned(),
            created: self.now,
            data: data.0.clone(),
            tags,
        };
        let reply = Reply::Tree(json!({"launchTemplate": self.template_wire(&template)}));
        self.ec2.templates.insert(template.id.clone(), template);
        self.remember(p, &reply);
        Ok(reply)
    }

    fn template_wire(&self, t: &LaunchTemplate) -> Value {
        json!({
            "launchTemplateId": t.id,
            "launchTemplateName": t.name,
            "createTime": rfc3339(t.created),
            "createdBy": self.auth.caller,
            "defaultVersionNumber": 1,
            "latestVersionNumber": 1,
            "tagSet": tag_set(&t.tags),
        })
    }

    pub(crate) fn describe_launch_templates(&mut self, p: Params<'_>) -> Result<Reply, AwsError> {
        let filters = Filters::read(p, &["tag"])?;
        let page = self.page(p, (1, 200))?;
        let names = p.texts("LaunchTemplateName");
        let ids = p.texts("LaunchTemplateId");
        if let Some(id) = ids.iter().find(|id| !self.ec2.templates.contains_key(**id)) {
            return Err(template_missing(None, Some(id)));
        }
        if let Some(name) = names
            .iter()
            .find(|n| self.ec2.template_by_name(n).is_none())
        {
            return Err(AwsError::new(
                "InvalidLaunchTemplateName.NotFoundException",
                format!(
                    "At least one of the launch templates specified in the request does not exist: {name}"
                ),
            ));
        }
        let rows = self
            .ec2
            .templates
            .values()
            .filter(|t| ids.is_empty() || ids.contains(&t.id.as_str()))
            .filter(|t| names.is_empty() || names.contains(&t.name.as_str()))
            .filter(|t| filters.matches(&t.tags, |_| vec![]))
            .map(|t| (t.id.clone(), self.template_wire(t)));
        let (rows, token) = page.cut(rows);
        Ok(Reply::Tree(
            json!({"launchTemplates": rows, "nextToken": token}),
        ))
    }

    /// Returns the template that `LaunchTemplateId` or `LaunchTemplateName` names.
    pub(crate) fn template(&self, p: Params<'_>) -> Result<&LaunchTemplate, AwsError> {
        let (name, id) = (p.text("LaunchTemplateName"), p.text("LaunchTemplateId"));
        let found = match (name, id) {
            (Some(_), Some(_)) => {
                return Err(AwsError::combination(
                    "You can specify either the launch template ID or the launch template name, but not both",
                ));
            }
            (None, None) => return Err(AwsError::missing("LaunchTemplateId")),
            (Some(name), None) => self.ec2.template_by_name(name),
            (None, Some(id)) => self.ec2.templates.get(id),
        };
        let found = found.ok_or_else(|| template_missing(name, id))?;
        match p.text("Version").unwrap_or("$Default") {
            "$Default" | "$Latest" | "1" => Ok(found),
            version => Err(AwsError::new(
                "InvalidLaunchTemplateId.VersionNotFound",
                format!(
                    "Could not find the specified version {version} for the launch template with ID {}.",
                    found.id
                ),
            )),
        }
    }

    pub(crate) fn delete_launch_template(&mut self, p: Params<'_>) -> Result<Reply, AwsError> {
        let (id, tags) = match self.template(p) {
            Ok(t) => (t.id.clone(), t.tags.clone()),
            Err(error) => {
                // Authorization comes first; there are no tags of the resource.
                let any = self.arn("launch-template", "*");
                self.auth
                    .need(Permission::new("ec2:DeleteLaunchTemplate", any))?;
                return Err(error);
            }
        };
        let permission =
            Permission::new("ec2:DeleteLaunchTemplate", self.arn("launch-template", &id))
                .resource_tags(&tags);
        self.auth.need(permission)?;
        self.check_dry_run(p)?;
        let Some(template) = self.ec2.templates.remove(&id) else {
            return Err(template_missing(None, Some(&id)));
        };
        Ok(Reply::Tree(
            json!({"launchTemplate": self.template_wire(&template)}),
        ))
    }
}
