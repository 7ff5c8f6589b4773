//! The settings of an EC2NodeClass that its instance types depend on.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::{
    Ami, AmiFamily, BlockDeviceMapping, CapacityReservation, EC2NodeClass, NetworkInterface, Subnet,
};
use crate::kubelet::Kubelet;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PlacementGroup {
    pub id: String,
    pub name: String,
    /// Strategy: `cluster`, `partition` or `spread`.
    pub strategy: String,
    /// Number of partitions with the strategy `partition`; otherwise 0.
    pub partitions: u32,
}

/// The settings of an EC2NodeClass that its instance types depend on. Equal shapes have equal instance types.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    pub family: AmiFamily,
    pub kubelet: Kubelet,
    /// Block device mappings; empty for the family's defaults.
    pub devices: Vec<BlockDeviceMapping>,
    /// Whether instance store volumes are joined for the ephemeral storage of pods.
    pub raid0: bool,
    /// Network interfaces; empty for one ordinary interface.
    pub interfaces: Vec<NetworkInterface>,
    /// Whether instances must support nested virtualization.
    pub nested_virtualization: bool,
    /// Whether timeouts of connection tracking are set.
    pub connection_tracking: bool,
    /// Subnets that instances may be launched in, ordered by ID.
    pub subnets: Vec<Subnet>,
    /// AMIs that instances may boot, in order of preference.
    pub amis: Vec<Ami>,
    /// Capacity reservations that instances may be launched into.
    pub reservations: Vec<CapacityReservation>,
    /// The placement group that instances are launched into.
    pub placement_group: Option<PlacementGroup>,
}

impl Shape {
    /// Creates the shape of a class from its spec and status.
    ///
    /// # Errors
    /// A message for each kubelet setting that cannot be parsed.
    pub fn of(
        class: &EC2NodeClass,
        placement_group: Option<PlacementGroup>,
    ) -> Result<Self, Vec<String>> {
        let spec = &class.spec;
        // The order of subnets in the status follows their free addresses.
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

    /// Returns the zones of the subnets, with their IDs where known.
    pub fn zones(&self) -> BTreeMap<&str, Option<&str>> {
        self.subnets
            .iter()
            .map(|subnet| (subnet.zone.as_str(), subnet.zone_id.as_deref()))
            .collect()
    }

    /// Iterates over the IDs of the subnets of a zone.
    pub fn subnets_of<'a>(&'a self, zone: &'a str) -> impl Iterator<Item = &'a str> {
        let in_zone = move |subnet: &&Subnet| subnet.zone == zone;
        self.subnets
            .iter()
            .filter(in_zone)
            .map(|subnet| subnet.id.as_str())
    }

    /// Returns the number of `efa-only` interfaces on a network card.
    pub(super) fn efa_only_on(&self, card: u32) -> u32 {
        let here = |interface: &&NetworkInterface| {
            interface.is_efa_only() && u32::try_from(interface.network_card_index) == Ok(card)
        };
        self.interfaces.iter().filter(here).count() as u32
    }

    /// Returns the number of `efa-only` interfaces.
    pub(super) fn efa_only(&self) -> u32 {
        self.interfaces
            .iter()
            .filter(|interface| interface.is_efa_only())
            .count() as u32
    }

    /// Returns the names of the instance types with a capacity reservation.
    pub(super) fn reserved_types(&self) -> BTreeSet<&str> {
        self.reservations
            .iter()
            .map(|reservation| reservation.instance_type.as_str())
            .collect()
    }
}
