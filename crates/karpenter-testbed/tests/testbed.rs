//! The embedded API server and the loops of a control plane, in process.

mod authorization;
mod client;
mod custom;
mod golden;
mod loops;
