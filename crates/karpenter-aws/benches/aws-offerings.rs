//! How fast the instance types of node classes are resolved: `cargo xtask bench aws-offerings`.
//!
//! A thousand instance types as EC2 describes them, six zones, twenty node classes that differ in AMIs, zones, disks
//! and kubelet settings like those of the teams of a large cluster.

#![expect(clippy::unwrap_used, reason = "what fails here fails the benchmark")]

use std::collections::BTreeSet;

use jiff::Timestamp;
use karpenter_aws::api::{EC2NodeClass, Subnet};
use karpenter_aws::providers::instance_type::offered::catalogue::instance_types;
use karpenter_aws::providers::instance_type::unavailable::{CapacityType, Pool, Unavailable};
use karpenter_aws::providers::instance_type::{
    DiscoveredMemory, InstanceTypeInfo, OfferingState, Resolver, ResolverSettings, Shape,
    SizeSettings,
};
use karpenter_aws::providers::pricing::Pricing;
use karpenter_aws::sdk::{Aws, Connect};
use karpenter_aws_fake::AwsFake;
use karpenter_bench::Suite;
use serde_json::json;

const TYPES: usize = 1000;
const ZONES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const CLASSES: usize = 20;

/// Returns the first thousand of EC2's recorded instance types, as the controller lists them.
#[tokio::main(flavor = "current_thread")]
async fn infos() -> Vec<InstanceTypeInfo> {
    let fake = AwsFake::builder().unlimited().build();
    fake.offer_recorded_instance_types();
    let server = fake.serve(0).await.unwrap();
    let how = Connect {
        region: Some(karpenter_aws_fake::REGION.into()),
        endpoint: Some(server.url()),
        credentials: Some(("AKIATEST".into(), "secret".into())),
        ..Connect::default()
    };
    let aws = Aws::connect(&how).await.unwrap();
    let mut infos = instance_types(&aws).await.unwrap();
    infos.truncate(TYPES);
    infos
}

fn shapes() -> Vec<(String, Shape)> {
    let families = ["AL2023", "AL2023", "Bottlerocket", "AL2023", "Windows2022"];
    (0..CLASSES)
        .map(|n| {
            let spec = json!({
                "amiFamily": families[n % families.len()],
                "blockDeviceMappings": [{ "rootVolume": true, "ebs": { "volumeSize": format!("{}Gi", 20 * (1 + n % 3)) } }],
                "kubelet": if n % 4 == 0 { json!({ "maxPods": 110 }) } else { json!({}) },
            });
            let mut class = EC2NodeClass::new(&format!("class-{n}"), serde_json::from_value(spec).unwrap());
            // Every third class has only half of the zones.
            let zones = if n % 3 == 0 { &ZONES[..3] } else { &ZONES[..] };
            class.status.subnets = zones
                .iter()
                .map(|zone| Subnet {
                    id: format!("subnet-{n}-{zone}"),
                    zone: format!("us-west-2{zone}"),
                    zone_id: Some(format!("usw2-az-{zone}")),
                })
                .collect();
            (format!("uid-{n}"), Shape::of(&class, None).unwrap())
        })
        .collect()
}

struct World {
    resolver: Resolver,
    shapes: Vec<(String, Shape)>,
    pricing: Pricing,
    unavailable: Unavailable,
    discovered: DiscoveredMemory,
    shifted: BTreeSet<String>,
}

impl World {
    fn new(infos: &[InstanceTypeInfo]) -> Self {
        let zones: BTreeSet<String> = ZONES
            .iter()
            .map(|zone| format!("us-west-2{zone}"))
            .collect();
        let mut resolver = Resolver::new(ResolverSettings {
            region: "us-west-2".into(),
            size: SizeSettings {
                vm_memory_overhead_percent: 0.075,
                reserved_enis: 0,
            },
            expressions: false,
        });
        let offered: Vec<_> = infos
            .iter()
            .map(|info| (info.name.clone(), zones.clone()))
            .collect();
        resolver.update_types(infos.to_vec());
        resolver.update_offered_zones(offered);
        Self {
            resolver,
            shapes: shapes(),
            pricing: Pricing::new("us-west-2"),
            unavailable: Unavailable::default(),
            discovered: DiscoveredMemory::default(),
            shifted: BTreeSet::new(),
        }
    }

    /// Resolves every class; returns the number of recomputed instance types.
    fn resolve(&mut self) -> usize {
        let state = OfferingState {
            pricing: &self.pricing,
            unavailable: &self.unavailable,
            shifted_zones: &self.shifted,
            reservation_counts: &|_| 0,
        };
        let mut refreshed = 0;
        for (uid, shape) in &self.shapes {
            let resolved = self
                .resolver
                .resolve(uid, shape, &self.discovered, &state)
                .unwrap();
            assert_eq!(resolved.types.len(), TYPES);
            refreshed += resolved.refreshed;
        }
        refreshed
    }
}

fn main() {
    let mut suite = Suite::from_args("aws-offerings");
    let infos = infos();
    suite.case("cold", |run| {
        run.parameter("types", TYPES);
        run.parameter("zones", ZONES.len());
        run.parameter("classes", CLASSES);
        run.measure_with(
            CLASSES,
            || World::new(&infos),
            |mut world| {
                world.resolve();
                world
            },
        );
    });
    suite.case("unchanged", |run| {
        let mut world = World::new(&infos);
        world.resolve();
        run.parameter("classes", CLASSES);
        run.measure(CLASSES, || assert_eq!(world.resolve(), 0));
    });
    suite.case("one-mark", |run| {
        let mut world = World::new(&infos);
        world.resolve();
        let mut count = 0;
        run.parameter("classes", CLASSES);
        run.measure(CLASSES, || {
            count += 1;
            let pool = Pool {
                capacity_type: CapacityType::OnDemand,
                instance_type: "m5.large".into(),
                zone: format!("us-west-2{}", ZONES[count % ZONES.len()]),
                placement: None,
            };
            world.unavailable.clear();
            world.unavailable.mark(pool, Timestamp::UNIX_EPOCH);
            world.resolve()
        });
    });
    suite.case("all-prices", |run| {
        let mut world = World::new(&infos);
        world.resolve();
        let names: Vec<String> = world
            .resolver
            .infos()
            .iter()
            .map(|info| info.name.clone())
            .collect();
        let mut price = 0.1;
        run.parameter("classes", CLASSES);
        run.measure(CLASSES, || {
            price += 0.01;
            let of_type = |name: &String| {
                let name = name.clone();
                ZONES.map(|zone| (name.clone(), format!("us-west-2{zone}"), price))
            };
            world.pricing.update_spot(names.iter().flat_map(of_type));
            world.resolve()
        });
    });
}
