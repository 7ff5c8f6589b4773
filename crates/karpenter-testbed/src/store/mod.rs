//! Where objects live: revisions, optimistic concurrency, watch.
