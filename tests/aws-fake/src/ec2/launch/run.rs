//! RunInstances.

use serde_json::{Map, Value, json};

use crate::ec2::instances::Lifecycle;
use crate::ec2::launch::Origin;
use crate::ec2::launch::spec::{LaunchSpec, merged};
use crate::ec2::{Ec2Call, tags};
use crate::services::permissions::Permission;
use crate::wire::error::AwsError;
use crate::wire::params::Params;
use crate::wire::{Reply, xml};

/// Members of the request that are not launch data.
const NOT_DATA: [&str; 6] = [
    "LaunchTemplate",
    "MinCount",
    "MaxCount",
    "DryRun",
    "ClientToken",
    "TagSpecification",
];

impl Ec2Call<'_> {
    pub(crate) fn run_instances(&mut self, p: Params<'_>) -> Result<Reply, AwsError> {
        let (template, base) = if p.has("LaunchTemplate") {
            let wanted = p.inner("LaunchTemplate");
            let t = self.template(wanted)?;
            let version = wanted.text("Version").unwrap_or_default();
            let (number, data) = t.version(version).ok_or_else(|| {
                AwsError::new(
                    "InvalidLaunchTemplateId.VersionNotFound",
                    format!("Could not find the specified version {version} for the launch template with ID {}.", t.id),
                )
            })?;
            let template = (t.id.clone(), t.name.clone(), number);
            (Some((template, t.tags.clone())), data.clone())
        } else {
            (None, Value::Object(Map::new()))
        };
        let own: Map<String, Value> =
            p.0.as_object()
                .into_iter()
                .flatten()
                .filter(|(name, _)| !NOT_DATA.contains(&name.as_str()))
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect();
        let data = merged(&base, &Value::Object(own));
        let market = Params(&data)
            .inner("InstanceMarketOptions")
            .text("MarketType");
        let lifecycle = match market {
            Some("spot") => Lifecycle::Spot,
            Some("capacity-block") => Lifecycle::CapacityBlock,
            Some("interruptible-capacity-reservation") => {
                Lifecycle::InterruptibleCapacityReservation
            }
            _ => Lifecycle::OnDemand,
        };
        self.authorize_launch(
            &["ec2:RunInstances"],
            p,
            Params(&data),
            &[],
            lifecycle == Lifecycle::Spot,
        )?;
        if let Some(((id, _, _), tags)) = &template {
            let arn = self.arn("launch-template", id);
            self.auth
                .need(Permission::new("ec2:RunInstances", arn).resource_tags(tags))?;
        }

        let (least, most) = (
            p.int("MinCount").unwrap_or(0),
            p.int("MaxCount").unwrap_or(0),
        );
        if least < 1 || most < least {
            return Err(AwsError::invalid_value(format!(
                "Value ({least}) for parameter minCount is invalid. minCount must be at least 1 and at most maxCount"
            )));
        }
        if p.has("SubnetId") && Params(&data).list("NetworkInterface").next().is_some() {
            return Err(AwsError::combination(
                "Network interfaces and an instance-level subnet ID may not be specified on the same request",
            ));
        }
        let instance_tags = tags::of_specifications(p, "instance")?;
        let spec = LaunchSpec {
            data,
            lifecycle,
            fleet: false,
        };
        let mut accepted = spec.check(self)?;
        accepted.tags.extend(instance_tags);
        self.check_dry_run(p)?;
        if let Some(replay) = self.replay(p)? {
            return Ok(replay);
        }
        let mut origin = Origin {
            template: template.map(|(t, _)| t),
            fleet: None,
            client_token: p.text("ClientToken").unwrap_or_default().to_owned(),
            reservation: self.ids.hex("r-", 17),
            launch_index: 0,
        };
        if let Some((id, _, version)) = &origin.template {
            accepted
                .tags
                .insert("aws:ec2launchtemplate:id".to_owned(), id.clone());
            accepted.tags.insert(
                "aws:ec2launchtemplate:version".to_owned(),
                version.to_string(),
            );
        }
        let mut ids = Vec::new();
        for _ in 0..most {
            match self.launch(&accepted, &origin) {
                Ok(id) => ids.push(id),
                Err(error) if i64::try_from(ids.len()).unwrap_or(i64::MAX) < least => {
                    for id in ids {
                        let reason = (
                            "Server.InternalError",
                            "Server.InternalError: launch rolled back",
                        );
                        self.ec2
                            .terminate(&id, self.now, self.settings.shutting_down(), reason);
                    }
                    return Err(error);
                }
                Err(_) => break,
            }
            origin.launch_index += 1;
        }
        let mut out = String::new();
        let head = json!({"reservationId": origin.reservation, "ownerId": self.ec2.account, "groupSet": []});
        xml::write_members(&head, "item", &mut out);
        out.push_str("<instancesSet>");
        let account = self.ec2.account.clone();
        for id in ids {
            if let Some(instance) = self.ec2.instances.get_mut(&id) {
                out.push_str("<item>");
                out.push_str(&instance.render(&account));
                out.push_str("</item>");
            }
        }
        out.push_str("</instancesSet>");
        let reply = Reply::Xml(out);
        self.remember(p, &reply);
        Ok(reply)
    }
}
