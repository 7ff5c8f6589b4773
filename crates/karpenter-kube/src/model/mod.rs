//! The cluster as the controllers see it: one task writes, everybody reads immutable views.
//!
//! 1. One watcher task per kind turns the API server's watch into updates ([`watch`]).
//! 2. The model's task ([`task`]) owns the engine's `Cluster`, applies updates, publishes a [`View`] and tells the
//!    controllers what changed.
//! 3. After a re-list, whatever was not listed is removed: the watch does not say what vanished while it was away.
//! 4. Marks that only exist in memory (nominations, deletion marks, NodeClaims just created) go through the same task.

mod task;
mod view;
mod watch;
mod watched_pod;

pub use task::{Model, ModelHandle, State, Stopped, Subscriber};
pub use view::{AttachmentRecord, Change, NodeClass, View};
pub use watch::{Kinds, spawn_watchers};
