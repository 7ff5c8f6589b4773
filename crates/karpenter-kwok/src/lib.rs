//! Karpenter without a cloud: simulated machines, and a worked example of a provider.
//!
//! | module | question it answers |
//! |---|---|
//! | [`node_class`] | what does a class of simulated machines look like? |
//! | [`catalogue`] | which instance types are there, and what do they cost? |
//! | [`cloud`] | which machines run, which capacity is out, and what is broken on purpose? |
//! | [`provider`] | how does Karpenter buy them? The `CloudProvider` implementation |
//! | [`controllers`] | what else must run: the readiness of KWOKNodeClasses, the machines of an earlier process |
//!
//! A provider of your own is made the same way: implement `CloudProvider`, pass it to `Operator::builder`, and add your
//! NodeClass's controllers with `Builder::with`.
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
