//! What goes wrong on purpose: errors, latency and lost connections per call.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::wire::{Incoming, error::AwsError};

/// A fault the next matching calls run into. Entries are tried in order; the first that matches and is not used up counts.
///
/// ```
/// use karpenter_aws_fake::Fault;
/// let twice = Fault::error("CreateFleet", "RequestLimitExceeded").times(2);
/// let lost = Fault::drop_answer("CreateFleet");
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// The action it hits, such as `CreateFleet`; `*` hits every call.
    pub action: String,
    /// Only calls whose decoded request contains this text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub containing: Option<String>,
    /// How many more calls it hits; absent means once, as in the Python stand-in.
    #[serde(default = "once")]
    pub times: u32,
    /// Answer this error code instead of doing anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The error's message; the code when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The HTTP status; what AWS uses for the code when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Seconds to wait before answering.
    #[serde(default)]
    pub delay_s: f64,
    /// Whether and when the connection is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drop: Option<Cut>,
}

/// When a connection is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cut {
    /// Before the call has had an effect.
    Request,
    /// After the effect, before the answer: the caller cannot know what happened.
    Answer,
}

fn once() -> u32 {
    1
}

impl Fault {
    fn on(action: &str) -> Self {
        Self {
            action: action.to_owned(),
            containing: None,
            times: 1,
            code: None,
            message: None,
            status: None,
            delay_s: 0.0,
            drop: None,
        }
    }

    /// The next call of `action` fails with `code`.
    #[must_use]
    pub fn error(action: &str, code: &str) -> Self {
        Self {
            code: Some(code.to_owned()),
            ..Self::on(action)
        }
    }

    /// The next call of `action` is answered `delay` later.
    #[must_use]
    pub fn latency(action: &str, delay: Duration) -> Self {
        Self {
            delay_s: delay.as_secs_f64(),
            ..Self::on(action)
        }
    }

    /// The next call of `action` never arrives.
    #[must_use]
    pub fn drop_request(action: &str) -> Self {
        Self {
            drop: Some(Cut::Request),
            ..Self::on(action)
        }
    }

    /// The next call of `action` takes effect, and its answer is lost.
    #[must_use]
    pub fn drop_answer(action: &str) -> Self {
        Self {
            drop: Some(Cut::Answer),
            ..Self::on(action)
        }
    }

    /// Hits `times` calls.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = times;
        self
    }

    /// Hits every matching call until removed.
    #[must_use]
    pub fn always(self) -> Self {
        self.times(u32::MAX)
    }

    /// Hits only calls whose decoded request contains `text`.
    #[must_use]
    pub fn containing(mut self, text: &str) -> Self {
        self.containing = Some(text.to_owned());
        self
    }

    /// Uses this message.
    #[must_use]
    pub fn message(mut self, message: &str) -> Self {
        self.message = Some(message.to_owned());
        self
    }

    /// The error it answers, if it does.
    pub(crate) fn as_error(&self) -> Option<AwsError> {
        let code = self.code.as_ref()?;
        let mut error = AwsError::new(code.clone(), self.message.as_ref().unwrap_or(code).clone());
        if let Some(status) = self.status {
            error.status = status;
        }
        Some(error)
    }

    pub(crate) fn delay(&self) -> Duration {
        Duration::try_from_secs_f64(self.delay_s).unwrap_or_default()
    }
}

/// Takes the fault `call` runs into, if any, off the list.
pub(crate) fn take(faults: &mut [Fault], call: &Incoming) -> Option<Fault> {
    let fault = faults.iter_mut().find(|f| {
        f.times > 0
            && (f.action == "*" || f.action == call.action)
            && f.containing.as_ref().is_none_or(|t| call.text.contains(t))
    })?;
    if fault.times != u32::MAX {
        fault.times -= 1;
    }
    Some(fault.clone())
}
