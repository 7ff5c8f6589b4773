//! Who may do what: service accounts, their tokens, and role-based access control.

pub(in crate::server) mod authorization;
pub(in crate::server) mod tokens;
