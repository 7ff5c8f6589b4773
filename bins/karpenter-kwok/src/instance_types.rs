//! The instance types that the controller launches.

use std::path::Path;

use anyhow::{Context, Result};
use karpenter_core::instance_type::InstanceType;
use karpenter_kwok::catalogue;

/// Reads the instance types of a file, or returns the built-in ones without a file.
///
/// # Errors
/// If the file cannot be read, is not JSON of the expected format, or has an invalid instance type, which the error names.
pub(crate) fn load(path: Option<&Path>) -> Result<Vec<InstanceType>> {
    let types = if let Some(path) = path {
        let named = || format!("cannot read the instance types of {}", path.display());
        let text = std::fs::read_to_string(path).with_context(named)?;
        catalogue::parse(&text).with_context(named)?
    } else {
        catalogue::generate()
    };
    let types = types.iter().map(catalogue::InstanceTypeFile::instance_type);
    Ok(types.collect::<Result<_, _>>()?)
}
