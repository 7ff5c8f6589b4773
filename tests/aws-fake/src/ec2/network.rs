//! Networks: subnets with a limited number of addresses, security groups, placement groups.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::Ec2Call;
use super::filters::{Filters, Tags, tag_set};
use crate::wire::Reply;
use crate::wire::error::AwsError;
use crate::wire::params::Params;

/// A subnet, with the addresses in use.
#[derive(Debug, Clone)]
pub struct Subnet {
    /// ID of the subnet, `subnet-…`.
    pub id: String,
    pub vpc_id: String,
    pub zone: String,
    /// Network address and prefix length.
    pub cidr: (Ipv4Addr, u8),
    pub tags: Tags,
    taken: BTreeSet<u32>,
    /// Number of addresses used by prefixes and by resources that the stand-in does not model.
    reserved: u32,
}

impl Subnet {
    /// Creates an empty subnet. The prefix length must be between 16 and 28, as in a VPC; other values are clamped.
    #[must_use]
    pub fn new(id: &str, vpc_id: &str, zone: &str, cidr: (Ipv4Addr, u8)) -> Self {
        Self {
            id: id.to_owned(),
            vpc_id: vpc_id.to_owned(),
            zone: zone.to_owned(),
            cidr: (cidr.0, cidr.1.clamp(16, 28)),
            tags: Tags::new(),
            taken: BTreeSet::new(),
            reserved: 0,
        }
    }

    #[must_use]
    pub fn tag(mut self, key: &str, value: &str) -> Self {
        self.tags.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Returns the number of free addresses. EC2 reserves five of each subnet.
    #[must_use]
    pub fn free(&self) -> u32 {
        let size = 1u32 << (32 - u32::from(self.cidr.1));
        let taken = u32::try_from(self.taken.len()).unwrap_or(u32::MAX);
        size.saturating_sub(5)
            .saturating_sub(taken)
            .saturating_sub(self.reserved)
    }

    pub(crate) fn leave(&mut self, free: u32) {
        self.reserved = 0;
        self.reserved = self.free().saturating_sub(free);
    }

    /// Takes the lowest free address.
    pub(crate) fn take(&mut self) -> Option<Ipv4Addr> {
        if self.free() == 0 {
            return None;
        }
        let base = u32::from(self.cidr.0);
        let size = 1u32 << (32 - u32::from(self.cidr.1));
        // Addresses are assigned in order; the search continues after the highest one as long as there are free ones
        // above.
        let next = self.taken.last().map_or(base + 4, |last| last + 1);
        let address = if next < base + size - 1 {
            next
        } else {
            (base + 4..base + size - 1).find(|a| !self.taken.contains(a))?
        };
        self.taken.insert(address);
        Some(Ipv4Addr::from(address))
    }

    pub(crate) fn reserve(&mut self, addresses: u32) {
        self.reserved = self.reserved.saturating_add(addresses);
    }

    pub(crate) fn unreserve(&mut self, addresses: u32) {
        self.reserved = self.reserved.saturating_sub(addresses);
    }

    pub(crate) fn release(&mut self, address: Ipv4Addr) {
        self.taken.remove(&u32::from(address));
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecurityGroup {
    /// ID of the group, `sg-…`.
    pub id: String,
    /// Name of the group (not its `Name` tag).
    pub name: String,
    pub vpc_id: String,
    pub tags: Tags,
}

impl SecurityGroup {
    /// Creates a security group of the default VPC.
    #[must_use]
    pub fn new(id: &str, name: &str) -> Self {
        Self {
            id: id.to_owned(),
            name: name.to_owned(),
            vpc_id: crate::DEFAULT_VPC.to_owned(),
            tags: Tags::new(),
        }
    }

    #[must_use]
    pub fn tag(mut self, key: &str, value: &str) -> Self {
        self.tags.insert(key.to_owned(), value.to_owned());
        self
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacementGroup {
    /// ID of the group, `pg-…`.
    pub id: String,
    pub name: String,
    /// Strategy: `cluster`, `spread` or `partition`.
    pub strategy: String,
    /// Number of partitions, with the strategy `partition`.
    pub partitions: Option<u32>,
    /// State: `available`, `pending`, `deleting`, `deleted`.
    pub state: String,
}

impl PlacementGroup {
    /// Creates an available placement group without partitions.
    #[must_use]
    pub fn new(id: &str, name: &str, strategy: &str) -> Self {
        Self {
            id: id.to_owned(),
            name: name.to_owned(),
            strategy: strategy.to_owned(),
            partitions: None,
            state: "available".to_owned(),
        }
    }
}

/// Returns the elements with the requested IDs, or the error for the first that does not exist.
pub(crate) fn by_id<'a, T>(
    wanted: &[&str],
    all: impl Iterator<Item = &'a T> + Clone,
    id: impl Fn(&T) -> &str,
    missing: impl Fn(&str) -> AwsError,
) -> Result<Vec<&'a T>, AwsError> {
    if wanted.is_empty() {
        return Ok(all.collect());
    }
    if let Some(absent) = wanted
        .iter()
        .find(|w| !all.clone().any(|element| id(element) == **w))
    {
        return Err(missing(absent));
    }
    Ok(all.filter(|e| wanted.contains(&id(e))).collect())
}

/// Parameters of a list that is selected by filters alone.
const LISTING: &[&str] = &["Filter", "MaxResults", "NextToken"];

impl Ec2Call<'_> {
    pub(crate) fn describe_subnets(&mut self, p: Params<'_>) -> Result<Reply, AwsError> {
        p.only(LISTING)?;
        let filters = Filters::read(p, &["tag", "subnet-id"])?;
        let page = self.page(p, (5, 1000))?;
        let subnets = self.ec2.subnets.values();
        let rows = subnets
            .filter(|s| filters.matches(&s.tags, |_| vec![&s.id]))
            .map(|s| (s.id.clone(), self.subnet_wire(s)));
        let (rows, token) = page.cut(rows);
        Ok(Reply::Tree(json!({"subnetSet": rows, "nextToken": token})))
    }

    fn subnet_wire(&self, s: &Subnet) -> Value {
        json!({
            "subnetId": s.id,
            "vpcId": s.vpc_id,
            "cidrBlock": format!("{}/{}", s.cidr.0, s.cidr.1),
            "availableIpAddressCount": s.free(),
            "availabilityZone": s.zone,
            "availabilityZoneId": self.ec2.catalog.zone_id(&s.zone),
            "tagSet": tag_set(&s.tags),
        })
    }

    pub(crate) fn describe_security_groups(&mut self, p: Params<'_>) -> Result<Reply, AwsError> {
        p.only(LISTING)?;
        let filters = Filters::read(p, &["tag", "group-id", "group-name"])?;
        let page = self.page(p, (5, 1000))?;
        let groups = self.ec2.groups.values();
        let matching = groups.filter(|g| {
            filters.matches(&g.tags, |name| match name {
                "group-id" => vec![&g.id],
                _ => vec![&g.name],
            })
        });
        let rows = matching.map(|g| {
            let wire = json!({
                "groupId": g.id,
                "groupName": g.name,
                "vpcId": g.vpc_id,
                "tagSet": tag_set(&g.tags),
            });
            (g.id.clone(), wire)
        });
        let (rows, token) = page.cut(rows);
        Ok(Reply::Tree(
            json!({"securityGroupInfo": rows, "nextToken": token}),
        ))
    }

    pub(crate) fn describe_placement_groups(&mut self, p: Params<'_>) -> Result<Reply, AwsError> {
        let filters = Filters::read(p, &["state"])?;
        let unknown = |name: &str| {
            AwsError::new(
                "InvalidPlacementGroup.Unknown",
                format!("The Placement Group '{name}' is unknown."),
            )
        };
        let groups = &self.ec2.placement_groups;
        let by_name = by_id(&p.texts("GroupName"), groups.values(), |g| &g.name, unknown)?;
        let by_both = by_id(
            &p.texts("GroupId"),
            by_name.iter().copied(),
            |g| &g.id,
            |id| {
                AwsError::new(
                    "InvalidPlacementGroupId.NotFound",
                    format!("The Placement Group ID '{id}' does not exist."),
                )
            },
        )?;
        let rows: Vec<Value> = by_both
            .into_iter()
            .filter(|g| filters.matches(&Tags::new(), |_| vec![&g.state]))
            .map(|g| {
                json!({
                    "groupName": g.name,
                    "groupId": g.id,
                    "strategy": g.strategy,
                    "state": g.state,
                    "partitionCount": g.partitions,
                })
            })
            .collect();
        Ok(Reply::Tree(json!({"placementGroupSet": rows})))
    }
}
