//! Step 5: packs the pods of planned nodes that cost too much onto cheaper ones.

pub(crate) mod dissolve;
pub(crate) mod improve;
pub(crate) mod packing;
