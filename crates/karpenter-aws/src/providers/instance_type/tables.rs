//! Properties of instance types that EC2's API does not report, or reports imprecisely.

use std::sync::LazyLock;

use rustc_hash::FxHashMap;

/// Known limits of an instance type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) bandwidth: Bandwidth,
    /// Branch network interfaces, for pods with their own security groups; 0 without trunking.
    pub(super) branch_interfaces: u32,
    /// IPv4 addresses per interface; 0 if unknown.
    pub(super) ipv4_per_interface: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Bandwidth {
    /// The type is newer than the table.
    #[default]
    Unlisted,
    /// EC2 reports only a rating such as `Up to 10 Gigabit`.
    Vague,
    /// Megabits per second.
    Mbps(u32),
}

static LIMITS: LazyLock<FxHashMap<&'static str, Limits>> = LazyLock::new(|| {
    let rows = include_str!("../../../data/limits.csv").lines();
    rows.filter(|row| !row.starts_with('#'))
        .filter_map(limits_of_row)
        .collect()
});

fn limits_of_row(row: &'static str) -> Option<(&'static str, Limits)> {
    let mut cells = row.split(',');
    let name = cells.next()?;
    let bandwidth = match cells.next()? {
        "?" => Bandwidth::Unlisted,
        "" => Bandwidth::Vague,
        mbps => Bandwidth::Mbps(mbps.parse().ok()?),
    };
    let limits = Limits {
        bandwidth,
        branch_interfaces: cells.next()?.parse().ok()?,
        ipv4_per_interface: cells.next()?.parse().ok()?,
    };
    Some((name, limits))
}

/// Returns the limits of an instance type; all are 0 for a type newer than the table.
pub(super) fn limits(name: &str) -> Limits {
    LIMITS.get(name).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_as_a_whole() {
        assert_eq!(LIMITS.len(), 1425);
        assert_eq!(
            limits("a1.large"),
            Limits {
                bandwidth: Bandwidth::Mbps(750),
                branch_interfaces: 9,
                ipv4_per_interface: 10
            }
        );
        assert_eq!(limits("t3.large").branch_interfaces, 0);
        assert_eq!(limits("z99.huge"), Limits::default());
    }
}
