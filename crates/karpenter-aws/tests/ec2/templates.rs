//! Launch templates: their content, and when a new one is created.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use karpenter_api::labels as core_labels;
use karpenter_api::v1::NodeClaim;
use karpenter_aws::api::EC2NodeClass;
use karpenter_aws::providers::launch_template::request::data;
use karpenter_aws::providers::launch_template::{
    ClusterSettings, Launch, LaunchTemplates, Reserved, Resolved, Template, TemplateError, resolve,
};
use karpenter_aws::user_data::Cluster;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::offering::Offering;
use karpenter_core::requirements::{Requirement, Requirements};
use karpenter_core::resources::Resources;
use serde_json::{Value, json};

use crate::ec2::support::{World, resolved};

pub fn settings() -> ClusterSettings {
    ClusterSettings {
        cluster: Cluster {
            name: "test".into(),
            endpoint: "https://test.example".into(),
            certificate_authority: Some("Y2E=".into()),
            service_cidr: Some("10.100.0.0/16".into()),
        },
        dns: Some("10.100.0.10".parse().unwrap()),
        region: "us-west-2".into(),
        reserved_capacity: true,
    }
}

fn instance_type(name: &str, pods: i64) -> InstanceType {
    let mut requirements = Requirements::new();
    requirements.add(Requirement::equal(core_labels::ARCH, "amd64"));
    let capacity = Resources::new()
        .with("pods", pods)
        .with("vpc.amazonaws.com/efa", 2);
    InstanceType::new(name, requirements, capacity)
}

type Change<'a> = &'a dyn Fn(&mut Case);

#[derive(Clone)]
struct Case {
    class: EC2NodeClass,
    claim: NodeClaim,
    settings: ClusterSettings,
    capacity_type: &'static str,
    types: Vec<InstanceType>,
    tags: BTreeMap<String, String>,
    reserved: Reserved,
    /// Whether each instance type keeps something of its own.
    reserved_by_name: bool,
}

impl Case {
    fn new(class: EC2NodeClass) -> Self {
        Self {
            class,
            claim: NodeClaim::new("c", Default::default()),
            settings: settings(),
            capacity_type: "on-demand",
            types: vec![instance_type("m5.large", 29)],
            tags: [("kubernetes.io/cluster/test".to_owned(), "owned".to_owned())].into(),
            reserved: Reserved::default(),
            reserved_by_name: false,
        }
    }

    fn plain() -> Self {
        Self::new(resolved("c", "ami-1"))
    }

    fn all(&self) -> Result<Vec<Resolved>, TemplateError> {
        let requirements = Requirements::new();
        let launch = Launch {
            class: &self.class,
            claim: &self.claim,
            requirements: &requirements,
            capacity_type: self.capacity_type,
            tenancy: "default",
            placement_group: None,
            partition: None,
            tags: &self.tags,
        };
        resolve(&launch, &self.settings, &self.types, |t| {
            let mut reserved = self.reserved.clone();
            if self.reserved_by_name {
                reserved.kube.insert("memory".into(), t.name.clone());
            }
            reserved
        })
    }

    fn one(&self) -> Template {
        let mut all = self.all().unwrap();
        assert_eq!(all.len(), 1);
        all.remove(0).template
    }
}

/// Returns the user data of a template as text.
fn decoded(template: &Template) -> String {
    let base64 = &base64::engine::general_purpose::STANDARD;
    let bytes = base64::Engine::decode(base64, &template.user_data).unwrap();
    String::from_utf8(bytes).unwrap()
}

pub fn template(class: &EC2NodeClass) -> Template {
    Case::new(class.clone()).one()
}

/// Conformance: AWS-lt-01, AWS-lt-12
#[tokio::test]
async fn a_template_is_created_once_and_each_node_class_has_its_own() {
    let world = World::new().await;
    let templates = LaunchTemplates::new(world.aws.clone(), "test");
    let one = template(&world.class("one"));
    let (a, b) = tokio::join!(templates.ensure(&one), templates.ensure(&one));
    assert_eq!(a.unwrap(), b.unwrap());
    assert_eq!(world.calls("CreateLaunchTemplate"), 1);
    let another_process = LaunchTemplates::new(world.aws.clone(), "test");
    another_process.ensure(&one).await.unwrap();
    assert_eq!(world.calls("CreateLaunchTemplate"), 1, "found again");
    let two = template(&world.class("two"));
    assert_ne!(one.name(), two.name());
    templates.ensure(&two).await.unwrap();
    assert_eq!(world.fake.launch_templates().len(), 2);

    let mut bare = world.class("bare");
    bare.status.instance_profile = None;
    assert!(matches!(
        Case::new(bare).all(),
        Err(TemplateError::NoInstanceProfile(_))
    ));
}

/// Conformance: AWS-lt-03
#[test]
fn a_template_depends_on_its_content_and_not_on_its_instance_types() {
    let name = |change: &dyn Fn(&mut Case)| {
        let mut case = Case::plain();
        change(&mut case);
        case.one().name()
    };
    let base = name(&|_| {});
    assert_eq!(base, name(&|c| c.types.push(instance_type("c5.large", 29))));
    let changes: [(&str, Change<'_>); 6] = [
        ("typed kubelet", &|c| {
            c.class.spec.kubelet = json!({ "maxPods": 29, "podsPerCore": 3 })
                .as_object()
                .cloned()
        }),
        ("raw kubelet", &|c| {
            c.class.spec.kubelet = json!({ "topologyManagerPolicy": "none" })
                .as_object()
                .cloned()
        }),
        ("image", &|c| {
            c.class.status.amis[0].id = "ami-0000000000000dead".into()
        }),
        ("tags", &|c| {
            c.tags.insert("team".into(), "x".into());
        }),
        ("pods", &|c| c.types = vec![instance_type("m5.large", 30)]),
        ("spot", &|c| c.capacity_type = "spot"),
    ];
    let mut names = BTreeSet::from([base]);
    for (what, change) in changes {
        assert!(names.insert(name(change)), "{what}");
    }
}

/// Conformance: AWS-lt-04, AWS-lt-07
#[test]
fn volumes_are_rounded_up_and_metadata_has_no_tags() {
    let mut case = Case::plain();
    let size = |case: &mut Case, size: &str| {
        case.class.spec.block_device_mappings = serde_json::from_value(
            json!([{ "deviceName": "/dev/xvda", "ebs": { "volumeSize": size } }]),
        )
        .unwrap();
        let data = data(&case.one());
        data.block_device_mappings()[0].ebs().unwrap().volume_size()
    };
    assert_eq!(size(&mut case, "4G"), Some(4));
    assert_eq!(size(&mut case, "2G"), Some(2));
    assert_eq!(size(&mut case, "20Gi"), Some(20));
    assert_eq!(size(&mut case, "1Ti"), Some(1024));
    let tags = data(&case.one());
    let metadata = tags.metadata_options().unwrap();
    assert_eq!(
        metadata.instance_metadata_tags().unwrap().as_str(),
        "disabled"
    );
}

/// Conformance: AWS-lt-05, AWS-lt-06, AWS-lt-11
#[test]
fn interfaces_and_enclaves_follow_the_spec() {
    let mut case = Case::plain();
    let spec: Value = json!({
        "networkInterfaces": [
            { "networkCardIndex": 0, "deviceIndex": 0, "interfaceType": "interface" },
            { "networkCardIndex": 1, "deviceIndex": 1, "interfaceType": "efa-only" },
        ],
        "connectionTracking": { "udpTimeout": 40 },
    });
    case.class.spec.network_interfaces =
        serde_json::from_value(spec["networkInterfaces"].clone()).unwrap();
    case.class.spec.connection_tracking =
        serde_json::from_value(spec["connectionTracking"].clone()).unwrap();
    case.class.spec.ip_prefix_count = Some(3);
    case.class.spec.associate_public_ip_address = Some(true);
    let v4 = data(&case.one());
    let [primary, adapter] = v4.network_interfaces() else {
        panic!("two interfaces");
    };
    assert_eq!(
        (primary.ipv4_prefix_count(), primary.ipv6_prefix_count()),
        (Some(3), None)
    );
    assert_eq!(primary.associate_public_ip_address(), Some(true));
    assert!(primary.connection_tracking_specification().is_some());
    assert_eq!(primary.primary_ipv6(), None);
    assert_eq!(
        (
            adapter.ipv4_prefix_count(),
            adapter.associate_public_ip_address()
        ),
        (None, None)
    );
    assert!(adapter.connection_tracking_specification().is_none());
    assert_eq!(adapter.network_card_index(), Some(1));

    case.settings.dns = Some("fd00::10".parse::<IpAddr>().unwrap());
    let v6 = data(&case.one());
    let [primary, adapter] = v6.network_interfaces() else {
        panic!("two interfaces");
    };
    assert_eq!(primary.primary_ipv6(), Some(true));
    assert_eq!(primary.ipv6_address_count(), Some(1));
    assert_eq!(
        (primary.ipv4_prefix_count(), primary.ipv6_prefix_count()),
        (None, Some(3))
    );
    assert_eq!(
        (adapter.primary_ipv6(), adapter.ipv6_address_count()),
        (None, None)
    );

    assert!(v4.enclave_options().is_none());
    case.claim.spec.resources.requests.insert(
        "eks.amazonaws.com/nitro-sandbox".into(),
        serde_json::from_value(json!("1")).unwrap(),
    );
    assert_eq!(
        data(&case.one()).enclave_options().unwrap().enabled(),
        Some(true)
    );
}

fn reserved_offering(id: &str, zone: &str) -> Offering {
    let mut requirements = Requirements::new();
    for (key, value) in [
        (core_labels::ZONE, zone),
        (core_labels::CAPACITY_TYPE, "reserved"),
        ("karpenter.k8s.aws/capacity-reservation-id", id),
        ("karpenter.k8s.aws/capacity-reservation-type", "default"),
        (
            "karpenter.k8s.aws/capacity-reservation-interruptible",
            "false",
        ),
    ] {
        requirements.add(Requirement::equal(key, value));
    }
    Offering::new(requirements, 0.0)
}

/// Conformance: AWS-lt-09, AWS-lt-10, AWS-lt-19
#[test]
fn each_reservation_has_its_template_and_others_use_no_reservation() {
    let mut case = Case::plain();
    case.types[0].offerings = vec![
        reserved_offering("cr-1", "us-west-2a"),
        reserved_offering("cr-2", "us-west-2b"),
    ]
    .into();
    case.capacity_type = "reserved";
    let targets: Vec<Option<String>> = case
        .all()
        .unwrap()
        .iter()
        .map(|r| {
            let text = decoded(&r.template);
            assert!(
                text.contains("karpenter.sh/capacity-type=reserved"),
                "{text}"
            );
            assert!(!text.contains("capacity-reservation"), "{text}");
            let data = data(&r.template);
            let specification = data.capacity_reservation_specification().unwrap();
            assert_eq!(
                specification
                    .capacity_reservation_preference()
                    .unwrap()
                    .as_str(),
                "capacity-reservations-only"
            );
            specification
                .capacity_reservation_target()
                .unwrap()
                .capacity_reservation_id()
                .map(str::to_owned)
        })
        .collect();
    assert_eq!(targets, [Some("cr-1".to_owned()), Some("cr-2".to_owned())]);
    case.capacity_type = "on-demand";
    let outside = data(&case.one());
    let preference = outside
        .capacity_reservation_specification()
        .unwrap()
        .capacity_reservation_preference();
    assert_eq!(preference.unwrap().as_str(), "none");
    case.settings.reserved_capacity = false;
    assert!(
        data(&case.one())
            .capacity_reservation_specification()
            .is_none()
    );
}

/// Conformance: AWS-ami-11
#[test]
fn without_block_device_mappings_the_volumes_are_those_of_the_family() {
    for (family, expected) in [
        ("AL2", vec![("/dev/xvda", 20)]),
        ("AL2023", vec![("/dev/xvda", 20)]),
        ("Bottlerocket", vec![("/dev/xvda", 4), ("/dev/xvdb", 20)]),
        ("Windows2019", vec![("/dev/sda1", 50)]),
        ("Windows2022", vec![("/dev/sda1", 50)]),
        ("Windows2025", vec![("/dev/sda1", 50)]),
        ("Custom", vec![]),
    ] {
        let mut case = Case::plain();
        case.class.spec.ami_family = Some(family.into());
        let data = data(&case.one());
        let devices = data.block_device_mappings();
        let found: Vec<_> = devices
            .iter()
            .map(|d| {
                let ebs = d.ebs().unwrap();
                assert_eq!(ebs.volume_type().unwrap().as_str(), "gp3", "{family}");
                assert_eq!(ebs.encrypted(), Some(true), "{family}");
                (d.device_name().unwrap(), ebs.volume_size().unwrap())
            })
            .collect();
        assert_eq!(found, expected, "{family}");
    }
}

/// Conformance: AWS-ami-12, AWS-ami-14, AWS-lt-08
#[test]
fn without_metadata_options_the_metadata_service_is_restricted() {
    let mut case = Case::plain();
    assert!(case.class.spec.metadata_options.is_none());
    let seen = |case: &Case| {
        let data = data(&case.one());
        let metadata = data.metadata_options().unwrap();
        let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
        (
            text(metadata.http_endpoint().map(|v| v.as_str())),
            text(metadata.http_tokens().map(|v| v.as_str())),
            metadata.http_put_response_hop_limit(),
            text(metadata.http_protocol_ipv6().map(|v| v.as_str())),
        )
    };
    let of = |ipv6: &str| {
        (
            "disabled".to_owned(),
            "required".to_owned(),
            Some(2),
            ipv6.to_owned(),
        )
    };
    assert_eq!(seen(&case), of("disabled"));
    case.settings.dns = Some("fd00::10".parse::<IpAddr>().unwrap());
    assert_eq!(seen(&case), of("enabled"));
    for region in [
        "us-iso-east-1",
        "us-iso-west-1",
        "us-isob-east-1",
        "us-isob-west-1",
        "us-isof-south-1",
        "us-isof-east-1",
    ] {
        case.settings.region = region.into();
        assert_eq!(seen(&case), of(""), "{region}");
    }
    case.settings.region = "us-gov-east-1".into();
    assert_eq!(seen(&case), of("enabled"));
}

/// Conformance: AWS-userdata-17
#[test]
fn pods_reserved_resources_and_the_address_of_the_dns_are_always_passed() {
    let mut case = Case::plain();
    case.reserved.kube = [("cpu".to_owned(), "100m".to_owned())].into();
    case.reserved.system = [("memory".to_owned(), "1Gi".to_owned())].into();
    case.class.spec.kubelet = json!({ "kubeReserved": { "cpu": "vcpus * 10" } })
        .as_object()
        .cloned();
    let observed = |case: &Case, family: &str| {
        let mut class = case.class.clone();
        class.spec.ami_family = Some(family.into());
        let case = Case {
            class,
            ..case.clone()
        };
        decoded(&case.one())
    };
    let al2 = observed(&case, "AL2");
    for expected in [
        "--dns-cluster-ip '10.100.0.10'",
        "--max-pods=29",
        "--kube-reserved=\"cpu=100m\"",
        "--system-reserved=\"memory=1Gi\"",
    ] {
        assert!(al2.contains(expected), "{expected} in {al2}");
    }
    let al2023 = observed(&case, "AL2023");
    for expected in [
        "10.100.0.10",
        "maxPods: 29",
        "cpu: \"100m\"",
        "memory: \"1Gi\"",
    ] {
        assert!(al2023.contains(expected), "{expected} in {al2023}");
    }
    let bottlerocket = observed(&case, "Bottlerocket");
    for expected in ["10.100.0.10", "max-pods = 29", "100m", "1Gi"] {
        assert!(
            bottlerocket.contains(expected),
            "{expected} in {bottlerocket}"
        );
    }
    case.class.spec.kubelet = json!({ "clusterDNS": ["10.0.0.99"] }).as_object().cloned();
    let named = observed(&case, "AL2");
    assert!(named.contains("--dns-cluster-ip '10.0.0.99'"), "{named}");
}

/// Conformance: AWS-lt-14
#[test]
fn a_template_names_profile_and_monitoring_and_tags_what_is_launched() {
    let mut case = Case::plain();
    let kinds = |case: &Case| -> Vec<String> {
        let data = data(&case.one());
        data.tag_specifications()
            .iter()
            .map(|t| {
                assert_eq!(t.tags()[0].key(), Some("kubernetes.io/cluster/test"));
                t.resource_type().unwrap().as_str().to_owned()
            })
            .collect()
    };
    assert_eq!(kinds(&case), ["network-interface"]);
    case.capacity_type = "spot";
    assert_eq!(
        kinds(&case),
        ["network-interface", "spot-instances-request"]
    );
    let plain = data(&case.one());
    let profile = plain.iam_instance_profile().unwrap();
    assert_eq!(profile.name(), Some("profile"));
    assert_eq!(plain.monitoring().unwrap().enabled(), Some(false));
    case.class.spec.detailed_monitoring = Some(true);
    let watched = data(&case.one());
    assert_eq!(watched.monitoring().unwrap().enabled(), Some(true));
}

/// Conformance: AWS-lt-15
#[test]
fn adapters_that_a_claim_asks_for_are_one_a_card() {
    let mut case = Case::plain();
    case.types[0].capacity.set("vpc.amazonaws.com/efa", 3);
    case.claim.spec.resources.requests.insert(
        "vpc.amazonaws.com/efa".into(),
        serde_json::from_value(json!("1")).unwrap(),
    );
    let data = data(&case.one());
    let found: Vec<_> = data
        .network_interfaces()
        .iter()
        .map(|i| {
            (
                i.network_card_index().unwrap(),
                i.device_index().unwrap(),
                i.interface_type().unwrap(),
            )
        })
        .collect();
    assert_eq!(found, [(0, 0, "efa"), (1, 1, "efa"), (2, 1, "efa")]);
}

/// Conformance: AWS-lt-17
#[test]
fn blocks_and_interruptible_reservations_are_markets_of_their_own() {
    let mut case = Case::plain();
    case.capacity_type = "reserved";
    for (kind, interruptible, market) in [
        ("default", "false", None),
        ("capacity-block", "false", Some("capacity-block")),
        (
            "default",
            "true",
            Some("interruptible-capacity-reservation"),
        ),
    ] {
        let mut offering = reserved_offering("cr-1", "us-west-2a");
        for (key, value) in [
            ("karpenter.k8s.aws/capacity-reservation-type", kind),
            (
                "karpenter.k8s.aws/capacity-reservation-interruptible",
                interruptible,
            ),
        ] {
            offering
                .requirements
                .replace(Requirement::equal(key, value));
        }
        case.types[0].offerings = vec![offering].into();
        let data = data(&case.one());
        let options = data.instance_market_options();
        let found = options.map(|o| o.market_type().unwrap().as_str());
        assert_eq!(found, market, "{kind} {interruptible}");
    }
}

/// Conformance: AWS-lt-18
#[test]
fn types_share_a_template_unless_their_nodes_need_different_settings() {
    let mut case = Case::plain();
    let groups = |case: &Case| -> Vec<Vec<String>> {
        let all = case.all().unwrap();
        all.iter()
            .map(|r| r.types.iter().cloned().collect())
            .collect()
    };
    case.types = vec![instance_type("a.large", 29), instance_type("b.large", 29)];
    assert_eq!(groups(&case), [["a.large", "b.large"]]);
    case.types[1].capacity.set("vpc.amazonaws.com/efa", 4);
    assert_eq!(groups(&case).len(), 1, "no pod requests adapters");
    case.claim.spec.resources.requests.insert(
        "vpc.amazonaws.com/efa".into(),
        serde_json::from_value(json!("1")).unwrap(),
    );
    assert_eq!(groups(&case).len(), 2);
    case.claim.spec.resources.requests.clear();
    case.types[1].capacity.set("pods", 58);
    assert_eq!(groups(&case).len(), 2);
    case.types[1].capacity.set("pods", 29);
    case.reserved_by_name = true;
    assert_eq!(groups(&case).len(), 2, "reserved resources of their own");
}
