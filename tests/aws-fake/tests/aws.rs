//! The stand-in over its wire protocols, parsed by AWS's published models.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what fails here fails the test"
)]

mod support;

/// Parameters of a call, the expected error code, and a part of the message.
type Refusal<'a> = (&'a [(&'a str, &'a str)], &'a str, &'a str);

use http::Request;
use karpenter_aws_fake::{
    CapacityReservation, Fault, InstanceState, Lifecycle, Policy, SecurityGroup, Shortage,
};
use serde_json::{Value, json};
use skipped::skipped;

use support::{Aws, NODE_GROUP, SUBNET_A, SUBNET_B};

fn code(result: Result<Value, support::Refused>) -> String {
    result.expect_err("refused").0
}

#[tokio::test]
async fn every_response_has_the_published_shape() {
    let aws = Aws::with(|b| b.unlimited().page_size(3));
    aws.fake.add_capacity_reservation(CapacityReservation::new(
        "cr-1",
        "m5.large",
        "us-west-2a",
        2,
    ));
    aws.fake
        .add_instance_profile("profile", Some("KarpenterNodeRole-test"));
    aws.template(&[("LaunchTemplateData.IamInstanceProfile.Name", "profile")])
        .await;
    aws.launch("spot").await;
    aws.launch("on-demand").await;
    aws.advance(5);
    for action in [
        "DescribeInstances",
        "DescribeInstanceStatus",
        "DescribeInstanceTypes",
        "DescribeInstanceTypeOfferings",
        "DescribeAvailabilityZones",
        "DescribeRegions",
        "DescribeSubnets",
        "DescribeSecurityGroups",
        "DescribeVpcs",
        "DescribeImages",
        "DescribeLaunchTemplates",
        "DescribeLaunchTemplateVersions",
        "DescribeSpotPriceHistory",
        "DescribeCapacityReservations",
        "DescribePlacementGroups",
        "DescribeTags",
    ] {
        let answer = aws.ec2(action, &[]).await.unwrap();
        assert!(!answer.as_object().unwrap().is_empty(), "{action}");
    }
    aws.query("iam", "ListInstanceProfiles", &[]).await.unwrap();
    aws.query(
        "iam",
        "GetInstanceProfile",
        &[("InstanceProfileName", "profile")],
    )
    .await
    .unwrap();
    aws.query("iam", "ListRoles", &[]).await.unwrap();
    aws.query("sts", "GetCallerIdentity", &[]).await.unwrap();
    aws.json(
        "pricing",
        "GetProducts",
        json!({"ServiceCode": "AmazonEC2"}),
    )
    .await
    .unwrap();
    aws.json(
        "ssm",
        "GetParametersByPath",
        json!({"Path": "/aws/service/eks", "Recursive": true}),
    )
    .await
    .unwrap();
    let received = aws
        .json(
            "sqs",
            "ReceiveMessage",
            json!({"QueueUrl": "http://x/123456789012/test", "AttributeNames": ["All"]}),
        )
        .await
        .unwrap();
    assert_eq!(received["Messages"].as_array().unwrap().len(), 1);
    aws.get("eks:DescribeCluster", "/clusters/test").await;
    aws.get("eks:ListClusters", "/clusters").await;
}

#[tokio::test]
async fn an_instance_passes_its_states_and_every_change_is_an_event() {
    let aws = Aws::new();
    aws.template(&[]).await;
    let id = aws.launch("on-demand").await;
    let state = || aws.fake.instance(&id).map(|i| i.state);
    assert_eq!(state(), Some(InstanceState::Pending));
    aws.advance(5);
    assert_eq!(state(), Some(InstanceState::Running));
    let free = aws.fake.subnet(SUBNET_A).unwrap().free();
    aws.ec2("TerminateInstances", &[("InstanceId.1", &id)])
        .await
        .unwrap();
    assert_eq!(state(), Some(InstanceState::ShuttingDown));
    aws.advance(30);
    assert_eq!(state(), Some(InstanceState::Terminated));
    assert_eq!(aws.fake.subnet(SUBNET_A).unwrap().free(), free + 1);
    aws.advance(3600);
    assert_eq!(state(), None);
    let states: Vec<String> = aws
        .fake
        .messages("test")
        .iter()
        .map(|m| {
            serde_json::from_str::<Value>(m).unwrap()["detail"]["state"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    assert_eq!(
        states,
        ["pending", "running", "shutting-down", "terminated"]
    );
}

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
async fn following_the_tokens_lists_everything_once() {
    let aws = Aws::new();
    aws.template(&[]).await;
    let more = [("TargetCapacitySpecification.TotalTargetCapacity", "7")];
    aws.fleet("spot", &[("m5.large", SUBNET_A)], &more)
        .await
        .unwrap();
    let mut seen = Vec::new();
    let mut token = String::new();
    loop {
        let answer = aws
            .ec2("DescribeInstances", &[("NextToken", &token)])
            .await
            .unwrap();
        let page: Vec<String> = answer["reservationSet"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|r| r["instancesSet"].as_array().unwrap())
            .map(|i| i["instanceId"].as_str().unwrap().to_owned())
            .collect();
        assert!(page.len() <= 2);
        seen.extend(page);
        match answer.get("nextToken").and_then(Value::as_str) {
            Some(next) => token = next.to_owned(),
            None => break,
        }
    }
    let all: Vec<String> = aws.fake.instances().into_iter().map(|i| i.id).collect();
    assert_eq!(seen, all);
}

#[tokio::test]
async fn new_instances_are_not_listed_until_ec2_is_consistent() {
    let aws = Aws::with(|b| b.unlimited().settings(|s| s.hide_s = 2.0));
    aws.template(&[]).await;
    let id = aws.launch("spot").await;
    let by_id = [("InstanceId.1", id.as_str())];
    assert_eq!(
        code(aws.ec2("DescribeInstances", &by_id).await),
        "InvalidInstanceID.NotFound"
    );
    assert_eq!(
        aws.ec2("DescribeInstances", &[]).await.unwrap()["reservationSet"],
        json!([])
    );
    aws.advance(2);
    aws.ec2("DescribeInstances", &by_id).await.unwrap();
}

#[tokio::test]
async fn rate_limits_throttle_until_the_bucket_refills() {
    let aws = Aws::with(|b| b);
    for _ in 0..100 {
        aws.ec2("DescribeVpcs", &[]).await.unwrap();
    }
    assert_eq!(
        code(aws.ec2("DescribeVpcs", &[]).await),
        "RequestLimitExceeded"
    );
    aws.ec2("DescribeSubnets", &[]).await.unwrap();
    aws.advance(1);
    aws.ec2("DescribeVpcs", &[]).await.unwrap();
}

#[tokio::test]
async fn an_interrupted_spot_instance_is_terminated_after_two_minutes() {
    let aws = Aws::new();
    aws.template(&[]).await;
    let id = aws.launch("spot").await;
    aws.advance(10);
    assert!(aws.fake.interrupt_spot(&id));
    let last: Value = serde_json::from_str(aws.fake.messages("test").last().unwrap()).unwrap();
    assert_eq!(
        last["detail-type"],
        "EC2 Spot Instance Interruption Warning"
    );
    assert_eq!(
        last["detail"],
        json!({"instance-id": id, "instance-action": "terminate"})
    );
    aws.advance(119);
    assert_eq!(
        aws.fake.instance(&id).unwrap().state,
        InstanceState::Running
    );
    aws.advance(1);
    assert_eq!(
        aws.fake.instance(&id).unwrap().state,
        InstanceState::ShuttingDown
    );
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

#[tokio::test]
async fn a_policy_decides_by_tags_and_passed_roles_and_errors_name_the_missing_permission() {
    let aws = Aws::new();
    aws.fake
        .add_instance_profile("p", Some("KarpenterNodeRole-test"));
    aws.template(&[("LaunchTemplateData.IamInstanceProfile.Name", "p")])
        .await;
    let id = aws.launch("spot").await;
    let needed: Vec<String> = aws
        .fake
        .needed_permissions()
        .into_iter()
        .map(|p| p.action)
        .collect();
    for action in [
        "ec2:CreateFleet",
        "ec2:CreateLaunchTemplate",
        "ec2:RunInstances",
        "iam:PassRole",
    ] {
        assert!(needed.iter().any(|n| n == action), "{action}");
    }
    let policy = r#"{"Statement": [
        {"Effect": "Allow", "Action": ["ec2:CreateFleet", "ec2:RunInstances", "ec2:CreateTags"], "Resource": "*"},
        {"Effect": "Allow", "Action": "ec2:TerminateInstances", "Resource": "*",
         "Condition": {"StringEquals": {"aws:ResourceTag/owner": "me"}}}]}"#;
    aws.fake.set_policy(Some(Policy::parse(policy).unwrap()));
    let (code, message) = aws
        .fleet("spot", &[("m5.large", SUBNET_A)], &[])
        .await
        .unwrap_err();
    assert_eq!(code, "UnauthorizedOperation");
    assert!(message.contains("iam:PassRole"), "{message}");
    let by_id = [("InstanceId.1", id.as_str())];
    assert_eq!(
        aws.ec2("TerminateInstances", &by_id).await.unwrap_err().0,
        "UnauthorizedOperation"
    );
    aws.ec2(
        "CreateTags",
        &[
            ("ResourceId.1", &id),
            ("Tag.1.Key", "owner"),
            ("Tag.1.Value", "me"),
        ],
    )
    .await
    .unwrap();
    aws.ec2("TerminateInstances", &by_id).await.unwrap();
}

#[tokio::test]
async fn a_protected_instance_fails_the_call_and_protects_its_zone_only() {
    let aws = Aws::with(|b| b.unlimited());
    aws.template(&[]).await;
    let (protected, peer) = (aws.launch("on-demand").await, aws.launch("on-demand").await);
    aws.fake.protect(&protected, true);
    let zone = aws.fake.instance(&protected).unwrap().zone;
    let answer = aws.fleet("on-demand", &[("m5.large", SUBNET_B)], &[]);
    let answer = answer.await.unwrap();
    let elsewhere = &answer["fleetInstanceSet"][0]["instanceIds"][0];
    let elsewhere = elsewhere.as_str().unwrap().to_owned();
    assert_ne!(aws.fake.instance(&elsewhere).unwrap().zone, zone);
    let all = [
        ("InstanceId.1", protected.as_str()),
        ("InstanceId.2", &peer),
        ("InstanceId.3", &elsewhere),
    ];
    let (code, message) = aws
        .ec2("TerminateInstances", &all)
        .await
        .expect_err("refused");
    assert_eq!(code, "OperationNotPermitted");
    assert!(message.contains(&protected), "{message}");
    let ending = aws.fake.instances_in(InstanceState::ShuttingDown);
    let ending: Vec<&str> = ending.iter().map(|i| i.id.as_str()).collect();
    assert_eq!(ending, [elsewhere.as_str()]);
    aws.fake.protect(&protected, false);
    aws.ec2("TerminateInstances", &all).await.unwrap();
}

#[tokio::test]
async fn one_resource_may_be_denied_and_the_error_about_a_missing_reservation_may_omit_its_id() {
    let aws = Aws::with(|b| b.unlimited());
    aws.template(&[]).await;
    let (denied, other) = (aws.launch("on-demand").await, aws.launch("on-demand").await);
    let arn = format!("*:instance/{denied}");
    aws.fake.set(|s| {
        s.denied_resources = vec![arn];
        s.nameless_errors = true;
    });
    let end = async |id: &str| aws.ec2("TerminateInstances", &[("InstanceId.1", id)]).await;
    assert_eq!(code(end(&denied).await), "UnauthorizedOperation");
    end(&other).await.unwrap();
    let asked = [("CapacityReservationId.1", "cr-9")];
    let (code, message) = aws
        .ec2("DescribeCapacityReservations", &asked)
        .await
        .expect_err("refused");
    assert_eq!(code, "InvalidCapacityReservationId.NotFound");
    assert!(!message.contains("cr-9"), "{message}");
}

#[tokio::test]
async fn a_long_poll_ends_when_a_message_arrives_and_at_its_timeout() {
    let aws = Aws::new();
    let poll = || {
        let fake = aws.fake.clone();
        tokio::spawn(async move {
            let request = Request::post("/")
                .header("x-amz-target", "AmazonSQS.ReceiveMessage")
                .body(r#"{"QueueUrl": "http://x/1/test", "WaitTimeSeconds": 20}"#.into())
                .unwrap();
            fake.handle(request).await.unwrap().into_body()
        })
    };
    let waiting = poll();
    tokio::task::yield_now().await;
    aws.fake.send_message("test", "hello");
    let body: Value = serde_json::from_slice(&waiting.await.unwrap()).unwrap();
    assert_eq!(body["Messages"][0]["Body"], "hello");
    let waiting = poll();
    tokio::task::yield_now().await;
    aws.advance(20);
    assert_eq!(waiting.await.unwrap(), "{}");
}

#[tokio::test]
async fn invalid_requests_are_answered_with_an_error_body() {
    let aws = Aws::new();
    let pieces = [
        "Action=",
        "RunInstances",
        "&",
        "Filter.1.",
        "Value",
        "=",
        "%",
        "%zz",
        ".",
        "999999999999",
        "{",
        "\"",
        "\u{0}",
        "é",
        "LaunchTemplateConfigs.1.Overrides.1.",
        "CreateFleet",
        "Version=2010-05-08",
        "DescribeInstances",
        "NextToken=",
        "-1",
        "MaxResults",
        "ListInstanceProfiles",
    ];
    let mut seed = 1_u64;
    let mut next = |n: usize| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap() % n
    };
    for round in 0..600 {
        let body: String = (0..next(12)).map(|_| pieces[next(pieces.len())]).collect();
        let mut request = Request::post(
            [
                "/",
                "/clusters/%ff",
                "/managedresources/",
                "/latest/x",
                "/_admin",
            ][next(5)],
        );
        if round % 3 == 0 {
            let target = [
                "AmazonSQS.ReceiveMessage",
                "AmazonSSM.",
                "AWSPriceListService.GetProducts",
                "x",
            ][next(4)];
            request = request.header("x-amz-target", target);
        }
        let (status, answer) = aws.send(request.body(body.clone().into()).unwrap()).await;
        assert!(
            status == 200 || (400..600).contains(&status),
            "{body}: {status} {answer}"
        );
    }
}

#[tokio::test]
async fn the_server_speaks_http_and_drops_connections_on_faults() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let aws = Aws::new();
    let server = aws.fake.serve(0).await.unwrap();
    let post = async || {
        let body = "Action=DescribeVpcs&Version=2016-11-15";
        let mut stream = tokio::net::TcpStream::connect(server.address())
            .await
            .unwrap();
        let request = format!(
            "POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let _closed = stream.read_to_string(&mut answer).await;
        answer
    };
    assert!(post().await.contains("<DescribeVpcsResponse"));
    aws.fake.add_fault(Fault::drop_request("DescribeVpcs"));
    assert_eq!(post().await, "");
    assert!(post().await.starts_with("HTTP/1.1 200"));
    let groups = aws
        .ec2("DescribeSecurityGroups", &[("GroupId.1", NODE_GROUP)])
        .await;
    assert_eq!(groups.unwrap()["securityGroupInfo"][0]["groupName"], "node");
}

/// Runs `boto3_client.py` if a Python with boto3 is available: that in `AWS_FAKE_PYTHON`, or moto's, which
/// `crates/karpenter-aws/tests/moto.sh` installs, or `python3`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boto3_parses_every_response() {
    use std::process::Command;
    let motos = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../target/tools/moto/bin/python"
    );
    let python = std::env::var("AWS_FAKE_PYTHON").unwrap_or_else(|_| {
        let found = std::path::Path::new(motos).exists();
        if found { motos } else { "python3" }.to_owned()
    });
    let probe = Command::new(&python).args(["-c", "import boto3"]).output();
    if !probe.is_ok_and(|o| o.status.success()) {
        skipped("boto3", format!("`{python}` cannot import it"));
        return;
    }
    let fake = karpenter_aws_fake::AwsFake::builder()
        .interruption_queue("test")
        .build();
    let server = fake.serve(0).await.unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/boto3_client.py");
    let url = server.url();
    let run = move || Command::new(&python).args([script, &url]).output();
    let output = tokio::task::spawn_blocking(run).await.unwrap().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
