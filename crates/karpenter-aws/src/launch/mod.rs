//! Which machines to ask EC2 for: pure decisions on the way from a NodeClaim to a fleet request.

pub mod filter;
