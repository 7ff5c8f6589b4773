//! Explores every order of events of the processes of `karpenter-core` in a small cluster.
//!
//! [`world::World`] is the state: the objects of the API server, the provider's instances, what the controllers have read, and the
//! processes of `karpenter_core::lifecycle` themselves. [`steps`] says what can happen next, and executes the processes' effects as
//! `karpenter-kube` does. [`search`] tries all orders, breadth first; [`checks`] says what must hold at each effect, and where a fair
//! course without further faults must end. [`worlds`] are the clusters to explore; [`scenarios`] reads those of others.

mod checks;
pub mod scenarios;
pub mod search;
pub mod steps;
pub mod world;
pub mod worlds;
