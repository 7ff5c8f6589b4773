//! Classification of failed calls.
//!
//! EC2's models have no errors, only a code and a message, so the codes are classified here, once.
//!
//! UPSTREAM: pkg/errors/errors.go

use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::display::DisplayErrorContext;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use aws_types::request_id::RequestId;
use karpenter_core::provider::ErrorCode;

/// The stage at which a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The request was not sent: it is invalid, or there are no credentials.
    Unsent,
    /// No connection could be established.
    Connection,
    /// No answer arrived in time, or it was cut off: the call may have had its effect.
    NoAnswer,
    /// The response could not be parsed.
    Unreadable,
    /// AWS refused the call.
    Refused,
    /// The call was not sent, because all recent calls to the service failed.
    CircuitOpen,
}

/// A failed call to AWS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwsError {
    /// Name of the operation, such as `CreateFleet`.
    pub operation: &'static str,
    /// The stage at which the call failed.
    pub failure: Failure,
    /// Error code of AWS, if it answered.
    pub code: Option<ErrorCode>,
    /// Message of AWS or of the connection.
    pub message: String,
    /// Request ID of AWS, for AWS support.
    pub request_id: Option<String>,
    /// HTTP status, if AWS answered.
    pub status: Option<u16>,
}

impl std::fmt::Display for AwsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, ", self.operation)?;
        if let Some(code) = &self.code {
            write!(f, "{code}: ")?;
        }
        f.write_str(&self.message)?;
        match &self.request_id {
            Some(id) => write!(f, " (request {id})"),
            None => Ok(()),
        }
    }
}

/// The field of log lines with AWS's error code.
const CODE_FIELD: &str = "aws-error-code";

/// The code is the error's source, so that every log call finds it, whatever wraps the error.
impl std::error::Error for AwsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        let code = self.code.as_ref()?;
        Some(code)
    }
}

fn code(text: &str) -> ErrorCode {
    ErrorCode {
        field: CODE_FIELD,
        code: text.into(),
    }
}

/// Error codes for resources that do not exist.
const NOT_FOUND: [&str; 12] = [
    "InvalidCapacityReservationId.NotFound",
    "InvalidInstanceID.NotFound",
    "InvalidLaunchTemplateName.NotFoundException",
    "InvalidLaunchTemplateId.NotFound",
    "InvalidLaunchTemplateId.NotFoundException",
    "InvalidPlacementGroup.Unknown",
    "InvalidPlacementGroupId.NotFound",
    "InvalidPlacementGroupId.Unknown",
    "QueueDoesNotExist",
    "AWS.SimpleQueueService.NonExistentQueue",
    "NoSuchEntity",
    "ParameterNotFound",
];

/// Error codes of throttling.
const RATE_LIMITED: [&str; 12] = [
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "RequestThrottledException",
    "RequestThrottled",
    "TooManyRequestsException",
    "EC2ThrottledException",
    "BandwidthLimitExceeded",
    "LimitExceededException",
    "SlowDown",
    "PriorRequestNotComplete",
];

/// Error codes of missing permissions.
const UNAUTHORIZED: [&str; 8] = [
    "UnauthorizedOperation",
    "AccessDenied",
    "AccessDeniedException",
    "AuthFailure",
    "AuthorizationError",
    "UnrecognizedClientException",
    "ExpiredToken",
    "InvalidClientTokenId",
];

/// Error codes of a fleet for pools without capacity.
const UNFULFILLABLE: [&str; 8] = [
    "InsufficientInstanceCapacity",
    "MaxSpotInstanceCountExceeded",
    "VcpuLimitExceeded",
    "UnfulfillableCapacity",
    "Unsupported",
    "InsufficientFreeAddressesInSubnet",
    "MaxFleetCountExceeded",
    "ReservationCapacityExceeded",
];

/// Error code for a missing service-linked role for spot instances that the caller may not create.
pub const SPOT_ROLE_MISSING: &str = "AuthFailure.ServiceLinkedRoleCreationNotPermitted";
/// Error code for a subnet without free IP addresses.
pub const NO_FREE_ADDRESSES: &str = "InsufficientFreeAddressesInSubnet";
/// Reason for a launch that the caller may not make.
const UNAUTHORIZED_REASON: &str = "Unauthorized";
/// Start of the message for a spread placement group that is full in a zone.
const SPREAD_LIMIT: &str = "limit of instances in this spread placement group";

impl AwsError {
    pub fn new<E>(operation: &'static str, error: &SdkError<E, HttpResponse>) -> Self
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        let failure = match error {
            SdkError::ConstructionFailure(_) => Failure::Unsent,
            SdkError::TimeoutError(_) => Failure::NoAnswer,
            SdkError::DispatchFailure(failure) if failure.is_timeout() || failure.is_io() => {
                Failure::NoAnswer
            }
            // Without credentials nothing was sent, and a retry makes no difference.
            SdkError::DispatchFailure(failure) if failure.is_user() || failure.is_other() => {
                Failure::Connection
            }
            SdkError::DispatchFailure(_) => Failure::Connection,
            SdkError::ResponseError(_) => Failure::Unreadable,
            _ => Failure::Refused,
        };
        let answer = error.as_service_error().map(ProvideErrorMetadata::meta);
        let request_id = answer
            .and_then(RequestId::request_id)
            .or_else(|| error.raw_response().and_then(RequestId::request_id));
        let message = match answer.and_then(|m| m.message()) {
            Some(message) => message.to_owned(),
            None => DisplayErrorContext(error).to_string(),
        };
        Self {
            operation,
            failure,
            code: answer.and_then(|m| m.code()).map(code),
            message,
            request_id: request_id.map(str::to_owned),
            status: error.raw_response().map(|r| r.status().as_u16()),
        }
    }

    fn of(operation: &'static str, failure: Failure, message: impl Into<String>) -> Self {
        Self {
            operation,
            failure,
            code: None,
            message: message.into(),
            request_id: None,
            status: None,
        }
    }

    /// Creates the error from a part of a successful response, such as a fleet's errors of single pools.
    pub fn refused(operation: &'static str, refusal: &str, message: &str) -> Self {
        Self {
            code: Some(code(refusal)),
            ..Self::of(operation, Failure::Refused, message)
        }
    }

    /// Creates the error of a call without answer within `waited`.
    pub fn no_answer(operation: &'static str, waited: std::time::Duration) -> Self {
        let message = format!("no answer came within {} seconds", waited.as_secs());
        Self::of(operation, Failure::NoAnswer, message)
    }

    /// Creates the error of a response that lacks a required part.
    pub fn unreadable(operation: &'static str, message: impl Into<String>) -> Self {
        Self::of(operation, Failure::Unreadable, message)
    }

    /// Creates the error of a call that was not sent because the service's circuit is open.
    pub fn circuit_open(operation: &'static str, service: &str) -> Self {
        let message = format!("{service} has failed repeatedly and is not called for a moment");
        Self::of(operation, Failure::CircuitOpen, message)
    }

    fn is_code(&self, codes: &[&str]) -> bool {
        self.code.as_deref().is_some_and(|c| codes.contains(&c))
    }

    /// Returns a message for users: the same text for the same error, so without IDs that differ between calls.
    #[must_use]
    pub fn sentence(&self) -> String {
        match self.failure {
            Failure::Refused => {
                let encoded = "Encoded authorization failure message";
                let message = self.message.split(encoded).next().unwrap_or_default();
                let code = self.code.as_deref().unwrap_or("no code");
                format!("{}, {code}: {}", self.operation, message.trim())
            }
            Failure::Unsent => format!("cannot send {}: {}", self.operation, self.message),
            _ => format!("{} is not answered by AWS", self.operation),
        }
    }

    /// Returns whether AWS refused the call, so that an unchanged retry does not help.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        self.failure == Failure::Refused && !self.is_rate_limited() && !self.is_server_fault()
    }

    /// Returns whether a policy forbids the call.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        self.is_code(&[
            "UnauthorizedOperation",
            "AccessDenied",
            "AccessDeniedException",
        ])
    }

    /// Returns the missing permission, and the kind of policy that denies it.
    #[must_use]
    pub fn denial(&self) -> String {
        let text = self.message.as_str();
        let has = |needle: &str| text.contains(needle);
        let why = if has("permissions boundary") {
            "no permissions boundary allows it"
        } else if has("service control policy") {
            "a service control policy (SCP) denies it"
        } else if has("resource control policy") {
            "a resource control policy (RCP) denies it"
        } else if has("session policy") {
            "no session policy allows it"
        } else if has("VPC endpoint policy") {
            "the policy of the VPC endpoint does not allow it"
        } else if has("explicit deny") {
            "a policy denies it"
        } else {
            "no identity-based policy allows it"
        };
        let needed = match (self.denied_action(), self.word_after("on resource: ")) {
            (Some(action), Some(resource)) => format!(" (`{action}` on `{resource}`)"),
            (Some(action), None) => format!(" (`{action}`)"),
            _ => String::new(),
        };
        format!("User is not authorized to perform this operation because {why}{needed}")
    }

    /// Returns the denied action, such as `iam:PassRole`: a call may need further permissions besides its own.
    #[must_use]
    pub fn denied_action(&self) -> Option<&str> {
        self.word_after("not authorized to perform: ")
    }

    fn word_after(&self, mark: &str) -> Option<&str> {
        let rest = self.message.split_once(mark)?.1;
        rest.split_whitespace().next()
    }

    /// Returns whether the user data is larger than EC2 accepts.
    #[must_use]
    pub fn is_user_data_too_large(&self) -> bool {
        self.is_code(&["InvalidUserData.Malformed"])
            && ["limited to", "too large", "exceeds"]
                .iter()
                .any(|word| self.message.contains(word))
    }

    /// Returns whether EC2 does not know the instance profile, maybe not yet.
    #[must_use]
    pub fn is_instance_profile_not_found(&self) -> bool {
        self.message.contains("Invalid IAM Instance Profile name")
    }

    /// Returns whether the requested resource does not exist.
    pub fn is_not_found(&self) -> bool {
        self.is_code(&NOT_FOUND)
            // EKS and ARC zonal shift return only the name of the exception.
            || self.is_code(&["ResourceNotFoundException"])
    }

    /// Returns whether the resource to create already exists.
    pub fn is_already_exists(&self) -> bool {
        self.is_code(&[
            "EntityAlreadyExists",
            "InvalidLaunchTemplateName.AlreadyExistsException",
        ])
    }

    /// Returns whether a permission is missing.
    pub fn is_unauthorized(&self) -> bool {
        self.is_code(&UNAUTHORIZED)
    }

    /// Returns whether the call was throttled.
    pub fn is_rate_limited(&self) -> bool {
        self.is_code(&RATE_LIMITED)
    }

    /// Returns whether AWS or the network failed, so that a retry may succeed.
    pub fn is_server_fault(&self) -> bool {
        match self.failure {
            Failure::Connection
            | Failure::NoAnswer
            | Failure::Unreadable
            | Failure::CircuitOpen => true,
            Failure::Unsent => false,
            Failure::Refused => {
                self.status.is_some_and(|s| s >= 500)
                    || self.is_code(&["InternalError", "InternalFailure", "ServiceUnavailable"])
            }
        }
    }

    /// Returns whether the call was a dry run that would have succeeded.
    pub fn is_dry_run(&self) -> bool {
        self.is_code(&["DryRunOperation"])
    }

    /// Returns whether a fleet's launch template does not exist.
    pub fn is_launch_template_not_found(&self) -> bool {
        self.is_code(&[
            "InvalidLaunchTemplateName.NotFoundException",
            "InvalidLaunchTemplateId.NotFound",
            "InvalidLaunchTemplateId.NotFoundException",
        ])
    }

    /// Returns whether the pool has no capacity; another may have some.
    pub fn is_unfulfillable(&self) -> bool {
        self.is_code(&UNFULFILLABLE) || self.is_spread_limit()
    }

    /// Returns whether a spread placement group is full in a zone.
    pub fn is_spread_limit(&self) -> bool {
        self.message.contains(SPREAD_LIMIT)
    }

    /// Returns whether the subnet has no free IP addresses.
    pub fn is_out_of_addresses(&self) -> bool {
        self.is_code(&[NO_FREE_ADDRESSES])
    }

    /// Returns whether the service-linked role for spot instances is missing and may not be created.
    pub fn is_spot_role_missing(&self) -> bool {
        self.is_code(&[SPOT_ROLE_MISSING])
    }
}

/// Returns reason and message of a NodeClaim's Launched condition for a launch that failed with these errors: the most
/// specific reason first, lack of capacity last, because it is reported only if there is no other reason.
#[must_use]
pub fn reason_and_message<'a>(
    errors: impl IntoIterator<Item = &'a AwsError>,
) -> (&'static str, String) {
    let errors: Vec<&AwsError> = errors.into_iter().collect();
    let text: String = errors.iter().map(|e| format!("{e}\n")).collect();
    let has = |needle: &str| text.contains(needle);
    let known: [(bool, &str, &str); 18] = [
        (
            has(SPOT_ROLE_MISSING),
            "SpotSLRCreationFailed",
            "User does not have sufficient permission to create the Spot ServiceLinkedRole to launch spot instances",
        ),
        (
            has("not authorized for images") || has("Not authorized for images"),
            "AMIAuthorizationFailure",
            "The account may not launch the AMI: share it with the account, or select another",
        ),
        (
            has("UnauthorizedOperation") || has("AccessDenied") || has("AuthFailure"),
            UNAUTHORIZED_REASON,
            "User is not authorized to perform this operation because no identity-based policy allows it",
        ),
        (
            has("belong to different networks"),
            "SecurityGroupSubnetVPCMismatch",
            "Security groups and subnets of the EC2NodeClass belong to different VPCs",
        ),
        (
            has("iamInstanceProfile.name is invalid") || has("Invalid IAM Instance Profile name"),
            "InstanceProfileNameInvalid",
            "Instance profile name used from EC2NodeClass status does not exist",
        ),
        (
            has("InvalidLaunchTemplateId.NotFound")
                || has("InvalidLaunchTemplateName.NotFoundException"),
            "LaunchTemplateNotFound",
            "Launch template used for instance launch wasn't found",
        ),
        (
            has("User data is limited to") || has("UserData is too large"),
            "UserDataSizeLimitExceeded",
            "User data is larger than EC2 takes: shorten spec.userData of the EC2NodeClass",
        ),
        (
            has("InvalidAMIID.Malformed"),
            "InvalidAMIID",
            "AMI used for instance launch is invalid",
        ),
        (
            has("InvalidAMIID.NotFound") || has("InvalidAMIID.Unavailable"),
            "AMINotFound",
            "AMI used for instance launch no longer exists",
        ),
        (
            has("RequestLimitExceeded"),
            "RequestLimitExceeded",
            "Request limit exceeded",
        ),
        (
            has("InternalError"),
            "InternalError",
            "An internal error has occurred",
        ),
        (
            has("not eligible for Free Tier"),
            "FreeTierIneligible",
            "The account's free plan does not include the instance types",
        ),
        (
            has("MaxFleetCountExceeded"),
            "FleetQuotaExceeded",
            "Request exceeds quota limit for Fleet requests",
        ),
        (
            has("PendingVerification"),
            "AccountPendingVerification",
            "An error occurred when EC2 verified the account: AWS answers when it is done",
        ),
        (
            has("MaxSpotInstanceCountExceeded"),
            "SpotQuotaExceeded",
            "Spot instance quota exceeded",
        ),
        (
            has("VcpuLimitExceeded"),
            "VCPULimitExceeded",
            "vCPU limit exceeded",
        ),
        (
            has(NO_FREE_ADDRESSES),
            "InsufficientFreeAddressesInSubnet",
            "There are not enough free IP addresses to launch a network interface in the requested subnet",
        ),
        (true, "LaunchFailed", "Instance launch failed"),
    ];
    let (reason, message) = known
        .iter()
        .find(|(applies, ..)| *applies)
        .map_or(("LaunchFailed", "Instance launch failed"), |k| (k.1, k.2));
    let forbidden = errors.iter().find(|e| e.is_forbidden());
    match forbidden.filter(|_| reason == UNAUTHORIZED_REASON) {
        Some(error) => (reason, error.denial()),
        None => (reason, message.to_owned()),
    }
}

#[cfg(test)]
mod tests;
