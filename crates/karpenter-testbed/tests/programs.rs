//! The embedded API server with real programs, Helm and kubectl.

mod charts;
mod kubectl;
