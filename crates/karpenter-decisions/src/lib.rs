//! Scaffold.
pub mod blocking;
