//! CreateFleet: launches with equal parameters are sent as one call, and a repeated call launches no instance twice.
//!
//! The client token of a call is derived from its parameters and its NodeClaims. If the process dies between the call
//! and its record, the next process launches the NodeClaims with the same token, and EC2 returns the instances it has
//! already launched. NodeClaims that are batched with other NodeClaims than before get new instances; the first
//! instances have no NodeClaim and are garbage collected.
//!
//! UPSTREAM: pkg/batcher/createfleet.go, pkg/providers/instance/instance.go

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_ec2::operation::create_fleet::CreateFleetOutput;
use aws_sdk_ec2::operation::create_fleet::builders::CreateFleetFluentBuilder;
use aws_sdk_ec2::types as ec2;
use parking_lot::Mutex;

use crate::providers::launch_template::request::tag_specification;
use crate::sdk::batcher::{Announced, Batcher, Window};
use crate::sdk::terms::TtlCache;
use crate::sdk::{Aws, AwsError};

/// Batching window of launches. A fleet launches at most a thousand instances.
pub const WINDOW: Window = Window {
    idle: Duration::from_millis(35),
    longest: Duration::from_secs(1),
    items: 1000,
};
const OPERATION: &str = "CreateFleet";

/// How the instances of a fleet are billed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purchase {
    /// On demand, also into an on-demand capacity reservation.
    OnDemand,
    Spot,
    /// From an interruptible capacity reservation.
    Interruptible,
    /// From a capacity block.
    CapacityBlock,
}

/// One combination of instance type, subnet and image that the fleet may launch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Override {
    pub type_: String,
    pub zone: String,
    pub subnet: String,
    /// ID of the AMI.
    pub image: String,
    /// Price in dollars per hour; the priority where the allocation strategy is prioritized.
    pub price: Price,
}

/// A price that implements `Eq` and `Hash` by its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Price(u64);

impl From<f64> for Price {
    fn from(price: f64) -> Self {
        Self(price.to_bits())
    }
}

impl From<Price> for f64 {
    fn from(price: Price) -> Self {
        Self::from_bits(price.0)
    }
}

/// The overrides of one launch template.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    pub template: String,
    /// ID of the capacity reservation that the template launches into.
    pub reservation: Option<String>,
    /// Instance types, subnets and images to launch.
    pub overrides: Vec<Override>,
}

/// The parameters of a fleet. Launches with equal parameters are sent as one call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fleet {
    /// Launch templates and their overrides.
    pub configs: Vec<Config>,
    /// How the instances are billed.
    pub purchase: Purchase,
    /// Whether the overrides are ranked by our prices instead of EC2's, as NodeOverlays changed them.
    pub prioritized: bool,
    /// Tags of the created resources.
    pub tags: BTreeMap<String, String>,
    /// The parameter `Context`.
    pub context: Option<String>,
}

/// An instance that the fleet launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    pub id: String,
    pub type_: String,
    pub zone: String,
    pub subnet: String,
    /// ID of the AMI.
    pub image: String,
    /// ID of the capacity reservation it was launched into.
    pub reservation: Option<String>,
}

/// An override that failed to launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolError {
    pub type_: String,
    pub zone: String,
    pub subnet: String,
    /// ID of the capacity reservation that was targeted.
    pub reservation: Option<String>,
    pub error: AwsError,
}

/// The outcome of one launch.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The launched instance; `None` if the fleet launched too few.
    pub launched: Option<Launched>,
    /// The overrides of the whole fleet that failed.
    pub errors: Arc<[PoolError]>,
    /// Whether this launch handles the errors, which all launches of a fleet share. Set for one launch per fleet.
    pub handles_errors: bool,
    pub fleet: Option<String>,
}

/// One launch: the NodeClaim's uid and its attempt.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Item {
    uid: String,
    attempt: u32,
}

/// Launches instances with CreateFleet.
#[derive(Debug)]
pub struct Fleets {
    batcher: Batcher<Fleet, Item, Answer>,
    /// Number of definite failures so far by NodeClaim uid. It is part of the client token, because the same token gets
    /// the same answer.
    attempts: Mutex<TtlCache<String, u32>>,
}

impl Fleets {
    /// Creates a launcher that calls `aws` and batches launches within `window`.
    #[must_use]
    pub fn new(aws: Aws, window: Window) -> Self {
        let telemetry = aws.telemetry().clone();
        let execute =
            move |fleet: Fleet, items: Vec<Item>| -> futures::future::BoxFuture<'static, _> {
                let aws = aws.clone();
                Box::pin(async move { create(&aws, &fleet, items).await })
            };
        Self {
            batcher: Batcher::new(
                "create_fleet",
                OPERATION,
                window,
                telemetry,
                Arc::new(execute),
            ),
            attempts: Mutex::new(TtlCache::new(Duration::from_secs(3600))),
        }
    }

    /// Launches an instance for the NodeClaim with this uid.
    ///
    /// # Errors
    /// If EC2 refuses the fleet as a whole.
    pub async fn launch(&self, fleet: Fleet, uid: &str) -> Result<Answer, AwsError> {
        let attempt = self.attempt(uid);
        let item = Item {
            uid: uid.to_owned(),
            attempt,
        };
        let answer = self.batcher.run(fleet, item).await;
        let definite = match &answer {
            Ok(answer) => answer.launched.is_none(),
            Err(error) => error.code.is_some() && !error.is_server_fault(),
        };
        if definite {
            let attempts = self.attempts.lock();
            attempts.put(uid.to_owned(), attempt.wrapping_add(1));
        }
        answer
    }

    /// Announces a launch that is being prepared, so that the open window waits for it.
    pub fn announce(&self) -> Announced {
        self.batcher.announce()
    }

    fn attempt(&self, uid: &str) -> u32 {
        let attempts = self.attempts.lock();
        attempts.get(&uid.to_owned()).unwrap_or(0)
    }
}

/// Returns the client token: at most 64 characters, and equal for equal parameters and NodeClaims.
fn token(fleet: &Fleet, items: &[Item]) -> String {
    let mut text = format!("{fleet:?}");
    for item in items {
        let _ = write!(text, "|{}/{}", item.uid, item.attempt);
    }
    // FNV-1a, 128 bits: a collision within the day that EC2 remembers tokens is practically impossible.
    let hash = text.bytes().fold(
        0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128,
        |hash, byte| {
            (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
        },
    );
    format!("karpenter-{hash:032x}")
}

async fn create(aws: &Aws, fleet: &Fleet, items: Vec<Item>) -> Vec<Result<Answer, AwsError>> {
    // Sorted, so that the token does not depend on the order of arrival.
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by(|a, b| items[*a].cmp(&items[*b]));
    let sorted: Vec<Item> = order.iter().map(|i| items[*i].clone()).collect();
    let token = token(fleet, &sorted);
    let total = i32::try_from(items.len()).unwrap_or(i32::MAX);
    let output = match send(aws, fleet, total, &token).await {
        Ok(output) => output,
        Err(error) => return items.iter().map(|_| Err(error.clone())).collect(),
    };
    let errors: Arc<[PoolError]> = pool_errors(fleet, &output).into();
    let mut launched = instances(fleet, &output).into_iter();
    let mut answers: HashMap<usize, Answer> = HashMap::with_capacity(items.len());
    for (n, index) in order.into_iter().enumerate() {
        let answer = Answer {
            launched: launched.next(),
            errors: Arc::clone(&errors),
            handles_errors: n == 0,
            fleet: output.fleet_id().map(str::to_owned),
        };
        answers.insert(index, answer);
    }
    (0..items.len())
        .map(|index| {
            answers
                .remove(&index)
                .ok_or_else(|| AwsError::unreadable(OPERATION, "a launch has no answer"))
        })
        .collect()
}

async fn send(
    aws: &Aws,
    fleet: &Fleet,
    total: i32,
    token: &str,
) -> Result<CreateFleetOutput, AwsError> {
    aws.ec2(OPERATION, |client| {
        request(client, fleet, total).client_token(token).send()
    })
    .await
}

/// Checks with a dry run whether EC2 would launch a fleet of one instance.
///
/// # Errors
/// The error of the dry run.
pub async fn dry_run(aws: &Aws, fleet: &Fleet) -> Result<(), AwsError> {
    let answer = aws
        .ec2_once(OPERATION, |client| {
            request(client, fleet, 1).dry_run(true).send()
        })
        .await;
    match answer {
        Err(error) if !error.is_dry_run() => Err(error),
        _ => Ok(()),
    }
}

/// Builds the request without its client token.
fn request(client: &aws_sdk_ec2::Client, fleet: &Fleet, total: i32) -> CreateFleetFluentBuilder {
    let configs: Vec<_> = fleet.configs.iter().map(config).collect();
    let kind = match fleet.purchase {
        Purchase::OnDemand => ec2::DefaultTargetCapacityType::OnDemand,
        Purchase::Spot => ec2::DefaultTargetCapacityType::Spot,
        Purchase::Interruptible => ec2::DefaultTargetCapacityType::ReservedCapacity,
        Purchase::CapacityBlock => ec2::DefaultTargetCapacityType::CapacityBlock,
    };
    let target = ec2::TargetCapacitySpecificationRequest::builder()
        .default_target_capacity_type(kind)
        .total_target_capacity(total)
        .build();
    let spot = (fleet.purchase == Purchase::Spot).then(|| {
        let strategy = if fleet.prioritized {
            ec2::SpotAllocationStrategy::CapacityOptimizedPrioritized
        } else {
            ec2::SpotAllocationStrategy::PriceCapacityOptimized
        };
        ec2::SpotOptionsRequest::builder()
            .allocation_strategy(strategy)
            .build()
    });
    let on_demand = (fleet.purchase == Purchase::OnDemand).then(|| {
        let strategy = if fleet.prioritized {
            ec2::FleetOnDemandAllocationStrategy::Prioritized
        } else {
            ec2::FleetOnDemandAllocationStrategy::LowestPrice
        };
        ec2::OnDemandOptionsRequest::builder()
            .allocation_strategy(strategy)
            .build()
    });
    let reserved = (fleet.purchase == Purchase::Interruptible).then(|| {
        ec2::ReservedCapacityOptionsRequest::builder()
            .reservation_types("interruptible-capacity-reservation".into())
            .build()
    });
    let tags = [
        ec2::ResourceType::Instance,
        ec2::ResourceType::Volume,
        ec2::ResourceType::Fleet,
    ]
    .map(|kind| tag_specification(kind, &fleet.tags));
    client
        .create_fleet()
        .r#type(ec2::FleetType::Instant)
        .set_context(fleet.context.clone())
        .set_launch_template_configs(Some(configs))
        .target_capacity_specification(target)
        .set_spot_options(spot)
        .set_on_demand_options(on_demand)
        .set_reserved_capacity_options(reserved)
        .set_tag_specifications(Some(tags.to_vec()))
}

fn config(config: &Config) -> ec2::FleetLaunchTemplateConfigRequest {
    let overrides = config.overrides.iter().map(|o| {
        ec2::FleetLaunchTemplateOverridesRequest::builder()
            .instance_type(o.type_.as_str().into())
            .subnet_id(&o.subnet)
            .image_id(&o.image)
            // EC2 derives the zone from the subnet; it is set so that errors carry it.
            .availability_zone(&o.zone)
            .priority(o.price.into())
            .build()
    });
    ec2::FleetLaunchTemplateConfigRequest::builder()
        .launch_template_specification(
            ec2::FleetLaunchTemplateSpecificationRequest::builder()
                .launch_template_name(&config.template)
                .version("$Latest")
                .build(),
        )
        .set_overrides(Some(overrides.collect()))
        .build()
}

/// Returns the override of `fleet` that a part of the response is about. The response names templates by ID and may
/// leave members out.
fn find<'a>(
    fleet: &'a Fleet,
    type_: &str,
    about: Option<&ec2::LaunchTemplateAndOverridesResponse>,
) -> (Option<&'a Override>, Option<&'a str>) {
    let named = about.and_then(|a| a.overrides());
    let subnet = named.and_then(|o| o.subnet_id());
    let zone = named.and_then(|o| o.availability_zone());
    let fits = |o: &&Override| {
        o.type_ == type_
            && subnet.is_none_or(|s| s == o.subnet)
            && (subnet.is_some() || zone.is_none_or(|z| z == o.zone))
    };
    let found = fleet
        .configs
        .iter()
        .find_map(|c| Some((c.overrides.iter().find(fits)?, c.reservation.as_deref())));
    (found.map(|f| f.0), found.and_then(|f| f.1))
}

fn pool_errors(fleet: &Fleet, output: &CreateFleetOutput) -> Vec<PoolError> {
    let read = |raw: &ec2::CreateFleetError| {
        let about = raw.launch_template_and_overrides();
        let named = about.and_then(|a| a.overrides());
        let type_ = named
            .and_then(|o| o.instance_type())
            .map(|t| t.as_str().to_owned())
            .unwrap_or_default();
        let (found, reservation) = find(fleet, &type_, about);
        let text = |returned: Option<&str>, known: Option<&String>| {
            let returned = returned.map(str::to_owned).or_else(|| known.cloned());
            returned.unwrap_or_default()
        };
        PoolError {
            zone: text(
                named.and_then(|o| o.availability_zone()),
                found.map(|o| &o.zone),
            ),
            subnet: text(named.and_then(|o| o.subnet_id()), found.map(|o| &o.subnet)),
            type_,
            reservation: reservation.map(str::to_owned),
            error: AwsError::refused(
                OPERATION,
                raw.error_code().unwrap_or_default(),
                raw.error_message().unwrap_or_default(),
            ),
        }
    };
    output.errors().iter().map(read).collect()
}

fn instances(fleet: &Fleet, output: &CreateFleetOutput) -> Vec<Launched> {
    let mut all = Vec::new();
    for raw in output.instances() {
        let about = raw.launch_template_and_overrides();
        let named = about.and_then(|a| a.overrides());
        let type_ = raw
            .instance_type()
            .or_else(|| named.and_then(|o| o.instance_type()))
            .map(|t| t.as_str().to_owned())
            .unwrap_or_default();
        let (found, reservation) = find(fleet, &type_, about);
        let zone = raw
            .availability_zone()
            .or_else(|| named.and_then(|o| o.availability_zone()))
            .map(str::to_owned)
            .or_else(|| found.map(|o| o.zone.clone()));
        let subnet = raw
            .subnet_id()
            .or_else(|| named.and_then(|o| o.subnet_id()))
            .map(str::to_owned)
            .or_else(|| found.map(|o| o.subnet.clone()));
        let image = named
            .and_then(|o| o.image_id())
            .map(str::to_owned)
            .or_else(|| found.map(|o| o.image.clone()));
        all.extend(raw.instance_ids().iter().map(|id| Launched {
            id: id.clone(),
            type_: type_.clone(),
            zone: zone.clone().unwrap_or_default(),
            subnet: subnet.clone().unwrap_or_default(),
            image: image.clone().unwrap_or_default(),
            reservation: reservation.map(str::to_owned),
        }));
    }
    // EC2 returns instances in any order; the assignment to NodeClaims must not depend on it.
    all.sort_by(|a, b| a.id.cmp(&b.id));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet(price: f64) -> Fleet {
        let over = |type_: &str, zone: &str| Override {
            type_: type_.into(),
            zone: zone.into(),
            subnet: format!("subnet-{zone}"),
            image: "ami-1".into(),
            price: price.into(),
        };
        Fleet {
            configs: vec![Config {
                template: "t".into(),
                reservation: None,
                overrides: vec![over("m5.large", "a"), over("c5.large", "b")],
            }],
            purchase: Purchase::Spot,
            prioritized: false,
            tags: BTreeMap::new(),
            context: None,
        }
    }

    fn item(uid: &str, attempt: u32) -> Item {
        Item {
            uid: uid.into(),
            attempt,
        }
    }

    /// Conformance: AWS-batcher-03
    #[test]
    fn launches_are_collected_as_long_as_by_upstream() {
        let expected = Window {
            idle: Duration::from_millis(35),
            longest: Duration::from_secs(1),
            items: 1000,
        };
        assert_eq!(WINDOW, expected);
    }

    #[test]
    fn a_token_depends_on_the_claims_and_their_parameters() {
        let one = token(&fleet(1.0), &[item("a", 0), item("b", 0)]);
        assert!(one.len() <= 64);
        assert_eq!(one, token(&fleet(1.0), &[item("a", 0), item("b", 0)]));
        assert_ne!(one, token(&fleet(2.0), &[item("a", 0), item("b", 0)]));
        assert_ne!(one, token(&fleet(1.0), &[item("a", 0)]));
        assert_ne!(one, token(&fleet(1.0), &[item("a", 1), item("b", 0)]));
    }

    #[test]
    fn what_the_response_leaves_out_is_taken_from_the_request() {
        let over = ec2::FleetLaunchTemplateOverrides::builder()
            .instance_type("c5.large".into())
            .build();
        let about = ec2::LaunchTemplateAndOverridesResponse::builder()
            .overrides(over)
            .build();
        let error = ec2::CreateFleetError::builder()
            .error_code("InsufficientInstanceCapacity")
            .launch_template_and_overrides(about.clone())
            .build();
        let instance = ec2::CreateFleetInstance::builder()
            .instance_ids("i-2")
            .instance_ids("i-1")
            .instance_type("c5.large".into())
            .launch_template_and_overrides(about)
            .build();
        let output = CreateFleetOutput::builder()
            .errors(error)
            .instances(instance)
            .build();
        let errors = pool_errors(&fleet(1.0), &output);
        assert_eq!(
            (errors[0].zone.as_str(), errors[0].subnet.as_str()),
            ("b", "subnet-b")
        );
        let launched = instances(&fleet(1.0), &output);
        assert_eq!(
            launched.iter().map(|l| l.id.as_str()).collect::<Vec<_>>(),
            ["i-1", "i-2"]
        );
        assert_eq!(launched[0].image, "ami-1");
    }
}
