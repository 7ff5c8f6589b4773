//! Families of machine images, and the aliases that name one of their releases.

use std::fmt;

/// What a machine image expects: the format of user data, default disks, how the kubelet is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AmiFamily {
    /// Amazon Linux 2.
    Al2,
    /// Amazon Linux 2023.
    Al2023,
    /// Bottlerocket.
    Bottlerocket,
    /// The user's own image: user data is passed through, nothing is assumed.
    Custom,
    /// Windows Server 2019 Core.
    Windows2019,
    /// Windows Server 2022 Core.
    Windows2022,
    /// Windows Server 2025 Core.
    Windows2025,
}

impl AmiFamily {
    /// Every family.
    pub const ALL: [Self; 7] = [
        Self::Al2,
        Self::Al2023,
        Self::Bottlerocket,
        Self::Custom,
        Self::Windows2019,
        Self::Windows2022,
        Self::Windows2025,
    ];

    /// The name in `spec.amiFamily`.
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

    /// The family of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.as_str() == name)
    }

    /// Whether its nodes run Windows.
    pub fn is_windows(self) -> bool {
        self.windows_build().is_some()
    }

    /// The value of `node.kubernetes.io/windows-build` of its nodes.
    pub fn windows_build(self) -> Option<&'static str> {
        match self {
            Self::Windows2019 => Some("10.0.17763"),
            Self::Windows2022 => Some("10.0.20348"),
            Self::Windows2025 => Some("10.0.26100"),
            Self::Al2 | Self::Al2023 | Self::Bottlerocket | Self::Custom => None,
        }
    }

    /// Whether the kubelet's share of memory follows the pods the network could carry, even if fewer are allowed.
    pub fn uses_eni_limited_memory_overhead(self) -> bool {
        matches!(self, Self::Al2 | Self::Al2023 | Self::Custom)
    }

    /// Whether `podsPerCore` has an effect.
    pub fn supports_pods_per_core(self) -> bool {
        self != Self::Bottlerocket
    }

    /// Whether the number of network addresses limits the number of pods.
    pub fn supports_eni_limited_pod_density(self) -> bool {
        !self.is_windows()
    }

    /// The device that pods' ephemeral storage lies on, unless the NodeClass says otherwise.
    pub fn ephemeral_device(self) -> Option<&'static str> {
        match self {
            Self::Al2 | Self::Al2023 => Some("/dev/xvda"),
            Self::Bottlerocket => Some("/dev/xvdb"),
            Self::Windows2019 | Self::Windows2022 | Self::Windows2025 => Some("/dev/sda1"),
            Self::Custom => None,
        }
    }

    /// The size in GiB of the ephemeral device where the NodeClass maps no devices.
    pub fn default_ephemeral_gib(self) -> i64 {
        if self.is_windows() { 50 } else { 20 }
    }
}

impl fmt::Display for AmiFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A release of a family of images that EKS publishes: `al2023@latest`, `bottlerocket@v1.46.0`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Alias {
    /// The family; never `Custom`.
    pub family: AmiFamily,
    /// `latest` or a version in the family's format.
    pub version: String,
}

impl Alias {
    /// The version that follows new releases.
    pub const LATEST: &'static str = "latest";

    /// Reads `family@version`.
    ///
    /// # Errors
    /// When the text has another form or names another family. DIFFERS: upstream exits the process.
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

    /// Whether the alias follows new releases.
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

/// A text that is no alias.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an alias of a family of images, such as `al2023@latest`")]
pub struct InvalidAlias {
    text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

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
