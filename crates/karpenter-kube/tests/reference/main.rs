//! The names that users and other programs know: flags, metrics, events, errors of providers. Each table stands here as the
//! reference has it, so that none changes unnoticed.

mod events;
mod metrics;
mod options;
mod permissions;
mod provider;
