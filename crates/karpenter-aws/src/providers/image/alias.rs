//! AMI aliases such as `al2023@latest`: the SSM parameters that hold their AMIs, and the instance types each AMI is
//! built for.

use karpenter_core::requirements::{Operator, Requirement, Requirements};

use crate::api::labels::{INSTANCE_ACCELERATOR_COUNT, INSTANCE_GPU_COUNT};
use crate::api::{Alias, AmiFamily};

/// Variants of an AMI that AWS builds for different instance types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Variant {
    /// Instance types without accelerators.
    Standard,
    /// Instance types with AWS Inferentia or Trainium.
    Neuron,
    /// Instance types with NVIDIA GPUs.
    Nvidia,
    /// Windows with a build number.
    Windows(&'static str),
}

impl Variant {
    fn as_str(self) -> &'static str {
        match self {
            Variant::Standard => "standard",
            Variant::Neuron => "neuron",
            Variant::Nvidia => "nvidia",
            Variant::Windows(build) => build,
        }
    }

    /// Returns the requirements on instance types for an AMI of this variant. The architecture is a property of the AMI
    /// itself.
    #[must_use]
    pub fn requirements(self) -> Requirements {
        let none: [&str; 0] = [];
        match self {
            Variant::Standard => [INSTANCE_ACCELERATOR_COUNT, INSTANCE_GPU_COUNT]
                .map(|key| Requirement::new(key, Operator::DoesNotExist, none))
                .into_iter()
                .collect(),
            Variant::Neuron => [Requirement::exists(INSTANCE_ACCELERATOR_COUNT)]
                .into_iter()
                .collect(),
            Variant::Nvidia => [Requirement::exists(INSTANCE_GPU_COUNT)]
                .into_iter()
                .collect(),
            Variant::Windows(build) => [
                Requirement::equal("kubernetes.io/os", "windows"),
                Requirement::equal("node.kubernetes.io/windows-build", build),
            ]
            .into_iter()
            .collect(),
        }
    }
}

/// An SSM parameter that holds the ID of an AMI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    pub name: String,
    /// The variants that the AMI serves; several if one AMI serves several.
    pub variants: Vec<Variant>,
}

/// The alias has no AMIs for the cluster's version of Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("alias `{alias}` has no images for Kubernetes {kubernetes}: {advice}")]
pub struct UnsupportedAlias {
    pub alias: String,
    /// The cluster's version of Kubernetes.
    pub kubernetes: String,
    /// The supported alternatives.
    pub advice: &'static str,
}

impl Alias {
    /// Checks that AWS builds AMIs of the alias for a minor version of Kubernetes, such as `1.33`.
    ///
    /// # Errors
    /// For AL2 from 1.33 on, and for Windows 2025 before 1.35.
    pub fn check_supported(&self, kubernetes: &str) -> Result<(), UnsupportedAlias> {
        let Some(minor) = kubernetes
            .strip_prefix("1.")
            .and_then(|minor| minor.parse::<u32>().ok())
        else {
            return Ok(());
        };
        let advice = match self.family {
            AmiFamily::Al2 if minor >= 33 => "use al2023 or bottlerocket",
            AmiFamily::Windows2025 if minor < 35 => "use windows2022, or Kubernetes 1.35",
            _ => return Ok(()),
        };
        Err(UnsupportedAlias {
            alias: self.to_string(),
            kubernetes: kubernetes.to_owned(),
            advice,
        })
    }

    /// Returns the SSM parameters of the alias's AMIs for a minor version of Kubernetes. Some may not exist.
    #[must_use]
    pub fn parameters(&self, kubernetes: &str) -> Vec<Parameter> {
        match self.family {
            AmiFamily::Custom => Vec::new(),
            AmiFamily::Al2 => self.al2(kubernetes),
            AmiFamily::Al2023 => self.al2023(kubernetes),
            AmiFamily::Bottlerocket => self.bottlerocket(kubernetes),
            AmiFamily::Windows2019 | AmiFamily::Windows2022 | AmiFamily::Windows2025 => {
                windows(self.family, kubernetes)
            }
        }
    }

    fn al2(&self, kubernetes: &str) -> Vec<Parameter> {
        [
            (
                "amazon-linux-2",
                "amazon-eks-node",
                &[Variant::Standard][..],
            ),
            (
                "amazon-linux-2-arm64",
                "amazon-eks-arm64-node",
                &[Variant::Standard],
            ),
            (
                "amazon-linux-2-gpu",
                "amazon-eks-gpu-node",
                &[Variant::Neuron, Variant::Nvidia],
            ),
        ]
        .into_iter()
        .map(|(system, node, variants)| {
            let image = self.or_recommended(|version| format!("{node}-{kubernetes}-{version}"));
            Parameter {
                name: format!(
                    "/aws/service/eks/optimized-ami/{kubernetes}/{system}/{image}/image_id"
                ),
                variants: variants.to_vec(),
            }
        })
        .collect()
    }

    fn al2023(&self, kubernetes: &str) -> Vec<Parameter> {
        [
            ("x86_64", Variant::Standard),
            ("x86_64", Variant::Nvidia),
            ("x86_64", Variant::Neuron),
            ("arm64", Variant::Standard),
            ("arm64", Variant::Nvidia),
        ]
        .into_iter()
        .map(|(arch, variant)| {
            let kind = variant.as_str();
            let image = self.or_recommended(|version| {
                format!("amazon-eks-node-al2023-{arch}-{kind}-{kubernetes}-{version}")
            });
            Parameter {
                name: format!(
                    "/aws/service/eks/optimized-ami/{kubernetes}/amazon-linux-2023/{arch}/{kind}/{image}/image_id"
                ),
                variants: vec![variant],
            }
        })
        .collect()
    }

    fn bottlerocket(&self, kubernetes: &str) -> Vec<Parameter> {
        let version = self.version.trim_start_matches('v');
        [
            ("", "x86_64", &[Variant::Standard, Variant::Neuron][..]),
            ("", "arm64", &[Variant::Standard]),
            ("-nvidia", "x86_64", &[Variant::Nvidia]),
            ("-nvidia", "arm64", &[Variant::Nvidia]),
        ]
        .into_iter()
        .map(|(flavour, arch, variants)| Parameter {
            name: format!(
                "/aws/service/bottlerocket/aws-k8s-{kubernetes}{flavour}/{arch}/{version}/image_id"
            ),
            variants: variants.to_vec(),
        })
        .collect()
    }

    fn or_recommended(&self, pinned: impl FnOnce(&str) -> String) -> String {
        if self.is_latest() {
            "recommended".to_owned()
        } else {
            pinned(&self.version)
        }
    }
}

fn windows(family: AmiFamily, kubernetes: &str) -> Vec<Parameter> {
    let year = family.as_str().trim_start_matches("Windows");
    let name = format!(
        "/aws/service/ami-windows-latest/Windows_Server-{year}-English-Core-EKS_Optimized-{kubernetes}/image_id"
    );
    let variants = family.windows_build().map(Variant::Windows).into_iter();
    vec![Parameter {
        name,
        variants: variants.collect(),
    }]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(alias: &str, kubernetes: &str) -> String {
        let alias = Alias::parse(alias).unwrap();
        let lines: Vec<String> = alias
            .parameters(kubernetes)
            .into_iter()
            .map(|parameter| {
                let kinds: Vec<&str> = parameter.variants.iter().map(|v| v.as_str()).collect();
                format!("{} {}", parameter.name, kinds.join(","))
            })
            .collect();
        lines.join("\n")
    }

    /// Conformance: AWS-ami-05
    #[test]
    fn aliases_resolve_to_parameters() {
        insta::assert_snapshot!(paths("al2@latest", "1.32"), @r#"
        /aws/service/eks/optimized-ami/1.32/amazon-linux-2/recommended/image_id standard
        /aws/service/eks/optimized-ami/1.32/amazon-linux-2-arm64/recommended/image_id standard
        /aws/service/eks/optimized-ami/1.32/amazon-linux-2-gpu/recommended/image_id neuron,nvidia
        "#);
        insta::assert_snapshot!(paths("al2@v20240729", "1.30"), @r#"
        /aws/service/eks/optimized-ami/1.30/amazon-linux-2/amazon-eks-node-1.30-v20240729/image_id standard
        /aws/service/eks/optimized-ami/1.30/amazon-linux-2-arm64/amazon-eks-arm64-node-1.30-v20240729/image_id standard
        /aws/service/eks/optimized-ami/1.30/amazon-linux-2-gpu/amazon-eks-gpu-node-1.30-v20240729/image_id neuron,nvidia
        "#);
        insta::assert_snapshot!(paths("al2023@latest", "1.36"), @r#"
        /aws/service/eks/optimized-ami/1.36/amazon-linux-2023/x86_64/standard/recommended/image_id standard
        /aws/service/eks/optimized-ami/1.36/amazon-linux-2023/x86_64/nvidia/recommended/image_id nvidia
        /aws/service/eks/optimized-ami/1.36/amazon-linux-2023/x86_64/neuron/recommended/image_id neuron
        /aws/service/eks/optimized-ami/1.36/amazon-linux-2023/arm64/standard/recommended/image_id standard
        /aws/service/eks/optimized-ami/1.36/amazon-linux-2023/arm64/nvidia/recommended/image_id nvidia
        "#);
        insta::assert_snapshot!(paths("al2023@v20250101", "1.31"), @r#"
        /aws/service/eks/optimized-ami/1.31/amazon-linux-2023/x86_64/standard/amazon-eks-node-al2023-x86_64-standard-1.31-v20250101/image_id standard
        /aws/service/eks/optimized-ami/1.31/amazon-linux-2023/x86_64/nvidia/amazon-eks-node-al2023-x86_64-nvidia-1.31-v20250101/image_id nvidia
        /aws/service/eks/optimized-ami/1.31/amazon-linux-2023/x86_64/neuron/amazon-eks-node-al2023-x86_64-neuron-1.31-v20250101/image_id neuron
        /aws/service/eks/optimized-ami/1.31/amazon-linux-2023/arm64/standard/amazon-eks-node-al2023-arm64-standard-1.31-v20250101/image_id standard
        /aws/service/eks/optimized-ami/1.31/amazon-linux-2023/arm64/nvidia/amazon-eks-node-al2023-arm64-nvidia-1.31-v20250101/image_id nvidia
        "#);
        insta::assert_snapshot!(paths("bottlerocket@latest", "1.36"), @r#"
        /aws/service/bottlerocket/aws-k8s-1.36/x86_64/latest/image_id standard,neuron
        /aws/service/bottlerocket/aws-k8s-1.36/arm64/latest/image_id standard
        /aws/service/bottlerocket/aws-k8s-1.36-nvidia/x86_64/latest/image_id nvidia
        /aws/service/bottlerocket/aws-k8s-1.36-nvidia/arm64/latest/image_id nvidia
        "#);
        insta::assert_snapshot!(paths("bottlerocket@v1.46.0", "1.34"), @r#"
        /aws/service/bottlerocket/aws-k8s-1.34/x86_64/1.46.0/image_id standard,neuron
        /aws/service/bottlerocket/aws-k8s-1.34/arm64/1.46.0/image_id standard
        /aws/service/bottlerocket/aws-k8s-1.34-nvidia/x86_64/1.46.0/image_id nvidia
        /aws/service/bottlerocket/aws-k8s-1.34-nvidia/arm64/1.46.0/image_id nvidia
        "#);
        insta::assert_snapshot!(paths("windows2019@latest", "1.35"), @"/aws/service/ami-windows-latest/Windows_Server-2019-English-Core-EKS_Optimized-1.35/image_id 10.0.17763");
        insta::assert_snapshot!(paths("windows2022@latest", "1.35"), @"/aws/service/ami-windows-latest/Windows_Server-2022-English-Core-EKS_Optimized-1.35/image_id 10.0.20348");
        insta::assert_snapshot!(paths("windows2025@latest", "1.35"), @"/aws/service/ami-windows-latest/Windows_Server-2025-English-Core-EKS_Optimized-1.35/image_id 10.0.26100");
    }

    #[test]
    fn some_aliases_have_no_images_in_some_versions() {
        let check = |alias: &str, kubernetes: &str| {
            Alias::parse(alias).unwrap().check_supported(kubernetes)
        };
        assert_eq!(check("al2@latest", "1.32"), Ok(()));
        assert_eq!(check("windows2025@latest", "1.35"), Ok(()));
        assert_eq!(check("windows2022@latest", "1.30"), Ok(()));
        assert_eq!(check("al2@latest", "unknown"), Ok(()));
        insta::assert_snapshot!(check("al2@latest", "1.33").unwrap_err(), @"alias `al2@latest` has no images for Kubernetes 1.33: use al2023 or bottlerocket");
        insta::assert_snapshot!(check("windows2025@latest", "1.34").unwrap_err(), @"alias `windows2025@latest` has no images for Kubernetes 1.34: use windows2022, or Kubernetes 1.35");
    }
}
