//! CreateFleet of type `instant`: the order in which pools are tried, and the errors of those that failed.
//!
//! Overrides that break a rule are reported whether they were needed or not, as EC2 validates a fleet first. Pools
//! without capacity are reported if they were tried, in the order of the allocation strategy.

use serde_json::{Map, Value, json};

use crate::ec2::instances::Lifecycle;
use crate::ec2::launch::Origin;
use crate::ec2::launch::spec::{Accepted, LaunchSpec, merged};
use crate::ec2::{Ec2Call, Pool, tags};
use crate::services::permissions::Permission;
use crate::wire::Reply;
use crate::wire::error::AwsError;
use crate::wire::params::Params;

/// A combination of launch template and override.
struct Candidate {
    /// Its `launchTemplateAndOverrides` in the response.
    wire: Value,
    template: (String, String, u32),
    accepted: Accepted,
    priority: f64,
    weight: f64,
    max_price: Option<f64>,
    price: f64,
    depth: u32,
}

/// Members of an override that change launch data, by the name of the launch data member.
const OVERRIDES: [&str; 6] = [
    "InstanceType",
    "SubnetId",
    "AvailabilityZone",
    "ImageId",
    "Placement",
    "BlockDeviceMapping",
];

/// Resource types that a fleet may tag.
const TAGGABLE: [&str; 5] = [
    "fleet",
    "instance",
    "volume",
    "network-interface",
    "spot-instances-request",
];

impl Ec2Call<'_> {
    pub(crate) fn create_fleet(&mut self, p: Params<'_>) -> Result<Reply, AwsError> {
        let configs: Vec<Params<'_>> = p.list("LaunchTemplateConfigs").collect();
        self.authorize_fleet(p, &configs)?;
        check_fleet(p, &configs)?;
        for config in &configs {
            let wanted = config.inner("LaunchTemplateSpecification");
            let template = self.template(wanted)?;
            if template
                .version(wanted.text("Version").unwrap_or_default())
                .is_none()
            {
                return Err(AwsError::new(
                    "InvalidLaunchTemplateId.VersionNotFound",
                    format!(
                        "Could not find the specified version {} for the launch template with ID {}.",
                        wanted.text("Version").unwrap_or_default(),
                        template.id
                    ),
                ));
            }
        }
        self.check_dry_run(p)?;
        if let Some(replay) = self.replay(p)? {
            return Ok(replay);
        }

        let target = p.inner("TargetCapacitySpecification");
        let lifecycle = match target.text("DefaultTargetCapacityType") {
            Some("spot") => Lifecycle::Spot,
            Some("capacity-block") => Lifecycle::CapacityBlock,
            Some("reserved-capacity") => Lifecycle::InterruptibleCapacityReservation,
            _ => Lifecycle::OnDemand,
        };
        let (mut candidates, mut errors) = self.candidates(p, &configs, lifecycle)?;
        let options = if lifecycle == Lifecycle::Spot {
            p.inner("SpotOptions")
        } else {
            p.inner("OnDemandOptions")
        };
        let total = target.int("TotalTargetCapacity").unwrap_or(0);
        let total = f64::from(u32::try_from(total).unwrap_or(0));
        order(&mut candidates, options.text("AllocationStrategy"), total);

        let fleet = format!("fleet-{}", self.ids.uuid());
        let launched = self.fill(&candidates, total, options, &fleet, p, &mut errors);
        let count: usize = launched.iter().map(|(_, ids)| ids.len()).sum();
        let minimum = options.int("MinTargetCapacity").unwrap_or(0);
        let instances: Vec<Value> = if i64::try_from(count).unwrap_or(i64::MAX) < minimum {
            for id in launched.iter().flat_map(|(_, ids)| ids) {
                let reason = (
                    "Server.InsufficientInstanceCapacity",
                    "Server.InsufficientInstanceCapacity: the fleet's minimum target capacity could not be met",
                );
                self.ec2
                    .terminate(id, self.now, self.settings.shutting_down(), reason);
            }
            vec![]
        } else {
            launched
                .iter()
                .map(|(candidate, ids)| {
                    json!({
                        "launchTemplateAndOverrides": candidate.wire,
                        "lifecycle": lifecycle.name(),
                        "instanceIds": ids,
                        "instanceType": candidate.accepted.instance_type.name,
                        "platform": candidate.accepted.image.windows.then_some("windows"),
                        "availabilityZone": candidate.accepted.zone,
                        "subnetId": candidate.accepted.subnet,
                    })
                })
                .collect()
        };
        let reply = Reply::Tree(json!({
            "fleetId": fleet,
            "errorSet": errors,
            "fleetInstanceSet": instances,
        }));
        self.remember(p, &reply);
        Ok(reply)
    }

    /// Launches until the target is met, in the candidates' order.
    fn fill<'c>(
        &mut self,
        candidates: &'c [Candidate],
        total: f64,
        options: Params<'_>,
        fleet: &str,
        p: Params<'_>,
        errors: &mut Vec<Value>,
    ) -> Vec<(&'c Candidate, Vec<String>)> {
        let mut launched: Vec<(&Candidate, Vec<String>)> = Vec::new();
        let mut remaining = total;
        let single_type = options.flag("SingleInstanceType") == Some(true);
        let single_zone = options.flag("SingleAvailabilityZone") == Some(true);
        for candidate in candidates {
            if remaining <= 0.0 {
                break;
            }
            let a = &candidate.accepted;
            let strays = launched.first().is_some_and(|(first, _)| {
                single_type && first.accepted.instance_type.name != a.instance_type.name
                    || single_zone && first.accepted.zone != a.zone
            });
            if strays {
                continue;
            }
            if let Some(max) = candidate.max_price
                && candidate.price > max
            {
                errors.push(error_wire(&candidate.wire, a.lifecycle, &AwsError::new(
                    "SpotMaxPriceTooLow",
                    format!("Your Spot request price of {max} is lower than the minimum required Spot request fulfillment price of {}.", candidate.price),
                )));
                continue;
            }
            let mut origin = Origin {
                template: Some(candidate.template.clone()),
                fleet: Some(fleet.to_owned()),
                client_token: p.text("ClientToken").unwrap_or_default().to_owned(),
                reservation: self.ids.hex("r-", 17),
                launch_index: 0,
            };
            let mut accepted = a.clone();
            accepted
                .tags
                .insert("aws:ec2:fleet-id".to_owned(), fleet.to_owned());
            let mut ids = Vec::new();
            while remaining > 0.0 {
                match self.launch(&accepted, &origin) {
                    Ok(id) => {
                        ids.push(id);
                        origin.launch_index += 1;
                        remaining -= candidate.weight;
                    }
                    Err(error) => {
                        errors.push(error_wire(&candidate.wire, a.lifecycle, &error));
                        break;
                    }
                }
            }
            if !ids.is_empty() {
                launched.push((candidate, ids));
            }
        }
        launched
    }

    /// Returns the candidates of the fleet, and the errors of those that break a rule.
    fn candidates(
        &self,
        p: Params<'_>,
        configs: &[Params<'_>],
        lifecycle: Lifecycle,
    ) -> Result<(Vec<Candidate>, Vec<Value>), AwsError> {
        let fleet_tags = tags::of_specifications(p, "instance")?;
        let mut candidates = Vec::new();
        let mut errors = Vec::new();
        let nothing = Value::Object(Map::new());
        for config in configs {
            let wanted = config.inner("LaunchTemplateSpecification");
            let template = self.template(wanted)?;
            let Some((version, data)) =
                template.version(wanted.text("Version").unwrap_or_default())
            else {
                continue;
            };
            let mut overrides: Vec<Params<'_>> = config.list("Overrides").collect();
            if overrides.is_empty() {
                overrides.push(Params(&nothing));
            }
            for o in overrides {
                let wire = json!({
                    "launchTemplateSpecification": {
                        "launchTemplateId": template.id,
                        "version": version.to_string(),
                    },
                    "overrides": echo(o),
                });
                let over: Map<String, Value> = OVERRIDES
                    .iter()
                    .filter_map(|name| Some(((*name).to_owned(), o.0.get(*name)?.clone())))
                    .collect();
                let spec = LaunchSpec {
                    data: merged(data, &Value::Object(over)),
                    lifecycle,
                    fleet: true,
                };
                match spec.check(self) {
                    Err(error) => errors.push(error_wire(&wire, lifecycle, &error)),
                    Ok(mut accepted) => {
                        accepted.tags.extend(fleet_tags.clone());
                        accepted
                            .tags
                            .insert("aws:ec2launchtemplate:id".to_owned(), template.id.clone());
                        accepted.tags.insert(
                            "aws:ec2launchtemplate:version".to_owned(),
                            version.to_string(),
                        );
                        let pool =
                            Pool::new(&accepted.instance_type.name, &accepted.zone, lifecycle);
                        let decimal = |name: &str| o.0.get(name).and_then(Value::as_f64);
                        candidates.push(Candidate {
                            wire,
                            template: (template.id.clone(), template.name.clone(), version),
                            priority: decimal("Priority").unwrap_or(f64::MAX),
                            weight: decimal("WeightedCapacity")
                                .filter(|w| *w > 0.0)
                                .unwrap_or(1.0),
                            max_price: o.text("MaxPrice").and_then(|m| m.parse().ok()),
                            price: self.ec2.pool_price(&pool),
                            depth: self.ec2.pools.depth(&pool),
                            accepted,
                        });
                    }
                }
            }
        }
        Ok((candidates, errors))
    }

    /// Checks the permissions a fleet needs: on the resources it creates and uses, and on the role it passes.
    fn authorize_fleet(&mut self, p: Params<'_>, configs: &[Params<'_>]) -> Result<(), AwsError> {
        let lifecycle_spot = p
            .inner("TargetCapacitySpecification")
            .text("DefaultTargetCapacityType")
            == Some("spot");
        let mut uses: Vec<(Params<'_>, Option<Value>)> = Vec::new();
        for config in configs {
            let wanted = config.inner("LaunchTemplateSpecification");
            let data = self.template(wanted).ok().and_then(|t| {
                t.version(wanted.text("Version").unwrap_or_default())
                    .map(|(_, data)| data.clone())
            });
            uses.push((wanted, data));
        }
        let fleet_tags = tags::of_specifications(p, "fleet")?;
        let create = Permission::new("ec2:CreateFleet", self.arn("fleet", "*"));
        self.auth.need(create.request_tags(&fleet_tags))?;
        self.need_create_tags("fleet", &fleet_tags)?;
        for (wanted, data) in uses {
            let overrides: Vec<Params<'_>> = configs
                .iter()
                .filter(|c| c.inner("LaunchTemplateSpecification").0 == wanted.0)
                .flat_map(|c| c.list("Overrides"))
                .collect();
            let data = data.unwrap_or(Value::Null);
            self.authorize_launch(
                &["ec2:CreateFleet", "ec2:RunInstances"],
                p,
                Params(&data),
                &overrides,
                lifecycle_spot,
            )?;
            let template = self
                .template(wanted)
                .map(|t| (t.id.clone(), t.tags.clone()));
            if let Ok((id, tags)) = template {
                let arn = self.arn("launch-template", &id);
                for action in ["ec2:CreateFleet", "ec2:RunInstances"] {
                    self.auth
                        .need(Permission::new(action, arn.clone()).resource_tags(&tags))?;
                }
            }
        }
        Ok(())
    }

    /// Checks the permissions a launch needs: on the resources it creates and uses, and on the role it passes.
    pub(crate) fn authorize_launch(
        &mut self,
        actions: &[&str],
        request: Params<'_>,
        data: Params<'_>,
        overrides: &[Params<'_>],
        spot: bool,
    ) -> Result<(), AwsError> {
        let mut created = vec!["instance", "volume", "network-interface"];
        if spot {
            created.push("spot-instances-request");
        }
        for kind in created {
            let mut tags = tags::of_specifications(data, kind)?;
            tags.extend(tags::of_specifications(request, kind)?);
            for action in actions {
                let permission = Permission::new(*action, self.arn(kind, "*"));
                self.auth.need(permission.request_tags(&tags))?;
            }
            self.need_create_tags(kind, &tags)?;
        }
        let mut used = std::collections::BTreeSet::new();
        let sources = std::iter::once(data).chain(overrides.iter().copied());
        for source in sources {
            let interfaces: Vec<Params<'_>> = source.list("NetworkInterface").collect();
            let mut add = |kind: &str, id: &str| {
                used.insert(self.arn(kind, id));
            };
            if let Some(id) = source.text("ImageId") {
                add("image", id);
            }
            if let Some(id) = source.text("SubnetId") {
                add("subnet", id);
            }
            for id in source.texts("SecurityGroupId") {
                add("security-group", id);
            }
            for interface in interfaces {
                for id in interface.texts("SecurityGroupId") {
                    add("security-group", id);
                }
                if let Some(id) = interface.text("SubnetId") {
                    add("subnet", id);
                }
            }
            let reservation = source
                .inner("CapacityReservationSpecification")
                .inner("CapacityReservationTarget");
            if let Some(id) = reservation.text("CapacityReservationId") {
                add("capacity-reservation", id);
            }
            if let Some(id) = source.inner("Placement").text("GroupId") {
                add("placement-group", id);
            }
        }
        for arn in used {
            for action in actions {
                self.auth.need(Permission::new(*action, arn.clone()))?;
            }
        }
        let profile = data.inner("IamInstanceProfile");
        let wanted = profile.text("Name").or(profile.text("Arn"));
        if let Some(role) = wanted.and_then(|w| self.iam.role_arn_of_profile(w)) {
            let permission = Permission::new("iam:PassRole", role)
                .with("iam:PassedToService", "ec2.amazonaws.com");
            self.auth.need(permission)?;
        }
        Ok(())
    }
}

fn check_fleet(p: Params<'_>, configs: &[Params<'_>]) -> Result<(), AwsError> {
    if p.text("Type") != Some("instant") {
        return Err(AwsError::new(
            "UnsupportedOperation",
            "This endpoint launches fleets of type instant only.",
        ));
    }
    if configs.is_empty() {
        return Err(AwsError::missing("LaunchTemplateConfigs"));
    }
    if configs.len() > 50 {
        return Err(AwsError::invalid_value(
            "The number of launch template configs must not exceed 50",
        ));
    }
    let target = p.inner("TargetCapacitySpecification");
    if !(1..=10_000).contains(&target.int("TotalTargetCapacity").unwrap_or(0)) {
        return Err(AwsError::invalid_value(
            "TotalTargetCapacity must be between 1 and 10000",
        ));
    }
    for specification in p.list("TagSpecification") {
        tags::check_specification(specification)?;
        let kind = specification.text("ResourceType").unwrap_or_default();
        if !TAGGABLE.contains(&kind) {
            return Err(AwsError::invalid_value(format!(
                "'{kind}' is not a valid taggable resource type for this operation."
            )));
        }
        if kind == "spot-instances-request"
            && target.text("DefaultTargetCapacityType") != Some("spot")
        {
            return Err(AwsError::invalid_value(
                "You cannot specify tags for Spot instances requests if there are no Spot instances requests being created by the request.",
            ));
        }
    }
    Ok(())
}

/// Sorts candidates by the order of the allocation strategy.
fn order(candidates: &mut [Candidate], strategy: Option<&str>, total: f64) {
    let cheapest = |a: &Candidate, b: &Candidate| a.price.total_cmp(&b.price);
    let deepest = candidates.iter().map(|c| c.depth).max().unwrap_or(0);
    // A pool is deep enough if it has the capacity for the whole request, or is among the deep ones.
    let deep = |c: &Candidate| f64::from(c.depth) >= total && c.depth >= deepest / 2;
    match strategy.unwrap_or("lowest-price") {
        "prioritized" => candidates.sort_by(|a, b| a.priority.total_cmp(&b.priority)),
        "price-capacity-optimized" => candidates.sort_by(|a, b| {
            deep(b).cmp(&deep(a)).then_with(|| {
                if deep(a) {
                    cheapest(a, b)
                } else {
                    b.depth.cmp(&a.depth)
                }
            })
        }),
        "capacity-optimized" => {
            candidates.sort_by_key(|c| std::cmp::Reverse(c.depth));
        }
        "capacity-optimized-prioritized" => candidates.sort_by(|a, b| {
            deep(b)
                .cmp(&deep(a))
                .then_with(|| a.priority.total_cmp(&b.priority))
        }),
        // `lowest-price`; `diversified` differs only when one pool could launch everything, which an instant fleet
        // allows.
        _ => candidates.sort_by(cheapest),
    }
}

fn error_wire(wire: &Value, lifecycle: Lifecycle, error: &AwsError) -> Value {
    json!({
        "launchTemplateAndOverrides": wire,
        "lifecycle": lifecycle.name(),
        "errorCode": error.code,
        "errorMessage": error.message,
    })
}

/// Returns an override as the response repeats it.
fn echo(o: Params<'_>) -> Value {
    json!({
        "instanceType": o.text("InstanceType"),
        "maxPrice": o.text("MaxPrice"),
        "subnetId": o.text("SubnetId"),
        "availabilityZone": o.text("AvailabilityZone"),
        "weightedCapacity": o.0.get("WeightedCapacity"),
        "priority": o.0.get("Priority"),
        "imageId": o.text("ImageId"),
    })
}
