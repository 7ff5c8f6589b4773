//! Step 5: packs the pods of planned nodes that cost too much onto cheaper ones.
//!
//! `dissolve` chooses the planned nodes and replaces them, `packing` searches on numbers alone.

pub(crate) mod dissolve;
pub(crate) mod packing;
