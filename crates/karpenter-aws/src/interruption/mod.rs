//! What befalls a machine after its launch: EC2 takes it back, stops it, or announces that it will.
//!
//! ```text
//! EventBridge ──▶ SQS ──▶ poller ──▶ message ──┐
//!                                              ├──▶ handler: event, marks, deletion of the NodeClaim
//! DescribeInstanceStatus ──▶ instance_status ──┘
//! ```
//!
//! | module | question it answers |
//! |---|---|
//! | [`message`] | what does a message of the queue say? |
//! | [`kind`] | what is done about it, and how is it told? |
//! | [`handler`] | how is it done to a NodeClaim? |
//! | [`queue`] | how is SQS asked? |
//! | [`poller`] | who asks, how often, and what if it fails? |
//!
//! Nothing is lost and nothing is done twice: a message is deleted once everything it asks for is done; what is delivered again
//! finds its NodeClaims on their way out, or is known by its id.
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
