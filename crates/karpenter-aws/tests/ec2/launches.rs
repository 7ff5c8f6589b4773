//! Whole launches: the calls to EC2, and the evaluation of the response.

use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::labels as core_labels;
use karpenter_api::v1::NodeClaim;
use karpenter_aws::api::EC2NodeClass;
use karpenter_aws::providers::capacity_reservation::ReservationCounts;
use karpenter_aws::providers::instance::fleet::{Fleets, WINDOW};
use karpenter_aws::providers::instance::launcher::{LaunchRequest, Launcher, failures};
use karpenter_aws::providers::instance::{Instance, Instances};
use karpenter_aws::providers::instance_type::shifted_zones::ShiftedZones;
use karpenter_aws::providers::instance_type::unavailable::{CapacityType, Unavailable};
use karpenter_aws::providers::launch_template::{LaunchTemplates, Reserved};
use karpenter_aws::providers::placement_group::PlacementGroup;
use karpenter_aws::providers::subnet::Subnets;
use karpenter_aws_fake::{CapacityReservation, Fault, Shortage};
use karpenter_core::fake;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::offering::Offering;
use karpenter_core::provider::CloudProviderError;
use karpenter_core::requirements::{Operator, Requirement, Requirements};
use parking_lot::Mutex;
use serde_json::Value;

use crate::ec2::support::{Log, World};
use crate::ec2::templates::settings;

pub struct Case {
    pub world: World,
    pub launcher: Launcher,
    pub class: EC2NodeClass,
    pub claim: NodeClaim,
    requirements: Requirements,
    types: Vec<InstanceType>,
    capacity_type: &'static str,
    placement_group: Option<PlacementGroup>,
}

fn placement_group(strategy: &str, partitions: u32) -> PlacementGroup {
    PlacementGroup {
        id: "pg-1".into(),
        name: "racks".into(),
        strategy: strategy.into(),
        partitions,
    }
}

fn offering(zone: &str, capacity_type: &str, price: f64, more: &[(&str, &str)]) -> Offering {
    let mut offering = fake::offering(capacity_type, zone, price);
    for (key, value) in more {
        offering
            .requirements
            .replace(Requirement::equal(key, value));
    }
    offering
}

fn instance_type(name: &str, price: f64) -> InstanceType {
    let zones = ["us-west-2a", "us-west-2b"];
    let offered = zones.map(|zone| {
        let spot = offering(zone, "spot", price / 3.0, &[]);
        [offering(zone, "on-demand", price, &[]), spot]
    });
    let offered = offered.into_iter().flatten().collect();
    fake::instance_type(name)
        .pods(29)
        .offerings(offered)
        .build()
}

impl Case {
    pub async fn new(capacity_type: &'static str) -> Self {
        let world = World::new().await;
        let class = world.class("default");
        let subnets = Subnets::new(world.aws.clone(), std::time::Duration::from_secs(60));
        subnets.list(&class).await.unwrap();
        let launcher = Launcher {
            subnets,
            templates: LaunchTemplates::new(world.aws.clone(), "test"),
            fleets: Fleets::new(world.aws.clone(), WINDOW),
            instances: Arc::new(Instances::new(
                world.aws.clone(),
                "test",
                true,
                ShiftedZones::default(),
            )),
            counts: ReservationCounts::default(),
            unavailable: Arc::new(Mutex::new(Unavailable::default())),
            settings: settings().into(),
            failures: failures(&world.registry),
            recorder: Arc::default(),
        };
        let mut claim = NodeClaim::new("c", Default::default());
        claim.metadata.uid = Some("uid-c".into());
        claim.metadata.labels =
            Some([(core_labels::NODE_POOL.to_owned(), "default".to_owned())].into());
        Self {
            world,
            launcher,
            class,
            claim,
            requirements: Requirements::new(),
            types: vec![
                instance_type("m5.large", 0.1),
                instance_type("m5.xlarge", 0.2),
            ],
            capacity_type,
            placement_group: None,
        }
    }

    pub async fn launch(&self) -> Result<Arc<Instance>, CloudProviderError> {
        let request = LaunchRequest {
            claim: &self.claim,
            class: &self.class,
            requirements: &self.requirements,
            types: &self.types,
            capacity_type: self.capacity_type,
            placement_group: self.placement_group.as_ref(),
        };
        self.launcher
            .launch(request, Timestamp::now(), |_| Reserved::default())
            .await
    }

    /// Launches for the NodeClaim with this uid.
    pub async fn launch_as(&mut self, uid: &str) -> Result<Arc<Instance>, CloudProviderError> {
        self.claim.metadata.uid = Some(uid.to_owned());
        self.launch().await
    }

    /// Returns the parameters of the last CreateFleet.
    fn asked(&self) -> Value {
        let calls = self.world.fake.calls();
        calls
            .into_iter()
            .rfind(|c| c.action == "CreateFleet")
            .unwrap()
            .params
    }

    fn is_marked(&self, capacity_type: CapacityType, name: &str, zone: &str) -> bool {
        self.launcher
            .unavailable
            .lock()
            .is_marked(capacity_type, name, zone, None)
    }

    pub fn reserve(&mut self, count: u32) {
        let id = "cr-1";
        self.world
            .fake
            .add_capacity_reservation(CapacityReservation::new(
                id,
                "m5.large",
                "us-west-2a",
                count,
            ));
        let more = [
            ("karpenter.k8s.aws/capacity-reservation-id", id),
            ("karpenter.k8s.aws/capacity-reservation-type", "default"),
            (
                "karpenter.k8s.aws/capacity-reservation-interruptible",
                "false",
            ),
        ];
        let mut t = instance_type("m5.large", 0.1);
        t.offerings = vec![offering("us-west-2a", "reserved", 0.0, &more)].into();
        self.types = vec![t];
        self.launcher.counts.set_reported(id, count);
    }
}

/// Conformance: AWS-launch-05, AWS-launch-06
#[tokio::test]
async fn context_and_strategy_follow_the_claim() {
    let mut case = Case::new("on-demand").await;
    case.class.spec.context = Some("ctx".into());
    let relaxed = "karpenter.sh/nodeclaim-min-values-relaxed";
    let overlay = "karpenter.sh/price-overlay-applied";
    for (n, (capacity_type, key, value, context, strategy)) in [
        ("on-demand", "none", "", true, "lowest-price"),
        ("on-demand", relaxed, "true", false, "lowest-price"),
        // The annotation as the engine writes it on a NodeClaim whose minValues hold.
        ("on-demand", relaxed, "false", true, "lowest-price"),
        ("on-demand", overlay, "true", true, "prioritized"),
        (
            "spot",
            overlay,
            "true",
            true,
            "capacity-optimized-prioritized",
        ),
        ("spot", "none", "", true, "price-capacity-optimized"),
    ]
    .into_iter()
    .enumerate()
    {
        case.capacity_type = capacity_type;
        case.claim.metadata.annotations = Some([(key.to_owned(), value.to_owned())].into());
        case.claim.metadata.uid = Some(format!("uid-{n}"));
        case.launch().await.unwrap();
        let asked = case.asked();
        assert_eq!(asked["Context"] == "ctx", context, "{key}={value}");
        let options = [&asked["OnDemandOptions"], &asked["SpotOptions"]];
        let [on_demand, spot] = options.map(|it| it["AllocationStrategy"].as_str());
        assert_eq!(on_demand.xor(spot), Some(strategy), "{key}={value}");
    }
}

/// Conformance: AWS-userdata-03
#[tokio::test]
async fn al2023_is_not_launched_before_the_service_cidr_is_known() {
    let mut case = Case::new("on-demand").await;
    let mut unknown = settings();
    unknown.cluster.service_cidr = None;
    case.launcher.settings = unknown.into();
    let refused = case.launch().await.unwrap_err();
    assert!(refused.is_node_class_not_ready(), "{refused}");
    assert_eq!(case.world.calls("CreateFleet"), 0);
    case.launcher.settings.set_service_cidr("10.100.0.0/16");
    case.launch().await.unwrap();
}

#[tokio::test]
async fn a_launch_without_an_offering_or_an_image_is_no_lack_of_capacity() {
    let of_arm = "no instance types satisfy requirements of amis";
    for words in ["", of_arm] {
        let mut case = Case::new("on-demand").await;
        for kind in &mut case.types {
            if words == of_arm {
                let arm = Requirement::equal(core_labels::ARCH, "arm64");
                kind.requirements.replace(arm);
            } else {
                kind.offerings = vec![offering("us-west-2c", "on-demand", 1.0, &[])].into();
            }
        }
        let Err(CloudProviderError::Create {
            reason, message, ..
        }) = case.launch().await
        else {
            panic!("nothing can be launched");
        };
        assert_eq!(reason, "LaunchFailed");
        assert!(message.contains(words), "{message}");
        assert_eq!(case.world.calls("CreateFleet"), 0);
    }
}

/// Conformance: AWS-ice-13
#[tokio::test]
async fn a_spread_group_that_is_full_in_a_zone_is_so_for_every_type() {
    let mut case = Case::new("on-demand").await;
    let group = karpenter_aws_fake::PlacementGroup::new("pg-1", "racks", "spread");
    case.world.fake.add_placement_group(group);
    case.placement_group = Some(placement_group("spread", 0));
    case.world
        .fake
        .set_shortages(vec![Shortage::new("m5.large", "us-west-2a", "*").code(
            "InvalidParameterValue",
            "you have reached the limit of instances in this spread placement group in us-west-2a",
        )]);
    case.launch().await.unwrap();
    let unavailable = case.launcher.unavailable.lock();
    let marked = |name: &str, zone: &str, placement| {
        unavailable.is_marked(CapacityType::OnDemand, name, zone, placement)
    };
    for name in ["m5.large", "m5.xlarge"] {
        assert!(marked(name, "us-west-2a", Some(("pg-1", None))), "{name}");
        assert!(!marked(name, "us-west-2b", Some(("pg-1", None))), "{name}");
        assert!(!marked(name, "us-west-2a", None), "{name} elsewhere");
    }
}

/// Conformance: AWS-ice-18
#[tokio::test]
async fn one_error_beyond_shortages_makes_a_launch_fail_for_its_reason() {
    let mut case = Case::new("on-demand").await;
    let full = "InsufficientInstanceCapacity";
    for (large, xlarge, wanted) in [
        (full, "InternalError", Some("InternalError")),
        // All errors are looked at.
        (
            "VcpuLimitExceeded",
            "SomethingNew",
            Some("VCPULimitExceeded"),
        ),
        (full, "Unsupported", None),
    ] {
        let shortage = |name: &str, code: &str| Shortage::new(name, "*", "*").code(code, "no");
        let shortages = vec![shortage("m5.large", large), shortage("m5.xlarge", xlarge)];
        case.world.fake.set_shortages(shortages);
        case.claim.metadata.uid = Some(format!("uid-{xlarge}"));
        let error = case.launch().await.unwrap_err();
        assert_eq!(
            error.is_insufficient_capacity(),
            wanted.is_none(),
            "{error}"
        );
        if let CloudProviderError::Create { reason, .. } = error {
            assert_eq!(Some(reason.as_str()), wanted);
        }
    }
}

/// Conformance: AWS-launch-21
#[tokio::test]
async fn tags_of_the_user_do_not_replace_those_karpenter_finds_its_own_by() {
    let mut case = Case::new("on-demand").await;
    let tags = |pairs: &[(&str, &str)]| -> std::collections::BTreeMap<String, String> {
        let pairs = pairs.iter();
        pairs
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    };
    case.class.spec.tags = Some(tags(&[
        ("team", "x"),
        ("eks:eks-cluster-name", "theirs"),
        ("karpenter.sh/nodepool", "theirs"),
    ]));
    let expected = tags(&[
        ("team", "x"),
        ("kubernetes.io/cluster/test", "owned"),
        ("karpenter.sh/nodepool", "default"),
        ("eks:eks-cluster-name", "test"),
        ("karpenter.k8s.aws/ec2nodeclass", "default"),
    ]);
    let instance = case.launch().await.unwrap();
    assert_eq!(instance.tags, expected);
    let mut tags = case.world.fake.instance(&instance.id).unwrap().tags;
    tags.retain(|key, _| !key.starts_with("aws:"));
    assert_eq!(tags, expected);
}

/// Conformance: AWS-launch-22
#[tokio::test]
async fn few_types_on_demand_where_spot_is_admitted_are_pointed_out() {
    let mut case = Case::new("on-demand").await;
    let log = Log::here();
    let observed =
        "at least 5 instance types are recommended when flexible to spot but requesting on-demand";
    case.launch().await.unwrap();
    assert_eq!(log.lines(observed).len(), 0, "spot is not asked for");
    let key = core_labels::CAPACITY_TYPE;
    case.requirements
        .add(Requirement::new(key, Operator::In, ["spot", "on-demand"]));
    case.launch_as("uid-2").await.unwrap();
    assert_eq!(log.lines(observed)[0]["instance-types"], 2);
    for name in ["c5.large", "c5.xlarge", "r5.large"] {
        case.types.push(instance_type(name, 0.3));
    }
    case.launch_as("uid-3").await.unwrap();
    assert_eq!(log.lines(observed).len(), 1, "five are enough");
}

/// Conformance: AWS-lt-16
#[tokio::test]
async fn an_instance_goes_into_the_lowest_partition_asked_for() {
    let mut case = Case::new("on-demand").await;
    let group = karpenter_aws_fake::PlacementGroup {
        partitions: Some(7),
        ..karpenter_aws_fake::PlacementGroup::new("pg-1", "racks", "partition")
    };
    case.world.fake.add_placement_group(group);
    let key = "karpenter.k8s.aws/placement-group-partition";
    case.placement_group = Some(placement_group("partition", 12));
    case.requirements
        .add(Requirement::new(key, Operator::In, ["10", "2", "7"]));
    let instance = case.launch().await.unwrap();
    assert_eq!(instance.partition, Some(2), "by number, not by text");
    let data = case.world.fake.instance(&instance.id).unwrap().data;
    assert_eq!(data["Placement"]["PartitionNumber"], 2);
}

/// Conformance: AWS-ice-20
#[tokio::test]
async fn failed_launches_are_counted_by_the_reasons_of_the_condition() {
    let case = Case::new("on-demand").await;
    case.world.fake.set(|s| s.on_demand_vcpus = Some(0));
    case.launch().await.unwrap_err();
    let rendered = case.world.registry.render();
    assert!(
        rendered.contains(r#"reason="VCPULimitExceeded""#),
        "{rendered}"
    );
    assert!(!rendered.contains(r#"reason="VcpuLimitExceeded""#));
}

/// Conformance: AWS-lt-02
#[tokio::test]
async fn a_deleted_template_is_created_again_once() {
    let mut case = Case::new("on-demand").await;
    case.launch().await.unwrap();
    case.world.fake.add_fault(Fault::error(
        "CreateFleet",
        "InvalidLaunchTemplateName.NotFoundException",
    ));
    let before = case.world.calls("DescribeLaunchTemplates");
    case.launch_as("uid-2").await.unwrap();
    assert!(
        case.world.calls("DescribeLaunchTemplates") > before,
        "described again"
    );
    case.world.fake.add_fault(
        Fault::error("CreateFleet", "InvalidLaunchTemplateName.NotFoundException").times(2),
    );
    case.claim.metadata.uid = Some("uid-3".into());
    let Err(CloudProviderError::Create { reason, .. }) = case.launch().await else {
        panic!("only two attempts are made");
    };
    assert_eq!(reason, "LaunchTemplateNotFound");
}

/// Conformance: AWS-ice-10
#[tokio::test]
async fn pools_without_capacity_are_marked_and_counted_once() {
    let mut case = Case::new("on-demand").await;
    case.class.status.subnets[1].zone_id = Some("usw2-az2".into());
    case.world
        .fake
        .set_shortages(vec![Shortage::new("m5.large", "us-west-2a", "*")]);
    let instance = case.launch().await.unwrap();
    assert_ne!(
        (instance.type_.as_str(), instance.zone.as_str()),
        ("m5.large", "us-west-2a")
    );
    case.world
        .fake
        .set_shortages(vec![Shortage::new("*", "*", "*")]);
    let mut again = case;
    again.claim.metadata.uid = Some("uid-2".into());
    let error = again.launch().await.unwrap_err();
    assert!(error.is_insufficient_capacity(), "{error}");
    assert!(again.is_marked(CapacityType::OnDemand, "m5.large", "us-west-2a"));
    assert!(!again.is_marked(CapacityType::Spot, "m5.large", "us-west-2a"));
    let failures = &again.launcher.failures;
    let counted = |zone, id| failures.get(&[zone, id, "on-demand", "LaunchFailed"]);
    // Both types in each zone, and the cheaper one of zone a once before.
    assert!((counted("us-west-2b", "usw2-az2") - 2.0).abs() < f64::EPSILON);
    assert!(
        (counted("us-west-2a", "") - 3.0).abs() < f64::EPSILON,
        "its id is not known"
    );
}

/// Conformance: AWS-ice-02
#[tokio::test]
async fn without_the_role_for_spot_all_spot_offerings_are_unavailable() {
    let case = Case::new("spot").await;
    case.world.fake.set(|s| s.spot_role = false);
    let error = case.launch().await.unwrap_err();
    assert!(error.is_insufficient_capacity(), "{error}");
    assert!(
        case.is_marked(CapacityType::Spot, "c7g.large", "us-west-2c"),
        "for every type and zone"
    );
    assert!(!case.is_marked(CapacityType::OnDemand, "m5.large", "us-west-2a"));
}

/// Conformance: AWS-ice-03
#[tokio::test]
async fn too_many_fleets_mark_only_the_reported_pools() {
    let mut case = Case::new("on-demand").await;
    case.types.truncate(1);
    case.types[0]
        .offerings
        .retain(|o| o.zone() == Some("us-west-2a"));
    case.world.fake.set_shortages(vec![
        Shortage::new("*", "*", "*").code("MaxFleetCountExceeded", "too many"),
    ]);
    assert!(case.launch().await.unwrap_err().is_insufficient_capacity());
    assert!(case.is_marked(CapacityType::OnDemand, "m5.large", "us-west-2a"));
    assert!(!case.is_marked(CapacityType::OnDemand, "m5.large", "us-west-2b"));
}

/// Conformance: AWS-ice-04
#[tokio::test]
async fn a_full_reservation_counts_as_empty() {
    let mut case = Case::new("reserved").await;
    case.reserve(1);
    case.launcher.counts.set_reported("cr-1", 5);
    let instance = case.launch().await.unwrap();
    assert_eq!(instance.reservation.as_ref().unwrap().id, "cr-1");
    assert_eq!(case.launcher.counts.left("cr-1"), 4, "one less");
    let error = case.launch_as("uid-2").await.unwrap_err();
    assert!(error.is_insufficient_capacity(), "{error}");
    assert!(error.to_string().contains("ReservationCapacityExceeded"));
    assert_eq!(case.launcher.counts.left("cr-1"), 0);
    assert!(!case.is_marked(CapacityType::Reserved, "m5.large", "us-west-2a"));
}

#[tokio::test]
async fn a_subnet_without_free_addresses_is_marked_and_its_pool_is_not() {
    let case = Case::new("on-demand").await;
    let subnet = &case.class.status.subnets[0].id;
    case.world.fake.set_free_addresses(subnet, 0);
    let instance = case.launch().await.unwrap();
    assert_ne!(&instance.subnet_id, subnet);
    assert!(case.launcher.unavailable.lock().is_subnet_marked(subnet));
    assert!(!case.is_marked(CapacityType::OnDemand, "m5.large", "us-west-2a"));
}

/// Conformance: AWS-launch-10
#[tokio::test]
async fn dedicated_tenancy_is_used_only_if_nothing_else_is_allowed() {
    let mut case = Case::new("on-demand").await;
    let key = "karpenter.k8s.aws/instance-tenancy";
    assert_eq!(case.launch().await.unwrap().tenancy, "default");
    let both = Requirement::new(key, Operator::In, ["default", "dedicated"]);
    case.requirements.add(both);
    assert_eq!(case.launch_as("uid-1").await.unwrap().tenancy, "default");
    case.requirements.add(Requirement::equal(key, "dedicated"));
    let dedicated = case.launch_as("uid-2").await.unwrap();
    assert_eq!(dedicated.tenancy, "dedicated");
    let data = case.world.fake.instance(&dedicated.id).unwrap().data;
    assert_eq!(data["Placement"]["Tenancy"], "dedicated");
}
