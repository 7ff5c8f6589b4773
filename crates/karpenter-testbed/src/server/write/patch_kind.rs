//! The kinds of patches, and their application.

use serde_json::{Value, json};

use super::super::catalog::Served;
use crate::fields::ApplyError;
use crate::patch;
use crate::server::wire::error::ApiError;
use crate::server::wire::request::Call;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PatchKind {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl PatchKind {
    pub(super) fn of(served: &Served, call: &Call) -> Result<Self, ApiError> {
        match call.content_type.as_str() {
            "application/json-patch+json" => Ok(Self::Json),
            "application/merge-patch+json" => Ok(Self::Merge),
            "application/apply-patch+yaml" => Ok(Self::Apply),
            "application/strategic-merge-patch+json" if !served.is_custom() => Ok(Self::Strategic),
            _ => {
                let accepted = if served.is_custom() {
                    "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
                } else {
                    "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, application/apply-patch+yaml"
                };
                Err(ApiError::new(
                    415,
                    "UnsupportedMediaType",
                    format!(
                        "the body of the request was in an unknown format - accepted media types include: {accepted}"
                    ),
                ))
            }
        }
    }

    pub(super) fn apply(
        self,
        served: &Served,
        old: &Value,
        patch: &Value,
    ) -> Result<Value, ApiError> {
        match self {
            Self::Json => patch::json(old, patch),
            Self::Merge | Self::Apply => patch::merge(old, patch),
            Self::Strategic => patch::strategic(old, patch, &served.schema),
        }
        .map_err(|error| {
            let refused = ApiError::new(error.code(), error.reason(), error.to_string());
            if error.code() == 422 {
                refused.with_details(json!({}))
            } else {
                refused
            }
        })
    }
}

/// Returns the response to a rejected apply.
pub(super) fn refused_apply(error: ApplyError) -> ApiError {
    let message = error.to_string();
    match error {
        ApplyError::Conflicts(conflicts) => {
            let causes: Vec<Value> = conflicts
                .iter()
                .map(|c| {
                    json!({
                        "reason": "FieldManagerConflict",
                        "message": format!("conflict with {}", c.owner),
                        "field": c.field,
                    })
                })
                .collect();
            ApiError::new(409, "Conflict", message).with_details(json!({"causes": causes}))
        }
        ApplyError::ManagedFields => ApiError::bad_request(message),
        _ => ApiError::internal(message),
    }
}
