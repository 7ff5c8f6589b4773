//! Commands that tasks run.

use std::process::Command;

use anyhow::{Context as _, ensure};

/// Runs a command that must succeed.
pub(crate) fn succeed(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status();
    let status = status.with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?} failed");
    Ok(())
}
