//! Karpenter without a cloud: simulated instances, and a worked example of a provider.
//!
//! | module | question it answers |
//! |---|---|
//! | [`node_class`] | what is configured for simulated instances? |
//! | [`catalogue`] | which instance types exist, and what do they cost? |
//! | [`cloud`] | which instances run, which capacity is exhausted, and which faults are injected? |
//! | [`provider`] | how does Karpenter launch them? The `CloudProvider` implementation |
//! | [`controllers`] | what else must run: the readiness of KWOKNodeClasses, the instances of an earlier process |
//!
//! Another provider is built the same way: implement `CloudProvider`, pass it to `Operator::builder`, and add the
//! controllers of its NodeClass with `Builder::with`.
//!
//! UPSTREAM: kwok/

pub mod catalogue;
pub mod cloud;
pub mod controllers;
pub mod node_class;
pub mod provider;

pub use cloud::{CapacityPool, Cloud};
pub use node_class::{KwokNodeClass, KwokNodeClassSpec};
pub use provider::KwokProvider;
