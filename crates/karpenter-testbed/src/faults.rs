//! What goes wrong on purpose: errors, latency, conflicts, dropped watches, compaction, stale reads.
