//! CreateFleet: one call for many NodeClaims, and no instance launched twice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::join_all;
use karpenter_aws::providers::instance::fleet::{
    Config, Fleet, Fleets, Override, Purchase, WINDOW,
};
use karpenter_aws::providers::launch_template::LaunchTemplates;
use karpenter_aws::sdk::batcher::Window;
use karpenter_aws_fake::{Fault, Shortage};
use serde_json::json;

use crate::ec2::support::{SUBNET_A, SUBNET_B, World};
use crate::ec2::templates::template;

/// Returns a fleet for m5.large in zone a, then c5.large in zone b.
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

/// Launches `count` instances at once; returns their IDs.
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
    assert_eq!(ids.len(), 20, "every launch has its own instance");
    assert_eq!(world.calls("CreateFleet"), 2);

    // Some launches get the available instances; the others get the errors.
    world.fake.set_capacity("m5.large", "us-west-2a", false, 2);
    world
        .fake
        .set_shortages(vec![Shortage::new("m5.xlarge", "*", "*")]);
    let uids: Vec<String> = (0..5).map(|n| format!("late-{n}")).collect();
    let answers = join_all(uids.iter().map(|uid| fleets.launch(one.clone(), uid))).await;
    let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
    assert_eq!(answers.iter().filter(|a| a.launched.is_some()).count(), 2);
    assert_eq!(
        answers.iter().filter(|a| a.handles_errors).count(),
        1,
        "errors are handled once"
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

/// Conformance: AWS-launch-19, AWS-launch-20
#[tokio::test]
async fn a_fleet_asks_for_one_instance_with_the_strategy_of_its_purchase() {
    let world = World::new().await;
    let fleet = fleet(&world, "default").await;
    let (template, image) = (fleet.configs[0].template.clone(), world.image());
    let asked = async |fleet: Fleet, uid: &str| {
        let fleets = Fleets::new(world.aws.clone(), WINDOW);
        // Some are refused by the stand-in; what was asked for is what counts.
        let _ = fleets.launch(fleet, uid).await;
        let calls = world.fake.calls();
        calls
            .into_iter()
            .rfind(|c| c.action == "CreateFleet")
            .unwrap()
            .params
    };
    let plain = asked(fleet.clone(), "plain").await;
    assert_eq!(plain["Type"], "instant");
    assert_eq!(
        plain["TargetCapacitySpecification"]["TotalTargetCapacity"],
        1
    );
    let config = &plain["LaunchTemplateConfigs"][0];
    assert_eq!(
        config["LaunchTemplateSpecification"],
        json!({ "LaunchTemplateName": template, "Version": "$Latest" })
    );
    assert_eq!(
        config["Overrides"],
        json!([
            { "InstanceType": "m5.large", "SubnetId": SUBNET_A, "ImageId": image, "AvailabilityZone": "us-west-2a", "Priority": 0.1 },
            { "InstanceType": "m5.xlarge", "SubnetId": SUBNET_B, "ImageId": image, "AvailabilityZone": "us-west-2b", "Priority": 0.2 },
        ])
    );
    let tagged: Vec<&str> = plain["TagSpecification"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| {
            assert_eq!(t["Tag"].as_array().unwrap().len(), 4);
            t["ResourceType"].as_str().unwrap()
        })
        .collect();
    assert_eq!(tagged, ["instance", "volume", "fleet"]);
    for (n, (purchase, prioritized, target, strategies)) in [
        (
            Purchase::OnDemand,
            false,
            "on-demand",
            [Some("lowest-price"), None, None],
        ),
        (
            Purchase::OnDemand,
            true,
            "on-demand",
            [Some("prioritized"), None, None],
        ),
        (
            Purchase::Spot,
            false,
            "spot",
            [None, Some("price-capacity-optimized"), None],
        ),
        (
            Purchase::Spot,
            true,
            "spot",
            [None, Some("capacity-optimized-prioritized"), None],
        ),
        (
            Purchase::Interruptible,
            false,
            "reserved-capacity",
            [None, None, Some("interruptible-capacity-reservation")],
        ),
        (
            Purchase::CapacityBlock,
            false,
            "capacity-block",
            [None, None, None],
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let fleet = Fleet {
            purchase,
            prioritized,
            ..fleet.clone()
        };
        let asked = asked(fleet, &format!("uid-{n}")).await;
        let kind = &asked["TargetCapacitySpecification"]["DefaultTargetCapacityType"];
        assert_eq!(kind, target);
        let found = [
            asked["OnDemandOptions"]["AllocationStrategy"].as_str(),
            asked["SpotOptions"]["AllocationStrategy"].as_str(),
            asked["ReservedCapacityOptions"]["ReservationType"][0].as_str(),
        ];
        assert_eq!(found, strategies, "{purchase:?}");
    }
}

#[tokio::test]
async fn a_launch_whose_answer_was_lost_or_whose_process_died_is_launched_once() {
    let world = World::new().await;
    let fleet = fleet(&world, "default").await;
    let window = Window {
        idle: Duration::from_millis(5),
        ..WINDOW
    };
    // Each time in another process: the last died before it recorded the instance.
    let launched = async |uid: &str| {
        let fleets = Fleets::new(world.aws.clone(), window);
        let answer = fleets.launch(fleet.clone(), uid).await.unwrap();
        answer.launched.unwrap()
    };
    world.fake.add_fault(Fault::drop_answer("CreateFleet"));
    let first = launched("uid-1").await;
    assert_eq!(world.calls("CreateFleet"), 2, "repeated");
    assert_eq!(world.fake.instances().len(), 1, "launched once");
    assert_eq!(launched("uid-1").await, first);
    assert_eq!(world.fake.instances().len(), 1);
    assert_ne!(launched("uid-2").await.id, first.id);
}

#[tokio::test]
async fn a_launch_that_failed_definitely_gets_a_new_client_token() {
    let world = World::new().await;
    let fleet = fleet(&world, "default").await;
    let fleets = Fleets::new(world.aws.clone(), WINDOW);
    for (shortages, is_launched) in [(vec![Shortage::new("*", "*", "*")], false), (vec![], true)] {
        world.fake.set_shortages(shortages);
        let answer = fleets.launch(fleet.clone(), "uid-1").await.unwrap();
        assert_eq!(answer.launched.is_some(), is_launched);
    }
}
