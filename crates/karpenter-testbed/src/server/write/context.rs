//! The context of a write: its user and time.

use jiff::Timestamp;
use serde_json::Value;

use crate::fields;
use crate::fields::Writer;
use crate::server::catalog::Served;
use crate::server::wire::request::{Call, FieldValidation};

/// The context of one write.
#[derive(Debug, Clone)]
pub struct Context {
    pub manager: String,
    pub dry_run: bool,
    /// How unknown fields are treated.
    pub validation: FieldValidation,
    /// The subresource of the write, if any.
    pub subresource: Option<String>,
    pub now: Timestamp,
    /// Server-side apply: the managed fields are already written.
    pub applied: bool,
}

impl Context {
    #[must_use]
    pub fn new(call: &Call, now: Timestamp) -> Self {
        Self {
            manager: call.manager().to_owned(),
            dry_run: call.options.dry_run,
            validation: call.options.field_validation,
            subresource: call.target.subresource.clone(),
            now,
            applied: false,
        }
    }

    /// Returns the context of a write by the server itself.
    #[must_use]
    pub fn internal(manager: &str, subresource: Option<&str>, now: Timestamp) -> Self {
        Self {
            manager: manager.to_owned(),
            dry_run: false,
            validation: FieldValidation::Ignore,
            subresource: subresource.map(str::to_owned),
            now,
            applied: false,
        }
    }

    /// Records this write in an object's managed fields.
    pub fn track(&self, served: &Served, old: Option<&Value>, new: &mut Value) {
        if self.applied {
            return;
        }
        self.as_writer(served, |writer| {
            fields::track_update(old, new, &served.schema, writer);
        });
    }

    /// Calls `act` with this write as a managed fields writer.
    pub fn as_writer<T>(&self, served: &Served, act: impl FnOnce(&Writer<'_>) -> T) -> T {
        let now = timestamp_text(self.now);
        let subresource = self.subresource.as_deref().unwrap_or_default();
        let ignored: &[&str] = match subresource {
            "" if served.subresource("status").is_some() => &["status"],
            "status" if served.is_custom() => &["spec", "metadata"],
            "status" => &["spec"],
            _ => &[],
        };
        act(&Writer {
            manager: &self.manager,
            api_version: &served.api_version(),
            subresource: match subresource {
                "binding" | "eviction" => "",
                other => other,
            },
            now: &now,
            ignored,
        })
    }

    /// Returns the cluster's time in the format of `metadata` (whole seconds).
    #[must_use]
    pub fn timestamp(&self) -> Value {
        timestamp(self.now)
    }
}

/// Formats a time as in `metadata` (whole seconds).
#[must_use]
pub fn timestamp(time: Timestamp) -> Value {
    timestamp_text(time).into()
}

fn timestamp_text(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
