//! What goes wrong in a reconciliation.

use karpenter_core::provider::CloudProviderError;

/// Why a reconciliation did not come to its end; it is tried again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReconcileError {
    /// The API server refused or could not be reached.
    #[error("{action}, {source}")]
    Api {
        /// What was being done, such as `creating nodeclaim`.
        action: &'static str,
        /// Why it failed.
        #[source]
        source: Box<kube::Error>,
    },
    /// The provider refused or could not be reached.
    #[error("{action}, {source}")]
    Provider {
        /// What was being done, such as `deleting instance`.
        action: &'static str,
        /// Why it failed.
        #[source]
        source: CloudProviderError,
    },
    /// Several things went wrong.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<ReconcileError>),
    /// What was asked for is not allowed now; it is tried again with back-off, and is nothing to log.
    #[error("{0}")]
    Refused(String),
    /// Something that should not happen.
    #[error("{0}")]
    Internal(String),
    /// The operator is stopping.
    #[error("the operator is stopping")]
    Stopping,
}

impl ReconcileError {
    /// Whether somebody else wrote the object in between; looking again is all there is to do.
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

    /// Whether the object is gone; there is nothing to do then.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        match self {
            Self::Api { source, .. } => is_not_found(source),
            Self::Several(errors) => errors.iter().all(Self::is_not_found),
            Self::Provider { .. } | Self::Refused(_) | Self::Internal(_) | Self::Stopping => false,
        }
    }

    /// Whether trying again later is the ordinary course of things.
    #[must_use]
    pub fn is_expected(&self) -> bool {
        self.is_conflict() || matches!(self, Self::Refused(_))
    }

    /// One error out of many; `Ok` if there are none.
    ///
    /// # Errors
    /// The single error, or all of them.
    pub fn collect(mut errors: Vec<Self>) -> Result<(), Self> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Self::Several(errors)),
        }
    }
}

/// Whether the API server says that an object does not exist.
#[must_use]
pub fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_not_found())
}

/// Says what was being done when a request failed.
pub trait Doing<T> {
    /// Wraps the error with a present participle: `creating nodeclaim`.
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

impl From<crate::model::Stopped> for ReconcileError {
    fn from(_: crate::model::Stopped) -> Self {
        Self::Stopping
    }
}
