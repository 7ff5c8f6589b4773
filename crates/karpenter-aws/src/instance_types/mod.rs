//! Instance types: what EC2 says about them, and what a node made from one will look like.
//!
//! `info` is EC2's description, cut down to what matters.

mod info;

pub use info::{
    Accelerator, Architecture, Gpu, InstanceTypeInfo, LocalStorage, NetworkCard, NetworkInfo,
    NeuronDevice,
};
