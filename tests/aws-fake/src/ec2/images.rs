//! AMIs: those that Amazon publishes for EKS, Bottlerocket and Windows, and those that users register.

use jiff::Timestamp;
use serde_json::json;

use super::Ec2Call;
use super::filters::{Filters, Tags, tag_set};
use super::network::by_id;
use crate::clock::rfc3339;
use crate::wire::Reply;
use crate::wire::error::AwsError;
use crate::wire::params::Params;

/// Account that publishes EKS-optimized AMIs.
pub(crate) const EKS_OWNER: &str = "602401143452";
/// Account that publishes Bottlerocket AMIs.
pub(crate) const BOTTLEROCKET_OWNER: &str = "092701018921";
/// Account that publishes Windows AMIs.
pub(crate) const WINDOWS_OWNER: &str = "801119661308";

#[derive(Debug, Clone, PartialEq)]
pub struct Image {
    /// ID of the AMI, `ami-…`.
    pub id: String,
    pub name: String,
    /// Architecture: `x86_64` or `arm64`.
    pub architecture: String,
    /// ID of the owning account.
    pub owner: String,
    /// Alias of the owner, such as `amazon`.
    pub owner_alias: Option<String>,
    pub created: Timestamp,
    /// Deprecation time, from which it is listed only with `IncludeDeprecated`.
    pub deprecated: Option<Timestamp>,
    /// Size of each volume's snapshot in GiB, by device name.
    pub volumes: Vec<(String, u32)>,
    pub windows: bool,
    pub tags: Tags,
}

impl Image {
    /// Creates an AMI of this account with 20 GiB on `/dev/xvda`.
    #[must_use]
    pub fn new(id: &str, name: &str, architecture: &str, created: Timestamp) -> Self {
        Self {
            id: id.to_owned(),
            name: name.to_owned(),
            architecture: architecture.to_owned(),
            owner: crate::ACCOUNT.to_owned(),
            owner_alias: None,
            created,
            deprecated: None,
            volumes: vec![("/dev/xvda".to_owned(), 20)],
            windows: false,
            tags: Tags::new(),
        }
    }

    /// Sets the owner to Amazon's account `owner`.
    #[must_use]
    pub fn by_amazon(mut self, owner: &str) -> Self {
        self.owner = owner.to_owned();
        self.owner_alias = Some("amazon".to_owned());
        self
    }

    #[must_use]
    pub fn tag(mut self, key: &str, value: &str) -> Self {
        self.tags.insert(key.to_owned(), value.to_owned());
        self
    }

    fn deprecated_at(&self, now: Timestamp) -> bool {
        self.deprecated.is_some_and(|at| at <= now)
    }
}

impl Ec2Call<'_> {
    pub(crate) fn describe_images(&mut self, p: Params<'_>) -> Result<Reply, AwsError> {
        let filters = Filters::read(p, &["tag", "image-id", "name", "state", "architecture"])?;
        let ids = p.texts("ImageId");
        if let Some(bad) = ids.iter().find(|id| !well_formed(id)) {
            return Err(AwsError::new(
                "InvalidAMIID.Malformed",
                format!("Invalid id: \"{bad}\" (expecting \"ami-...\")"),
            ));
        }
        if !ids.is_empty() && p.has("MaxResults") {
            return Err(AwsError::combination(
                "The parameter imageIdsSet cannot be used with the parameter maxResults",
            ));
        }
        let page = self.page(p, (1, 1000))?;
        let found = by_id(
            &ids,
            self.ec2.images.values(),
            |i| &i.id,
            |id| {
                AwsError::new(
                    "InvalidAMIID.NotFound",
                    format!("The image id '[{id}]' does not exist"),
                )
            },
        )?;
        let owners = p.texts("Owner");
        let deprecated = p.flag("IncludeDeprecated").unwrap_or(false) || !ids.is_empty();
        let rows = found
            .into_iter()
            .filter(|i| owners.is_empty() || owners.iter().any(|o| self.owned_by(i, o)))
            .filter(|i| deprecated || i.owner == self.ec2.account || !i.deprecated_at(self.now))
            .filter(|i| {
                filters.matches(&i.tags, |name| match name {
                    "image-id" => vec![&i.id],
                    "name" => vec![&i.name],
                    "state" => vec!["available"],
                    _ => vec![&i.architecture],
                })
            })
            .map(|i| (i.id.clone(), image_wire(i)));
        let (rows, token) = page.cut(rows);
        Ok(Reply::Tree(json!({"imagesSet": rows, "nextToken": token})))
    }

    fn owned_by(&self, image: &Image, owner: &str) -> bool {
        image.owner == owner
            || owner == "self" && image.owner == self.ec2.account
            || image.owner_alias.as_deref() == Some(owner)
    }
}

fn image_wire(i: &Image) -> serde_json::Value {
    json!({
        "imageId": i.id,
        "imageState": "available",
        "imageOwnerId": i.owner,
        "imageOwnerAlias": i.owner_alias,
        "architecture": i.architecture,
        "platform": i.windows.then_some("windows"),
        "name": i.name,
        "creationDate": rfc3339(i.created),
        "deprecationTime": i.deprecated.map(rfc3339),
        "tagSet": tag_set(&i.tags),
    })
}

/// Returns whether `id` has the form of an AMI ID.
pub(crate) fn well_formed(id: &str) -> bool {
    id.strip_prefix("ami-")
        .is_some_and(|rest| !rest.is_empty() && rest.chars().all(|c| c.is_ascii_alphanumeric()))
}

/// Returns the AMIs that Amazon publishes for Kubernetes `version` in a region, and the SSM parameters with their IDs.
pub(crate) fn published(version: &str, now: Timestamp) -> (Vec<Image>, Vec<(String, String)>) {
    let mut images = Vec::new();
    let mut parameters = Vec::new();
    let days = |n: i64| {
        now.checked_sub(jiff::SignedDuration::from_hours(24 * n))
            .unwrap_or(now)
    };
    // Two releases of each, so that `recommended` can change and pinned versions can be older.
    for (release, age) in [("v20260801", 30), ("v20260701", 61)] {
        let latest = age == 30;
        let mut publish =
            |name: String, arch: &str, owner: &str, root: &str, gib: u32, paths: Vec<String>| {
                let id = image_id(&name);
                let mut image = Image::new(&id, &name, arch, days(age)).by_amazon(owner);
                image.volumes = vec![(root.to_owned(), gib)];
                image.windows = owner == WINDOWS_OWNER;
                if name.starts_with("bottlerocket") {
                    image.volumes = vec![(root.to_owned(), 2), ("/dev/xvdb".to_owned(), 20)];
                }
                images.push(image);
                parameters.extend(paths.into_iter().map(|path| (path, id.clone())));
            };
        for (arch, variant) in [
            ("x86_64", "standard"),
            ("x86_64", "nvidia"),
            ("x86_64", "neuron"),
            ("arm64", "standard"),
            ("arm64", "nvidia"),
        ] {
            let name = format!("amazon-eks-node-al2023-{arch}-{variant}-{version}-{release}");
            let base = format!(
                "/aws/service/eks/optimized-ami/{version}/amazon-linux-2023/{arch}/{variant}"
            );
            let mut paths = vec![format!("{base}/{name}/image_id")];
            if latest {
                paths.push(format!("{base}/recommended/image_id"));
            }
            publish(name, arch, EKS_OWNER, "/dev/xvda", 20, paths);
        }
        for (suffix, name, arch) in [
            ("", "amazon-eks-node", "x86_64"),
            ("-arm64", "amazon-eks-arm64-node", "arm64"),
            ("-gpu", "amazon-eks-gpu-node", "x86_64"),
        ] {
            let name = format!("{name}-{version}-{release}");
            let base = format!("/aws/service/eks/optimized-ami/{version}/amazon-linux-2{suffix}");
            let mut paths = vec![format!("{base}/{name}/image_id")];
            if latest {
                paths.push(format!("{base}/recommended/image_id"));
            }
            publish(name, arch, EKS_OWNER, "/dev/xvda", 20, paths);
        }
        let bottlerocket = if latest { "1.50.0" } else { "1.49.0" };
        for (nvidia, arch) in [
            ("", "x86_64"),
            ("", "arm64"),
            ("-nvidia", "x86_64"),
            ("-nvidia", "arm64"),
        ] {
            let name =
                format!("bottlerocket-aws-k8s-{version}{nvidia}-{arch}-v{bottlerocket}-abcdef01");
            let base = format!("/aws/service/bottlerocket/aws-k8s-{version}{nvidia}/{arch}");
            let mut paths = vec![format!("{base}/{bottlerocket}/image_id")];
            if latest {
                paths.push(format!("{base}/latest/image_id"));
            }
            publish(name, arch, BOTTLEROCKET_OWNER, "/dev/xvda", 2, paths);
        }
        for year in ["2019", "2022", "2025"] {
            let kind = format!("Windows_Server-{year}-English-Core-EKS_Optimized-{version}");
            let paths = match latest {
                true => vec![format!("/aws/service/ami-windows-latest/{kind}/image_id")],
                false => vec![],
            };
            let name = format!("{kind}-2026.{}.12", if latest { "08" } else { "07" });
            publish(name, "x86_64", WINDOWS_OWNER, "/dev/sda1", 50, paths);
        }
    }
    (images, parameters)
}

/// Returns an AMI ID that depends on the name only, so that it is the same in every run.
fn image_id(name: &str) -> String {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("ami-0{hash:016x}")
}
