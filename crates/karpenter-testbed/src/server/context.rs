//! Who asks, and when: what every step of a write needs to know.

use jiff::Timestamp;
use serde_json::Value;

use super::request::{Call, FieldValidation};

/// The circumstances of one write.
#[derive(Debug, Clone)]
pub struct Context {
    /// The field manager.
    pub manager: String,
    /// Nothing is stored.
    pub dry_run: bool,
    /// How unknown fields are treated.
    pub validation: FieldValidation,
    /// The subresource written through, if any.
    pub subresource: Option<String>,
    /// The cluster's time.
    pub now: Timestamp,
}

impl Context {
    /// From a call.
    #[must_use]
    pub fn new(call: &Call, now: Timestamp) -> Self {
        Self {
            manager: call.manager().to_owned(),
            dry_run: call.options.dry_run,
            validation: call.options.field_validation,
            subresource: call.target.subresource.clone(),
            now,
        }
    }

    /// The cluster's time as `metadata` fields show it (whole seconds).
    #[must_use]
    pub fn timestamp(&self) -> Value {
        timestamp(self.now)
    }
}

/// A time as `metadata` fields show it (whole seconds).
#[must_use]
pub fn timestamp(time: Timestamp) -> Value {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into()
}
