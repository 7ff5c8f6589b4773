//! Karpenter without a cloud: simulated instances, and a worked example of a provider.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use karpenter_kube::client::Clients;
//! use karpenter_kube::clock::Clock;
//! use karpenter_kube::operator::Operator;
//! use karpenter_kube::options::Options;
//! use karpenter_kwok::{Cloud, KwokProvider, catalogue, controllers};
//! use tokio_util::sync::CancellationToken;
//!
//! async fn run(clients: Clients, options: Options) -> Result<(), Box<dyn std::error::Error>> {
//!     let types = catalogue::generate().iter().map(|entry| entry.instance_type()).collect::<Result<_, _>>()?;
//!     let provider = KwokProvider::new(clients.api.clone(), Clock::real(), types, Cloud::new());
//!     let provider = Arc::new(provider);
//!     let kwok = Arc::clone(&provider);
//!     let operator = Operator::builder(provider, clients, options).with(|registry| controllers::add(registry, kwok));
//!     operator.run(CancellationToken::new()).await?;
//!     Ok(())
//! }
//! ```
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
pub use node_class::{KWOKNodeClass, KWOKNodeClassSpec};
pub use provider::KwokProvider;
