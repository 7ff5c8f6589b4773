//! NodeOverlays (gate NodeOverlay): which of them count, and instance types as they change them.
//!
//! 1. [`Evaluation`] validates the overlays, finds those that contradict each other in some NodePool, and says so on their
//!    conditions. Those that remain are published.
//! 2. [`Overlaid`] is the provider as everybody else sees it: instance types come with the overlays applied. A NodePool that
//!    has not been evaluated yet has none, so that nothing is bought at a price that is about to change.
//!
//! UPSTREAM: pkg/controllers/nodeoverlay, pkg/cloudprovider/overlay

mod evaluation;
mod provider;

pub use evaluation::Evaluation;
pub use provider::{Accepted, Overlaid};
