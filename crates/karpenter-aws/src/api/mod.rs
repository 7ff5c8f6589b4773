//! EC2NodeClass (`karpenter.k8s.aws/v1`): what is particular to machines on EC2.
//!
//! - `node_class`: the resource and its spec; `status`: what was observed, and the condition types.
//! - `ami`: families and aliases of machine images, as the spec resolves to them.
//! - `labels`: names of labels, annotations, tags and resources; [`well_known`] gathers what the provider knows.
//! - `definition`: the CustomResourceDefinition, and the label domains it makes other definitions reserve.
//!
//! UPSTREAM: pkg/apis/v1/ec2nodeclass.go, ec2nodeclass_status.go, labels.go

mod ami;
mod definition;
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
