//! Classification of errors as AWS returns them.

use super::*;

fn error(code: &str, message: &str) -> AwsError {
    AwsError::refused("CreateFleet", code, message)
}

/// Conformance: AWS-ice-12, AWS-ice-21
#[test]
fn the_codes_of_shortages_and_of_what_is_missing_are_upstream_s() {
    for code in [
        "InsufficientInstanceCapacity",
        "MaxSpotInstanceCountExceeded",
        "VcpuLimitExceeded",
        "UnfulfillableCapacity",
        "Unsupported",
        "InsufficientFreeAddressesInSubnet",
        "MaxFleetCountExceeded",
        "ReservationCapacityExceeded",
    ] {
        let error = error(code, "");
        assert!(error.is_unfulfillable() && !error.is_not_found(), "{code}");
    }
    for code in [
        "InvalidCapacityReservationId.NotFound",
        "InvalidInstanceID.NotFound",
        "InvalidLaunchTemplateName.NotFoundException",
        "InvalidLaunchTemplateId.NotFound",
        "QueueDoesNotExist",
        "NoSuchEntity",
        "ParameterNotFound",
    ] {
        let error = error(code, "");
        assert!(error.is_not_found() && !error.is_unfulfillable(), "{code}");
    }
    let full =
        "you have reached the limit of instances in this spread placement group in us-west-2a";
    assert!(error("InvalidParameter", full).is_unfulfillable());
    for code in [
        "RequestLimitExceeded",
        "InvalidParameter",
        SPOT_ROLE_MISSING,
    ] {
        let error = error(code, "");
        assert!(!error.is_unfulfillable() && !error.is_not_found(), "{code}");
    }
    assert!(error("EntityAlreadyExists", "").is_already_exists());
}

/// Conformance: AWS-ice-19
#[test]
fn each_reason_of_a_failed_launch_has_its_codes_and_texts() {
    let order = [
        (
            "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
            "",
            "SpotSLRCreationFailed",
        ),
        (
            "AuthFailure",
            "Not authorized for images: [ami-1]",
            "AMIAuthorizationFailure",
        ),
        ("UnauthorizedOperation", "", "Unauthorized"),
        (
            "InvalidParameter",
            "Security group sg-1 and subnet subnet-1 belong to different networks.",
            "SecurityGroupSubnetVPCMismatch",
        ),
        (
            "InvalidParameterValue",
            "Value (p) for parameter iamInstanceProfile.name is invalid",
            "InstanceProfileNameInvalid",
        ),
        (
            "InvalidLaunchTemplateName.NotFoundException",
            "",
            "LaunchTemplateNotFound",
        ),
        (
            "InvalidUserData.Malformed",
            "User data is limited to 16384 bytes",
            "UserDataSizeLimitExceeded",
        ),
        ("InvalidAMIID.Malformed", "", "InvalidAMIID"),
        ("InvalidAMIID.NotFound", "", "AMINotFound"),
        ("RequestLimitExceeded", "", "RequestLimitExceeded"),
        ("InternalError", "", "InternalError"),
        (
            "InvalidParameterCombination",
            "The specified instance type is not eligible for Free Tier",
            "FreeTierIneligible",
        ),
        ("MaxFleetCountExceeded", "", "FleetQuotaExceeded"),
        ("PendingVerification", "", "AccountPendingVerification"),
        ("MaxSpotInstanceCountExceeded", "", "SpotQuotaExceeded"),
        ("VcpuLimitExceeded", "", "VCPULimitExceeded"),
        (
            "InsufficientFreeAddressesInSubnet",
            "",
            "InsufficientFreeAddressesInSubnet",
        ),
        ("SomethingNew", "", "LaunchFailed"),
    ];
    for (n, (code, message, reason)) in order.iter().enumerate() {
        let later = order.get(n + 1).map(|(c, m, _)| error(c, m));
        let errors: Vec<_> = later.into_iter().chain([error(code, message)]).collect();
        assert_eq!(reason_and_message(&errors).0, *reason, "{code}");
    }
    assert_eq!(reason_and_message([]).0, "LaunchFailed");
}

#[test]
fn the_message_of_a_refusal_does_not_vary_between_calls() {
    let mut e = error(
        "UnauthorizedOperation",
        "You are not authorized to perform this operation. User: arn:aws:sts::1:assumed-role/k/s is not authorized to perform: iam:PassRole on resource: arn:aws:iam::1:role/n because no permissions boundary allows the iam:PassRole action. Encoded authorization failure message: abc",
    );
    e.request_id = Some("r-1".into());
    assert!(e.is_forbidden() && e.is_refusal());
    assert!(!e.sentence().contains("abc") && !e.sentence().contains("r-1"));
    assert_eq!(
        e.denial(),
        "User is not authorized to perform this operation because no permissions boundary allows it (`iam:PassRole` on `arn:aws:iam::1:role/n`)"
    );
    let scp = error(
        "UnauthorizedOperation",
        "with an explicit deny in a service control policy",
    );
    assert_eq!(
        scp.denial(),
        "User is not authorized to perform this operation because a service control policy (SCP) denies it"
    );
    let unreached = AwsError::circuit_open("DescribeImages", "EC2");
    assert_eq!(
        unreached.sentence(),
        "DescribeImages is not answered by AWS"
    );
    assert!(!unreached.is_refusal());
}

#[test]
fn a_refused_launch_names_the_kind_of_policy_that_denies_it() {
    let reason = |text: &str| {
        let message = format!(
            "User: arn:aws:sts::1:assumed-role/k/s is not authorized to perform: ec2:RunInstances on resource: arn:aws:ec2:r:1:instance/* {text}"
        );
        reason_and_message([&error("UnauthorizedOperation", &message)])
    };
    for (text, wanted) in [
        (
            "with an explicit deny in a service control policy",
            "(SCP) denies it",
        ),
        (
            "because no permissions boundary allows the ec2:RunInstances action",
            "no permissions boundary allows it",
        ),
        (
            "because no identity-based policy allows the ec2:RunInstances action",
            "no identity-based policy allows it",
        ),
    ] {
        let (reason, message) = reason(text);
        assert_eq!(reason, "Unauthorized");
        assert!(message.contains(wanted), "{message}");
    }
}

#[test]
fn an_error_is_displayed_with_its_code_and_request_id() {
    let mut e = error("InternalError", "try again");
    e.request_id = Some("r-1".into());
    assert_eq!(
        e.to_string(),
        "CreateFleet, InternalError: try again (request r-1)"
    );
}
