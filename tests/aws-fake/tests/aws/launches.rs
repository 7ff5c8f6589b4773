//! Launches: fleets, client tokens, refused requests and reserved capacity.

use http::Request;
use karpenter_aws_fake::{CapacityReservation, Fault, Lifecycle, SecurityGroup, Shortage};
use serde_json::{Value, json};

use crate::code;
use crate::support::{Aws, SUBNET_A, SUBNET_B};

/// Parameters of a call, the expected error code, and a part of the message.
type Refusal<'a> = (&'a [(&'a str, &'a str)], &'a str, &'a str);

#[tokio::test]
async fn a_fleet_tries_the_next_pool_and_reports_the_ones_it_tried() {
    let aws = Aws::new();
    aws.template(&[]).await;
    aws.fake.set_capacity("m5.large", "us-west-2a", false, 1);
    aws.fake
        .set_shortages(vec![Shortage::new("c5.large", "*", "*")]);
    let answer = aws
        .fleet(
            "on-demand",
            &[
                ("m5.xlarge", SUBNET_A),
                ("m5.large", SUBNET_A),
                ("c5.large", SUBNET_A),
            ],
            &[("TargetCapacitySpecification.TotalTargetCapacity", "2")],
        )
        .await
        .unwrap();
    let launched: Vec<&Value> = answer["fleetInstanceSet"]
        .as_array()
        .unwrap()
        .iter()
        .map(|i| &i["instanceType"])
        .collect();
    assert_eq!(launched, ["m5.large", "m5.xlarge"]);
    let errors: Vec<(&Value, &Value)> = answer["errorSet"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| {
            (
                &e["launchTemplateAndOverrides"]["overrides"]["instanceType"],
                &e["errorCode"],
            )
        })
        .collect();
    assert_eq!(
        errors,
        [
            (&json!("c5.large"), &json!("InsufficientInstanceCapacity")),
            (&json!("m5.large"), &json!("InsufficientInstanceCapacity")),
        ]
    );
}

#[tokio::test]
async fn a_client_token_returns_the_same_instances_for_the_same_request_only() {
    let aws = Aws::new();
    aws.template(&[]).await;
    aws.fake.add_fault(Fault::drop_answer("CreateFleet"));
    let token = [("ClientToken", "once")];
    let pools = [("m5.large", SUBNET_A)];
    // The first response is lost; its effect is not.
    let lost = Request::post("/").body(
        format!("Action=CreateFleet&Version=2016-11-15&Type=instant&ClientToken=once&TargetCapacitySpecification.DefaultTargetCapacityType=spot&TargetCapacitySpecification.TotalTargetCapacity=1&LaunchTemplateConfigs.1.LaunchTemplateSpecification.LaunchTemplateName=tpl&LaunchTemplateConfigs.1.LaunchTemplateSpecification.Version=$Latest&LaunchTemplateConfigs.1.Overrides.1.InstanceType=m5.large&LaunchTemplateConfigs.1.Overrides.1.SubnetId={SUBNET_A}").into(),
    );
    assert!(aws.fake.handle(lost.unwrap()).await.is_err());
    let again = aws.fleet("spot", &pools, &token).await.unwrap();
    assert_eq!(aws.fake.instances().len(), 1);
    assert_eq!(
        again["fleetInstanceSet"][0]["instanceIds"][0],
        json!(aws.fake.instances()[0].id)
    );
    assert_eq!(
        code(aws.fleet("on-demand", &pools, &token).await),
        "IdempotentParameterMismatch"
    );
}

#[tokio::test]
async fn launches_that_break_a_rule_are_refused_as_ec2_refuses_them() {
    let aws = Aws::new();
    let (x86, arm) = (aws.image("x86_64"), aws.image("arm64"));
    aws.fake.add_instance_profile("empty", None);
    aws.fake.add_security_group(SecurityGroup {
        id: "sg-elsewhere".into(),
        name: "e".into(),
        vpc_id: "vpc-2".into(),
        tags: Default::default(),
    });
    let cases: &[Refusal<'_>] = &[
        (
            &[("ImageId", "ami-0bad")],
            "InvalidAMIID.NotFound",
            "does not exist",
        ),
        (
            &[("ImageId", &arm)],
            "InvalidParameterValue",
            "architecture",
        ),
        (
            &[("InstanceType", "m5.bogus")],
            "InvalidParameterValue",
            "InstanceType",
        ),
        (
            &[("SubnetId", "subnet-bad")],
            "InvalidSubnetID.NotFound",
            "does not exist",
        ),
        (
            &[("Placement.AvailabilityZone", "us-west-2b")],
            "InvalidParameterValue",
            "is in the availability zone us-west-2a",
        ),
        (
            &[("SecurityGroupId.1", "sg-elsewhere")],
            "InvalidParameter",
            "belong to different networks",
        ),
        (
            &[("IamInstanceProfile.Name", "missing")],
            "InvalidParameterValue",
            "Invalid IAM Instance Profile name",
        ),
        (
            &[("IamInstanceProfile.Name", "empty")],
            "InvalidParameterValue",
            "has no associated IAM Roles",
        ),
        (
            &[("UserData", "not base64!")],
            "InvalidUserData.Malformed",
            "",
        ),
        (&[("MaxCount", "0")], "InvalidParameterValue", "minCount"),
        (
            &[
                ("TagSpecification.1.ResourceType", "instance"),
                ("TagSpecification.1.Tag.1.Key", "aws:x"),
            ],
            "InvalidParameterValue",
            "reserved",
        ),
        (
            &[
                ("BlockDeviceMapping.1.DeviceName", "/dev/xvda"),
                ("BlockDeviceMapping.1.Ebs.VolumeSize", "5"),
            ],
            "InvalidBlockDeviceMapping",
            "smaller than snapshot",
        ),
        (
            &[
                ("InstanceType", "c3.large"),
                ("SubnetId", "subnet-00000000000000004"),
            ],
            "Unsupported",
            "not supported in your requested Availability Zone",
        ),
        (&[("Bogus", "1")], "UnknownParameter", "not recognized"),
    ];
    for (changes, expected, sentence) in cases {
        let mut params = vec![
            ("ImageId", x86.as_str()),
            ("InstanceType", "m5.large"),
            ("SubnetId", SUBNET_A),
            ("MinCount", "1"),
            ("MaxCount", "1"),
        ];
        params.retain(|(name, _)| !changes.iter().any(|(n, _)| n == name));
        params.extend_from_slice(changes);
        let (code, message) = aws.ec2("RunInstances", &params).await.expect_err(expected);
        assert_eq!(code, *expected, "{message}");
        assert!(message.contains(sentence), "{message}");
    }
    assert!(aws.fake.instances().is_empty());
}

#[tokio::test]
async fn a_fleet_reports_invalid_overrides_besides_the_instances_it_launched() {
    let aws = Aws::new();
    aws.template(&[]).await;
    let answer = aws
        .fleet(
            "spot",
            &[
                ("m6g.large", SUBNET_A),
                ("m5.large", "subnet-bad"),
                ("m5.large", SUBNET_B),
            ],
            &[],
        )
        .await
        .unwrap();
    assert_eq!(answer["fleetInstanceSet"].as_array().unwrap().len(), 1);
    let codes: Vec<&Value> = answer["errorSet"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| &e["errorCode"])
        .collect();
    assert_eq!(codes, ["InvalidParameterValue", "InvalidSubnetID.NotFound"]);
}

#[tokio::test]
async fn reserved_capacity_runs_out_and_is_released() {
    let aws = Aws::new();
    aws.fake.add_capacity_reservation(CapacityReservation::new(
        "cr-1",
        "m5.large",
        "us-west-2a",
        1,
    ));
    let prefix = "LaunchTemplateData.CapacityReservationSpecification.CapacityReservation";
    aws.template(&[
        (&format!("{prefix}Preference"), "capacity-reservations-only"),
        (&format!("{prefix}Target.CapacityReservationId"), "cr-1"),
    ])
    .await;
    let id = aws.launch("on-demand").await;
    let instance = aws.fake.instance(&id).unwrap();
    assert_eq!(instance.capacity_reservation.as_deref(), Some("cr-1"));
    assert_eq!(instance.lifecycle, Lifecycle::OnDemand);
    let full = aws
        .fleet("on-demand", &[("m5.large", SUBNET_A)], &[])
        .await
        .unwrap();
    assert_eq!(
        full["errorSet"][0]["errorCode"],
        "ReservationCapacityExceeded"
    );
    aws.fake.terminate(&id);
    aws.advance(30);
    assert_eq!(
        aws.fake.capacity_reservation("cr-1").map(|r| r.available),
        Some(1)
    );
    // Without the reservation, its instances keep running as on-demand instances.
    let id = aws.launch("on-demand").await;
    aws.fake.cancel_capacity_reservation("cr-1");
    assert_eq!(aws.fake.instance(&id).unwrap().capacity_reservation, None);
}
