//! Default block devices of AMI families, for EC2NodeClasses without block device mappings.

use crate::api::AmiFamily;

/// A default volume of an AMI family; all of them are encrypted gp3 volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DefaultDevice {
    pub name: &'static str,
    /// Size in GiB.
    pub gibibytes: i32,
}

/// Returns the default volumes of a family; none for `Custom`.
// UPSTREAM: DefaultBlockDeviceMappings of pkg/providers/amifamily
#[must_use]
pub fn default_devices(family: AmiFamily) -> &'static [DefaultDevice] {
    const fn device(name: &'static str, gibibytes: i32) -> DefaultDevice {
        DefaultDevice { name, gibibytes }
    }
    const AMAZON_LINUX: &[DefaultDevice] = &[device("/dev/xvda", 20)];
    const BOTTLEROCKET: &[DefaultDevice] = &[device("/dev/xvda", 4), device("/dev/xvdb", 20)];
    const WINDOWS: &[DefaultDevice] = &[device("/dev/sda1", 50)];
    match family {
        AmiFamily::Al2 | AmiFamily::Al2023 => AMAZON_LINUX,
        AmiFamily::Bottlerocket => BOTTLEROCKET,
        AmiFamily::Windows2019 | AmiFamily::Windows2022 | AmiFamily::Windows2025 => WINDOWS,
        AmiFamily::Custom => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_volume_holds_the_pods_storage() {
        for family in AmiFamily::ALL {
            let last = default_devices(family).last();
            assert_eq!(last.map(|device| device.name), family.ephemeral_device());
            if let Some(last) = last {
                assert_eq!(i64::from(last.gibibytes), family.default_ephemeral_gib());
            }
        }
    }
}
