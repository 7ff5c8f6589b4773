//! The controllers of EC2NodeClasses between the API server of the testbed and a stand-in for AWS over HTTP.
//!
//! Each test triggers reconciliations one by one, to observe the effect of each.
#![cfg(feature = "sdk")]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod bad_input;
mod drift;
mod metadata;
mod profiles;
mod selection;
mod support;
mod termination;
mod validation;
