//! Step 4: places the pods one by one: on an existing node, else on a planned node, else on a new planned node.
//!
//! `queue` goes through the pods; `on_existing` and `on_planned` try nodes; `fit` decides about a planned node, and returns a
//! `Refusal` with its cause; `narrowing` and `affinity_seed` do what follows from a placement. The other files are the owners of
//! the state.

pub(crate) mod affinity_seed;
pub(crate) mod budgets;
pub(crate) mod devices;
pub(crate) mod existing_nodes;
pub(crate) mod fit;
pub(crate) mod narrowing;
pub(crate) mod on_existing;
pub(crate) mod on_planned;
pub(crate) mod planned_node;
pub(crate) mod queue;
pub(crate) mod row_cache;
