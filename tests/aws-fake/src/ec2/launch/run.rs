//! RunInstances, as a dry run.

use serde_json::{Map, Value};

use crate::ec2::instances::Lifecycle;
use crate::ec2::launch::spec::{LaunchSpec, merged};
use crate::ec2::{Ec2Call, tags};
use crate::services::permissions::Permission;
use crate::wire::Reply;
use crate::wire::error::AwsError;
use crate::wire::params::Params;

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
            let t = self.template(p.inner("LaunchTemplate"))?;
            (Some((t.id.clone(), t.tags.clone())), t.data.clone())
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
            _ => Lifecycle::OnDemand,
        };
        self.authorize_launch(
            &["ec2:RunInstances"],
            p,
            Params(&data),
            &[],
            lifecycle == Lifecycle::Spot,
        )?;
        if let Some((id, tags)) = &template {
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
        tags::of_specifications(p, "instance")?;
        let spec = LaunchSpec {
            data,
            lifecycle,
            fleet: false,
        };
        spec.check(self)?;
        self.check_dry_run(p)?;
        Err(AwsError::unsupported("RunInstances without DryRun"))
    }
}
