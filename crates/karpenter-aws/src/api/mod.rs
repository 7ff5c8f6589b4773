//! The EC2NodeClass API (`karpenter.k8s.aws/v1`).
//!
//! - `node_class`: the resource and its spec; `status`: its status and condition types.
//! - `ami`: AMI families and aliases.
//! - `labels`: names of labels, annotations, tags and extended resources; [`well_known`] lists them for the engine.
//! - [`hash`]: the static hash of a class, by which drift is found.
//! - `definition`: the CustomResourceDefinition, and the label domains that other CustomResourceDefinitions reserve.
//!
//! UPSTREAM: pkg/apis/v1/ec2nodeclass.go, ec2nodeclass_status.go, labels.go

#![warn(missing_docs)]

mod ami;
mod canonical_json;
mod definition;
pub mod events;
pub mod hash;
pub mod labels;
mod node_class;
mod rules;
mod status;

pub use ami::{Alias, AmiFamily, InvalidAlias};
pub use definition::{crd, overlay_domain, restricted_domain};
pub use labels::well_known;
pub use node_class::{
    AmiSelectorTerm, BlockDevice, BlockDeviceMapping, CapacityReservationSelectorTerm,
    ConnectionTracking, CpuOptions, EC2NodeClass, EC2NodeClassSpec, INTERFACE_TYPE_EFA_ONLY,
    INTERFACE_TYPE_INTERFACE, MetadataOptions, NetworkInterface, PlacementGroupSelector,
    SecurityGroupSelectorTerm, SubnetSelectorTerm,
};
pub use status::{
    Ami, CapacityReservation, EC2NodeClassStatus, ReservationState, ReservationType, SecurityGroup,
    Subnet, condition_types,
};
