//! Instance profiles, which give instances their IAM role.
//!
//! A node class with a role gets its own instance profile, and a new one whenever the role changes, so that running
//! instances keep theirs. An old profile is protected for an hour, because IAM and the API server are eventually
//! consistent.
//!
//! UPSTREAM: pkg/providers/instanceprofile/instanceprofile.go

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_iam::types as iam;

use crate::sdk::pages::list_all;
use crate::sdk::terms::TtlCache;
use crate::sdk::{Aws, AwsError};

const fn minutes(n: u64) -> Duration {
    Duration::from_secs(60 * n)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    pub name: String,
    /// Path of the profile; profiles that Karpenter creates are below `/karpenter/`.
    pub path: String,
    /// Name of the profile's role, if it has one.
    pub role: Option<String>,
    /// Tags of the profile; empty in the results of a list.
    pub tags: BTreeMap<String, String>,
}

impl Profile {
    fn read(raw: &iam::InstanceProfile) -> Self {
        Self {
            name: raw.instance_profile_name().to_owned(),
            path: raw.path().to_owned(),
            role: raw.roles().first().map(|r| r.role_name().to_owned()),
            tags: raw
                .tags()
                .iter()
                .map(|t| (t.key().to_owned(), t.value().to_owned()))
                .collect(),
        }
    }
}

/// Reads and writes the instance profiles of a cluster.
#[derive(Clone, Debug)]
pub struct InstanceProfiles {
    aws: Aws,
    cluster: String,
    found: Arc<TtlCache<String, Profile>>,
    no_role: Arc<TtlCache<String, AwsError>>,
    made: Arc<TtlCache<(String, String), String>>,
    protected: Arc<TtlCache<String, ()>>,
}

impl InstanceProfiles {
    /// Creates the provider of instance profiles for `cluster`.
    #[must_use]
    pub fn new(aws: Aws, cluster: &str) -> Self {
        Self {
            aws,
            cluster: cluster.to_owned(),
            found: Arc::new(TtlCache::new(minutes(15))),
            no_role: Arc::new(TtlCache::new(minutes(1))),
            made: Arc::new(TtlCache::new(minutes(1))),
            protected: Arc::new(TtlCache::new(minutes(60))),
        }
    }

    /// Returns the path of all profiles of the cluster.
    #[must_use]
    pub fn cluster_path(&self) -> String {
        format!("/karpenter/{}/{}/", self.aws.region(), self.cluster)
    }

    /// Returns the path of the profiles of a node class.
    #[must_use]
    pub fn class_path(&self, uid: &str) -> String {
        format!("{}{uid}/", self.cluster_path())
    }

    /// Returns the profile with this name.
    ///
    /// # Errors
    /// An error that [is not found](AwsError::is_not_found) if there is no such profile.
    pub async fn get(&self, name: &str) -> Result<Profile, AwsError> {
        match self.found.get(&name.to_owned()) {
            Some(profile) => Ok(profile),
            None => {
                let profile = self.ask(name).await?;
                self.found.put(name.to_owned(), profile.clone());
                Ok(profile)
            }
        }
    }

    async fn ask(&self, name: &str) -> Result<Profile, AwsError> {
        let answer = self
            .aws
            .iam("GetInstanceProfile", |client| {
                client
                    .get_instance_profile()
                    .instance_profile_name(name)
                    .send()
            })
            .await?;
        let raw = answer.instance_profile().ok_or_else(|| {
            AwsError::unreadable("GetInstanceProfile", "the response lacks the profile")
        })?;
        Ok(Profile::read(raw))
    }

    /// Returns the profile that was created for this role and node class within the last minute, which the status may
    /// not have yet.
    #[must_use]
    pub fn just_made(&self, role: &str, uid: &str) -> Option<String> {
        self.made.get(&(role.to_owned(), uid.to_owned()))
    }

    /// Ensures that a profile of this name exists and has the role.
    ///
    /// # Errors
    /// The error of IAM. A role that does not exist is retried after a minute. A profile without its role is deleted
    /// again.
    pub async fn ensure(
        &self,
        name: &str,
        role: &str,
        tags: &BTreeMap<String, String>,
        uid: &str,
    ) -> Result<(), AwsError> {
        if let Some(error) = self.no_role.get(&role.to_owned()) {
            return Err(error);
        }
        let (profile, created) = match self.get(name).await {
            Ok(profile) => (profile, false),
            Err(error) if error.is_not_found() => (self.create(name, tags, uid).await?, true),
            Err(error) => return Err(error),
        };
        if let Err(error) = self.attach(&profile, role).await {
            if created && let Err(left) = self.delete(name).await {
                tracing::error!(logger = "instanceprofile", "instance-profile" = name, error = %left, "aws-error-code" = left.code.as_deref(), "failed to roll back an instance profile");
            }
            return Err(error);
        }
        let role_name = role_name(role).to_owned();
        self.found.put(
            name.to_owned(),
            Profile {
                role: Some(role_name),
                ..profile
            },
        );
        self.made
            .put((role.to_owned(), uid.to_owned()), name.to_owned());
        Ok(())
    }

    async fn create(
        &self,
        name: &str,
        tags: &BTreeMap<String, String>,
        uid: &str,
    ) -> Result<Profile, AwsError> {
        let path = self.class_path(uid);
        let list = sdk_tags(tags);
        let created = self
            .aws
            .iam("CreateInstanceProfile", |client| {
                client
                    .create_instance_profile()
                    .instance_profile_name(name)
                    .path(&path)
                    .set_tags(Some(list.clone()))
                    .send()
            })
            .await;
        match created {
            Ok(_) => Ok(Profile {
                name: name.to_owned(),
                path,
                role: None,
                tags: tags.clone(),
            }),
            // An earlier attempt succeeded, and its response was lost.
            Err(error) if error.is_already_exists() => self.ask(name).await,
            Err(error) => Err(error),
        }
    }

    /// Tags a profile that lacks some of the tags. Surplus tags stay: the policy does not allow removing tags.
    ///
    /// # Errors
    /// The error of IAM. A refused call is not repeated until the profile is read again.
    // DIFFERS: upstream tags profiles only when it creates them.
    pub async fn tag(
        &self,
        mut profile: Profile,
        tags: &BTreeMap<String, String>,
    ) -> Result<(), AwsError> {
        if tags
            .iter()
            .all(|(key, value)| profile.tags.get(key) == Some(value))
        {
            return Ok(());
        }
        // All tags are sent, because the policy requires the tag of the cluster among them.
        let list = sdk_tags(tags);
        let tagged = self
            .aws
            .iam("TagInstanceProfile", |client| {
                client
                    .tag_instance_profile()
                    .instance_profile_name(&profile.name)
                    .set_tags(Some(list.clone()))
                    .send()
            })
            .await;
        if tagged.as_ref().map_or_else(AwsError::is_refusal, |_| true) {
            profile.tags.extend(tags.clone());
            self.found.put(profile.name.clone(), profile);
        }
        tagged.map(|_| ())
    }

    async fn attach(&self, profile: &Profile, role: &str) -> Result<(), AwsError> {
        // A role is added by its name without its path.
        let wanted = role_name(role);
        match &profile.role {
            Some(attached) if attached == wanted => return Ok(()),
            Some(attached) => self.remove_role(&profile.name, attached).await?,
            None => {}
        }
        let added = self
            .aws
            .iam("AddRoleToInstanceProfile", |client| {
                client
                    .add_role_to_instance_profile()
                    .instance_profile_name(&profile.name)
                    .role_name(wanted)
                    .send()
            })
            .await;
        if let Err(error) = &added
            && error.is_not_found()
            && error.message.contains("role")
        {
            self.no_role.put(role.to_owned(), error.clone());
        }
        added.map(|_| ())
    }

    async fn remove_role(&self, name: &str, role: &str) -> Result<(), AwsError> {
        let removed = self
            .aws
            .iam("RemoveRoleFromInstanceProfile", |client| {
                client
                    .remove_role_from_instance_profile()
                    .instance_profile_name(name)
                    .role_name(role)
                    .send()
            })
            .await;
        match removed {
            Ok(_) => Ok(()),
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Deletes a profile; a profile that does not exist is not an error.
    ///
    /// # Errors
    /// The error of IAM.
    pub async fn delete(&self, name: &str) -> Result<(), AwsError> {
        self.found.forget(&name.to_owned());
        let profile = match self.ask(name).await {
            Ok(profile) => profile,
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error),
        };
        if let Some(role) = &profile.role {
            self.remove_role(name, role).await?;
        }
        let deleted = self
            .aws
            .iam("DeleteInstanceProfile", |client| {
                client
                    .delete_instance_profile()
                    .instance_profile_name(name)
                    .send()
            })
            .await;
        match deleted {
            Ok(_) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        self.protected.forget(&name.to_owned());
        Ok(())
    }

    /// Returns the profiles below a path.
    ///
    /// # Errors
    /// The error of IAM.
    pub async fn list(&self, path: &str) -> Result<Vec<Profile>, AwsError> {
        let ask = |marker: Option<String>| {
            self.aws.iam("ListInstanceProfiles", move |client| {
                client
                    .list_instance_profiles()
                    .path_prefix(path)
                    .set_marker(marker.clone())
                    .send()
            })
        };
        let read = |raw| Profile::read(&raw);
        list_all(ask, |page| page.instance_profiles.into_iter().map(read)).await
    }

    /// Protects a profile from garbage collection for an hour.
    pub fn protect(&self, name: &str) {
        self.protected.put(name.to_owned(), ());
    }

    /// Ends the protection of a profile.
    pub fn unprotect(&self, name: &str) {
        self.protected.forget(&name.to_owned());
    }

    /// Returns whether a profile is protected from garbage collection.
    #[must_use]
    pub fn is_protected(&self, name: &str) -> bool {
        self.protected.get(&name.to_owned()).is_some()
    }
}

fn sdk_tags(tags: &BTreeMap<String, String>) -> Vec<iam::Tag> {
    tags.iter()
        .filter_map(|(k, v)| iam::Tag::builder().key(k).value(v).build().ok())
        .collect()
}

/// Returns the name of a role without its path.
#[must_use]
pub fn role_name(role: &str) -> &str {
    role.rsplit('/').next().unwrap_or(role)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: AWS-profile-09
    #[test]
    fn a_roles_path_is_not_part_of_its_name() {
        assert_eq!(role_name("KarpenterNodeRole"), "KarpenterNodeRole");
        assert_eq!(role_name("teams/a/Node"), "Node");
    }
}
