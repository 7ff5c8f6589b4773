//! The model of the cluster: one task writes, all controllers read immutable views.
//!
//! 1. One watcher task per kind turns the API server's watch into updates ([`watch`]).
//! 2. The updates are a closed list ([`update`]); controllers queue theirs through a [`ModelHandle`].
//! 3. The model's task ([`task`]) owns the engine's `Cluster` ([`state`]), applies updates, publishes a [`View`] and calls the
//!    subscribers with each change.
//! 4. After a re-list, objects that were not listed are removed: the watch does not report deletions that it missed.
//! 5. State that only exists in memory (nominations, deletion marks, NodeClaims just created) goes through the same task.

mod handle;
mod state;
mod task;
mod update;
mod view;
mod watch;
mod watched;

pub use handle::{ModelHandle, Stopped};
#[cfg(test)]
pub(crate) use state::State;
pub use task::{Model, Subscriber};
pub use view::{Change, NodeClass, View};
pub use watch::{Kinds, spawn_watchers};
pub(crate) use watched::trim_node;
