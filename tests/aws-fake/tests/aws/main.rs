//! The stand-in over its wire protocols, parsed by AWS's published models.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what fails here fails the test"
)]

mod instances;
mod launches;
mod support;

use http::Request;
use karpenter_aws_fake::{CapacityReservation, Fault, Policy};
use serde_json::{Value, json};

use self::support::{Aws, NODE_GROUP, SUBNET_A};

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
        "DescribeSubnets",
        "DescribeSecurityGroups",
        "DescribeImages",
        "DescribeLaunchTemplates",
        "DescribeSpotPriceHistory",
        "DescribeCapacityReservations",
        "DescribePlacementGroups",
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
    aws.json(
        "pricing",
        "GetProducts",
        json!({"ServiceCode": "AmazonEC2"}),
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
async fn rate_limits_throttle_until_the_bucket_refills() {
    let aws = Aws::with(|b| b);
    for _ in 0..100 {
        aws.ec2("DescribePlacementGroups", &[]).await.unwrap();
    }
    assert_eq!(
        code(aws.ec2("DescribePlacementGroups", &[]).await),
        "RequestLimitExceeded"
    );
    aws.ec2("DescribeSubnets", &[]).await.unwrap();
    aws.advance(1);
    aws.ec2("DescribePlacementGroups", &[]).await.unwrap();
}

#[tokio::test]
async fn a_policy_decides_by_tags_and_roles_and_errors_name_the_permission() {
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
async fn one_resource_may_be_denied_and_a_reservation_s_id_omitted() {
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
        let body = "Action=DescribePlacementGroups&Version=2016-11-15";
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
    assert!(post().await.contains("<DescribePlacementGroupsResponse"));
    aws.fake
        .add_fault(Fault::drop_request("DescribePlacementGroups"));
    assert_eq!(post().await, "");
    assert!(post().await.starts_with("HTTP/1.1 200"));
    let groups = aws
        .ec2("DescribeSecurityGroups", &[("GroupId.1", NODE_GROUP)])
        .await;
    assert_eq!(groups.unwrap()["securityGroupInfo"][0]["groupName"], "node");
}
