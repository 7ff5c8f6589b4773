//! The same calls, answered by people who are not us: moto, started by `tests/moto.sh`. Without it there is nothing to do here.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use karpenter_aws::api::EC2NodeClass;
use karpenter_aws::discovery;
use karpenter_aws::fleet::{Config, Fleet, Fleets, Override, Purchase, WINDOW};
use karpenter_aws::instance_profiles::InstanceProfiles;
use karpenter_aws::instances::{Freshness, Instances};
use karpenter_aws::interruption::queue::Queue;
use karpenter_aws::launch_templates::LaunchTemplates;
use karpenter_aws::sdk::{Aws, Connect, catalogue};
use karpenter_aws::security_groups::SecurityGroups;
use karpenter_aws::shifted_zones::ShiftedZones;
use karpenter_aws::subnets::Subnets;
use serde_json::json;

use crate::support;
use crate::templates::template;

/// Where moto listens, if it was started.
fn endpoint() -> Option<String> {
    let endpoint = std::env::var("MOTO_ENDPOINT").ok();
    if endpoint.is_none() {
        println!("skipped: moto is not running; tests/moto.sh starts it");
    }
    endpoint
}

async fn connect(endpoint: String) -> Aws {
    let how = Connect {
        region: Some(support::REGION.into()),
        endpoint: Some(endpoint),
        credentials: Some(("AKIATEST".into(), "secret".into())),
        pause: Duration::from_millis(1),
        ..Connect::default()
    };
    Aws::connect(&how).await.unwrap()
}

/// Tags what moto begins with, so that it is selected.
async fn discoverable(aws: &Aws) {
    let subnets = aws
        .ec2("DescribeSubnets", |c| c.describe_subnets().send())
        .await
        .unwrap();
    let groups = aws
        .ec2("DescribeSecurityGroups", |c| {
            c.describe_security_groups().send()
        })
        .await
        .unwrap();
    let subnets = subnets.subnets().iter().filter_map(|s| s.subnet_id());
    let groups = groups.security_groups().iter().filter_map(|g| g.group_id());
    let all: Vec<String> = subnets.chain(groups).map(str::to_owned).collect();
    let tag = aws_sdk_ec2::types::Tag::builder()
        .key("karpenter.sh/discovery")
        .value("test")
        .build();
    aws.ec2("CreateTags", |c| {
        c.create_tags()
            .set_resources(Some(all.clone()))
            .tags(tag.clone())
            .send()
    })
    .await
    .unwrap();
}

async fn image(aws: &Aws) -> String {
    let name = aws_sdk_ec2::types::Filter::builder()
        .name("name")
        .values("amazon-eks-node-linux*")
        .build();
    let found = aws
        .ec2("DescribeImages", |c| {
            c.describe_images().filters(name.clone()).send()
        })
        .await
        .unwrap();
    let image = found.images().first().unwrap();
    image.image_id().unwrap().to_owned()
}

async fn class(aws: &Aws) -> EC2NodeClass {
    let mut class = support::class("default", json!({}));
    let subnets = Subnets::new(aws.clone(), Duration::from_secs(60));
    for subnet in subnets.list(&class).await.unwrap().iter() {
        let found = json!({ "id": subnet.id, "zone": subnet.zone, "zoneID": subnet.zone_id });
        class
            .status
            .subnets
            .push(serde_json::from_value(found).unwrap());
    }
    assert!(class.status.subnets.len() >= 3);
    let groups = SecurityGroups::new(aws.clone());
    class.status.security_groups = groups.list(&class).await.unwrap().to_vec();
    assert!(!class.status.security_groups.is_empty());
    class.status.instance_profile = Some("profile".into());
    let requirement = json!({ "key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"] });
    let ami = json!({ "id": image(aws).await, "requirements": [requirement] });
    class.status.amis = vec![serde_json::from_value(ami).unwrap()];
    class
}

fn fleet(class: &EC2NodeClass, template: String, image: String) -> Fleet {
    let overrides = class.status.subnets.iter().take(2).map(|subnet| Override {
        type_: "m5.large".into(),
        zone: subnet.zone.clone(),
        subnet: subnet.id.clone(),
        image: image.clone(),
        price: 0.1.into(),
    });
    let tags = [
        ("karpenter.sh/nodepool", "default"),
        ("karpenter.k8s.aws/ec2nodeclass", "default"),
        ("eks:eks-cluster-name", "test"),
        ("kubernetes.io/cluster/test", "owned"),
    ];
    Fleet {
        configs: vec![Config {
            template,
            reservation: None,
            overrides: overrides.collect(),
        }],
        purchase: Purchase::OnDemand,
        prioritized: false,
        tags: tags.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        context: None,
    }
}

#[tokio::test]
async fn machines_are_launched_found_tagged_and_given_back() {
    let Some(endpoint) = endpoint() else { return };
    let aws = connect(endpoint).await;
    discovery::self_test(&aws).await.unwrap();
    let types = catalogue::instance_types(&aws).await.unwrap();
    assert!(types.len() > 1000, "{}", types.len());
    assert!(
        catalogue::zones(&aws)
            .await
            .unwrap()
            .contains_key("m5.large")
    );
    let prices = catalogue::spot_prices(&aws, Timestamp::now()).await;
    assert!(!prices.unwrap().is_empty());

    discoverable(&aws).await;
    let class = class(&aws).await;
    let wanted = template(&class);
    let templates = LaunchTemplates::new(aws.clone(), "test");
    let (a, b) = tokio::join!(templates.ensure(&wanted), templates.ensure(&wanted));
    assert_eq!(a.unwrap(), b.unwrap());
    let another_process = LaunchTemplates::new(aws.clone(), "test");
    another_process.ensure(&wanted).await.unwrap();

    let fleets = Fleets::new(aws.clone(), WINDOW);
    let fleet = fleet(&class, wanted.name(), wanted.image_id.clone());
    let uids = ["uid-1", "uid-2", "uid-3"];
    let answers = join_all(uids.map(|uid| fleets.launch(fleet.clone(), uid))).await;
    let ids: BTreeSet<String> = answers
        .into_iter()
        .map(|answer| answer.unwrap().launched.unwrap().id)
        .collect();
    assert_eq!(ids.len(), 3, "everyone has a machine of his own");

    let instances = Instances::new(aws.clone(), "test", true, ShiftedZones::default());
    let listed = instances.list().await.unwrap();
    let found: BTreeSet<String> = listed.iter().map(|i| i.id.clone()).collect();
    assert_eq!(found, ids);
    let id = ids.first().unwrap();
    let name = BTreeMap::from([("Name".to_owned(), "node-1".to_owned())]);
    instances.create_tags(id, &name).await.unwrap();
    let one = instances.get(id, Freshness::Asked).await.unwrap();
    assert_eq!(one.tags["Name"], "node-1");
    assert_eq!(
        (one.type_.as_str(), one.capacity_type),
        ("m5.large", "on-demand")
    );

    let unknown = "i-0123456789abcdef0";
    let asked = ids.iter().map(String::as_str).chain([unknown]);
    let asked = asked.map(|id| instances.get(id, Freshness::Asked));
    let answers = join_all(asked).await;
    assert_eq!(answers.iter().filter(|a| a.is_ok()).count(), 3);
    let deleted = join_all(ids.iter().map(|id| instances.delete(id))).await;
    assert!(deleted.iter().all(Result::is_ok), "{deleted:?}");
    assert!(
        instances
            .list()
            .await
            .unwrap()
            .iter()
            .all(|i| i.is_ending())
    );
    templates.delete_all("default").await.unwrap();
}

#[tokio::test]
async fn the_queue_is_read_in_batches() {
    let Some(endpoint) = endpoint() else { return };
    let aws = connect(endpoint).await;
    let created = aws
        .sqs("CreateQueue", |c| {
            c.create_queue().queue_name("events").send()
        })
        .await
        .unwrap();
    let url = created.queue_url().unwrap();
    for n in 0..13 {
        aws.sqs("SendMessage", |c| {
            c.send_message()
                .queue_url(url)
                .message_body(format!("message {n}"))
                .send()
        })
        .await
        .unwrap();
    }
    let queue = Queue::new(aws.clone(), "events");
    let mut bodies = BTreeSet::new();
    while bodies.len() < 13 {
        let received = queue.receive(Duration::from_secs(1)).await.unwrap();
        assert!(!received.is_empty(), "{bodies:?}");
        let handles: Vec<&str> = received.iter().map(|r| r.handle.as_str()).collect();
        assert_eq!(queue.delete(&handles).await.unwrap(), handles.len());
        bodies.extend(received.into_iter().map(|r| r.body));
    }
    assert_eq!(queue.receive(Duration::from_secs(1)).await.unwrap(), []);
    let missing = Queue::new(aws, "nowhere");
    let error = missing.receive(Duration::ZERO).await.unwrap_err();
    assert!(error.is_not_found(), "{error}");
}

#[tokio::test]
async fn profiles_and_the_control_plane_are_found() {
    let Some(endpoint) = endpoint() else { return };
    let aws = connect(endpoint).await;
    let role = "KarpenterNodeRole-test";
    aws.iam("CreateRole", |c| {
        c.create_role()
            .role_name(role)
            .assume_role_policy_document("{}")
            .send()
    })
    .await
    .unwrap();
    let profiles = InstanceProfiles::new(aws.clone(), "test");
    profiles
        .ensure("test_1", role, &BTreeMap::new(), "uid-1")
        .await
        .unwrap();
    let found = profiles.get("test_1").await.unwrap();
    assert_eq!(found.role.as_deref(), Some(role));
    profiles.delete("test_1").await.unwrap();
    assert!(profiles.get("test_1").await.unwrap_err().is_not_found());
    let missing = discovery::control_plane(&aws, "nowhere").await;
    assert!(missing.unwrap_err().is_not_found());
}
