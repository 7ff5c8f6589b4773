//! What EC2's status checks and its calendar tell.

use jiff::{SignedDuration, Timestamp};
use karpenter_api::v1::NodeClaim;
use karpenter_aws_fake::{ScheduledEvent, StatusReport};

use crate::world::World;

const DEADLINE: &str = "karpenter.sh/nodeclaim-termination-timestamp";

/// A world where machines do not end, so that claims stay to be looked at.
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

/// Conformance: AWS-interruption-05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_fails_its_checks_is_given_up_without_waiting_for_its_pods() {
    let world = lasting().await;
    let (_, system) = world.joined("system").await;
    let (_, instance) = world.joined("instance").await;
    let (_, volumes) = world.joined("volumes").await;
    let failing = Some(ago(&world, 150));
    let report = StatusReport {
        system_impaired_since: failing,
        ..StatusReport::default()
    };
    world.fake.set_status(&system, report);
    let report = StatusReport {
        instance_impaired_since: failing,
        ..StatusReport::default()
    };
    world.fake.set_status(&instance, report);
    let report = StatusReport {
        ebs_impaired_since: failing,
        ..StatusReport::default()
    };
    world.fake.set_status(&volumes, report);
    for name in ["system", "instance"] {
        world.leaves(name).await;
        world.told("NodeClaim", name, "InstanceUnhealthy").await;
        let told = world.told("NodeClaim", name, "TerminatingOnInterruption");
        told.await;
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
async fn a_machine_that_is_to_be_stopped_is_drained() {
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
async fn what_lasts_is_counted_once_and_again_after_it_recovered() {
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
