//! The provider: machines on EC2 for NodeClaims.

pub mod claims;
pub mod drift;
