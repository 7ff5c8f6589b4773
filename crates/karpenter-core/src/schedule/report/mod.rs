//! Step 6: turns the placements into a [`Plan`](plan::Plan): NodeClaims to create, and a reason for every pod without a place.
//!
//! `explain` turns the refusals of `place` into the values of `reasons`; it decides nothing.

pub(crate) mod explain;
pub(crate) mod node_claims;
pub(crate) mod plan;
pub(crate) mod planned_node_claim;
pub(crate) mod reasons;
