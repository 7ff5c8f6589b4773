//! EC2 in one region.

pub(crate) mod capacity;
pub(crate) mod events;
pub(crate) mod filters;
pub(crate) mod images;
pub(crate) mod instances;
pub(crate) mod launch;
mod listing;
pub(crate) mod network;
pub(crate) mod paging;
pub(crate) mod status;
mod tags;
mod types;

use std::collections::{BTreeMap, HashMap, HashSet};

use jiff::Timestamp;
use serde_json::Value;

use crate::REGION;
use crate::catalog::Catalog;
use crate::ids::Ids;
use crate::services::iam::Iam;
use crate::services::permissions::Auth;
use crate::settings::AwsFakeSettings;
use crate::wire::Reply;
use crate::wire::error::AwsError;
use crate::wire::params::Params;
pub(crate) use capacity::Pool;
use capacity::{CapacityReservation, Pools};
use images::Image;
use instances::Instances;
use launch::templates::LaunchTemplate;
use network::{PlacementGroup, SecurityGroup, Subnet};
use paging::Page;

/// State of EC2 in one region.
#[derive(Debug)]
pub(crate) struct Ec2 {
    pub(crate) account: String,
    pub(crate) started: Timestamp,
    pub(crate) catalog: Catalog,
    pub(crate) subnets: BTreeMap<String, Subnet>,
    pub(crate) groups: BTreeMap<String, SecurityGroup>,
    pub(crate) images: BTreeMap<String, Image>,
    pub(crate) templates: BTreeMap<String, LaunchTemplate>,
    pub(crate) instances: Instances,
    pub(crate) reservations: BTreeMap<String, CapacityReservation>,
    /// Capacity blocks whose interruption warning has been sent.
    pub(crate) warned: HashSet<String>,
    pub(crate) placement_groups: BTreeMap<String, PlacementGroup>,
    pub(crate) pools: Pools,
    /// Responses by action and client token, with the parameters they were for.
    tokens: HashMap<(String, String), (Value, Reply)>,
    /// Number of events sent so far; used in their IDs.
    pub(crate) events: u64,
    /// Events that the queues have not received yet.
    pub(crate) outbox: Vec<String>,
}

impl Ec2 {
    pub(crate) fn new(account: &str, now: Timestamp) -> Self {
        Self {
            account: account.to_owned(),
            started: now,
            catalog: Catalog::new(),
            subnets: BTreeMap::new(),
            groups: BTreeMap::new(),
            images: BTreeMap::new(),
            templates: BTreeMap::new(),
            instances: Instances::default(),
            reservations: BTreeMap::new(),
            warned: HashSet::new(),
            placement_groups: BTreeMap::new(),
            pools: Pools::default(),
            tokens: HashMap::new(),
            events: 0,
            outbox: Vec::new(),
        }
    }

    pub(crate) fn template_by_name(&self, name: &str) -> Option<&LaunchTemplate> {
        self.templates.values().find(|t| t.name == name)
    }
}

/// A call to EC2, with the state it may use.
#[derive(Debug)]
pub(crate) struct Ec2Call<'a> {
    pub(crate) action: String,
    pub(crate) now: Timestamp,
    pub(crate) ec2: &'a mut Ec2,
    pub(crate) iam: &'a Iam,
    pub(crate) ids: &'a mut Ids,
    pub(crate) settings: &'a AwsFakeSettings,
    pub(crate) auth: Auth<'a>,
}

impl Ec2Call<'_> {
    pub(crate) fn run(&mut self, params: &Value) -> Result<Reply, AwsError> {
        let p = Params(params);
        let action = self.action.clone();
        if action.starts_with("Describe") {
            self.auth.need_any(&format!("ec2:{action}"))?;
            self.check_dry_run(p)?;
        }
        match action.as_str() {
            "CreateFleet" => self.create_fleet(p),
            "CreateLaunchTemplate" => self.create_launch_template(p),
            "CreateTags" => self.create_tags(p),
            "DeleteLaunchTemplate" => self.delete_launch_template(p),
            "DescribeCapacityReservations" => self.describe_capacity_reservations(p),
            "DescribeImages" => self.describe_images(p),
            "DescribeInstanceStatus" => self.describe_instance_status(p),
            "DescribeInstanceTypeOfferings" => self.describe_instance_type_offerings(p),
            "DescribeInstanceTypes" => self.describe_instance_types(p),
            "DescribeInstances" => self.describe_instances(p),
            "DescribeLaunchTemplates" => self.describe_launch_templates(p),
            "DescribePlacementGroups" => self.describe_placement_groups(p),
            "DescribeSecurityGroups" => self.describe_security_groups(p),
            "DescribeSpotPriceHistory" => self.describe_spot_price_history(p),
            "DescribeSubnets" => self.describe_subnets(p),
            "RunInstances" => self.run_instances(p),
            "TerminateInstances" => self.terminate_instances(p),
            other => Err(AwsError::new(
                "InvalidAction",
                format!("The action {other} is not valid for this web service."),
            )),
        }
    }

    pub(crate) fn arn(&self, kind: &str, id: &str) -> String {
        let account = self.ec2.account.as_str();
        // Images and snapshots have the ARN of their owner.
        let account = if matches!(kind, "image" | "snapshot") {
            ""
        } else {
            account
        };
        format!("arn:aws:ec2:{REGION}:{account}:{kind}/{id}")
    }

    /// Returns the requested page.
    pub(crate) fn page(&self, p: Params<'_>, bounds: (i64, i64)) -> Result<Page, AwsError> {
        let page = Page::read(
            p,
            &self.action,
            bounds,
            self.settings.page_size(&self.action),
        )?;
        Ok(page.empty_first(self.settings.empty_pages))
    }

    /// Ends a dry run that has passed all checks.
    pub(crate) fn check_dry_run(&self, p: Params<'_>) -> Result<(), AwsError> {
        if p.flag("DryRun") == Some(true) {
            return Err(AwsError::new(
                "DryRunOperation",
                "Request would have succeeded, but DryRun flag is set.",
            ));
        }
        Ok(())
    }

    /// Returns the response of an earlier call with the same client token.
    pub(crate) fn replay(&self, p: Params<'_>) -> Result<Option<Reply>, AwsError> {
        let Some(token) = p.text("ClientToken").filter(|t| !t.is_empty()) else {
            return Ok(None);
        };
        match self
            .ec2
            .tokens
            .get(&(self.action.clone(), token.to_owned()))
        {
            None => Ok(None),
            Some((params, reply)) if params == p.0 => Ok(Some(reply.clone())),
            Some(_) => Err(AwsError::new(
                "IdempotentParameterMismatch",
                "Arguments on this idempotent request are inconsistent with arguments used in previous request(s).",
            )),
        }
    }

    /// Stores the response for repeated calls with the client token.
    pub(crate) fn remember(&mut self, p: Params<'_>, reply: &Reply) {
        if let Some(token) = p.text("ClientToken").filter(|t| !t.is_empty()) {
            self.ec2.tokens.insert(
                (self.action.clone(), token.to_owned()),
                (p.0.clone(), reply.clone()),
            );
        }
    }
}
