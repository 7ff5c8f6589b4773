//! CreateFleet of type `instant`: the order in which pools are tried, and the errors of those that failed.
//!
//! Overrides that break a rule are reported whether they were needed or not, as EC2 validates a fleet first. Pools
//! without capacity are reported if they were tried, in the order of the allocation strategy.

use serde_json::{Map, Value, json};

use crate::ec2::instances::Lifecycle;
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
    accepted: Accepted,
    priority: f64,
    price: f64,
    depth: u32,
}

/// Members of an override that change launch data, by the name of the launch data member.
const OVERRIDES: [&str; 4] = ["InstanceType", "SubnetId", "AvailabilityZone", "ImageId"];

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
            self.template(config.inner("LaunchTemplateSpecification"))?;
        }
        self.check_dry_run(p)?;
        if let Some(replay) = self.replay(p)? {
            return Ok(replay);
        }

        let target = p.inner("TargetCapacitySpecification");
        let lifecycle = match target.text("DefaultTargetCapacityType") {
            Some("spot") => Lifecycle::Spot,
            Some("capacity-block") => Lifecycle::CapacityBlock,
            Some("reserved-capacity") => return Err(AwsError::unsupported("reserved-capacity")),
            _ => Lifecycle::OnDemand,
        };
        let (mut candidates, mut errors) = self.candidates(p, &configs, lifecycle)?;
        let options = if lifecycle == Lifecycle::Spot {
            p.inner("SpotOptions")
        } else {
            p.inner("OnDemandOptions")
        };
        let total = target.int("TotalTargetCapacity").unwrap_or(0);
        let total = u32::try_from(total).unwrap_or(0);
        order(&mut candidates, options.text("AllocationStrategy"), total);

        let fleet = format!("fleet-{}", self.ids.uuid());
        let launched = self.fill(&candidates, total, &fleet, &mut errors);
        let instances = launched.iter().map(|(candidate, ids)| {
            json!({
                "launchTemplateAndOverrides": candidate.wire,
                "lifecycle": lifecycle.name(),
                "instanceIds": ids,
                "instanceType": candidate.accepted.instance_type.name,
                "availabilityZone": candidate.accepted.zone,
                "subnetId": candidate.accepted.subnet,
            })
        });
        let instances: Value = instances.collect();
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
        mut remaining: u32,
        fleet: &str,
        errors: &mut Vec<Value>,
    ) -> Vec<(&'c Candidate, Vec<String>)> {
        let mut launched: Vec<(&Candidate, Vec<String>)> = Vec::new();
        for candidate in candidates {
            let reservation = self.ids.hex("r-", 17);
            let mut accepted = candidate.accepted.clone();
            accepted
                .tags
                .insert("aws:ec2:fleet-id".to_owned(), fleet.to_owned());
            let mut ids = Vec::new();
            while remaining > 0 {
                match self.launch(&accepted, &reservation) {
                    Ok(id) => {
                        ids.push(id);
                        remaining -= 1;
                    }
                    Err(error) => {
                        errors.push(error_wire(&candidate.wire, accepted.lifecycle, &error));
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
        for config in configs {
            let wanted = config.inner("LaunchTemplateSpecification");
            let template = self.template(wanted)?;
            for o in config.list("Overrides") {
                o.only(&[&OVERRIDES[..], &["Priority"]].concat())?;
                let wire = json!({
                    "launchTemplateSpecification": {
                        "launchTemplateId": template.id,
                        "version": "1",
                    },
                    "overrides": echo(o),
                });
                let over: Map<String, Value> = OVERRIDES
                    .iter()
                    .filter_map(|name| Some(((*name).to_owned(), o.0.get(*name)?.clone())))
                    .collect();
                let spec = LaunchSpec {
                    data: merged(&template.data, &Value::Object(over)),
                    lifecycle,
                    fleet: true,
                };
                match spec.check(self) {
                    Err(error) => errors.push(error_wire(&wire, lifecycle, &error)),
                    Ok(mut accepted) => {
                        accepted.tags.extend(fleet_tags.clone());
                        accepted.tags.extend(template.launch_tags());
                        let pool =
                            Pool::new(&accepted.instance_type.name, &accepted.zone, lifecycle);
                        candidates.push(Candidate {
                            wire,
                            priority: o.0["Priority"].as_f64().unwrap_or(f64::MAX),
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
            let data = self.template(wanted).map(|t| t.data.clone());
            uses.push((wanted, data.ok()));
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
        let wanted = data.inner("IamInstanceProfile").text("Name");
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
fn order(candidates: &mut [Candidate], strategy: Option<&str>, total: u32) {
    let cheapest = |a: &Candidate, b: &Candidate| a.price.total_cmp(&b.price);
    let deepest = candidates.iter().map(|c| c.depth).max().unwrap_or(0);
    // A pool is deep enough if it has the capacity for the whole request, or is among the deep ones.
    let deep = |c: &Candidate| c.depth >= total && c.depth >= deepest / 2;
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
        "capacity-optimized-prioritized" => candidates.sort_by(|a, b| {
            deep(b)
                .cmp(&deep(a))
                .then_with(|| a.priority.total_cmp(&b.priority))
        }),
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
        "subnetId": o.text("SubnetId"),
        "availabilityZone": o.text("AvailabilityZone"),
        "priority": o.0.get("Priority"),
        "imageId": o.text("ImageId"),
    })
}
