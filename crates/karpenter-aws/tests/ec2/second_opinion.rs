//! The same calls to an independent implementation: [moto](https://docs.getmoto.org), in the version that
//! `tests/moto.sh` installs. Every scenario runs twice, with our stand-in and with moto, and the observations must be
//! equal, apart from the reviewed list at the end. Without moto the tests are skipped and say so; `.ci/run` installs
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use aws_sdk_ec2::types as ec2;
use futures::future::join_all;
use jiff::Timestamp;
use karpenter_aws::api::EC2NodeClass;
use karpenter_aws::controllers::interruption::queue::Queue;
use karpenter_aws::operator::discovery;
use karpenter_aws::providers::instance::fleet;
use karpenter_aws::providers::instance::fleet::{
    Config, Fleet, Fleets, Override, Purchase, WINDOW,
};
use karpenter_aws::providers::instance::{Freshness, Instances};
use karpenter_aws::providers::instance_profile::InstanceProfiles;
use karpenter_aws::providers::instance_type::offered::catalogue;
use karpenter_aws::providers::instance_type::shifted_zones::ShiftedZones;
use karpenter_aws::providers::launch_template::LaunchTemplates;
use karpenter_aws::providers::security_group::SecurityGroups;
use karpenter_aws::providers::subnet::Subnets;
use karpenter_aws::sdk::{Aws, AwsError, Connect};
use serde_json::{Value, json};
use skipped::skipped;

use crate::ec2::support;
use crate::ec2::support::World;
use crate::ec2::templates::template;

/// A server of moto; it ends with the test.
struct Moto {
    child: Child,
    url: String,
}

impl Drop for Moto {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the program: `MOTO_SERVER`, or where `tests/moto.sh` installs it. A missing `MOTO_SERVER` is an error.
fn program() -> Option<PathBuf> {
    if let Some(named) = env::var_os("MOTO_SERVER") {
        return Some(named.into());
    }
    let installed = "../../target/tools/moto/bin/moto_server";
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join(installed);
    installed.exists().then_some(installed)
}

impl Moto {
    /// Starts a server on a free port of loopback; `None` without moto.
    fn start() -> Option<Self> {
        let Some(program) = program() else {
            skipped("moto", "tests/moto.sh installs it");
            return None;
        };
        let mut child = Command::new(&program)
            .args(["-H", "127.0.0.1", "-p", "0"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let url = lines.by_ref().map(Result::unwrap).find_map(|line| {
            let (_, url) = line.split_once("Running on ")?;
            Some(url.trim().to_owned())
        });
        // The log is discarded, but the pipe must be drained.
        std::thread::spawn(move || lines.for_each(drop));
        let url = url.expect("moto says where it listens");
        Some(Self { child, url })
    }

    async fn connect(&self) -> Aws {
        let how = Connect {
            region: Some(support::REGION.into()),
            endpoint: Some(self.url.clone()),
            credentials: Some(("AKIATEST".into(), "secret".into())),
            pause: Duration::from_millis(1),
            ..Connect::default()
        };
        let aws = Aws::connect(&how).await.unwrap();
        discoverable(&aws).await;
        aws
    }
}

/// Tags moto's default resources, so that they are selected.
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
    let tag = ec2::Tag::builder()
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

/// Returns an AMI that boots m5.large: the first of Amazon's for EKS.
async fn image(aws: &Aws) -> String {
    let filter = |name: &str, values: [&str; 2]| {
        ec2::Filter::builder()
            .name(name)
            .set_values(Some(values.map(str::to_owned).into()))
            .build()
    };
    let named = ["amazon-eks-node-linux*", "amazon-eks-node-al2023-x86_64*"];
    let filters = vec![
        filter("name", named),
        filter("architecture", ["x86_64", "x86_64"]),
    ];
    let found = aws
        .ec2("DescribeImages", |c| {
            c.describe_images()
                .set_filters(Some(filters.clone()))
                .send()
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
    let groups = SecurityGroups::new(aws.clone());
    class.status.security_groups = groups.list(&class).await.unwrap().to_vec();
    class.status.instance_profile = Some("profile".into());
    let requirement = json!({ "key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"] });
    let ami = json!({ "id": image(aws).await, "requirements": [requirement] });
    class.status.amis = vec![serde_json::from_value(ami).unwrap()];
    class
}

fn fleet(class: &EC2NodeClass, template: &str, image: &str, purchase: Purchase) -> Fleet {
    let subnets = class.status.subnets.iter().take(2);
    let overrides = subnets.map(|subnet| Override {
        type_: "m5.large".into(),
        zone: subnet.zone.clone(),
        subnet: subnet.id.clone(),
        image: image.to_owned(),
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
            template: template.to_owned(),
            reservation: None,
            overrides: overrides.collect(),
        }],
        purchase,
        prioritized: false,
        tags: tags.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        context: None,
    }
}

type Seen = BTreeMap<String, Value>;

/// Returns AWS's error code of a refusal, or `ok`.
fn code<T>(answer: Result<T, AwsError>) -> Value {
    match answer {
        Ok(_) => json!("ok"),
        Err(error) => json!(error.code.map_or(error.message, |code| code.to_string())),
    }
}

/// The life of instances, from the list of instance types to their termination.
async fn instances(aws: &Aws) -> Seen {
    let mut seen = Seen::new();
    let mut see = |what: &str, value: Value| {
        seen.insert(what.to_owned(), value);
    };
    see("self-test", json!(discovery::self_test(aws).await.is_ok()));
    let types = catalogue::instance_types(aws).await.unwrap();
    see("types", json!(types.len()));
    for name in [
        "m5.large",
        "t4g.small",
        "g4dn.xlarge",
        "c6gn.16xlarge",
        "inf2.xlarge",
    ] {
        let found = types.iter().find(|t| t.name == name);
        see(name, json!(format!("{:?}", found.unwrap())));
    }
    let zones = catalogue::zones(aws).await.unwrap();
    see("zones of m5.large", json!(zones["m5.large"]));
    let prices = catalogue::spot_prices(aws, Timestamp::now()).await.unwrap();
    let cheap = |p: &(String, String, f64)| p.0 == "m5.large" && p.2 > 0.0 && p.2 < 1.0;
    see("a spot price of m5.large", json!(prices.iter().any(cheap)));

    let class = class(aws).await;
    see("several subnets", json!(class.status.subnets.len() > 1));
    let zone_ids = class.status.subnets.iter().all(|s| s.zone_id.is_some());
    see("subnets have the ids of their zones", json!(zone_ids));
    let wanted = template(&class);
    let templates = LaunchTemplates::new(aws.clone(), "test");
    let (a, b) = tokio::join!(templates.ensure(&wanted), templates.ensure(&wanted));
    see(
        "a template created twice at once",
        json!(a.unwrap() == b.unwrap()),
    );
    let another_process = LaunchTemplates::new(aws.clone(), "test");
    see(
        "found by another process",
        code(another_process.ensure(&wanted).await),
    );
    let hydrated = LaunchTemplates::new(aws.clone(), "test").hydrate().await;
    see("templates of the cluster", json!(hydrated.unwrap()));

    let on_demand = fleet(&class, &wanted.name(), &wanted.image_id, Purchase::OnDemand);
    see("a dry run", code(fleet::dry_run(aws, &on_demand).await));
    let fleets = Fleets::new(aws.clone(), WINDOW);
    let uids = ["uid-1", "uid-2", "uid-3"];
    let answers = join_all(uids.map(|uid| fleets.launch(on_demand.clone(), uid))).await;
    let ids: BTreeSet<String> = answers
        .into_iter()
        .map(|answer| answer.unwrap().launched.unwrap().id)
        .collect();
    see("instances for three claims", json!(ids.len()));
    let spot = fleet(&class, &wanted.name(), &wanted.image_id, Purchase::Spot);
    let spot = fleets.launch(spot, "uid-4").await.unwrap();
    let spot = spot.launched.unwrap().id;

    let instances = Instances::new(aws.clone(), "test", true, ShiftedZones::default());
    let listed = instances.list().await.unwrap();
    let found: BTreeSet<&str> = listed.iter().map(|i| i.id.as_str()).collect();
    let all: BTreeSet<&str> = ids
        .iter()
        .map(String::as_str)
        .chain([spot.as_str()])
        .collect();
    see("all are listed", json!(found == all));
    for (what, id) in [("on demand", ids.first().unwrap()), ("spot", &spot)] {
        let one = instances.get(id, Freshness::Fresh).await.unwrap();
        let groups = class.status.security_groups.iter();
        let groups: BTreeSet<String> = groups.map(|g| g.id.clone()).collect();
        let subnet = class.status.subnets.iter().find(|s| s.id == one.subnet_id);
        let about = json!({
            "type": one.type_, "capacity type": one.capacity_type, "tenancy": one.tenancy,
            "image asked for": one.image_id == wanted.image_id,
            "groups asked for": one.security_groups == groups,
            "zone of its subnet": subnet.is_some_and(|s| s.zone == one.zone),
            "zone id of its subnet": subnet.is_some_and(|s| s.zone_id == one.zone_id),
            "state": matches!(one.state.as_str(), "pending" | "running"),
        });
        see(what, about);
        let ours = |key: &&String| !key.starts_with("aws:");
        see(
            &format!("tags, {what}"),
            json!(one.tags.keys().filter(ours).collect::<Vec<_>>()),
        );
        let own = one.tags.keys().filter(|k| k.starts_with("aws:"));
        see(
            &format!("EC2's tags, {what}"),
            json!(own.collect::<Vec<_>>()),
        );
    }
    let id = ids.first().unwrap();
    let name = BTreeMap::from([("Name".to_owned(), "node-1".to_owned())]);
    instances.create_tags(id, &name).await.unwrap();
    let one = instances.get(id, Freshness::Fresh).await.unwrap();
    see("a tag that was added", json!(one.tags.get("Name")));

    let unknown = "i-0123456789abcdef0";
    let asked = ids.iter().map(String::as_str).chain([unknown]);
    let answers = join_all(asked.map(|id| instances.get(id, Freshness::Fresh))).await;
    let known = answers.iter().filter(|a| a.is_ok()).count();
    see("an unknown id besides known ones", json!(known));
    let deleted = join_all(all.iter().map(|id| instances.delete(id))).await;
    see(
        "all are terminated",
        json!(deleted.iter().all(Result::is_ok)),
    );
    let listed = instances.list().await.unwrap();
    see(
        "all are ending",
        json!(listed.iter().all(|i| i.is_ending())),
    );
    see(
        "templates are deleted",
        code(templates.delete_all("default").await),
    );
    let left = LaunchTemplates::new(aws.clone(), "test").hydrate().await;
    see("templates left", json!(left.unwrap()));
    seen
}

/// A queue, written and read in batches.
async fn queue(aws: &Aws) -> Seen {
    let mut seen = Seen::new();
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
    let mut most = 0;
    let mut all_deleted = true;
    while bodies.len() < 13 {
        let received = queue.receive(Duration::from_secs(1)).await.unwrap();
        assert!(!received.is_empty(), "{bodies:?}");
        most = most.max(received.len());
        let handles: Vec<&str> = received.iter().map(|r| r.handle.as_str()).collect();
        all_deleted &= queue.delete(&handles).await.unwrap() == handles.len();
        bodies.extend(received.into_iter().map(|r| r.body));
    }
    seen.insert("messages at once".into(), json!(most));
    seen.insert("messages".into(), json!(bodies));
    seen.insert("all are deleted".into(), json!(all_deleted));
    let left = queue.receive(Duration::ZERO).await.unwrap();
    seen.insert("messages left".into(), json!(left.len()));
    seen
}

/// An instance profile whose role is replaced.
async fn profiles(aws: &Aws) -> Seen {
    let mut seen = Seen::new();
    for role in ["one", "two"] {
        let made = aws.iam("CreateRole", |c| {
            c.create_role()
                .role_name(role)
                .assume_role_policy_document("{}")
                .send()
        });
        made.await.unwrap();
    }
    let tags = BTreeMap::from([("team".to_owned(), "x".to_owned())]);
    for role in ["one", "two"] {
        // Another process, without cache.
        let profiles = InstanceProfiles::new(aws.clone(), "test");
        profiles
            .ensure("test_1", role, &tags, "uid-1")
            .await
            .unwrap();
        let found = InstanceProfiles::new(aws.clone(), "test");
        let found = found.get("test_1").await.unwrap();
        seen.insert(format!("role {role}"), json!([found.role, found.path]));
    }
    let profiles = InstanceProfiles::new(aws.clone(), "test");
    let below = profiles.list(&profiles.class_path("uid-1")).await.unwrap();
    seen.insert("below its path".into(), json!(below.len()));
    let elsewhere = profiles.list("/elsewhere/").await.unwrap();
    seen.insert("below another path".into(), json!(elsewhere.len()));
    profiles.delete("test_1").await.unwrap();
    seen.insert("deleted".into(), code(profiles.get("test_1").await));
    seen
}

/// The error codes of refused calls, which decide the reaction.
async fn refusals(aws: &Aws) -> Seen {
    let mut seen = Seen::new();
    macro_rules! refused {
        ($what:literal, $service:ident $operation:literal $call:expr) => {
            seen.insert(
                format!("{}: {}", $operation, $what),
                code(aws.$service($operation, $call).await),
            );
        };
    }
    let unknown = "i-0123456789abcdef0";
    refused!("unknown", ec2 "DescribeInstances" |c| c.describe_instances().instance_ids(unknown).send());
    refused!("malformed", ec2 "DescribeInstances" |c| c.describe_instances().instance_ids("i-?").send());
    refused!("unknown", ec2 "TerminateInstances" |c| c.terminate_instances().instance_ids(unknown).send());
    let tag = ec2::Tag::builder().key("a").value("b").build();
    refused!("unknown", ec2 "CreateTags" |c| c.create_tags().resources(unknown).tags(tag.clone()).send());
    refused!("unknown", ec2 "DescribeImages" |c| c.describe_images().image_ids("ami-0123456789abcdef0").send());
    let run = |c: &aws_sdk_ec2::Client, image: &str| {
        c.run_instances()
            .image_id(image)
            .instance_type("m5.large".into())
            .min_count(1)
            .max_count(1)
    };
    refused!("unknown image", ec2 "RunInstances" |c| run(c, "ami-0123456789abcdef0").send());
    let image = image(aws).await;
    let class = class(aws).await;
    let subnet = class.status.subnets[0].id.as_str();
    refused!("unknown subnet", ec2 "RunInstances" |c| run(c, &image).subnet_id("subnet-0123456789abcdef0").send());
    refused!("unknown group", ec2 "RunInstances" |c| run(c, &image).subnet_id(subnet).security_group_ids("sg-0123456789abcdef0").send());
    refused!("trial", ec2 "RunInstances" |c| run(c, &image).subnet_id(subnet).dry_run(true).send());
    refused!("unknown", ec2 "DescribeLaunchTemplates" |c| c.describe_launch_templates().launch_template_names("missing").send());
    refused!("unknown", ec2 "DeleteLaunchTemplate" |c| c.delete_launch_template().launch_template_id("lt-0123456789abcdef0").send());
    let data = ec2::RequestLaunchTemplateData::builder()
        .image_id(&image)
        .build();
    refused!("first", ec2 "CreateLaunchTemplate" |c| c.create_launch_template().launch_template_name("one").launch_template_data(data.clone()).send());
    refused!("second", ec2 "CreateLaunchTemplate" |c| c.create_launch_template().launch_template_name("one").launch_template_data(data.clone()).send());
    let nowhere = fleet(&class, "missing", &image, Purchase::OnDemand);
    let fleets = Fleets::new(aws.clone(), WINDOW);
    let launched = fleets.launch(nowhere, "uid").await;
    seen.insert("CreateFleet: unknown template".into(), code(launched));

    let profile = "profile-1";
    refused!("unknown", iam "GetInstanceProfile" |c| c.get_instance_profile().instance_profile_name("missing").send());
    refused!("unknown", iam "DeleteInstanceProfile" |c| c.delete_instance_profile().instance_profile_name("missing").send());
    refused!("first", iam "CreateInstanceProfile" |c| c.create_instance_profile().instance_profile_name(profile).send());
    refused!("second", iam "CreateInstanceProfile" |c| c.create_instance_profile().instance_profile_name(profile).send());
    refused!("unknown role", iam "AddRoleToInstanceProfile" |c| c.add_role_to_instance_profile().instance_profile_name(profile).role_name("missing").send());
    refused!("first", iam "CreateRole" |c| c.create_role().role_name("role-1").assume_role_policy_document("{}").send());
    refused!("first", iam "AddRoleToInstanceProfile" |c| c.add_role_to_instance_profile().instance_profile_name(profile).role_name("role-1").send());
    refused!("second", iam "AddRoleToInstanceProfile" |c| c.add_role_to_instance_profile().instance_profile_name(profile).role_name("role-1").send());
    refused!("with a role", iam "DeleteInstanceProfile" |c| c.delete_instance_profile().instance_profile_name(profile).send());

    refused!("unknown", ssm "GetParameter" |c| c.get_parameter().name("/missing").send());
    refused!("unknown", sqs "GetQueueUrl" |c| c.get_queue_url().queue_name("missing").send());
    refused!("unknown", eks "DescribeCluster" |c| c.describe_cluster().name("missing").send());
    seen
}

/// Reviewed differences between moto and our stand-in, with what EC2 does according to its documentation. Every other
/// difference fails the test.
const REVIEWED: [(&str, &str); 10] = [
    (
        "instances/types",
        "EC2 lists the types of the region; moto lists all it knows",
    ),
    (
        "instances/on demand",
        "EC2 puts the template's security groups on the instance and returns the id of its zone; moto does neither",
    ),
    (
        "instances/spot",
        "EC2 returns the spot request of an instance, and the id of its zone; moto returns neither",
    ),
    (
        "instances/EC2's tags, on demand",
        "EC2 adds tags of its own; moto does not",
    ),
    (
        "instances/EC2's tags, spot",
        "EC2 adds tags of its own; moto does not",
    ),
    (
        "profiles/below another path",
        "IAM filters by PathPrefix; moto does not",
    ),
    (
        "refusals/DescribeInstances: malformed",
        "EC2 distinguishes malformed ids from unknown ones; moto does not",
    ),
    (
        "refusals/CreateTags: unknown",
        "EC2 knows which instances exist; moto tags anything",
    ),
    (
        "refusals/DeleteLaunchTemplate: unknown",
        "EC2 returns an unknown id as unknown id; moto as unknown name",
    ),
    (
        "refusals/RunInstances: unknown image",
        "EC2 launches no image that does not exist; moto does by default",
    ),
];

/// Compares the observations with our stand-in and with moto.
fn compare(part: &str, ours: &Seen, motos: &Seen) {
    let reviewed: BTreeSet<&str> = REVIEWED
        .iter()
        .filter_map(|(what, _)| what.strip_prefix(part)?.strip_prefix("/"))
        .collect();
    let keys: BTreeSet<&String> = ours.keys().chain(motos.keys()).collect();
    let different: BTreeSet<&str> = keys
        .into_iter()
        .filter(|key| ours.get(*key) != motos.get(*key))
        .map(String::as_str)
        .collect();
    let unreviewed: Vec<String> = different
        .symmetric_difference(&reviewed)
        .map(|what| {
            format!(
                "{part}/{what}: ours {:?}, moto's {:?}",
                ours.get(*what),
                motos.get(*what)
            )
        })
        .collect();
    assert!(
        unreviewed.is_empty(),
        "not as reviewed:\n{}",
        unreviewed.join("\n")
    );
}

#[tokio::test]
async fn instances_live_as_they_do_in_moto() {
    let Some(moto) = Moto::start() else { return };
    let world = World::new().await;
    compare(
        "instances",
        &instances(&world.aws).await,
        &instances(&moto.connect().await).await,
    );
}

#[tokio::test]
async fn queues_and_profiles_behave_as_they_do_in_moto() {
    let Some(moto) = Moto::start() else { return };
    let (world, aws) = (World::new().await, moto.connect().await);
    compare("queue", &queue(&world.aws).await, &queue(&aws).await);
    compare(
        "profiles",
        &profiles(&world.aws).await,
        &profiles(&aws).await,
    );
}

#[tokio::test]
async fn calls_are_refused_with_the_same_codes_as_in_moto() {
    let Some(moto) = Moto::start() else { return };
    let world = World::new().await;
    compare(
        "refusals",
        &refusals(&world.aws).await,
        &refusals(&moto.connect().await).await,
    );
}
