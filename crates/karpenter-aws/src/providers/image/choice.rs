//! Selection of the best AMI for each set of requirements.

use std::cmp::Reverse;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeSelectorRequirement;
use karpenter_core::requirements::Requirements;

use super::ImageQuery;
use crate::api::Ami;

/// An AMI as EC2 describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// ID of the AMI, `ami-…`.
    pub id: String,
    pub name: String,
    /// Architecture in EC2's terms, such as `x86_64`.
    pub architecture: String,
    /// Creation time, if EC2 reports one.
    pub created: Option<Timestamp>,
    /// Deprecation time, if the owner set one.
    pub deprecated_from: Option<Timestamp>,
}

impl Image {
    fn is_deprecated(&self, now: Timestamp) -> bool {
        self.deprecated_from.is_some_and(|from| from <= now)
    }

    /// Returns the entry of `status.amis` for instance types with these requirements.
    fn as_ami(&self, requirements: &Requirements, now: Timestamp) -> Ami {
        let requirements = requirements.to_node_selector_requirements();
        Ami {
            id: self.id.clone(),
            deprecated: self.is_deprecated(now),
            name: (!self.name.is_empty()).then(|| self.name.clone()),
            requirements: requirements
                .into_iter()
                .map(|requirement| NodeSelectorRequirement {
                    key: requirement.key,
                    operator: requirement.operator.as_str().to_owned(),
                    values: (!requirement.values.is_empty()).then_some(requirement.values),
                })
                .collect(),
        }
    }
}

/// Returns the best AMI for each set of requirements, newest first.
///
/// The order is: not deprecated before deprecated, newer before older, then the greater name. AMIs of architectures
/// that Kubernetes has no name for are left out.
// UPSTREAM: pkg/providers/amifamily/ami.go amis, types.go Sort
#[must_use]
pub fn choose<'a>(
    answers: impl IntoIterator<Item = (&'a ImageQuery, &'a [Image])>,
    now: Timestamp,
) -> Vec<Ami> {
    let mut chosen: Vec<(&Image, Requirements)> = Vec::new();
    let rank = |image: &'a Image| (!image.is_deprecated(now), image.created, &image.name);
    for (query, images) in answers {
        for image in images {
            let Some(architecture) = kubernetes_architecture(&image.architecture) else {
                continue;
            };
            for requirements in query.requirements(&image.id, architecture) {
                match chosen.iter_mut().find(|(_, other)| *other == requirements) {
                    Some((other, _)) if rank(image) > rank(other) => *other = image,
                    Some(_) => {}
                    None => chosen.push((image, requirements)),
                }
            }
        }
    }
    // Entries of one AMI keep the order of its variants.
    chosen.sort_by_key(|(image, _)| (Reverse(image.created), &image.id));
    let chosen = chosen.iter();
    chosen.map(|(image, set)| image.as_ami(set, now)).collect()
}

fn kubernetes_architecture(ec2: &str) -> Option<&'static str> {
    match ec2 {
        "x86_64" => Some("amd64"),
        "arm64" => Some("arm64"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use karpenter_core::requirements::Requirement;

    use super::*;
    use crate::providers::image::{Parameter, Variant, first_compatible};

    fn at(text: &str) -> Option<Timestamp> {
        Some(text.parse().unwrap())
    }

    fn image(id: &str, name: &str, created: &str) -> Image {
        Image {
            id: id.to_owned(),
            name: name.to_owned(),
            architecture: "x86_64".to_owned(),
            created: at(created),
            deprecated_from: None,
        }
    }

    fn deprecated(image: Image) -> Image {
        Image {
            deprecated_from: at("2026-01-01T00:00:00Z"),
            ..image
        }
    }

    fn chosen(images: &[Image]) -> Vec<String> {
        choose(
            [(&ImageQuery::default(), images)],
            "2026-11-20T00:00:00Z".parse().unwrap(),
        )
        .into_iter()
        .map(|image| image.id)
        .collect()
    }

    /// Conformance: AWS-ami-01
    #[test]
    fn the_best_image_is_not_deprecated_then_newest_then_greatest_by_name() {
        let old = image("ami-old", "z", "2026-02-01T00:00:00Z");
        let new = image("ami-new", "a", "2026-03-01T00:00:00Z");
        let newest = deprecated(image("ami-newest", "z", "2026-10-01T00:00:00Z"));
        let twin = image("ami-twin", "b", "2026-03-01T00:00:00Z");
        let images = [old.clone(), new.clone(), newest.clone(), twin];
        assert_eq!(chosen(&images), ["ami-twin"]);
        let backwards: Vec<Image> = images.iter().rev().cloned().collect();
        assert_eq!(chosen(&backwards), ["ami-twin"]);
        assert_eq!(chosen(&[old, new, newest.clone()]), ["ami-new"]);
        let older = deprecated(image("ami-older", "z", "2025-10-01T00:00:00Z"));
        assert_eq!(chosen(&[older, newest]), ["ami-newest"]);
    }

    /// Conformance: AWS-ami-08
    #[test]
    fn an_image_is_deprecated_only_once_the_time_has_come() {
        let soon = Image {
            deprecated_from: at("2027-01-01T00:00:00Z"),
            ..image("ami-soon", "a", "2026-03-01T00:00:00Z")
        };
        let other = image("ami-other", "a", "2026-02-01T00:00:00Z");
        assert_eq!(chosen(&[soon, other]), ["ami-soon"]);
    }

    /// Conformance: AWS-ami-08
    #[test]
    fn each_architecture_and_variant_has_its_own_best_image() {
        let arm = Image {
            architecture: "arm64".to_owned(),
            ..image("ami-arm", "a", "2026-01-01T00:00:00Z")
        };
        let mac = Image {
            architecture: "arm64_mac".to_owned(),
            ..image("ami-mac", "a", "2026-09-01T00:00:00Z")
        };
        let images = [
            arm,
            mac,
            image("ami-gpu", "a", "2026-02-01T00:00:00Z"),
            image("ami-plain", "a", "2026-03-01T00:00:00Z"),
        ];
        let gpu = Parameter {
            name: String::new(),
            variants: vec![Variant::Neuron, Variant::Nvidia],
        };
        let query = ImageQuery::of_parameters([(&gpu, "ami-gpu".to_owned())]).unwrap();
        let lines: Vec<String> = choose([(&query, &images[..])], Timestamp::UNIX_EPOCH)
            .into_iter()
            .map(|ami| {
                let text = |r: &NodeSelectorRequirement| match &r.values {
                    Some(values) => format!("{} {} [{}]", r.key, r.operator, values.join(", ")),
                    None => format!("{} {}", r.key, r.operator),
                };
                let requirements: Vec<_> = ami.requirements.iter().map(text).collect();
                format!("{}: {}", ami.id, requirements.join(", "))
            })
            .collect();
        insta::assert_debug_snapshot!(lines, @r#"
        [
            "ami-plain: kubernetes.io/arch In [amd64]",
            "ami-gpu: karpenter.k8s.aws/instance-accelerator-count Exists, kubernetes.io/arch In [amd64]",
            "ami-gpu: karpenter.k8s.aws/instance-gpu-count Exists, kubernetes.io/arch In [amd64]",
            "ami-arm: kubernetes.io/arch In [arm64]",
        ]
        "#);
    }

    /// Conformance: AWS-ami-09
    #[test]
    fn an_instance_type_gets_the_first_image_it_can_boot() {
        let ami = |variant: Variant, architecture: &str| {
            let mut requirements = variant.requirements();
            requirements.add(Requirement::equal("kubernetes.io/arch", architecture));
            let image = image(&format!("ami-{architecture}"), "", "2026-01-01T00:00:00Z");
            image.as_ami(&requirements, Timestamp::UNIX_EPOCH)
        };
        let amis = [
            ami(Variant::Standard, "amd64"),
            ami(Variant::Nvidia, "arm64"),
            ami(Variant::Nvidia, "amd64"),
        ];
        let plain: Requirements = [Requirement::equal("kubernetes.io/arch", "amd64")]
            .into_iter()
            .collect();
        let mut gpu = plain.clone();
        gpu.add(Requirement::equal(
            "karpenter.k8s.aws/instance-gpu-count",
            "4",
        ));
        assert_eq!(first_compatible(&amis, &gpu), Some(&amis[2]));
        assert_eq!(first_compatible(&amis[..2], &gpu), None);
        assert_eq!(first_compatible(&amis, &plain), Some(&amis[0]));
        assert_eq!(first_compatible(&amis[1..], &plain), None);
        insta::assert_snapshot!(serde_json::to_string(&amis[0]).unwrap(), @r#"{"id":"ami-amd64","requirements":[{"key":"karpenter.k8s.aws/instance-accelerator-count","operator":"DoesNotExist"},{"key":"karpenter.k8s.aws/instance-gpu-count","operator":"DoesNotExist"},{"key":"kubernetes.io/arch","operator":"In","values":["amd64"]}]}"#);
    }
}
