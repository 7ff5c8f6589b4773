//! The instance types that the controller offers.

use std::path::Path;

use anyhow::{Context, Result};
use karpenter_core::instance_type::InstanceType;
use karpenter_kwok::catalogue;

/// Reads the instance types of a file, or returns the built-in ones.
///
/// # Errors
/// When the file cannot be read, is not JSON of the format, or an instance type in it is invalid; the error names it.
pub(crate) fn load(path: Option<&Path>) -> Result<Vec<InstanceType>> {
    let types = if let Some(path) = path {
        let named = || format!("reading the instance types of {}", path.display());
        let text = std::fs::read_to_string(path).with_context(named)?;
        catalogue::parse(&text).with_context(named)?
    } else {
        catalogue::generate()
    };
    let types = types.iter().map(catalogue::InstanceTypeFile::instance_type);
    Ok(types.collect::<Result<_, _>>()?)
}
