//! Where the repository and its binaries are.

use std::path::{Path, PathBuf};

use anyhow::Result;

/// Returns the directory of the workspace.
pub(crate) fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = package.ancestors().nth(2).unwrap_or(package);
    root.to_owned()
}

/// Returns the binary of a controller that was built next to this program.
pub(crate) fn controller_binary(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let binary = own.with_file_name(name);
    anyhow::ensure!(
        binary.is_file(),
        "{} is not built; run `cargo xtask realcluster`",
        binary.display()
    );
    Ok(binary)
}
