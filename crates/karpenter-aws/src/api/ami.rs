//! AMI families, and the aliases that name one release of a family.

use std::fmt;

/// AMI family: decides the format of user data, the default volumes and how the kubelet is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AmiFamily {
    /// Amazon Linux 2.
    Al2,
    /// Amazon Linux 2023.
    Al2023,
    /// Bottlerocket.
    Bottlerocket,
    /// The user's own image: user data is passed through unchanged, and there are no default volumes.
    Custom,
    /// Windows Server 2019 Core.
    Windows2019,
    /// Windows Server 2022 Core.
    Windows2022,
    /// Windows Server 2025 Core.
    Windows2025,
}

impl AmiFamily {
    /// All families, in the order of the CRD's enum.
    pub const ALL: [Self; 7] = [
        Self::Al2,
        Self::Al2023,
        Self::Bottlerocket,
        Self::Custom,
        Self::Windows2019,
        Self::Windows2022,
        Self::Windows2025,
    ];

    /// Returns the name in `spec.amiFamily`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Al2 => "AL2",
            Self::Al2023 => "AL2023",
            Self::Bottlerocket => "Bottlerocket",
            Self::Custom => "Custom",
            Self::Windows2019 => "Windows2019",
            Self::Windows2022 => "Windows2022",
            Self::Windows2025 => "Windows2025",
        }
    }

    /// Returns the family with this name in `spec.amiFamily`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.as_str() == name)
    }

    /// Returns whether nodes of the family run Windows.
    pub fn is_windows(self) -> bool {
        self.windows_build().is_some()
    }

    /// Returns the value of the label `node.kubernetes.io/windows-build` on nodes of the family; `None` for Linux.
    pub fn windows_build(self) -> Option<&'static str> {
        match self {
            Self::Windows2019 => Some("10.0.17763"),
            Self::Windows2022 => Some("10.0.20348"),
            Self::Windows2025 => Some("10.0.26100"),
            Self::Al2 | Self::Al2023 | Self::Bottlerocket | Self::Custom => None,
        }
    }

    /// Returns whether kube-reserved memory is computed from the number of pods that the network interfaces allow, even
    /// if `maxPods` is lower.
    pub fn uses_eni_limited_memory_overhead(self) -> bool {
        matches!(self, Self::Al2 | Self::Al2023 | Self::Custom)
    }

    /// Returns whether the family supports `podsPerCore`.
    pub fn supports_pods_per_core(self) -> bool {
        self != Self::Bottlerocket
    }

    /// Returns whether the number of IP addresses of the network interfaces limits the number of pods.
    pub fn supports_eni_limited_pod_density(self) -> bool {
        !self.is_windows()
    }

    /// Returns the device that holds the ephemeral storage of pods if the EC2NodeClass maps no device for it.
    pub fn ephemeral_device(self) -> Option<&'static str> {
        match self {
            Self::Al2 | Self::Al2023 => Some("/dev/xvda"),
            Self::Bottlerocket => Some("/dev/xvdb"),
            Self::Windows2019 | Self::Windows2022 | Self::Windows2025 => Some("/dev/sda1"),
            Self::Custom => None,
        }
    }

    /// Returns the size in GiB of the ephemeral storage device if the EC2NodeClass has no block device mappings.
    pub fn default_ephemeral_gib(self) -> i64 {
        if self.is_windows() { 50 } else { 20 }
    }
}

impl fmt::Display for AmiFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A release of an AMI family that EKS publishes: `al2023@latest`, `bottlerocket@v1.46.0`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Alias {
    /// The AMI family; never `Custom`.
    pub family: AmiFamily,
    /// `latest`, or a version in the format of the family.
    pub version: String,
}

impl Alias {
    /// The version that follows new releases.
    pub const LATEST: &'static str = "latest";

    /// Parses `family@version`.
    ///
    /// # Errors
    /// If the text has another form or names an unknown family. DIFFERS: upstream exits the process.
    pub fn parse(text: &str) -> Result<Self, InvalidAlias> {
        let invalid = || InvalidAlias {
            text: text.to_owned(),
        };
        let (name, version) = text.split_once('@').ok_or_else(invalid)?;
        let family = AmiFamily::ALL
            .into_iter()
            .find(|family| *family != AmiFamily::Custom && family.alias_name() == name)
            .ok_or_else(invalid)?;
        if version.is_empty() || version.contains('@') {
            return Err(invalid());
        }
        Ok(Self {
            family,
            version: version.to_owned(),
        })
    }

    /// Returns whether the alias follows new releases.
    pub fn is_latest(&self) -> bool {
        self.version == Self::LATEST
    }
}

impl fmt::Display for Alias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.family.alias_name(), self.version)
    }
}

impl AmiFamily {
    fn alias_name(self) -> String {
        self.as_str().to_ascii_lowercase()
    }
}

/// The error of [`Alias::parse`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid alias: `{text}` is not of the form `family@version`, such as `al2023@latest`")]
pub struct InvalidAlias {
    text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: AWS-capacity-22
    #[test]
    fn families_say_how_their_nodes_are_sized() {
        use AmiFamily::{Al2, Al2023, Bottlerocket, Custom, Windows2019, Windows2022, Windows2025};
        for (family, flags) in [
            (Al2, (true, true, true)),
            (Al2023, (true, true, true)),
            (Custom, (true, true, true)),
            (Bottlerocket, (false, false, true)),
            (Windows2019, (false, true, false)),
            (Windows2022, (false, true, false)),
            (Windows2025, (false, true, false)),
        ] {
            let found = (
                family.uses_eni_limited_memory_overhead(),
                family.supports_pods_per_core(),
                family.supports_eni_limited_pod_density(),
            );
            assert_eq!(found, flags, "{family}");
        }
    }

    #[test]
    fn an_alias_names_a_family_in_lower_case_and_a_version() {
        let alias = Alias::parse("al2023@v20240625").unwrap();
        assert_eq!(alias.family, AmiFamily::Al2023);
        assert_eq!(alias.version, "v20240625");
        assert!(!alias.is_latest());
        assert_eq!(alias.to_string(), "al2023@v20240625");
        assert!(Alias::parse("windows2025@latest").unwrap().is_latest());
    }

    #[test]
    fn a_malformed_alias_is_an_error_of_its_own() {
        for text in [
            "al2023",
            "al2023@",
            "@latest",
            "AL2023@latest",
            "custom@latest",
            "al2@a@b",
            "",
        ] {
            assert!(Alias::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn families_are_found_by_name() {
        for family in AmiFamily::ALL {
            assert_eq!(AmiFamily::from_name(family.as_str()), Some(family));
        }
        assert_eq!(AmiFamily::from_name("Ubuntu"), None);
    }
}
