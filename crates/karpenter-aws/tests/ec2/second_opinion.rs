//! Refused calls compared with an independent implementation: [moto](https://docs.getmoto.org), in the version that
//! `tests/moto.sh` installs. Each call is made to our stand-in and to moto, and the error codes must be equal, apart
//! from the reviewed list at the end. Without moto the test is skipped and says so; `.ci/run` installs it.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use aws_sdk_ec2::types as ec2;
use karpenter_aws::providers::instance::fleet::{
    Config, Fleet, Fleets, Override, Purchase, WINDOW,
};
use karpenter_aws::sdk::{Aws, AwsError, Connect};
use skipped::skipped;

use crate::ec2::support;
use crate::ec2::support::World;

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
        Aws::connect(&how).await.unwrap()
    }
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

/// Returns an instance in a subnet of the account, to launch with a template that does not exist.
fn fleet(subnet: &ec2::Subnet, image: &str) -> Fleet {
    let zone = subnet.availability_zone().unwrap();
    // A tag specification without tags is refused before the template is looked up.
    let tags = [("karpenter.sh/nodepool", "default")];
    Fleet {
        configs: vec![Config {
            template: "missing".into(),
            reservation: None,
            overrides: vec![Override {
                type_: "m5.large".into(),
                zone: zone.into(),
                subnet: subnet.subnet_id().unwrap().into(),
                image: image.into(),
                price: 0.1.into(),
            }],
        }],
        purchase: Purchase::OnDemand,
        prioritized: false,
        tags: tags.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        context: None,
    }
}

type Codes = BTreeMap<String, String>;

/// Returns AWS's error code of a refusal, or `ok`.
fn code<T>(answer: Result<T, AwsError>) -> String {
    match answer {
        Ok(_) => "ok".to_owned(),
        Err(error) => error.code.map_or(error.message, |code| code.to_string()),
    }
}

/// The error codes of refused calls, which decide the reaction.
async fn refusals(aws: &Aws) -> Codes {
    let mut codes = Codes::new();
    macro_rules! refused {
        ($what:literal, $service:ident $operation:literal $call:expr) => {
            codes.insert(
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
    let subnets = aws
        .ec2("DescribeSubnets", |c| c.describe_subnets().send())
        .await
        .unwrap();
    let nowhere = fleet(&subnets.subnets()[0], &image);
    let subnet = subnets.subnets()[0].subnet_id().unwrap();
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
    let fleets = Fleets::new(aws.clone(), WINDOW);
    let launched = fleets.launch(nowhere, "uid").await;
    codes.insert("CreateFleet: unknown template".into(), code(launched));

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
    codes
}

/// Reviewed differences between moto and our stand-in, with what EC2 does according to its documentation. Every other
/// difference fails the test.
const REVIEWED: [(&str, &str); 4] = [
    (
        "DescribeInstances: malformed",
        "EC2 distinguishes malformed ids from unknown ones; moto does not",
    ),
    (
        "CreateTags: unknown",
        "EC2 knows which instances exist; moto tags anything",
    ),
    (
        "DeleteLaunchTemplate: unknown",
        "EC2 returns an unknown id as unknown id; moto as unknown name",
    ),
    (
        "RunInstances: unknown image",
        "EC2 launches no image that does not exist; moto does by default",
    ),
];

#[tokio::test]
async fn calls_are_refused_with_the_same_codes_as_in_moto() {
    let Some(moto) = Moto::start() else { return };
    let world = World::new().await;
    let ours = refusals(&world.aws).await;
    let motos = refusals(&moto.connect().await).await;
    let different: BTreeSet<&str> = ours
        .keys()
        .filter(|call| ours[*call] != motos[*call])
        .map(String::as_str)
        .collect();
    let unreviewed: Vec<String> = different
        .symmetric_difference(&REVIEWED.map(|(call, _)| call).into())
        .map(|call| format!("{call}: ours {}, moto's {}", ours[*call], motos[*call]))
        .collect();
    assert_eq!(unreviewed, [""; 0], "not as reviewed");
}
