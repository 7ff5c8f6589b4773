//! Interruption and health events of instances: spot interruptions, state changes, scheduled changes and failed status
//! checks.
//!
//! ```text
//! EventBridge ──▶ SQS ──▶ poller ──▶ message ──┐
//!                                              ├──▶ handler: event, unavailable pools, deletion of the NodeClaim
//! DescribeInstanceStatus ──▶ instance_status ──┘
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`message`] | parsing of queue messages |
//! | [`kind`] | kinds of events and the reaction to each |
//! | [`handler`] | handling of an event for a NodeClaim |
//! | [`queue`] | calls to SQS |
//! | [`poller`] | polling of the queue, back-off |
//!
//! Messages are handled at least once, and handling is idempotent: a message is deleted after it has been handled. A
//! repeated delivery finds its NodeClaims already being deleted, or is recognized by its ID.
//!
//! UPSTREAM: pkg/controllers/interruption

pub mod handler;
pub mod kind;
pub mod message;
pub mod poller;
pub mod queue;

pub use handler::Handler;
pub use kind::{Action, Kind};
pub use poller::add;
