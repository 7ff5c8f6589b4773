//! Errors of the management cluster in Karpenter's terms.

use karpenter_core::provider::CloudProviderError;

use crate::hub::HubError;

/// Returns an error of a request about a NodeClaim in Karpenter's terms.
pub(crate) fn refused(error: HubError) -> CloudProviderError {
    let HubError::Api(error) = error else {
        return failed("TemplateNotFound", error.to_string());
    };
    let kube::Error::Api(status) = &*error else {
        return CloudProviderError::Other(error);
    };
    let message = status.message.clone();
    match status.code {
        403 if message.contains("exceeded quota") => {
            CloudProviderError::InsufficientCapacity(message)
        }
        403 => failed("Unauthorized", message),
        404 => failed("TemplateNotFound", message),
        400 | 422 => failed("InvalidMachine", message),
        _ => CloudProviderError::Other(error),
    }
}

/// Returns an error that is reported on the NodeClaim and retried.
pub(crate) fn failed(reason: &str, message: String) -> CloudProviderError {
    CloudProviderError::Create {
        reason: reason.to_owned(),
        message,
        source: None,
    }
}

/// Returns the error of a request that is retried.
pub(crate) fn unreachable(action: &str, error: &HubError) -> CloudProviderError {
    CloudProviderError::other(format!("{action}, {error}"))
}
