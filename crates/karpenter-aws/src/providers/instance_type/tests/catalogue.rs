//! Comparison with upstream's published catalog of instance types.

use std::io::Read as _;
use std::path::Path;

use karpenter_aws_fake::AwsFake;

use super::*;
use crate::providers::instance_type::offered::catalogue::instance_types;
use crate::sdk::{Aws, Connect};

fn unpacked(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let mut text = String::new();
    flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap())
        .read_to_string(&mut text)
        .unwrap();
    text
}

/// Returns all instance types of EC2's recorded responses, as the controller lists them.
#[tokio::main(flavor = "current_thread")]
async fn recorded() -> Vec<InstanceTypeInfo> {
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
    instance_types(&aws).await.unwrap()
}

/// Differences because the published catalog is of another date than the recorded responses of EC2 and our tables:
/// column, and prefixes of the instance types.
const DIFFERING: [(&str, &[&str]); 7] = [
    // No longer available when EC2's responses were recorded.
    ("missing", &["g4ad."]),
    // The default network card had more interfaces.
    (
        "alloc:pods",
        &[
            "i7ie.48xlarge",
            "i7ie.metal-48xl",
            "i8ge.48xlarge",
            "i8ge.metal-48xl",
        ],
    ),
    (
        "alloc:memory",
        &[
            "i7ie.48xlarge",
            "i7ie.metal-48xl",
            "i8ge.48xlarge",
            "i8ge.metal-48xl",
        ],
    ),
    (
        "alloc:vpc.amazonaws.com/pod-eni",
        &[
            "c8gb.metal",
            "c8gn.metal",
            "c8ib.metal",
            "c9g.",
            "c9gd.",
            "hpc7g.",
            "i4i.large",
            "m8gb.metal",
            "m8gn.metal",
            "m8ib.metal",
            "m8idb.metal",
            "m8idn.metal",
            "m8in.metal",
            "r8gb.metal",
            "r8gn.metal",
            "r8ib.metal",
            "r8idb.metal",
            "r8idn.metal",
            "r8in.metal",
        ],
    ),
    ("instance-network-bandwidth", &["g7."]),
    // EC2 has since corrected the clock speed of new types, and reports none for the oldest.
    (
        "instance-cpu-sustained-clock-speed-mhz",
        &["c9g.", "c9gd.", "i7i.", "i7ie.", "m9g.", "m9gd."],
    ),
    (
        "instance-cpu-sustained-clock-speed-mhz",
        &["c1.", "m1.", "m2.", "t1."],
    ),
];

/// Returns every recorded instance type as an EC2NodeClass of the family AL2023, with nothing else set, offers it.
fn catalogue() -> Resolved {
    let infos = recorded();
    let mut class = EC2NodeClass::new("default", Default::default());
    class.spec.ami_family = Some("AL2023".into());
    class.status.subnets = vec![subnet("subnet-1", "us-west-2a")];
    let offered = infos
        .iter()
        .map(|info| (info.name.clone(), BTreeSet::from(["us-west-2a".to_owned()])));
    let offered: Vec<_> = offered.collect();
    let mut resolver = resolver(false);
    resolver.update_types(infos);
    resolver.update_offered_zones(offered);
    let state = OfferingState {
        pricing: &Pricing::new("us-west-2"),
        unavailable: &Unavailable::default(),
        shifted_zones: &BTreeSet::new(),
        reservation_counts: &|_| 0,
    };
    let shape = Shape::of(&class, None).unwrap();
    resolver
        .resolve("uid", &shape, &DiscoveredMemory::default(), &state)
        .unwrap()
}

/// Conformance: AWS-labels-01
#[test]
fn the_published_catalogue_is_reproduced() {
    let resolved = catalogue();
    let text = unpacked("tests/data/instance-catalog.csv.gz");
    let mut rows = text.lines().filter(|row| !row.starts_with('#'));
    let header: Vec<&str> = rows.next().unwrap().split(',').collect();
    let mut compared = 0;
    let mut differing = Vec::new();
    for row in rows {
        let row: BTreeMap<&str, &str> = header.iter().copied().zip(row.split(',')).collect();
        let name = row["instance_type"];
        let Some((found, _)) = resolved.get(name) else {
            differing.push((name.to_owned(), "missing".to_owned(), String::new()));
            continue;
        };
        compared += 1;
        let allocatable = found.allocatable();
        let quantity = |name: &str, unit: i64, suffix: &str| {
            let amount = allocatable.get(name);
            if amount == 0 {
                String::new()
            } else {
                format!("{}{suffix}", amount / unit)
            }
        };
        for (column, value) in &row {
            let ours = match *column {
                "instance_type" => continue,
                "arch" => found
                    .requirements
                    .get("kubernetes.io/arch")
                    .and_then(|r| r.single())
                    .unwrap_or("")
                    .to_owned(),
                "alloc:cpu" => quantity(CPU, 1, "m"),
                "alloc:memory" => quantity(MEMORY, MIB, "Mi"),
                "alloc:ephemeral-storage" => quantity(EPHEMERAL_STORAGE, MIB << 10, "Gi"),
                "alloc:pods" => quantity(PODS, 1, ""),
                other => match other.strip_prefix("alloc:") {
                    Some(resource) => quantity(resource, 1, ""),
                    None => found
                        .requirements
                        .get(&format!("karpenter.k8s.aws/{other}"))
                        .and_then(|requirement| requirement.single())
                        .unwrap_or("")
                        .to_owned(),
                },
            };
            if ours != *value {
                let difference = format!("{ours} instead of {value}");
                differing.push((name.to_owned(), (*column).to_owned(), difference));
            }
        }
    }
    let mut seen = BTreeSet::new();
    differing.retain(|(name, column, _)| {
        let mut listed = DIFFERING.iter().filter(|(known, _)| known == column);
        let prefix =
            listed.find_map(|(_, names)| names.iter().find(|prefix| name.starts_with(**prefix)));
        seen.extend(prefix.map(|prefix| (column.clone(), *prefix)));
        prefix.is_none()
    });
    assert_eq!(differing, []);
    let listed: usize = DIFFERING.iter().map(|(_, names)| names.len()).sum();
    assert_eq!(seen.len(), listed, "a listed difference is gone");
    assert!(compared > 1300, "{compared}");
}

/// Returns the value of a label of an instance type; empty without it.
fn label<'a>(of: &'a InstanceType, key: &str) -> &'a str {
    of.requirements
        .get(key)
        .and_then(Requirement::single)
        .unwrap_or_default()
}

/// Returns a row of the reference page: labels, then what pods can use.
fn row(of: &InstanceType) -> String {
    let own = |name: &str| label(of, &format!("karpenter.k8s.aws/{name}"));
    let device = |kind: &str| match own(&format!("instance-{kind}-count")) {
        "" => None,
        count => Some(format!(
            "{count} × {}",
            own(&format!("instance-{kind}-name"))
        )),
    };
    let local = own("instance-local-nvme");
    let mut extras: Vec<String> = [device("gpu"), device("accelerator")]
        .into_iter()
        .flatten()
        .collect();
    extras.extend((!local.is_empty()).then(|| format!("NVMe {local} GB")));
    let allocatable = of.allocatable();
    let core = [CPU, MEMORY, PODS, EPHEMERAL_STORAGE];
    let devices = allocatable
        .iter()
        .filter(|(name, amount)| *amount > 0 && !core.contains(name) && *name != "nodes");
    let devices: Vec<String> = devices
        .map(|(name, amount)| {
            format!(
                "`{}` {amount}",
                name.trim_start_matches("vpc.amazonaws.com/")
            )
        })
        .collect();
    format!(
        "| `{}` | {} | {} | {} | {} | {} | {}m | {}Mi | {} | {} |\n",
        of.name,
        label(of, "kubernetes.io/arch"),
        own("instance-cpu"),
        own("instance-memory"),
        own("instance-network-bandwidth"),
        extras.join(", "),
        allocatable.get(CPU),
        allocatable.get(MEMORY) / MIB,
        allocatable.get(PODS),
        devices.join(", "),
    )
}

#[test]
fn reference_page_of_instance_types_has_every_recorded_type() {
    let resolved = catalogue();
    let mut sections: BTreeMap<&str, Vec<&InstanceType>> = BTreeMap::new();
    for found in resolved.types.iter() {
        let category = label(found, "karpenter.k8s.aws/instance-category");
        sections.entry(category).or_default().push(found);
    }
    assert!(
        resolved.types.len() > 1300 && sections.len() > 15,
        "{sections:?}"
    );
    let mut page = "# EC2 instance types\n\nWhat pods can use on each instance type, with the AMI family AL2023, a root volume of 20 GiB and no \
        kubelet settings: 17 GiB of ephemeral storage, and the columns that begin with *allocatable*. The types are those that EC2 reported when its \
        responses were recorded for the tests; the controller uses what EC2 reports now. Memory is an estimate until a node of the type has joined. \
        [Instance types](../instance-types.md) says how the amounts are computed, and how to choose.\n\n\
        Memory is in MiB, network bandwidth in Mbit/s. A resource without a domain is of `vpc.amazonaws.com`. `a1` needs another AMI family.\n"
        .to_owned();
    for (category, mut types) in sections {
        let size = |of: &InstanceType| -> i64 {
            let cpu = label(of, "karpenter.k8s.aws/instance-cpu");
            cpu.parse().unwrap_or_default()
        };
        let family = |of: &InstanceType| label(of, "karpenter.k8s.aws/instance-family").to_owned();
        types.sort_by_cached_key(|of| (family(of), size(of), of.name.clone()));
        let heading = if category.is_empty() {
            "others"
        } else {
            category
        };
        page.push_str(&format!(
            "\n## {heading}\n\n| type | arch | vCPU | memory | network | devices | allocatable CPU | allocatable memory | pods | \
            resources |\n|---|---|---|---|---|---|---|---|---|---|\n"
        ));
        for found in types {
            page.push_str(&row(found));
        }
    }
    reference::page("instance-types", &page).unwrap();
}
