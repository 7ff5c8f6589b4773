//! Talking to AWS: connections, how often they may be used, what their errors mean, and calls that are answered together.
//!
//! | module | question it answers |
//! |---|---|
//! | [`clients`] | how are the services reached, and how is one call made? |
//! | [`catalogue`] | what can be bought, where, and for how much? |
//! | [`pages`] | what does a listing of several pages say? |
//! | [`pacing`] | how often may a call be made now? |
//! | [`errors`] | what does a failed call mean? |
//! | [`batcher`] | which requests go out as one? |
//! | [`telemetry`] | how is it counted? |
//! | [`terms`] | how is a selector asked, and how long is the answer good? |

pub mod batcher;
pub mod catalogue;
pub mod clients;
pub mod errors;
pub mod pacing;
pub mod pages;
pub mod telemetry;
pub mod terms;

pub use clients::{Aws, Connect, Service};
pub use errors::AwsError;
