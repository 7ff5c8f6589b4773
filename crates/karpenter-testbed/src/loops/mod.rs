//! Who acts on objects: scheduler, workload controllers, node agents, garbage collection.
