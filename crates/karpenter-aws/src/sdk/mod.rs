//! Calls to AWS: connections, pacing, error classification and batching.
//!
//! | module | content |
//! |---|---|
//! | [`clients`] | clients of the services, timeouts and retries |
//! | [`pages`] | listings of several pages |
//! | [`pacing`] | rate limits and circuit breakers |
//! | [`errors`] | classification of failed calls |
//! | [`batcher`] | batching of requests into one call |
//! | [`telemetry`] | metrics of calls |
//! | [`terms`] | filters and tags, and cached answers |

pub mod batcher;
pub mod clients;
pub mod errors;
pub mod pacing;
pub mod pages;
pub mod telemetry;
pub mod terms;

pub use clients::{Aws, Connect};
pub use errors::AwsError;
