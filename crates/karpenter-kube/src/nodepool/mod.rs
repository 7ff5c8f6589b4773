//! NodePools: what their status says, and the hash that tells drift.

mod hash;
mod registration_health;
mod status;

pub use hash::Hash;
pub use registration_health::{Health, RegistrationHealth};
pub use status::Status;
