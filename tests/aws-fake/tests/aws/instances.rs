//! Instances: their states and events, interruption, and protection from termination.

use karpenter_aws_fake::InstanceState;
use serde_json::{Value, json};

use crate::code;
use crate::support::{Aws, SUBNET_A, SUBNET_B};

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
