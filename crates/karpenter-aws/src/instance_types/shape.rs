//! What of an EC2NodeClass shapes its instance types.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    api::{
        Ami, AmiFamily, BlockDeviceMapping, CapacityReservation, EC2NodeClass, NetworkInterface,
        Subnet,
    },
    kubelet::Kubelet,
};

/// A placement group that a class' machines are launched into.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PlacementGroup {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// `cluster`, `partition` or `spread`.
    pub strategy: String,
    /// The number of partitions, for the strategy `partition`; else 0.
    pub partitions: u32,
}

/// What of an EC2NodeClass shapes its instance types. Equal shapes have equal instance types.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// The family of the images.
    pub family: AmiFamily,
    /// Settings of the kubelet.
    pub kubelet: Kubelet,
    /// Disks; empty for the family's defaults.
    pub devices: Vec<BlockDeviceMapping>,
    /// Whether local disks are joined for pods.
    pub raid0: bool,
    /// Network interfaces; empty for one ordinary interface.
    pub interfaces: Vec<NetworkInterface>,
    /// Whether virtual machines must be able to run on the machine.
    pub nested_virtualization: bool,
    /// Whether connection tracking is set.
    pub connection_tracking: bool,
    /// Subnets machines may be launched in, ordered by id.
    pub subnets: Vec<Subnet>,
    /// Images machines may boot, the preferred first.
    pub amis: Vec<Ami>,
    /// Capacity reservations machines may use.
    pub reservations: Vec<CapacityReservation>,
    /// The placement group.
    pub placement_group: Option<PlacementGroup>,
}

impl Shape {
    /// The shape of a class as its status stands.
    ///
    /// # Errors
    /// A sentence for each kubelet setting that cannot be read.
    pub fn of(
        class: &EC2NodeClass,
        placement_group: Option<PlacementGroup>,
    ) -> Result<Self, Vec<String>> {
        let spec = &class.spec;
        // Their order follows their free addresses.
        let mut subnets = class.status.subnets.clone();
        subnets.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(Self {
            family: class.ami_family(),
            kubelet: Kubelet::parse(spec.kubelet.as_ref())?,
            devices: spec.block_device_mappings.clone().unwrap_or_default(),
            raid0: spec.instance_store_policy.as_deref() == Some("RAID0"),
            interfaces: class.network_interfaces().to_vec(),
            nested_virtualization: spec
                .cpu_options
                .as_ref()
                .is_some_and(|options| options.nested_virtualization()),
            connection_tracking: spec.connection_tracking.is_some(),
            subnets,
            amis: class.status.amis.clone(),
            reservations: class.status.capacity_reservations.clone(),
            placement_group,
        })
    }

    /// The zones of the subnets, with their ids where those are known.
    pub fn zones(&self) -> BTreeMap<&str, Option<&str>> {
        self.subnets
            .iter()
            .map(|subnet| (subnet.zone.as_str(), subnet.zone_id.as_deref()))
            .collect()
    }

    /// The subnets of a zone, by id.
    pub fn subnets_of<'a>(&'a self, zone: &'a str) -> impl Iterator<Item = &'a str> {
        let in_zone = move |subnet: &&Subnet| subnet.zone == zone;
        self.subnets
            .iter()
            .filter(in_zone)
            .map(|subnet| subnet.id.as_str())
    }

    /// The number of Elastic Fabric Adapters without IP on a network card.
    pub(super) fn efa_only_on(&self, card: u32) -> u32 {
        let here = |interface: &&NetworkInterface| {
            interface.is_efa_only() && u32::try_from(interface.network_card_index) == Ok(card)
        };
        self.interfaces.iter().filter(here).count() as u32
    }

    /// The number of Elastic Fabric Adapters without IP.
    pub(super) fn efa_only(&self) -> u32 {
        self.interfaces
            .iter()
            .filter(|interface| interface.is_efa_only())
            .count() as u32
    }

    /// The names of the instance types with a reservation.
    pub(super) fn reserved_types(&self) -> BTreeSet<&str> {
        self.reservations
            .iter()
            .map(|reservation| reservation.instance_type.as_str())
            .collect()
    }
}
