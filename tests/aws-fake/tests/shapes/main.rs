//! Every response of the stand-in is parsed by AWS's published models. Error codes are compared with moto's, in
//! `crates/karpenter-aws/tests/ec2/second_opinion.rs`.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what fails here fails the test"
)]

mod support;

use std::time::Duration;

use karpenter_aws_fake::CapacityReservation;
use serde_json::json;

use self::support::Aws;

#[tokio::test(start_paused = true)]
async fn every_response_has_the_published_shape() {
    let aws = Aws::new();
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
    tokio::time::advance(Duration::from_secs(5)).await;
    for action in [
        "DescribeInstances",
        "DescribeInstanceStatus",
        "DescribeInstanceTypes",
        "DescribeSubnets",
        "DescribeSecurityGroups",
        "DescribeImages",
        "DescribeLaunchTemplates",
        "DescribeSpotPriceHistory",
        "DescribeCapacityReservations",
        "DescribePlacementGroups",
    ] {
        let answer = aws.ec2(action, &[]).await;
        assert!(!answer.as_object().unwrap().is_empty(), "{action}");
    }
    let zones = [("LocationType", "availability-zone")];
    aws.ec2("DescribeInstanceTypeOfferings", &zones).await;
    aws.query("iam", "ListInstanceProfiles", &[]).await;
    let name = [("InstanceProfileName", "profile")];
    aws.query("iam", "GetInstanceProfile", &name).await;
    let all = json!({"ServiceCode": "AmazonEC2"});
    aws.json(
        "AWSPriceListService.GetProducts",
        "pricing:GetProducts",
        all,
    )
    .await;
    let queue = json!({"QueueUrl": "http://x/123456789012/test", "AttributeNames": ["All"]});
    let received = aws
        .json("AmazonSQS.ReceiveMessage", "sqs:ReceiveMessage", queue)
        .await;
    assert_eq!(received["Messages"].as_array().unwrap().len(), 1);
    aws.get("eks:DescribeCluster", "/clusters/test").await;
}
