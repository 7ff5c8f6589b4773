//! Step 4: places the pods one by one: on an existing node, else on a planned node, else on a new planned node.
//!
//! `placer` goes through the pods and their variants; `placement` tries nodes and does what follows from placing a pod; `fit` decides
//! about a planned node, and returns a [`Refusal`](crate::schedule::place::refusal::Refusal) with its cause; `narrowing` decides labels
//! that topology constraints have to know. The other files are the owners of the state.

pub(crate) mod budgets;
pub(crate) mod devices;
pub(crate) mod existing_nodes;
mod fit;
mod narrowing;
pub(crate) mod placement;
pub(crate) mod placer;
pub(crate) mod planned_node;
mod preferences;
pub(crate) mod refusal;
pub(crate) mod row_cache;
pub(crate) mod variant;
