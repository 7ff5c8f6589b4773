//! CreateFleet: one call for many claims, and nothing launched twice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::join_all;
use karpenter_aws::fleet::{Config, Fleet, Fleets, Override, Purchase, WINDOW};
use karpenter_aws::launch_templates::LaunchTemplates;
use karpenter_aws::sdk::batcher::Window;
use karpenter_aws_fake::{Fault, Shortage};

use crate::support::{SUBNET_A, SUBNET_B, World};
use crate::templates::template;

/// A fleet for m5.large in zone a, then c5.large in zone b.
pub async fn fleet(world: &World, class: &str) -> Fleet {
    let template = template(&world.class(class));
    let templates = LaunchTemplates::new(world.aws.clone(), "test");
    templates.ensure(&template).await.unwrap();
    let over = |type_: &str, zone: &str, subnet: &str, price: f64| Override {
        type_: type_.into(),
        zone: zone.into(),
        subnet: subnet.into(),
        image: template.image_id.clone(),
        price: price.into(),
    };
    Fleet {
        configs: vec![Config {
            template: template.name(),
            reservation: None,
            overrides: vec![
                over("m5.large", "us-west-2a", SUBNET_A, 0.1),
                over("m5.xlarge", "us-west-2b", SUBNET_B, 0.2),
            ],
        }],
        purchase: Purchase::OnDemand,
        prioritized: false,
        tags: BTreeMap::from(
            [
                ("karpenter.sh/nodepool", "default"),
                ("karpenter.k8s.aws/ec2nodeclass", class),
                ("eks:eks-cluster-name", "test"),
                ("kubernetes.io/cluster/test", "owned"),
            ]
            .map(|(k, v)| (k.to_owned(), v.to_owned())),
        ),
        context: None,
    }
}

/// Launches `count` machines at once; their ids.
pub async fn launch(world: &World, fleet: Fleet, count: usize) -> Vec<String> {
    let fleets = Fleets::new(world.aws.clone(), WINDOW);
    let uids: Vec<String> = (0..count).map(|n| format!("uid-{n}")).collect();
    let answers = join_all(uids.iter().map(|uid| fleets.launch(fleet.clone(), uid))).await;
    answers
        .into_iter()
        .map(|answer| answer.unwrap().launched.unwrap().id)
        .collect()
}

/// Conformance: AWS-batcher-01
#[tokio::test]
async fn equal_fleets_are_one_call_and_others_their_own() {
    let world = World::new().await;
    let (one, two) = (fleet(&world, "one").await, fleet(&world, "two").await);
    let fleets = Fleets::new(world.aws.clone(), WINDOW);
    let uids: Vec<String> = (0..20).map(|n| format!("uid-{n}")).collect();
    let launches = uids.iter().enumerate().map(|(n, uid)| {
        let fleet = if n < 15 { one.clone() } else { two.clone() };
        fleets.launch(fleet, uid)
    });
    let ids: BTreeSet<String> = join_all(launches)
        .await
        .into_iter()
        .map(|a| a.unwrap().launched.unwrap().id)
        .collect();
    assert_eq!(ids.len(), 20, "everyone has a machine of his own");
    assert_eq!(world.calls("CreateFleet"), 2);

    // The machines there are go to some; the others get the errors.
    world.fake.set_capacity("m5.large", "us-west-2a", false, 2);
    world
        .fake
        .set_shortages(vec![Shortage::new("m5.xlarge", "*", "*")]);
    let uids: Vec<String> = (0..5).map(|n| format!("late-{n}")).collect();
    let answers = join_all(uids.iter().map(|uid| fleets.launch(one.clone(), uid))).await;
    let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
    assert_eq!(answers.iter().filter(|a| a.launched.is_some()).count(), 2);
    assert_eq!(
        answers.iter().filter(|a| a.tells).count(),
        1,
        "errors are told once"
    );
    let without = answers.iter().find(|a| a.launched.is_none()).unwrap();
    assert!(without.errors.iter().all(|e| e.error.is_unfulfillable()));
    let pools: Vec<(&str, &str)> = without
        .errors
        .iter()
        .map(|e| (e.type_.as_str(), e.zone.as_str()))
        .collect();
    assert!(pools.contains(&("m5.xlarge", "us-west-2b")), "{pools:?}");
}

#[tokio::test]
async fn a_launch_whose_answer_was_lost_or_whose_process_died_is_launched_once() {
    let world = World::new().await;
    let fleet = fleet(&world, "default").await;
    let window = Window {
        idle: Duration::from_millis(5),
        ..WINDOW
    };
    world.fake.add_fault(Fault::drop_answer("CreateFleet"));
    let fleets = Fleets::new(world.aws.clone(), window);
    let first = fleets
        .launch(fleet.clone(), "uid-1")
        .await
        .unwrap()
        .launched
        .unwrap();
    assert_eq!(world.calls("CreateFleet"), 2, "repeated");
    assert_eq!(world.fake.instances().len(), 1, "launched once");

    // The process dies before it records the machine; the next one asks again.
    drop(fleets);
    let fleets = Fleets::new(world.aws.clone(), window);
    let again = fleets
        .launch(fleet.clone(), "uid-1")
        .await
        .unwrap()
        .launched
        .unwrap();
    assert_eq!(again, first);
    assert_eq!(world.fake.instances().len(), 1);
    let other = fleets
        .launch(fleet, "uid-2")
        .await
        .unwrap()
        .launched
        .unwrap();
    assert_ne!(other.id, first.id);
}

#[tokio::test]
async fn a_launch_that_failed_for_good_is_not_answered_with_its_failure_for_ever() {
    let world = World::new().await;
    let fleet = fleet(&world, "default").await;
    world.fake.set_shortages(vec![Shortage::new("*", "*", "*")]);
    let fleets = Fleets::new(world.aws.clone(), WINDOW);
    assert!(
        fleets
            .launch(fleet.clone(), "uid-1")
            .await
            .unwrap()
            .launched
            .is_none()
    );
    world.fake.set_shortages(vec![]);
    assert!(
        fleets
            .launch(fleet, "uid-1")
            .await
            .unwrap()
            .launched
            .is_some()
    );
}
