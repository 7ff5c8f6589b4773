//! NodePools: their status, and the static hash that detects drift.

mod hash;
mod registration_health;
mod status;

pub use hash::Hash;
pub use registration_health::{Health, RegistrationHealth};
pub use status::Status;
