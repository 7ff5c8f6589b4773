//! Parameters of a launch, and EC2's rules about them.
//!
//! Launch parameters are the data of a template, changed by a fleet's override or a request's own parameters.
//! [`LaunchSpec::check`] applies EC2's rules: the image exists and matches the architecture, the instance type is
//! offered in the zone, zone and subnet and security groups belong together, the instance profile exists, the
//! interfaces are supported.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::catalog::InstanceType;
use crate::ec2::filters::Tags;
use crate::ec2::images::Image;
use crate::ec2::instances::Lifecycle;
use crate::ec2::launch::templates::check_user_data;
use crate::ec2::network::{PlacementGroup, Subnet};
use crate::ec2::{Ec2Call, images, tags};
use crate::services::iam::InstanceProfile;
use crate::wire::error::AwsError;
use crate::wire::params::Params;

/// The parameters of a launch after merging.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LaunchSpec {
    /// Launch data with the request's parameter names.
    pub(crate) data: Value,
    pub(crate) lifecycle: Lifecycle,
    /// Whether a fleet launches: some errors have other messages then.
    pub(crate) fleet: bool,
}

/// A launch that EC2 accepts, if it has capacity.
#[derive(Debug, Clone)]
pub(crate) struct Accepted {
    pub(crate) data: Value,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) instance_type: Arc<InstanceType>,
    pub(crate) image: Image,
    pub(crate) subnet: String,
    pub(crate) zone: String,
    /// Network interfaces with their groups; one entry for the primary interface if none are specified.
    pub(crate) interfaces: Vec<InterfaceSpec>,
    /// Name, ARN and ID of the instance profile.
    pub(crate) profile: Option<(String, String, String)>,
    pub(crate) placement: Option<(PlacementGroup, Option<u32>)>,
    pub(crate) reservation: ReservationChoice,
    pub(crate) tags: Tags,
}

/// A network interface to create.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct InterfaceSpec {
    pub(crate) card: u32,
    pub(crate) device: u32,
    pub(crate) kind: String,
    pub(crate) groups: Vec<(String, String)>,
    pub(crate) prefixes: u32,
}

/// The capacity reservation preference of a launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReservationChoice {
    /// Any open reservation that matches, else none.
    Open,
    Outside,
    /// Only this one, or only some open one.
    Only(Option<String>),
}

impl ReservationChoice {
    pub(crate) fn names(&self) -> (String, Option<String>) {
        match self {
            Self::Open => ("open".to_owned(), None),
            Self::Outside => ("none".to_owned(), None),
            Self::Only(id) => ("capacity-reservations-only".to_owned(), id.clone()),
        }
    }
}

/// Merges `over` into `base`, structure by structure.
pub(crate) fn merged(base: &Value, over: &Value) -> Value {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            let mut out: Map<String, Value> = base.clone();
            for (name, value) in over {
                let value = match out.get(name) {
                    Some(existing) => merged(existing, value),
                    None => value.clone(),
                };
                out.insert(name.clone(), value);
            }
            Value::Object(out)
        }
        (_, over) => over.clone(),
    }
}

impl LaunchSpec {
    /// Applies EC2's rules.
    ///
    /// # Errors
    /// The first broken rule, with EC2's message.
    pub(crate) fn check(&self, call: &Ec2Call<'_>) -> Result<Accepted, AwsError> {
        let data = Params(&self.data);
        let image = self.image(call, data)?;
        let name = data
            .text("InstanceType")
            .ok_or_else(|| AwsError::missing("InstanceType"))?;
        let instance_type = call.ec2.catalog.types.get(name).cloned().ok_or_else(|| {
            AwsError::invalid_value(format!("Invalid value '{name}' for InstanceType."))
        })?;
        if !instance_type.architectures.contains(&image.architecture) {
            return Err(AwsError::invalid_value(format!(
                "The architecture '{}' of the specified instance type does not match the architecture '{}' of the specified AMI. Specify an instance type and an AMI that have matching architectures, and try again. You can use 'describe-instance-types' or 'describe-images' to discover the architecture of the instance type or AMI.",
                instance_type.architectures.join(","),
                image.architecture
            )));
        }
        let subnet = self.subnet(call, data)?;
        self.check_offered(call, &instance_type, &subnet.zone)?;
        if let Some(user_data) = data.text("UserData") {
            check_user_data(user_data)?;
        }
        let interfaces = interfaces(call, data, subnet, &instance_type)?;
        check_volumes(data, &image)?;
        let placement = placement(call, data, &instance_type, self.fleet)?;
        let mut tags = tags::of_specifications(data, "instance")?;
        if self.lifecycle != Lifecycle::Spot
            && !tags::of_specifications(data, "spot-instances-request")?.is_empty()
        {
            return Err(AwsError::invalid_value(
                "You cannot specify tags for Spot instances requests if there are no Spot instances requests being created by the request.",
            ));
        }
        tags.retain(|key, _| !key.is_empty());
        Ok(Accepted {
            lifecycle: self.lifecycle,
            subnet: subnet.id.clone(),
            zone: subnet.zone.clone(),
            profile: profile(call, data)?,
            reservation: reservation(data)?,
            data: self.data.clone(),
            instance_type,
            image,
            interfaces,
            placement,
            tags,
        })
    }

    fn image(&self, call: &Ec2Call<'_>, data: Params<'_>) -> Result<Image, AwsError> {
        let id = data
            .text("ImageId")
            .ok_or_else(|| AwsError::missing("ImageId"))?;
        if !images::well_formed(id) {
            return Err(AwsError::new(
                "InvalidAMIID.Malformed",
                format!("Invalid id: \"{id}\""),
            ));
        }
        call.ec2.images.get(id).cloned().ok_or_else(|| {
            AwsError::new(
                "InvalidAMIID.NotFound",
                format!("The image id '[{id}]' does not exist"),
            )
        })
    }

    fn subnet<'a>(&self, call: &'a Ec2Call<'_>, data: Params<'_>) -> Result<&'a Subnet, AwsError> {
        let in_interface = data
            .list("NetworkInterface")
            .find_map(|i| i.text("SubnetId"));
        let zone = data
            .text("AvailabilityZone")
            .or_else(|| data.inner("Placement").text("AvailabilityZone"));
        let Some(id) = data.text("SubnetId").or(in_interface) else {
            return Err(AwsError::new(
                "MissingInput",
                "No subnets found for the default VPC. Please specify a subnet.",
            ));
        };
        let subnet = call.ec2.subnets.get(id).ok_or_else(|| {
            AwsError::new(
                "InvalidSubnetID.NotFound",
                format!("The subnet ID '{id}' does not exist"),
            )
        })?;
        match zone {
            Some(zone) if call.ec2.catalog.zone_index(zone).is_none() => Err(
                AwsError::invalid_value(format!("Invalid availability zone: [{zone}]")),
            ),
            Some(zone) if zone != subnet.zone => Err(AwsError::invalid_value(format!(
                "Value ({zone}) for parameter availabilityZone is invalid. Subnet '{id}' is in the availability zone {}",
                subnet.zone
            ))),
            _ => Ok(subnet),
        }
    }

    fn check_offered(
        &self,
        call: &Ec2Call<'_>,
        t: &InstanceType,
        zone: &str,
    ) -> Result<(), AwsError> {
        let catalog = &call.ec2.catalog;
        let class = match self.lifecycle {
            Lifecycle::Spot => "spot",
            Lifecycle::CapacityBlock => "capacity-block",
            _ => "on-demand",
        };
        let supported = t.usage_classes.iter().any(|c| c == class)
            && (self.lifecycle != Lifecycle::Spot
                || call.ec2.spot_price_since(&t.name, zone).is_some());
        if supported && catalog.offers(&t.name, zone) {
            return Ok(());
        }
        let zones: Vec<&str> = catalog
            .zones
            .iter()
            .map(|(name, _)| name.as_str())
            .filter(|z| catalog.offers(&t.name, z))
            .collect();
        let sentence = format!(
            "Your requested instance type ({}) is not supported in your requested Availability Zone ({zone}).",
            t.name
        );
        Err(if self.fleet {
            AwsError::new("InvalidFleetConfiguration", sentence)
        } else {
            AwsError::new(
                "Unsupported",
                format!(
                    "{sentence} Please retry your request by not specifying an Availability Zone or choosing {}.",
                    zones.join(", ")
                ),
            )
        })
    }
}

impl InterfaceSpec {
    /// Returns the number of IPv4 addresses it takes from the subnet.
    pub(crate) fn addresses(&self) -> u32 {
        u32::from(self.kind != "efa-only") + 16 * self.prefixes
    }
}

fn number(p: Params<'_>, name: &str) -> u32 {
    p.int(name).and_then(|n| u32::try_from(n).ok()).unwrap_or(0)
}

fn group_names(
    call: &Ec2Call<'_>,
    ids: &[&str],
    subnet: &Subnet,
) -> Result<Vec<(String, String)>, AwsError> {
    ids.iter()
        .map(|id| {
            let group = call.ec2.groups.get(*id).ok_or_else(|| {
                AwsError::new(
                    "InvalidGroup.NotFound",
                    format!("The security group '{id}' does not exist"),
                )
            })?;
            if group.vpc_id != subnet.vpc_id {
                return Err(AwsError::new(
                    "InvalidParameter",
                    format!(
                        "Security group {id} and subnet {} belong to different networks.",
                        subnet.id
                    ),
                ));
            }
            Ok((group.id.clone(), group.name.clone()))
        })
        .collect()
}

fn interfaces(
    call: &Ec2Call<'_>,
    data: Params<'_>,
    subnet: &Subnet,
    t: &InstanceType,
) -> Result<Vec<InterfaceSpec>, AwsError> {
    let outer = data.texts("SecurityGroupId");
    let listed: Vec<Params<'_>> = data.list("NetworkInterface").collect();
    let default_group = || {
        call.ec2
            .groups
            .values()
            .find(|g| g.vpc_id == subnet.vpc_id && g.name == "default")
            .map(|g| (g.id.clone(), g.name.clone()))
            .into_iter()
            .collect::<Vec<_>>()
    };
    if listed.is_empty() {
        let groups = group_names(call, &outer, subnet)?;
        return Ok(vec![InterfaceSpec {
            card: 0,
            device: 0,
            kind: "interface".to_owned(),
            groups: if groups.is_empty() {
                default_group()
            } else {
                groups
            },
            prefixes: 0,
        }]);
    }
    if !outer.is_empty() {
        return Err(AwsError::combination(
            "Network interfaces and an instance-level security groups may not be specified on the same request",
        ));
    }
    // A request of its own with both a subnet and interfaces is refused; a fleet's override moves the subnet to the
    // primary interface.
    let mut out: Vec<InterfaceSpec> = Vec::new();
    let mut public = false;
    for p in listed {
        let kind = p.text("InterfaceType").unwrap_or("interface").to_owned();
        let (card, device) = (number(p, "NetworkCardIndex"), number(p, "DeviceIndex"));
        let efa = kind.starts_with("efa");
        if efa && t.efa_interfaces == 0 {
            return Err(AwsError::combination(format!(
                "EFA interfaces are not supported on {}",
                t.name
            )));
        }
        let Some(most) = usize::try_from(card).ok().and_then(|c| t.cards.get(c)) else {
            return Err(AwsError::invalid_value(format!(
                "Network card index {card} is invalid for instance type {}",
                t.name
            )));
        };
        if out.iter().any(|o| (o.card, o.device) == (card, device)) {
            return Err(AwsError::combination(format!(
                "Each network interface requires a unique device index: {device} on network card {card} is used twice"
            )));
        }
        let on_card = out.iter().filter(|o| o.card == card).count() + 1;
        if u32::try_from(on_card).is_ok_and(|n| n > *most) {
            return Err(AwsError::new(
                "AttachmentLimitExceeded",
                format!("Interface count {on_card} exceeds the limit for {}", t.name),
            ));
        }
        let groups = group_names(call, &p.texts("SecurityGroupId"), subnet)?;
        out.push(InterfaceSpec {
            card,
            device,
            kind,
            groups: if groups.is_empty() {
                default_group()
            } else {
                groups
            },
            prefixes: number(p, "Ipv4PrefixCount"),
        });
        public |= p.flag("AssociatePublicIpAddress") == Some(true);
    }
    if !out.iter().any(|i| (i.card, i.device) == (0, 0)) {
        return Err(AwsError::combination(
            "You must specify a network interface with device index 0 on network card 0",
        ));
    }
    if out.len() > 1 && public {
        return Err(AwsError::combination(
            "The associatePublicIPAddress parameter cannot be specified when launching with multiple network interfaces.",
        ));
    }
    Ok(out)
}

fn check_volumes(data: Params<'_>, image: &Image) -> Result<(), AwsError> {
    for mapping in data.list("BlockDeviceMapping") {
        let device = mapping.text("DeviceName").unwrap_or_default();
        let ebs = mapping.inner("Ebs");
        let size = ebs.int("VolumeSize");
        let snapshot = image.volumes.iter().find(|(d, _)| d == device);
        match (snapshot, size) {
            (Some((_, least)), Some(size)) if size < i64::from(*least) => {
                return Err(AwsError::new(
                    "InvalidBlockDeviceMapping",
                    format!(
                        "Volume of size {size}GB is smaller than snapshot '{}', expect size >= {least}GB",
                        image.id.replacen("ami-", "snap-", 1)
                    ),
                ));
            }
            (None, None) if ebs.has("VolumeType") && ebs.text("SnapshotId").is_none() => {
                return Err(AwsError::new(
                    "MissingParameter",
                    "The request must contain the parameter size or snapshotId",
                ));
            }
            _ => {}
        }
        if let Some(throughput) = ebs.int("Throughput")
            && ebs.text("VolumeType").is_some_and(|t| t != "gp3")
            && throughput > 0
        {
            return Err(AwsError::combination(
                "The parameter throughput is not supported for volumes of this type",
            ));
        }
    }
    Ok(())
}

fn profile(
    call: &Ec2Call<'_>,
    data: Params<'_>,
) -> Result<Option<(String, String, String)>, AwsError> {
    let Some(wanted) = data.inner("IamInstanceProfile").text("Name") else {
        return Ok(None);
    };
    let invalid = |why: String| {
        AwsError::invalid_value(format!(
            "Value ({wanted}) for parameter iamInstanceProfile.name is invalid. {why}"
        ))
    };
    let profile = call
        .iam
        .profile_for_ec2(wanted, call.now, call.settings.iam_delay())
        .ok_or_else(|| invalid("Invalid IAM Instance Profile name".to_owned()))?;
    if profile.role.is_none() {
        return Err(invalid(format!(
            "IAM Instance Profile \"{}\" has no associated IAM Roles",
            profile.arn
        )));
    }
    let InstanceProfile { name, arn, id, .. } = profile.clone();
    Ok(Some((name, arn, id)))
}

/// Maximum number of instances of a spread placement group in one zone.
const SPREAD_LIMIT: usize = 7;

fn placement(
    call: &Ec2Call<'_>,
    data: Params<'_>,
    t: &InstanceType,
    fleet: bool,
) -> Result<Option<(PlacementGroup, Option<u32>)>, AwsError> {
    let p = data.inner("Placement");
    let groups = &call.ec2.placement_groups;
    let (group, wanted) = match (p.text("GroupId"), p.text("GroupName")) {
        (Some(id), _) => (groups.get(id), id),
        (None, Some("") | None) => return Ok(None),
        (None, Some(name)) => (groups.values().find(|g| g.name == name), name),
    };
    let group = group.filter(|g| g.state == "available").ok_or_else(|| {
        AwsError::new(
            "InvalidPlacementGroup.Unknown",
            format!("The Placement Group '{wanted}' is unknown."),
        )
    })?;
    if !t.placement_strategies.contains(&group.strategy) {
        let code = if fleet {
            "InvalidFleetConfiguration"
        } else {
            "InvalidParameterCombination"
        };
        return Err(AwsError::new(
            code,
            format!(
                "{} placement groups may not be used with instances of type '{}'.",
                group.strategy, t.name
            ),
        ));
    }
    let partition = p.int("PartitionNumber").and_then(|n| u32::try_from(n).ok());
    if let Some(n) = partition
        && !(1..=group.partitions.unwrap_or(0)).contains(&n)
    {
        return Err(AwsError::invalid_value(format!(
            "Value ({n}) for parameter partitionNumber is invalid."
        )));
    }
    Ok(Some((group.clone(), partition)))
}

/// Returns whether a spread placement group is full in `zone`.
pub(crate) fn spread_full(call: &Ec2Call<'_>, group: &PlacementGroup, zone: &str) -> bool {
    group.strategy == "spread"
        && call
            .ec2
            .instances
            .all()
            .filter(|i| i.state.is_alive() && i.zone == zone)
            .filter(|i| i.placement.as_ref().is_some_and(|(id, _)| *id == group.id))
            .count()
            >= SPREAD_LIMIT
}

fn reservation(data: Params<'_>) -> Result<ReservationChoice, AwsError> {
    let p = data.inner("CapacityReservationSpecification");
    let target = p
        .inner("CapacityReservationTarget")
        .text("CapacityReservationId");
    match (p.text("CapacityReservationPreference"), target) {
        (Some("none" | "open"), Some(_)) => Err(AwsError::combination(
            "You cannot specify CapacityReservationPreference and CapacityReservationTarget together",
        )),
        (Some("none"), None) => Ok(ReservationChoice::Outside),
        (_, Some(id)) => Ok(ReservationChoice::Only(Some(id.to_owned()))),
        (Some("capacity-reservations-only"), None) => Ok(ReservationChoice::Only(None)),
        _ => Ok(ReservationChoice::Open),
    }
}
