//! Step 1: compiles a snapshot into the numbers that the passes over it share.
//!
//! Labels, requirements and resource names become small integers ([`algebra`], [`vectors`]); instance types become rows
//! ([`catalogue`]), NodePools become templates of planned nodes ([`pools::template`]). [`solver`] calls the steps in order.

pub(crate) mod algebra;
pub(crate) mod base_counts;
pub(crate) mod bits;
pub(crate) mod capacity_index;
pub(crate) mod catalogue;
pub(crate) mod group_identity;
pub(crate) mod ids;
pub(crate) mod label_domains;
pub(crate) mod memo;
pub(crate) mod node_affinity;
pub(crate) mod nodes;
pub(crate) mod pools;
pub(crate) mod solver;
pub(crate) mod vectors;
