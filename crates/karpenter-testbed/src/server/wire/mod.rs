//! Requests and responses: parsing, errors, bodies; and the server in process and over HTTPS.

pub mod error;
pub(in crate::server) mod reply;
pub(in crate::server) mod request;
pub(in crate::server) mod selector;
pub(in crate::server) mod serve;
mod service;
