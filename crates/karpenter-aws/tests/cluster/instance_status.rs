//! EC2's status checks and scheduled events.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::v1::NodeClaim;
use karpenter_aws_fake::{ScheduledEvent, StatusReport};

use crate::cluster::world::World;

const DEADLINE: &str = "karpenter.sh/nodeclaim-termination-timestamp";

/// Creates a world where instances cannot be terminated, so that NodeClaims stay to be examined.
async fn lasting() -> World {
    World::with(
        |b| b.settings(|s| s.denied = vec!["ec2:TerminateInstances".into()]),
        |_| {},
    )
    .await
}

fn ago(world: &World, seconds: i64) -> Timestamp {
    world.fake.clock().now() - SignedDuration::from_secs(seconds)
}

fn unhealthy(category: &str) -> String {
    format!(r#"karpenter_interruption_instance_status_unhealthy_total{{category="{category}"}}"#)
}

fn deadline(claim: &NodeClaim) -> Option<String> {
    let annotations = claim.metadata.annotations.as_ref();
    annotations.and_then(|a| a.get(DEADLINE)).cloned()
}

/// Conformance: AWS-interruption-13
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ec2_is_asked_for_failing_checks_and_for_what_it_plans() {
    let world = lasting().await;
    // Nothing is asked where nothing runs.
    world.joined("a").await;
    world.more_calls("DescribeInstanceStatus", 3).await;
    let asked: BTreeSet<String> = world
        .fake
        .calls()
        .into_iter()
        .filter(|call| call.action == "DescribeInstanceStatus")
        .map(|call| {
            let filters = &call.params["Filter"];
            assert_eq!(filters.as_array().unwrap().len(), 1);
            let values: Vec<_> = filters[0]["Value"].as_array().unwrap().iter().collect();
            let values: Vec<_> = values.iter().map(|v| v.as_str().unwrap()).collect();
            format!(
                "{}={}",
                filters[0]["Name"].as_str().unwrap(),
                values.join(",")
            )
        })
        .collect();
    let expected = [
        "event.code=instance-reboot,system-reboot,system-maintenance,instance-retirement,instance-stop",
        "instance-status.status=impaired",
        "system-status.status=impaired",
    ];
    assert_eq!(asked, expected.map(str::to_owned).into());
}

/// Conformance: AWS-interruption-05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_instance_fails_its_checks_is_deleted_without_waiting() {
    let world = lasting().await;
    let (_, system) = world.joined("system").await;
    let (_, instance) = world.joined("instance").await;
    let (_, volumes) = world.joined("volumes").await;
    let failing = Some(ago(&world, 150));
    for (id, [system, instance, ebs]) in [
        (&system, [failing, None, None]),
        (&instance, [None, failing, None]),
        (&volumes, [None, None, failing]),
    ] {
        let report = StatusReport {
            system_impaired_since: system,
            instance_impaired_since: instance,
            ebs_impaired_since: ebs,
            events: vec![],
        };
        world.fake.set_status(id, report);
    }
    for name in ["system", "instance"] {
        world.leaves(name).await;
        world
            .event_message("NodeClaim", name, "InstanceUnhealthy")
            .await;
        let message = world.event_message("NodeClaim", name, "TerminatingOnInterruption");
        message.await;
    }
    let at = deadline(&world.get("system").await.unwrap()).unwrap();
    assert!(at.parse::<Timestamp>().unwrap() <= world.fake.clock().now());
    world.more_calls("DescribeInstanceStatus", 6).await;
    let later = deadline(&world.get("system").await.unwrap()).unwrap();
    assert_eq!(at, later, "written once");
    assert!(!world.is_leaving("volumes").await);
}

/// Conformance: AWS-interruption-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_instance_is_to_be_stopped_is_drained() {
    let world = lasting().await;
    let (_, id) = world.joined("a").await;
    let (_, over) = world.joined("b").await;
    let event = |description: &str| ScheduledEvent {
        code: "instance-stop".into(),
        description: description.into(),
        not_before: ago(&world, -86_400),
    };
    world.fake.schedule_event(&over, event("[Completed] done"));
    world
        .fake
        .schedule_event(&id, event("The instance runs on degraded hardware"));
    world.leaves("a").await;
    let claim: NodeClaim = world.get("a").await.unwrap();
    assert_eq!(deadline(&claim), None);
    assert!(!world.is_leaving("b").await);
    world.counts(&unhealthy("EventStatus"), 1.0).await;
}

/// Conformance: AWS-interruption-07
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lasting_impairment_is_counted_once_and_again_after_a_recovery() {
    let world = lasting().await;
    let (_, id) = world.joined("a").await;
    let broken = || StatusReport {
        system_impaired_since: Some(ago(&world, 150)),
        ..StatusReport::default()
    };
    let series = unhealthy("SystemStatus");
    world.fake.set_status(&id, broken());
    world.counts(&series, 1.0).await;
    world.more_calls("DescribeInstanceStatus", 9).await;
    assert!((world.metric(&series) - 1.0).abs() < 0.01);
    world.fake.set_status(&id, StatusReport::default());
    world.more_calls("DescribeInstanceStatus", 6).await;
    world.fake.set_status(&id, broken());
    world.counts(&series, 2.0).await;
}
