//! Karpenter's decision engine: pure scheduling and disruption planning.
//!
//! - [`quantity`]: Kubernetes quantities, exactly.
//! - [`resources`]: amounts of resources in the engine's units.
//! - [`requirements`]: the algebra of node requirements.

pub mod dra;
pub mod quantity;
pub mod requirements;
pub mod resources;
