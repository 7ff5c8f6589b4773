//! Injected faults: errors and lost responses per call.

use crate::wire::Incoming;
use crate::wire::error::AwsError;

/// A fault of the next matching calls. Entries are tried in order; the first that matches and is not used up applies.
///
/// ```
/// use karpenter_aws_fake::Fault;
/// let twice = Fault::error("CreateFleet", "RequestLimitExceeded").times(2);
/// let lost = Fault::drop_answer("CreateFleet");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Fault {
    /// Action of the affected calls, such as `CreateFleet`; `*` for every call.
    pub action: String,
    /// Affects only calls whose decoded request contains this text.
    pub containing: Option<String>,
    /// Number of affected calls.
    pub times: u32,
    /// Error code to return instead of executing the call.
    pub code: Option<String>,
    /// Error message; the default is the code.
    pub message: Option<String>,
    /// Whether the connection is dropped after the call, before the response: the caller cannot know the outcome.
    pub loses_answer: bool,
}

impl Fault {
    fn on(action: &str) -> Self {
        Self {
            action: action.to_owned(),
            containing: None,
            times: 1,
            code: None,
            message: None,
            loses_answer: false,
        }
    }

    /// Creates a fault: the next call of `action` fails with `code`.
    #[must_use]
    pub fn error(action: &str, code: &str) -> Self {
        Self {
            code: Some(code.to_owned()),
            ..Self::on(action)
        }
    }

    /// Creates a fault: the next call of `action` is executed, and its response is lost.
    #[must_use]
    pub fn drop_answer(action: &str) -> Self {
        Self {
            loses_answer: true,
            ..Self::on(action)
        }
    }

    /// Affects this number of calls.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = times;
        self
    }

    /// Affects every matching call until the fault is removed.
    #[must_use]
    pub fn always(self) -> Self {
        self.times(u32::MAX)
    }

    /// Affects only calls whose decoded request contains `text`.
    #[must_use]
    pub fn containing(mut self, text: &str) -> Self {
        self.containing = Some(text.to_owned());
        self
    }

    #[must_use]
    pub fn message(mut self, message: &str) -> Self {
        self.message = Some(message.to_owned());
        self
    }

    /// Returns the error to return, if there is one.
    pub(crate) fn as_error(&self) -> Option<AwsError> {
        let code = self.code.as_ref()?;
        let message = self.message.as_ref().unwrap_or(code);
        Some(AwsError::new(code, message))
    }
}

/// Takes the fault that applies to `call` off the list, if any.
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
