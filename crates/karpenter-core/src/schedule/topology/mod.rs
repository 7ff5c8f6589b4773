//! Step 3: counts the pods of topology constraints by domain, and tells which domains and nodes are left for a pod.

pub(crate) mod choices;
pub(crate) mod counted_domains;
pub(crate) mod domains;
pub(crate) mod group;
pub(crate) mod identities;
pub(crate) mod initial_counts;
pub(crate) mod links;
pub(crate) mod on_planned;
pub(crate) mod term_domains;
