//! JSON, merge and strategic merge patches.
//!
//! - [`json`]: RFC 6902 operations.
//! - [`merge`]: RFC 7386.
//! - [`strategic`]: Kubernetes' merge patch that knows the merge keys of built-in types.
//!
//! Each takes the current object and the decoded body and returns the patched object, or a [`PatchError`] with the server's
//! `Status` ([`PatchError::code`], [`PatchError::reason`]; the message is the error's text). Server-side apply is in
//! [`crate::fields`].

mod strategic_merge;

use serde_json::Value;

use crate::registry::schema::Schema;

/// Maximum number of operations of a JSON patch.
pub const MAX_OPERATIONS: usize = 10_000;

/// The reason why a patch cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PatchError {
    /// The body is not a patch: 400 `BadRequest`.
    #[error("{0}")]
    Malformed(String),
    /// A JSON patch operation failed: 422 `Invalid` with this generic text and empty details, as a real server responds.
    #[error("the server rejected our request due to an error in our request")]
    Rejected {
        /// The failure, for the server's log.
        cause: String,
    },
    /// Too many operations: 413 `RequestEntityTooLarge`.
    #[error("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {0}")]
    TooManyOperations(usize),
    /// A strategic merge patch that does not match the type: 400 `BadRequest`.
    #[error("{0}")]
    Strategic(String),
}

impl PatchError {
    /// Returns the HTTP status of the response.
    pub fn code(&self) -> u16 {
        match self {
            Self::Malformed(_) | Self::Strategic(_) => 400,
            Self::Rejected { .. } => 422,
            Self::TooManyOperations(_) => 413,
        }
    }

    /// Returns the `reason` of the Status.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Malformed(_) | Self::Strategic(_) => "BadRequest",
            Self::Rejected { .. } => "Invalid",
            Self::TooManyOperations(_) => "RequestEntityTooLarge",
        }
    }
}

/// Applies a JSON patch (RFC 6902).
///
/// # Errors
///
/// [`PatchError::Malformed`] if `patch` is not a list of operations, [`PatchError::Rejected`] if an operation fails.
pub fn json(object: &Value, patch: &Value) -> Result<Value, PatchError> {
    let operations: json_patch::Patch = serde_json::from_value(patch.clone())
        .map_err(|error| PatchError::Malformed(format!("error decoding patch: {error}")))?;
    if operations.len() > MAX_OPERATIONS {
        return Err(PatchError::TooManyOperations(operations.len()));
    }
    let mut patched = object.clone();
    for operation in &operations.0 {
        // Unlike RFC 6902, API servers let a test for null succeed for a missing value; kube's finalizer relies on it.
        if let json_patch::PatchOperation::Test(test) = operation
            && test.value.is_null()
            && patched.pointer(test.path.as_str()).is_none()
        {
            continue;
        }
        json_patch::patch_unsafe(&mut patched, std::slice::from_ref(operation)).map_err(
            |error| PatchError::Rejected {
                cause: error.to_string(),
            },
        )?;
    }
    if patched.is_object() {
        Ok(patched)
    } else {
        Err(PatchError::Rejected {
            cause: "the patch replaces the object by a scalar".into(),
        })
    }
}

/// Applies a merge patch (RFC 7386).
///
/// # Errors
///
/// [`PatchError::Malformed`] if `patch` is not an object.
pub fn merge(object: &Value, patch: &Value) -> Result<Value, PatchError> {
    if !patch.is_object() {
        return Err(PatchError::Malformed(
            "error decoding patch: Invalid JSON Patch".into(),
        ));
    }
    let mut patched = object.clone();
    json_patch::merge(&mut patched, patch);
    Ok(patched)
}

/// Applies a strategic merge patch to an object of a built-in type.
///
/// # Errors
///
/// [`PatchError::Malformed`] if `patch` is not an object, [`PatchError::Strategic`] if a directive is unknown, a list item has no
/// merge key or a patch contradicts its `$retainKeys`.
pub fn strategic(object: &Value, patch: &Value, schema: &Schema) -> Result<Value, PatchError> {
    let (Value::Object(original), Value::Object(patch)) = (object, patch) else {
        return Err(PatchError::Malformed(
            "error decoding patch: expected a JSON object".into(),
        ));
    };
    strategic_merge::merge_map(original.clone(), patch.clone(), schema).map(Value::Object)
}
