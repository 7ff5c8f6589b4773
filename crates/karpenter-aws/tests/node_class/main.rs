//! The controllers of EC2NodeClasses between the API server of the testbed and a stand-in for AWS over HTTP.
//!
//! The controller is called look by look, so that a test sees what one look does.
#![cfg(feature = "sdk")]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod bad_input;
mod drift;
mod profiles;
mod selection;
mod stamping;
mod support;
mod termination;
mod validation;
