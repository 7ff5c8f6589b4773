//! IAM roles and instance profiles. IAM is global: all regions share the state.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::clock::{later, rfc3339};
use crate::ec2::filters::Tags;
use crate::ec2::paging;
use crate::ids::Ids;
use crate::services::permissions::{Auth, Permission};
use crate::settings::AwsFakeSettings;
use crate::wire::Reply;
use crate::wire::error::AwsError;
use crate::wire::params::Params;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    /// Name of the role, without path.
    pub name: String,
    pub arn: String,
    /// ID of the role, `AROA…`.
    pub id: String,
    pub created: Timestamp,
}

impl Role {
    pub(crate) fn new(name: &str, account: &str, ids: &mut Ids, created: Timestamp) -> Self {
        Self {
            name: name.to_owned(),
            arn: format!("arn:aws:iam::{account}:role/{name}"),
            id: ids.upper("AROA"),
            created,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceProfile {
    /// Name of the profile, without path.
    pub name: String,
    pub arn: String,
    /// ID of the profile, `AIPA…`.
    pub id: String,
    /// Path, which begins and ends with a slash.
    pub path: String,
    pub role: Option<String>,
    pub tags: Tags,
    pub created: Timestamp,
    /// Time of the last change; EC2 sees changes with a delay.
    pub changed: Timestamp,
}

#[derive(Debug, Default)]
pub(crate) struct Iam {
    pub(crate) roles: BTreeMap<String, Role>,
    pub(crate) profiles: BTreeMap<String, InstanceProfile>,
}

impl Iam {
    /// Returns the profile as EC2 sees it: changes are visible after `delay`.
    pub(crate) fn profile_for_ec2(
        &self,
        wanted: &str,
        now: Timestamp,
        delay: Duration,
    ) -> Option<&InstanceProfile> {
        let profile = self.profiles.get(wanted)?;
        (delay.is_zero() || now >= later(profile.changed, delay)).then_some(profile)
    }

    /// Returns the ARN of the role in the profile `wanted`.
    pub(crate) fn role_arn_of_profile(&self, wanted: &str) -> Option<String> {
        let role = self.profiles.get(wanted)?.role.as_ref()?;
        self.roles.get(role).map(|r| r.arn.clone())
    }
}

#[derive(Debug)]
pub(crate) struct IamCall<'a> {
    pub(crate) action: String,
    pub(crate) now: Timestamp,
    pub(crate) account: &'a str,
    pub(crate) iam: &'a mut Iam,
    pub(crate) ids: &'a mut Ids,
    pub(crate) settings: &'a AwsFakeSettings,
    pub(crate) auth: Auth<'a>,
}

fn validation(message: impl Into<String>) -> AwsError {
    AwsError::new("ValidationError", message)
}

fn no_profile(name: &str) -> AwsError {
    AwsError::new(
        "NoSuchEntity",
        format!("Instance Profile {name} cannot be found."),
    )
}

fn no_role(name: &str) -> AwsError {
    AwsError::new(
        "NoSuchEntity",
        format!("The role with name {name} cannot be found."),
    )
}

/// Returns the name of a role or profile, if it is valid.
fn checked_name<'p>(p: Params<'p>, member: &str) -> Result<&'p str, AwsError> {
    let name = p.text(member).unwrap_or_default();
    let ok = |c: char| c.is_ascii_alphanumeric() || "+=,.@_-".contains(c);
    if name.is_empty() || name.len() > 128 || !name.chars().all(ok) {
        return Err(validation(format!(
            "The specified value for {} is invalid. It must contain only alphanumeric characters and/or the following: +=,.@_-",
            member[..1].to_lowercase() + &member[1..]
        )));
    }
    Ok(name)
}

fn checked_path(p: Params<'_>) -> Result<String, AwsError> {
    let path = p.text("Path").unwrap_or("/");
    let ok = path.starts_with('/')
        && path.ends_with('/')
        && path.len() <= 512
        && path.chars().all(|c| ('\u{21}'..='\u{7e}').contains(&c));
    if !ok {
        return Err(validation(
            "The specified value for path is invalid. It must begin and end with / and contain only alphanumeric characters and/or / characters.",
        ));
    }
    Ok(path.to_owned())
}

fn checked_tags(p: Params<'_>) -> Result<Tags, AwsError> {
    let mut tags = Tags::new();
    for tag in p.list("Tags") {
        let (key, value) = (
            tag.text("Key").unwrap_or_default(),
            tag.text("Value").unwrap_or_default(),
        );
        if key.is_empty() || key.chars().count() > 128 || value.chars().count() > 256 {
            return Err(validation(format!(
                "Tag `{key}` is too long or has no key."
            )));
        }
        if key.to_ascii_lowercase().starts_with("aws:") {
            return Err(AwsError::new(
                "InvalidInput",
                "Tag keys must not begin with aws:",
            ));
        }
        if tags.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(AwsError::new(
                "InvalidInput",
                "Duplicate tag keys found. Please note that Tag keys are case insensitive.",
            ));
        }
    }
    check_count(tags.len())?;
    Ok(tags)
}

fn check_count(count: usize) -> Result<(), AwsError> {
    if count > 50 {
        return Err(AwsError::new(
            "LimitExceeded",
            "The number of tags has reached the maximum limit.",
        ));
    }
    Ok(())
}

impl IamCall<'_> {
    pub(crate) fn run(&mut self, params: &Value) -> Result<Reply, AwsError> {
        let p = Params(params);
        match self.action.as_str() {
            "CreateInstanceProfile" => self.create_profile(p),
            "GetInstanceProfile" => {
                let name = checked_name(p, "InstanceProfileName")?;
                self.need_profile("iam:GetInstanceProfile", name)?;
                let profile = self.profile(name)?;
                Ok(Reply::Tree(
                    json!({"InstanceProfile": self.profile_wire(profile, true)}),
                ))
            }
            "DeleteInstanceProfile" => {
                let name = checked_name(p, "InstanceProfileName")?;
                self.need_profile("iam:DeleteInstanceProfile", name)?;
                if self.profile(name)?.role.is_some() {
                    return Err(AwsError::new(
                        "DeleteConflict",
                        "Cannot delete entity, must remove roles from instance profile first.",
                    ));
                }
                self.iam.profiles.remove(name);
                Ok(nothing())
            }
            "AddRoleToInstanceProfile" => self.add_role(p),
            "RemoveRoleFromInstanceProfile" => self.remove_role(p),
            "TagInstanceProfile" => {
                let name = checked_name(p, "InstanceProfileName")?;
                let tags = checked_tags(p)?;
                let permission = self
                    .on_profile("iam:TagInstanceProfile", name)
                    .request_tags(&tags);
                self.auth.need(permission)?;
                let profile = self.profile_mut(name)?;
                let mut all = profile.tags.clone();
                all.extend(tags);
                check_count(all.len())?;
                profile.tags = all;
                Ok(nothing())
            }
            "ListInstanceProfiles" => {
                self.auth.need_any("iam:ListInstanceProfiles")?;
                self.list_profiles(p)
            }
            "CreateRole" => self.create_role(p),
            other => Err(AwsError::new(
                "InvalidAction",
                format!("Could not find operation {other} for version 2010-05-08"),
            )),
        }
    }

    fn profile(&self, name: &str) -> Result<&InstanceProfile, AwsError> {
        self.iam.profiles.get(name).ok_or_else(|| no_profile(name))
    }

    fn profile_mut(&mut self, name: &str) -> Result<&mut InstanceProfile, AwsError> {
        self.iam
            .profiles
            .get_mut(name)
            .ok_or_else(|| no_profile(name))
    }

    fn on_profile(&self, action: &str, name: &str) -> Permission {
        match self.iam.profiles.get(name) {
            Some(profile) => {
                Permission::new(action, profile.arn.clone()).resource_tags(&profile.tags)
            }
            None => Permission::new(
                action,
                format!("arn:aws:iam::{}:instance-profile/{name}", self.account),
            ),
        }
    }

    fn need_profile(&mut self, action: &str, name: &str) -> Result<(), AwsError> {
        let permission = self.on_profile(action, name);
        self.auth.need(permission)
    }

    fn role_arn(&self, name: &str) -> String {
        self.iam.roles.get(name).map_or_else(
            || format!("arn:aws:iam::{}:role/{name}", self.account),
            |r| r.arn.clone(),
        )
    }

    fn create_profile(&mut self, p: Params<'_>) -> Result<Reply, AwsError> {
        let name = checked_name(p, "InstanceProfileName")?;
        let path = checked_path(p)?;
        let tags = checked_tags(p)?;
        let arn = format!("arn:aws:iam::{}:instance-profile{path}{name}", self.account);
        for action in ["iam:CreateInstanceProfile", "iam:TagInstanceProfile"] {
            // Tags on creation need the tagging permission, only if there are tags.
            if action == "iam:CreateInstanceProfile" || !tags.is_empty() {
                let permission = Permission::new(action, arn.clone()).request_tags(&tags);
                // The permission is evaluated with the request's tags as tags of the new profile.
                self.auth.need(permission.resource_tags(&tags))?;
            }
        }
        if self.iam.profiles.contains_key(name) {
            return Err(AwsError::new(
                "EntityAlreadyExists",
                format!("Instance Profile {name} already exists."),
            ));
        }
        let profile = InstanceProfile {
            name: name.to_owned(),
            arn,
            id: self.ids.upper("AIPA"),
            path,
            role: None,
            tags,
            created: self.now,
            changed: self.now,
        };
        let wire = self.profile_wire(&profile, true);
        self.iam.profiles.insert(name.to_owned(), profile);
        Ok(Reply::Tree(json!({"InstanceProfile": wire})))
    }

    fn add_role(&mut self, p: Params<'_>) -> Result<Reply, AwsError> {
        let name = checked_name(p, "InstanceProfileName")?;
        let role = checked_name(p, "RoleName")?;
        self.need_profile("iam:AddRoleToInstanceProfile", name)?;
        let pass = Permission::new("iam:PassRole", self.role_arn(role))
            .with("iam:PassedToService", "ec2.amazonaws.com");
        self.auth.need(pass)?;
        let now = self.now;
        let known = self.iam.roles.contains_key(role);
        let profile = self.profile_mut(name)?;
        if !known {
            return Err(no_role(role));
        }
        if profile.role.is_some() {
            return Err(AwsError::new(
                "LimitExceeded",
                "Cannot exceed quota for InstanceSessionsPerInstanceProfile: 1",
            ));
        }
        profile.role = Some(role.to_owned());
        profile.changed = now;
        Ok(nothing())
    }

    fn remove_role(&mut self, p: Params<'_>) -> Result<Reply, AwsError> {
        let name = checked_name(p, "InstanceProfileName")?;
        let role = checked_name(p, "RoleName")?;
        self.need_profile("iam:RemoveRoleFromInstanceProfile", name)?;
        let now = self.now;
        let profile = self.profile_mut(name)?;
        if profile.role.as_deref() != Some(role) {
            return Err(no_role(role));
        }
        profile.role = None;
        profile.changed = now;
        Ok(nothing())
    }

    fn create_role(&mut self, p: Params<'_>) -> Result<Reply, AwsError> {
        let name = checked_name(p, "RoleName")?;
        p.only(&["RoleName", "AssumeRolePolicyDocument"])?;
        let arn = format!("arn:aws:iam::{}:role/{name}", self.account);
        self.auth.need(Permission::new("iam:CreateRole", arn))?;
        if self.iam.roles.contains_key(name) {
            return Err(AwsError::new(
                "EntityAlreadyExists",
                format!("Role with name {name} already exists."),
            ));
        }
        let role = Role::new(name, self.account, self.ids, self.now);
        let wire = role_wire(&role);
        self.iam.roles.insert(name.to_owned(), role);
        Ok(Reply::Tree(json!({"Role": wire})))
    }

    /// Returns a page with IAM's paging: `Marker` and `MaxItems`, `IsTruncated` in the response.
    fn list_profiles(&self, p: Params<'_>) -> Result<Reply, AwsError> {
        let most = match p.int("MaxItems") {
            Some(n) if !(1..=1000).contains(&n) => {
                return Err(validation("MaxItems must be between 1 and 1000"));
            }
            n => usize::try_from(n.unwrap_or(100)).unwrap_or(100),
        };
        let size = most.min(self.settings.page_size(&self.action));
        let after = match p.text("Marker").filter(|m| !m.is_empty()) {
            None => String::new(),
            Some(marker) => {
                paging::open(marker, &self.action).ok_or_else(|| validation("Invalid Marker."))?
            }
        };
        let prefix = p.text("PathPrefix").unwrap_or("/");
        let profiles = self.iam.profiles.values();
        let mut rest = profiles.filter(|one| one.name > after && one.path.starts_with(prefix));
        let page: Vec<&InstanceProfile> = rest.by_ref().take(size).collect();
        let more = page.last().filter(|_| rest.next().is_some());
        // Lists have no tags.
        let rows = page.iter().map(|one| self.profile_wire(one, false));
        Ok(Reply::Tree(json!({
            "IsTruncated": more.is_some(),
            "Marker": more.map(|last| paging::seal(&last.name, &self.action)),
            "InstanceProfiles": rows.collect::<Value>(),
        })))
    }

    fn profile_wire(&self, profile: &InstanceProfile, tags: bool) -> Value {
        let roles: Vec<Value> = profile
            .role
            .iter()
            .filter_map(|name| self.iam.roles.get(name))
            .map(role_wire)
            .collect();
        json!({
            "Path": profile.path,
            "InstanceProfileName": profile.name,
            "InstanceProfileId": profile.id,
            "Arn": profile.arn,
            "CreateDate": rfc3339(profile.created),
            "Roles": roles,
            "Tags": tags.then(|| tag_list(&profile.tags)),
        })
    }
}

fn nothing() -> Reply {
    Reply::Tree(json!({}))
}

fn tag_list(tags: &Tags) -> Value {
    tags.iter()
        .map(|(key, value)| json!({"Key": key, "Value": value}))
        .collect()
}

fn role_wire(role: &Role) -> Value {
    json!({
        "Path": "/",
        "RoleName": role.name,
        "RoleId": role.id,
        "Arn": role.arn,
        "CreateDate": rfc3339(role.created),
    })
}
