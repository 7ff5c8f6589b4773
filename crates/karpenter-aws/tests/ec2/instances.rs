//! Describing, terminating and tagging instances, with failing calls.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use karpenter_aws::providers::instance::{Freshness, InstanceError, Instances};
use karpenter_aws::providers::instance_type::shifted_zones::ShiftedZones;
use karpenter_aws::sdk::{Aws, Connect};
use karpenter_aws_fake::{Fault, InstanceState};

use crate::ec2::fleets::{fleet, launch};
use crate::ec2::support::World;

fn instances(world: &World) -> Instances {
    Instances::new(world.aws.clone(), "test", true, ShiftedZones::default())
}

/// Conformance: AWS-instance-01
#[tokio::test]
async fn instances_of_the_cluster_are_listed_and_missing_ones_forgotten() {
    let world = World::with(|b| b.page_size(1)).await;
    let ours = launch(&world, fleet(&world, "default").await, 3).await;
    let mut foreign = fleet(&world, "default").await;
    foreign
        .tags
        .insert("eks:eks-cluster-name".into(), "other".into());
    launch(&world, foreign, 1).await;
    let mut untagged = fleet(&world, "default").await;
    untagged.tags.remove("karpenter.sh/nodepool");
    launch(&world, untagged, 1).await;

    let instances = instances(&world);
    let listed: BTreeSet<String> = instances
        .list()
        .await
        .unwrap()
        .iter()
        .map(|i| i.id.clone())
        .collect();
    assert_eq!(listed, ours.iter().cloned().collect());
    let one = instances.get(&ours[0], Freshness::Cached).await.unwrap();
    assert_eq!(
        (one.capacity_type, one.type_.as_str(), one.zone.as_str()),
        ("on-demand", "m5.large", "us-west-2a")
    );
    assert_eq!(
        one.security_groups,
        BTreeSet::from([crate::ec2::support::GROUP.to_owned()])
    );

    world.fake.forget_calls();
    assert!(instances.get(&ours[0], Freshness::Cached).await.is_ok());
    assert_eq!(world.calls("DescribeInstances"), 0, "remembered");
    world.fake.set(|s| s.shutting_down_s = 0.0);
    world.fake.terminate(&ours[0]);
    assert_eq!(instances.list().await.unwrap().len(), 2);
    let gone = instances.get(&ours[0], Freshness::Cached).await;
    assert!(gone.unwrap_err().is_not_found(), "not cached, so described");
}

/// Conformance: AWS-instance-08
#[tokio::test]
async fn requests_for_instances_are_batched_and_unknown_ones_fail_alone() {
    let world = World::new().await;
    let ids = launch(&world, fleet(&world, "default").await, 4).await;
    let instances = instances(&world);
    world.fake.forget_calls();
    let mut wanted: Vec<&str> = ids.iter().map(String::as_str).collect();
    wanted.push("i-0123456789abcdef0");
    wanted.push(&ids[0]);
    let found = join_all(wanted.iter().map(|id| instances.get(id, Freshness::Fresh))).await;
    for (n, found) in found.iter().enumerate() {
        assert_eq!(found.is_ok(), n != 4, "{n}");
    }
    assert!(found[4].as_ref().unwrap_err().is_not_found());
    let described = world.calls("DescribeInstances");
    assert!((2..=4).contains(&described), "{described} calls");

    world.fake.forget_calls();
    let deleted = join_all(ids.iter().map(|id| instances.delete(id))).await;
    assert!(deleted.iter().all(Result::is_ok));
    assert_eq!(world.calls("TerminateInstances"), 1);
    assert_eq!(
        world.fake.instances_in(InstanceState::ShuttingDown).len(),
        4
    );
    instances.delete(&ids[0]).await.unwrap();
    assert_eq!(
        world.calls("TerminateInstances"),
        1,
        "it is being terminated already"
    );
}

/// Conformance: AWS-instance-02, AWS-instance-03
#[tokio::test]
async fn instances_in_a_zone_with_a_shift_are_neither_described_nor_changed() {
    let world = World::new().await;
    let ids = launch(&world, fleet(&world, "default").await, 1).await;
    let shifted = ShiftedZones::default();
    let instances = Instances::new(world.aws.clone(), "test", true, shifted.clone());
    let listed = instances.list().await.unwrap();
    shifted.set([listed[0].zone_id.clone().unwrap()].into());
    world.fake.forget_calls();
    let id = &ids[0];
    assert!(instances.get(id, Freshness::Fresh).await.is_ok());
    assert!(matches!(
        instances.delete(id).await,
        Err(InstanceError::Shifted { .. })
    ));
    let tags = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
    assert!(matches!(
        instances.create_tags(id, &tags).await,
        Err(InstanceError::Shifted { .. })
    ));
    assert!(world.fake.calls().is_empty());

    world.fake.set(|s| s.shutting_down_s = 0.0);
    world.fake.terminate(id);
    assert_eq!(instances.list().await.unwrap(), []);
    assert!(instances.get(id, Freshness::Fresh).await.is_ok(), "kept");
}

#[tokio::test]
async fn tags_are_added_and_a_terminated_instance_is_not_found() {
    let world = World::new().await;
    let ids = launch(&world, fleet(&world, "default").await, 1).await;
    let instances = instances(&world);
    let tags = BTreeMap::from([("Name".to_owned(), "node-1".to_owned())]);
    instances.create_tags(&ids[0], &tags).await.unwrap();
    assert_eq!(
        world
            .fake
            .instance(&ids[0])
            .unwrap()
            .tags
            .get("Name")
            .map(String::as_str),
        Some("node-1")
    );
    let gone = instances.create_tags("i-0123456789abcdef0", &tags).await;
    assert!(gone.unwrap_err().is_not_found());
}

#[tokio::test]
async fn throttled_calls_wait_instead_of_failing() {
    let world = World::new().await;
    launch(&world, fleet(&world, "default").await, 1).await;
    world
        .fake
        .add_fault(Fault::error("DescribeInstances", "RequestLimitExceeded").times(3));
    let instances = instances(&world);
    assert_eq!(instances.list().await.unwrap().len(), 1);
    assert!(world.aws.pace("DescribeInstances").is_some());
}

#[tokio::test]
async fn a_refused_call_is_not_retried() {
    let world = World::new().await;
    world
        .fake
        .fail("DescribeInstances", "UnauthorizedOperation");
    let error = instances(&world).list().await.unwrap_err();
    assert!(error.is_unauthorized());
    assert!(error.request_id.is_some());
    assert_eq!(world.calls("DescribeInstances"), 1);
}

/// Conformance: AWS-metrics-05
#[tokio::test]
async fn a_failed_termination_is_counted_by_zone() {
    let world = World::new().await;
    let ids = launch(&world, fleet(&world, "default").await, 1).await;
    world.fake.deny(&["ec2:TerminateInstances"]);
    assert!(instances(&world).delete(&ids[0]).await.is_err());
    let failed = r#"karpenter_cloudprovider_instance_termination_failures_total{zone="us-west-2a",zone_id="usw2-az2"} 1"#;
    assert!(world.registry.render().contains(failed));
}

/// Terminates all `ids` at once; returns the IDs that could not be terminated, with the error's code.
async fn delete_all(instances: &Instances, ids: &[String]) -> BTreeMap<String, String> {
    let ended = join_all(ids.iter().map(|id| instances.delete(id))).await;
    let failed = ids.iter().zip(ended).filter_map(|(id, ended)| match ended {
        Ok(()) => None,
        Err(InstanceError::Aws(error)) => Some((
            id.clone(),
            error.code.map(|code| code.to_string()).unwrap_or_default(),
        )),
        Err(error) => Some((id.clone(), error.to_string())),
    });
    failed.collect()
}

fn ending(world: &World) -> BTreeSet<String> {
    let ending = world.fake.instances_in(InstanceState::ShuttingDown);
    ending.into_iter().map(|i| i.id).collect()
}

#[tokio::test]
async fn an_instance_without_the_tag_of_the_cluster_is_not_terminated() {
    let world = World::new().await;
    let ids = launch(&world, fleet(&world, "default").await, 2).await;
    let of_another = Instances::new(world.aws.clone(), "other", true, ShiftedZones::default());
    let error = of_another.delete(&ids[0]).await.unwrap_err();
    assert!(matches!(error, InstanceError::Foreign { .. }), "{error}");
    assert_eq!(world.calls("TerminateInstances"), 0);
    instances(&world).delete(&ids[0]).await.unwrap();
    assert_eq!(ending(&world).len(), 1);
}

#[tokio::test]
async fn an_instance_with_termination_protection_does_not_keep_others_running() {
    let world = World::new().await;
    let ids = launch(&world, fleet(&world, "default").await, 40).await;
    world.fake.protect(&ids[7], true);
    let failed = delete_all(&instances(&world), &ids).await;
    let wanted = BTreeMap::from([(ids[7].clone(), "OperationNotPermitted".to_owned())]);
    assert_eq!(failed, wanted);
    assert_eq!(ending(&world).len(), 39);
    let called = world.calls("TerminateInstances");
    assert!(called < 10, "{called} calls, as EC2 names the instance");
}

#[tokio::test]
async fn an_instance_that_may_not_be_terminated_does_not_keep_others_running() {
    let world = World::new().await;
    let ids = launch(&world, fleet(&world, "default").await, 40).await;
    let denied = [3, 30].map(|n: usize| format!("*:instance/{}", ids[n]));
    world.fake.set(|s| s.denied_resources = denied.into());
    let failed = delete_all(&instances(&world), &ids).await;
    let wanted = [3, 30].map(|n: usize| (ids[n].clone(), "UnauthorizedOperation".to_owned()));
    assert_eq!(failed, BTreeMap::from(wanted));
    assert_eq!(ending(&world).len(), 38);
}

#[tokio::test]
async fn a_refusal_that_names_no_instance_is_found_by_halves() {
    let world = World::new().await;
    let ids = launch(&world, fleet(&world, "default").await, 40).await;
    let refusal = Fault::error("TerminateInstances", "OperationNotPermitted")
        .message("an instance may not be terminated")
        .containing(&ids[11]);
    world.fake.add_fault(refusal.always());
    let failed = delete_all(&instances(&world), &ids).await;
    assert_eq!(failed.into_keys().collect::<Vec<_>>(), [ids[11].clone()]);
    assert_eq!(ending(&world).len(), 39);
    let called = world.calls("TerminateInstances");
    assert!(called <= 2 * 8 + 8, "{called} calls");
}

#[tokio::test]
async fn terminations_that_are_all_refused_cost_about_one_call_each() {
    let world = World::new().await;
    let ids = launch(&world, fleet(&world, "default").await, 40).await;
    world.fake.deny(&["ec2:TerminateInstances"]);
    assert_eq!(delete_all(&instances(&world), &ids).await.len(), 40);
    let called = world.calls("TerminateInstances");
    assert!(called <= 60, "{called} calls");
}

#[tokio::test]
async fn an_invalid_id_does_not_hide_the_other_instances() {
    let world = World::new().await;
    let ids = launch(&world, fleet(&world, "default").await, 8).await;
    let refusal = Fault::error("DescribeInstances", "InvalidInstanceID.Malformed")
        .message("Invalid id")
        .containing(&ids[5]);
    world.fake.add_fault(refusal.always());
    let instances = instances(&world);
    let found = join_all(ids.iter().map(|id| instances.get(id, Freshness::Fresh))).await;
    for (n, found) in found.iter().enumerate() {
        assert_eq!(found.is_ok(), n != 5, "{n}");
    }
    assert!(!found[5].as_ref().unwrap_err().is_not_found());
}

/// EC2 is eventually consistent: it may not know an instance yet that it has launched.
#[tokio::test]
async fn an_instance_that_ec2_does_not_know_at_first_is_asked_for_again() {
    for operation in ["DescribeInstances", "TerminateInstances"] {
        let world = World::new().await;
        let ids = launch(&world, fleet(&world, "default").await, 4).await;
        let unknown = Fault::error(operation, "InvalidInstanceID.NotFound")
            .message(&format!("The instance ID '{}' does not exist", ids[1]))
            .containing(&ids[1]);
        // For the batch, and for the instance alone.
        world.fake.add_fault(unknown.times(2));
        let instances = instances(&world);
        if operation == "DescribeInstances" {
            let found = join_all(ids.iter().map(|id| instances.get(id, Freshness::Fresh))).await;
            assert!(found.iter().all(Result::is_ok), "{found:?}");
        } else {
            assert_eq!(delete_all(&instances, &ids).await, BTreeMap::new());
            assert_eq!(ending(&world).len(), 4);
        }
    }
}

#[tokio::test]
async fn a_forbidden_description_is_not_tried_for_each_instance() {
    let world = World::new().await;
    let ids = launch(&world, fleet(&world, "default").await, 8).await;
    world.fake.deny(&["ec2:DescribeInstances"]);
    world.fake.forget_calls();
    let instances = instances(&world);
    let found = join_all(ids.iter().map(|id| instances.get(id, Freshness::Fresh))).await;
    assert!(found.iter().all(Result::is_err));
    assert_eq!(world.calls("DescribeInstances"), 1);
}

#[tokio::test]
async fn the_number_of_attempts_follows_the_environment() {
    let world = World::new().await;
    let how = Connect {
        attempts: Some(2),
        ..world.how()
    };
    let aws = Aws::connect(&how).await.unwrap();
    let instances = Instances::new(aws, "test", true, ShiftedZones::default());
    for code in ["RequestLimitExceeded", "InternalError"] {
        world.fake.clear_faults();
        world.fake.forget_calls();
        world.fake.fail("DescribeInstances", code);
        instances.list().await.unwrap_err();
        assert_eq!(world.calls("DescribeInstances"), 2, "{code}");
    }
}
