//! Requests to AWS: filters, page sizes, user agent.

use std::time::Duration;

use jiff::Timestamp;
use karpenter_aws::controllers::interruption::queue::Queue;
use karpenter_aws::providers::image::Images;
use karpenter_aws::providers::instance::Instances;
use karpenter_aws::providers::instance_type::offered::catalogue;
use karpenter_aws::providers::instance_type::shifted_zones::ShiftedZones;
use karpenter_aws::providers::security_group::SecurityGroups;
use karpenter_aws::providers::subnet::Subnets;
use karpenter_aws::providers::version::KubernetesVersion;
use serde_json::{Value, json};

use crate::ec2::support::{World, class};

/// The parameters of each call of an action.
fn asked(world: &World, action: &str) -> Vec<Value> {
    let calls = world.fake.calls().into_iter();
    calls
        .filter(|call| call.action == action)
        .map(|call| call.params)
        .collect()
}

/// Names of filters with their values, ordered.
fn filters(params: &Value) -> Vec<(String, Vec<String>)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut all: Vec<_> = params["Filter"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|f| {
            let values = f["Value"].as_array().unwrap().iter().map(text).collect();
            (text(&f["Name"]), values)
        })
        .collect();
    all.sort();
    all
}

fn filter(name: &str, values: &[&str]) -> (String, Vec<String>) {
    let values = values.iter().map(|v| (*v).to_owned()).collect();
    (name.to_owned(), values)
}

/// Conformance: AWS-offering-06
#[tokio::test]
async fn instance_types_are_those_that_nodes_can_run_on() {
    let world = World::new().await;
    world.fake.forget_calls();
    catalogue::instance_types(&world.aws).await.unwrap();
    catalogue::zones(&world.aws).await.unwrap();
    let first = &asked(&world, "DescribeInstanceTypes")[0];
    assert_eq!(
        filters(first),
        [
            filter(
                "processor-info.supported-architecture",
                &["x86_64", "arm64"]
            ),
            filter("supported-virtualization-type", &["hvm"]),
        ]
    );
    assert_eq!(first["MaxResults"], 100);
    let first = &asked(&world, "DescribeInstanceTypeOfferings")[0];
    assert_eq!(first["LocationType"], "availability-zone");
    assert_eq!(first["MaxResults"], 1000);
}

/// Conformance: AWS-pricing-06
#[tokio::test]
async fn prices_are_those_of_linux_without_software_by_the_hour() {
    let world = World::new().await;
    world.fake.forget_calls();
    let now = Timestamp::now();
    catalogue::on_demand_prices(&world.aws).await.unwrap();
    catalogue::spot_prices(&world.aws, now).await.unwrap();
    let products = asked(&world, "GetProducts");
    let mut found: Vec<Vec<(String, String)>> = products
        .iter()
        .filter(|params| params["NextToken"].is_null())
        .map(|params| {
            assert_eq!(params["ServiceCode"], "AmazonEC2");
            assert_eq!(params["MaxResults"], 100);
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let listed = params["Filters"].as_array().unwrap().iter();
            let mut all: Vec<_> = listed
                .map(|f| {
                    assert_eq!(f["Type"], "TERM_MATCH");
                    (text(&f["Field"]), text(&f["Value"]))
                })
                .collect();
            all.sort();
            all
        })
        .collect();
    found.sort();
    let expected = [
        ("Compute Instance", "Shared"),
        ("Compute Instance (bare metal)", "Dedicated"),
    ]
    .map(|(family, tenancy)| {
        [
            ("capacitystatus", "Used"),
            ("marketoption", "OnDemand"),
            ("operatingSystem", "Linux"),
            ("preInstalledSw", "NA"),
            ("productFamily", family),
            ("regionCode", "us-west-2"),
            ("serviceCode", "AmazonEC2"),
            ("tenancy", tenancy),
        ]
        .map(|(field, value)| (field.to_owned(), value.to_owned()))
        .to_vec()
    });
    assert_eq!(found, expected);
    let history = &asked(&world, "DescribeSpotPriceHistory")[0];
    assert_eq!(
        history["ProductDescription"],
        json!(["Linux/UNIX", "Linux/UNIX (Amazon VPC)"])
    );
    let start: Timestamp = history["StartTime"].as_str().unwrap().parse().unwrap();
    assert_eq!(start.as_second(), now.as_second(), "what counts now");
}

/// Conformance: AWS-ami-10
#[tokio::test]
async fn images_are_available_ones_and_those_that_are_deprecated_too() {
    let world = World::new().await;
    let images = Images::new(
        world.aws.clone(),
        KubernetesVersion::new("1.34"),
        Duration::ZERO,
    );
    let terms = json!([{ "tags": { "team": "x" } }, { "name": "mine" }, { "id": "ami-1" }]);
    let class = class(
        "c",
        json!({ "amiSelectorTerms": terms, "amiFamily": "AL2023" }),
    );
    images.list(&class, Timestamp::now()).await.unwrap();
    let mut found: Vec<_> = asked(&world, "DescribeImages")
        .iter()
        .map(|params| {
            assert_eq!(params["IncludeDeprecated"], true);
            assert_eq!(params["MaxResults"], 1000);
            (filters(params), params["Owner"].clone())
        })
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    let state = || filter("state", &["available"]);
    assert_eq!(
        found,
        [
            (vec![filter("image-id", &["ami-1"]), state()], Value::Null),
            (
                vec![filter("name", &["mine"]), state()],
                json!(["self", "amazon"])
            ),
            (vec![state(), filter("tag:team", &["x"])], Value::Null),
        ]
    );
}

/// Conformance: AWS-sg-01
#[tokio::test]
async fn ids_are_one_question_and_each_term_of_tags_its_own() {
    let world = World::new().await;
    let subnets = Subnets::new(world.aws.clone(), Duration::ZERO);
    let groups = SecurityGroups::new(world.aws.clone());
    let tags = json!([{ "tags": { "team": "x", "tier": "*" } }, { "tags": { "team": "y" } }]);
    let with = |more: Value| -> Value {
        let (tags, more) = (tags.as_array().unwrap(), more.as_array().unwrap().iter());
        tags.iter().chain(more).cloned().collect()
    };
    let class = class(
        "c",
        json!({
            "subnetSelectorTerms": with(json!([{ "id": "subnet-a" }, { "id": "subnet-b" }])),
            "securityGroupSelectorTerms": with(json!([{ "id": "sg-a" }, { "id": "sg-b" }, { "name": "n" }, { "name": "m" }])),
        }),
    );
    subnets.list(&class).await.unwrap();
    groups.list(&class).await.unwrap();
    let sorted = |action: &str| {
        let mut all: Vec<_> = asked(&world, action)
            .iter()
            .map(|params| {
                assert_eq!(params["MaxResults"], 500, "{action}");
                filters(params)
            })
            .collect();
        all.sort();
        all
    };
    let terms = || {
        [
            vec![filter("tag-key", &["tier"]), filter("tag:team", &["x"])],
            vec![filter("tag:team", &["y"])],
        ]
    };
    let ids = |name: &str, ids: &[&str]| vec![filter(name, ids)];
    let mut expected = vec![ids("subnet-id", &["subnet-a", "subnet-b"])];
    expected.extend(terms());
    assert_eq!(sorted("DescribeSubnets"), expected);
    let mut expected = vec![
        ids("group-id", &["sg-a", "sg-b"]),
        ids("group-name", &["n", "m"]),
    ];
    expected.extend(terms());
    assert_eq!(sorted("DescribeSecurityGroups"), expected);
}

/// Conformance: AWS-instance-05
#[tokio::test]
async fn instances_are_listed_by_three_tags_until_they_are_gone() {
    let world = World::new().await;
    let instances = Instances::new(world.aws.clone(), "test", true, ShiftedZones::default());
    instances.list().await.unwrap();
    let params = &asked(&world, "DescribeInstances")[0];
    assert_eq!(
        filters(params),
        [
            filter(
                "instance-state-name",
                &["pending", "running", "stopping", "stopped", "shutting-down"]
            ),
            filter("tag-key", &["karpenter.k8s.aws/ec2nodeclass"]),
            filter("tag-key", &["karpenter.sh/nodepool"]),
            filter("tag:eks:eks-cluster-name", &["test"]),
        ]
    );
}

/// Conformance: AWS-interruption-11
#[tokio::test]
async fn ten_messages_are_received_at_once_and_hidden_for_twenty_seconds() {
    let world = World::with(|b| b.interruption_queue("test")).await;
    world.fake.send_message("test", "{}");
    let queue = Queue::new(world.aws.clone(), "test");
    let received = queue.receive(Duration::from_secs(20)).await.unwrap();
    assert_eq!(received.len(), 1);
    let params = &asked(&world, "ReceiveMessage")[0];
    for (name, value) in [
        ("MaxNumberOfMessages", 10),
        ("VisibilityTimeout", 20),
        ("WaitTimeSeconds", 20),
    ] {
        assert_eq!(params[name], value, "{name}");
    }
}

/// Conformance: AWS-startup-03
#[tokio::test]
async fn calls_say_that_they_are_karpenter_s_and_of_which_version() {
    let world = World::new().await;
    catalogue::zones(&world.aws).await.unwrap();
    let call = world.fake.calls().pop().unwrap();
    let name = format!("karpenter.sh-{}", env!("CARGO_PKG_VERSION"));
    assert!(call.user_agent.contains(&name), "{}", call.user_agent);
}
