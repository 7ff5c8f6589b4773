//! Errors of reconciliations.

use karpenter_core::provider::{CloudProviderError, ErrorCode};

/// Why a reconciliation failed; its key is requeued.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReconcileError {
    /// The API server refused or could not be reached.
    #[error("{action}, {source}")]
    Api {
        /// The action that failed, such as `creating nodeclaim`.
        action: &'static str,
        /// The error of the request.
        #[source]
        source: Box<kube::Error>,
    },
    /// A call of the provider failed.
    #[error("{action}, {source}")]
    Provider {
        /// The action that failed, such as `deleting instance`.
        action: &'static str,
        /// The error of the provider.
        #[source]
        source: CloudProviderError,
    },
    /// Several actions failed.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<ReconcileError>),
    /// The action is not allowed now; it is retried with back-off and not logged.
    #[error("{0}")]
    Refused(String),
    /// A state that should not occur.
    #[error("{0}")]
    Internal(String),
    /// The operator is stopping.
    #[error("the operator is stopping")]
    Stopping,
}

impl ReconcileError {
    /// Returns whether another client wrote the object in between; the reconciliation is repeated with the new version.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        match self {
            Self::Api { source, .. } => {
                matches!(&**source, kube::Error::Api(status) if status.is_conflict())
            }
            Self::Several(errors) => errors.iter().all(Self::is_conflict),
            Self::Provider { .. } | Self::Refused(_) | Self::Internal(_) | Self::Stopping => false,
        }
    }

    /// Returns whether the object does not exist any more; nothing is left to do then.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        match self {
            Self::Api { source, .. } => is_not_found(source),
            Self::Several(errors) => errors.iter().all(Self::is_not_found),
            Self::Provider { .. } | Self::Refused(_) | Self::Internal(_) | Self::Stopping => false,
        }
    }

    /// Returns whether the error is expected in normal operation and only retried.
    #[must_use]
    pub fn is_expected(&self) -> bool {
        self.is_conflict() || matches!(self, Self::Refused(_))
    }

    /// Returns the cloud's error code of the failed call, or all codes, comma-separated, if several calls failed.
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        let Self::Several(errors) = self else {
            return ErrorCode::of(self).cloned();
        };
        let mut codes: Vec<ErrorCode> = errors.iter().filter_map(Self::code).collect();
        codes.dedup();
        let field = codes.first()?.field;
        let texts: Vec<Box<str>> = codes.into_iter().map(|code| code.code).collect();
        Some(ErrorCode {
            field,
            code: texts.join(", ").into(),
        })
    }

    /// Logs the error with controller-runtime's message.
    pub(crate) fn log(&self, failures: u32) {
        let code = self.code();
        tracing::error!(
            error = %self,
            failures,
            "error-code.field" = code.as_ref().map(|code| code.field),
            "error-code" = code.as_deref(),
            "Reconciler error"
        );
    }

    /// Combines several errors into one; `Ok` if there are none.
    ///
    /// # Errors
    /// The single error, or all of them as [`Self::Several`].
    pub fn collect(mut errors: Vec<Self>) -> Result<(), Self> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Self::Several(errors)),
        }
    }
}

/// Returns whether the API server answered that the object does not exist.
#[must_use]
pub fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_not_found())
}

/// Adds the attempted action to an error.
pub trait Doing<T> {
    /// Wraps the error with the action as present participle: `creating nodeclaim`.
    ///
    /// # Errors
    /// The wrapped error.
    fn doing(self, action: &'static str) -> Result<T, ReconcileError>;
}

impl<T> Doing<T> for Result<T, kube::Error> {
    fn doing(self, action: &'static str) -> Result<T, ReconcileError> {
        self.map_err(|source| ReconcileError::Api {
            action,
            source: Box::new(source),
        })
    }
}

impl<T> Doing<T> for Result<T, CloudProviderError> {
    fn doing(self, action: &'static str) -> Result<T, ReconcileError> {
        self.map_err(|source| ReconcileError::Provider { action, source })
    }
}
