//! The instance profile of a node class.
//!
//! A class with a role has its own profile, and gets another one whenever the role changes: running instances keep
//! theirs. The previous profile is protected for an hour, and garbage collected when it is unused.
//!
//! UPSTREAM: pkg/controllers/nodeclass/instanceprofile.go

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher};

use karpenter_api::{hash, labels as core_labels};

use crate::api::labels::tags;
use crate::api::{EC2NodeClass, labels};
use crate::context::AwsContext;
use crate::providers::instance_profile::role_name;
use crate::sdk::AwsError;

/// Ensures that the class's instance profile exists and, if Karpenter manages it, has the role. Returns its name.
pub(super) async fn ensure(aws: &AwsContext, class: &EC2NodeClass) -> Result<String, AwsError> {
    let profiles = &aws.instance_profiles;
    let known = class.status.instance_profile.as_deref();
    let known = known.filter(|name| !name.is_empty());
    let role = class.spec.role.as_deref().filter(|role| !role.is_empty());
    let Some(role) = role else {
        let wanted = class.spec.instance_profile.clone().unwrap_or_default();
        if let Some(old) = known.filter(|name| *name != wanted) {
            profiles.protect(old);
        }
        return Ok(wanted);
    };
    let (region, cluster) = (aws.clients.region(), aws.settings.cluster.as_str());
    let tags = profile_tags(class, cluster, region);
    if let Some(name) = known {
        match profiles.get(name).await {
            Ok(profile) if profile.role.as_deref() == Some(role_name(role)) => {
                // Instances do not depend on the tags of their profile.
                if let Err(error) = profiles.tag(profile, &tags).await {
                    tracing::error!(logger = "nodeclass", EC2NodeClass = class.metadata.name, error = %error, "aws-error-code" = error.code.as_deref(), "failed to tag the instance profile");
                }
                return Ok(name.to_owned());
            }
            Ok(_) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    let uid = class.metadata.uid.as_deref().unwrap_or_default();
    let class_name = class.metadata.name.as_deref().unwrap_or_default();
    let name = profiles
        .just_made(role, uid)
        .unwrap_or_else(|| new_name(cluster, region, class_name));
    // It is protected before it exists, so that it is never collected.
    profiles.protect(&name);
    if let Some(old) = known {
        profiles.protect(old);
    }
    profiles.ensure(&name, role, &tags, uid).await?;
    Ok(name)
}

/// Returns a unique profile name.
fn new_name(cluster: &str, region: &str, class: &str) -> String {
    let random = std::hash::RandomState::new().build_hasher().finish();
    let hash = hash::string(&format!("{region}{class}{random:016x}"));
    format!("{cluster}_{hash}")
}

/// Returns the name of the profile that older releases of upstream created for a class; `None` if it is not a valid
/// name in IAM.
pub(super) fn legacy_name(cluster: &str, region: &str, class: &str) -> Option<String> {
    let hash = hash::string(&format!("{region}{class}"));
    let name = format!("{cluster}_{hash}");
    let legal = |c: char| c.is_ascii_alphanumeric() || "_+=,.@-".contains(c);
    (name.len() <= 128 && name.chars().all(legal)).then_some(name)
}

fn profile_tags(class: &EC2NodeClass, cluster: &str, region: &str) -> BTreeMap<String, String> {
    let mut all = class.spec.tags.clone().unwrap_or_default();
    let name = class.metadata.name.clone().unwrap_or_default();
    for (key, value) in [
        (tags::cluster(cluster), tags::OWNED.to_owned()),
        (tags::EKS_CLUSTER_NAME.to_owned(), cluster.to_owned()),
        (labels::NODE_CLASS.to_owned(), name),
        (core_labels::REGION.to_owned(), region.to_owned()),
    ] {
        all.insert(key, value);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_each_time_and_the_old_one_follows_from_the_class() {
        let name = || new_name("test", "us-west-2", "default");
        assert!(name().starts_with("test_"));
        assert_ne!(name(), name());
        let legacy = |cluster: &str| legacy_name(cluster, "us-west-2", "default");
        assert_eq!(legacy("test"), legacy("test"));
        assert!(legacy("test").is_some());
    }

    #[test]
    fn static_tags_take_precedence() {
        let mut class = EC2NodeClass::new("default", Default::default());
        let own = [("team", "x"), ("eks:eks-cluster-name", "other")];
        class.spec.tags = Some(own.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        let tags = profile_tags(&class, "test", "us-west-2");
        assert_eq!(tags["team"], "x");
        assert_eq!(tags["eks:eks-cluster-name"], "test");
        assert_eq!(tags["topology.kubernetes.io/region"], "us-west-2");
        assert_eq!(tags["kubernetes.io/cluster/test"], "owned");
        assert_eq!(tags["karpenter.k8s.aws/ec2nodeclass"], "default");
    }
}
