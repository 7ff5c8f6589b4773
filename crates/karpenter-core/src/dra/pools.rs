//! Pools of devices, built from the slices that drivers publish and the templates of instance types.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::model::{AttributeBinding, Counters, Device, DeviceTemplate, Slice};

/// The devices of one pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// The driver that publishes it.
    pub driver: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Its devices.
    pub devices: Vec<Device>,
    /// Its shared counters.
    pub counters: Counters,
    /// Whether all slices of the newest generation exist.
    pub complete: bool,
    /// Whether it is consistent: no duplicate device or counter set, no undefined counter.
    pub valid: bool,
    /// For each device, the attributes whose unknown value it shares, with the group of devices that shares it.
    pub bindings: BTreeMap<(usize, String), usize>,
}

/// Builds the pools of the cluster, by driver and name.
///
/// Only the newest generation of each pool is used. Slices of a node for which `usable_node` returns false (not initialized, or
/// not part of the pass) are left out.
pub fn assemble<'a>(
    slices: impl IntoIterator<Item = &'a Slice>,
    usable_node: impl Fn(&str) -> bool,
) -> Vec<Pool> {
    let mut newest: BTreeMap<(Arc<str>, Arc<str>), Vec<&Slice>> = BTreeMap::new();
    for slice in slices {
        if slice
            .owner_node
            .as_deref()
            .is_some_and(|node| !usable_node(node))
        {
            continue;
        }
        let group = newest
            .entry((slice.driver.clone(), slice.pool.clone()))
            .or_default();
        match group
            .first()
            .map(|first| first.generation.cmp(&slice.generation))
        {
            Some(std::cmp::Ordering::Greater) => {}
            Some(std::cmp::Ordering::Less) => *group = vec![slice],
            _ => group.push(slice),
        }
    }
    newest
        .into_iter()
        .map(|((driver, name), slices)| merge(driver, name, &slices))
        .collect()
}

fn merge(driver: Arc<str>, name: Arc<str>, slices: &[&Slice]) -> Pool {
    let expected = slices.first().map_or(0, |slice| slice.slice_count);
    let mut pool = Pool {
        driver,
        name,
        devices: Vec::new(),
        counters: Counters::new(),
        complete: i64::try_from(slices.len()).is_ok_and(|found| found == expected),
        valid: true,
        bindings: BTreeMap::new(),
    };
    for slice in slices {
        pool.devices.extend(slice.devices.iter().cloned());
        for (set, counters) in &slice.counters {
            pool.valid &= pool
                .counters
                .insert(set.clone(), counters.clone())
                .is_none();
        }
    }
    // The API server lists slices in any order; devices are sorted.
    pool.devices.sort_by(|a, b| a.name.cmp(&b.name));
    pool.valid &= consistent(&pool.devices, &pool.counters);
    pool
}

/// Builds the pool that a node of an instance type will have.
pub fn expected(template: &DeviceTemplate) -> Pool {
    Pool {
        driver: template.driver.as_str().into(),
        name: template.pool.as_str().into(),
        devices: template.devices.clone(),
        counters: template.counters.clone(),
        complete: true,
        valid: consistent(&template.devices, &template.counters),
        bindings: groups(&template.devices, &template.bindings),
    }
}

/// Checks that device names are unique, and that every counter a device consumes exists.
fn consistent(devices: &[Device], counters: &Counters) -> bool {
    let mut names = BTreeSet::new();
    devices.iter().all(|device| {
        names.insert(&device.name)
            && device.consumes.iter().all(|(set, drawn)| {
                counters
                    .get(set)
                    .is_some_and(|set| drawn.keys().all(|name| set.contains_key(name)))
            })
    })
}

/// Groups devices: bindings of one attribute that share a device form one group.
fn groups(devices: &[Device], bindings: &[AttributeBinding]) -> BTreeMap<(usize, String), usize> {
    let mut groups: BTreeMap<(usize, String), usize> = BTreeMap::new();
    for (group, binding) in bindings.iter().enumerate() {
        let members = devices
            .iter()
            .enumerate()
            .filter(|(_, d)| binding.devices.contains(&d.name));
        let members: Vec<usize> = members.map(|(index, _)| index).collect();
        if members.len() < 2 {
            continue;
        }
        let key = |index: usize| (index, binding.attribute.clone());
        let joined: BTreeSet<usize> = members
            .iter()
            .filter_map(|index| groups.get(&key(*index)).copied())
            .collect();
        for (entry, value) in &mut groups {
            if entry.1 == binding.attribute && joined.contains(value) {
                *value = group;
            }
        }
        groups.extend(members.into_iter().map(|index| (key(index), group)));
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::model::Access;

    fn device(name: &str) -> Device {
        Device {
            name: name.to_owned(),
            attributes: BTreeMap::new(),
            capacity: BTreeMap::new(),
            consumes: Counters::new(),
            shareable: false,
            access: Access::AllNodes,
        }
    }

    fn slice(generation: i64, count: i64, devices: &[&str]) -> Slice {
        Slice {
            driver: "d".into(),
            pool: "p".into(),
            generation,
            slice_count: count,
            owner_node: None,
            devices: devices.iter().map(|name| device(name)).collect(),
            counters: Counters::new(),
        }
    }

    fn only(slices: &[Slice]) -> Pool {
        let mut pools = assemble(slices, |_| true);
        assert_eq!(pools.len(), 1);
        pools.remove(0)
    }

    /// Conformance: SCH-248
    #[test]
    fn only_the_newest_generation_is_used() {
        let pool = only(&[
            slice(1, 1, &["old"]),
            slice(2, 2, &["b"]),
            slice(2, 2, &["a"]),
        ]);
        let names: Vec<&str> = pool.devices.iter().map(|d| d.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert!(pool.complete && pool.valid);
    }

    /// Conformance: SCH-248
    #[test]
    fn a_pool_without_all_its_slices_is_incomplete() {
        assert!(!only(&[slice(2, 2, &["a"]), slice(1, 1, &["old"])]).complete);
    }

    /// Conformance: SCH-248
    #[test]
    fn a_duplicate_device_name_makes_the_pool_invalid() {
        assert!(!only(&[slice(1, 2, &["a"]), slice(1, 2, &["a"])]).valid);
    }

    /// Conformance: SCH-248
    #[test]
    fn an_undefined_counter_set_makes_the_pool_invalid() {
        let mut dangling = slice(1, 1, &["a"]);
        dangling.devices[0].consumes.insert(
            "set".to_owned(),
            BTreeMap::from([("memory".to_owned(), "1Gi".parse().unwrap())]),
        );
        assert!(!only(&[dangling]).valid);
    }

    /// Conformance: SCH-248
    #[test]
    fn a_duplicate_counter_set_makes_the_pool_invalid() {
        let mut one = slice(1, 2, &["a"]);
        one.counters.insert("set".to_owned(), BTreeMap::new());
        let mut two = one.clone();
        two.devices = vec![device("b")];
        assert!(!only(&[one, two]).valid);
    }

    /// Conformance: SCH-250
    #[test]
    fn slices_of_an_unusable_node_are_left_out() {
        let mut owned = slice(1, 1, &["a"]);
        owned.owner_node = Some("n".to_owned());
        assert!(assemble([&owned], |node| node != "n").is_empty());
        assert_eq!(assemble([&owned], |node| node == "n").len(), 1);
    }

    /// Conformance: SCH-254
    #[test]
    fn bindings_that_share_a_device_are_one_group() {
        let devices: Vec<Device> = ["a", "b", "c", "d", "e"].map(device).to_vec();
        let bind = |names: [&str; 2]| AttributeBinding {
            attribute: "x/root".to_owned(),
            devices: names.map(str::to_owned).to_vec(),
        };
        let groups = groups(
            &devices,
            &[bind(["a", "b"]), bind(["d", "e"]), bind(["b", "c"])],
        );
        let of = |index: usize| groups[&(index, "x/root".to_owned())];
        assert_eq!(of(0), of(2));
        assert_eq!(of(3), of(4));
        assert_ne!(of(0), of(3));
    }
}
