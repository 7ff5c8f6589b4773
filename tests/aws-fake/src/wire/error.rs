//! Errors of AWS: code, message and HTTP status, rendered for each protocol.

use serde_json::json;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct AwsError {
    /// Error code, such as `InvalidInstanceID.NotFound`.
    pub code: String,
    pub message: String,
    pub status: u16,
}

impl AwsError {
    /// Creates an error with the HTTP status that AWS uses for the code.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        let code = code.into();
        let status = status_of(&code);
        Self {
            code,
            message: message.into(),
            status,
        }
    }

    pub(crate) fn invalid_value(message: impl Into<String>) -> Self {
        Self::new("InvalidParameterValue", message)
    }

    pub(crate) fn missing(parameter: &str) -> Self {
        Self::new(
            "MissingParameter",
            format!("The request must contain the parameter {parameter}"),
        )
    }

    /// Refuses what EC2 accepts and the stand-in does not implement, as Karpenter does not use it.
    pub(crate) fn unsupported(what: &str) -> Self {
        Self::new(
            "UnsupportedOperation",
            format!("not implemented here: {what}"),
        )
    }

    pub(crate) fn combination(message: impl Into<String>) -> Self {
        Self::new("InvalidParameterCombination", message)
    }
}

/// Returns the HTTP status that AWS sends with a code.
fn status_of(code: &str) -> u16 {
    match code {
        "AuthFailure" => 401,
        "UnauthorizedOperation" | "AccessDenied" => 403,
        "NoSuchEntity" | "ResourceNotFoundException" => 404,
        "EntityAlreadyExists" | "DeleteConflict" | "LimitExceeded" => 409,
        "DryRunOperation" => 412,
        "InternalError" | "InternalFailure" | "InsufficientInstanceCapacity" => 500,
        "RequestLimitExceeded" | "Unavailable" | "ServiceUnavailable" => 503,
        _ => 400,
    }
}

/// Protocols of AWS services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// EC2's dialect of the Query protocol.
    Ec2,
    /// The Query protocol of IAM and STS; the string is the XML namespace.
    Query(&'static str),
    /// JSON with an `X-Amz-Target` header; the string is the content type.
    Json(&'static str),
    /// JSON behind REST paths.
    RestJson,
}

impl Protocol {
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Ec2 => "text/xml;charset=UTF-8",
            Self::Query(_) => "text/xml",
            Self::Json(kind) => kind,
            Self::RestJson => "application/json",
        }
    }

    /// Renders the body of an error response.
    pub(crate) fn error_body(self, error: &AwsError, request_id: &str) -> String {
        let mut code = String::new();
        let mut message = String::new();
        super::xml::escape(&error.code, &mut code);
        super::xml::escape(&error.message, &mut message);
        match self {
            Self::Ec2 => format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors><RequestID>{request_id}</RequestID></Response>"
            ),
            Self::Query(namespace) => {
                let side = if error.status >= 500 {
                    "Receiver"
                } else {
                    "Sender"
                };
                format!(
                    "<ErrorResponse xmlns=\"{namespace}\"><Error><Type>{side}</Type><Code>{code}</Code><Message>{message}</Message></Error><RequestId>{request_id}</RequestId></ErrorResponse>"
                )
            }
            Self::Json(_) => json!({"__type": error.code, "message": error.message}).to_string(),
            Self::RestJson => json!({"message": error.message}).to_string(),
        }
    }
}
