//! Pure decisions on the way from a NodeClaim to a fleet request.

pub mod filter;
