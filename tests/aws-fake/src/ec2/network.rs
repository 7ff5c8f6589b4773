//! Networks: subnets with a limited number of addresses, security groups, placement groups.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::Ec2Call;
use super::filters::{Filterable, Filters, Tags, tag_set};
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
    /// Whether instances get a public address by default.
    pub public: bool,
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
            public: false,
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

    /// Sets the number of free addresses.
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

impl Filterable for Subnet {
    fn values(&self, name: &str) -> Vec<String> {
        match name {
            "subnet-id" => vec![self.id.clone()],
            "vpc-id" => vec![self.vpc_id.clone()],
            "availability-zone" | "availabilityZone" => vec![self.zone.clone()],
            "state" => vec!["available".to_owned()],
            "cidr-block" | "cidr" => vec![format!("{}/{}", self.cidr.0, self.cidr.1)],
            "map-public-ip-on-launch" => vec![self.public.to_string()],
            "available-ip-address-count" => vec![self.free().to_string()],
            _ => vec![],
        }
    }

    fn tags(&self) -> &Tags {
        &self.tags
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

impl Filterable for SecurityGroup {
    fn values(&self, name: &str) -> Vec<String> {
        match name {
            "group-id" => vec![self.id.clone()],
            "group-name" => vec![self.name.clone()],
            "vpc-id" => vec![self.vpc_id.clone()],
            "description" => vec![self.name.clone()],
            _ => vec![],
        }
    }

    fn tags(&self) -> &Tags {
        &self.tags
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
    pub tags: Tags,
}

impl Filterable for PlacementGroup {
    fn values(&self, name: &str) -> Vec<String> {
        match name {
            "group-name" => vec![self.name.clone()],
            "strategy" => vec![self.strategy.clone()],
            "state" => vec![self.state.clone()],
            _ => vec![],
        }
    }

    fn tags(&self) -> &Tags {
        &self.tags
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

impl Ec2Call<'_> {
    pub(crate) fn describe_subnets(&mut self, p: Params<'_>) -> Result<Reply, AwsError> {
        let filters = Filters::read(
            p,
            &[
                "tag",
                "subnet-id",
                "vpc-id",
                "availability-zone",
                "availabilityZone",
                "availability-zone-id",
                "availabilityZoneId",
                "state",
                "cidr-block",
                "cidr",
                "map-public-ip-on-launch",
                "available-ip-address-count",
                "default-for-az",
                "owner-id",
            ],
        )?;
        let page = self.page(p, (5, 1000))?;
        let found = by_id(
            &p.texts("SubnetId"),
            self.ec2.subnets.values(),
            |s| &s.id,
            |id| {
                AwsError::new(
                    "InvalidSubnetID.NotFound",
                    format!("The subnet ID '{id}' does not exist"),
                )
            },
        )?;
        let rows = found
            .into_iter()
            .filter(|s| {
                filters.matches(&InRegion {
                    subnet: s,
                    call: self,
                })
            })
            .map(|s| (s.id.clone(), self.subnet_wire(s)));
        let (rows, token) = page.cut(rows);
        Ok(Reply::Tree(json!({"subnetSet": rows, "nextToken": token})))
    }

    fn subnet_wire(&self, s: &Subnet) -> Value {
        json!({
            "subnetId": s.id,
            "subnetArn": self.arn("subnet", &s.id),
            "state": "available",
            "ownerId": self.ec2.account,
            "vpcId": s.vpc_id,
            "cidrBlock": format!("{}/{}", s.cidr.0, s.cidr.1),
            "ipv6CidrBlockAssociationSet": [],
            "assignIpv6AddressOnCreation": false,
            "availableIpAddressCount": s.free(),
            "availabilityZone": s.zone,
            "availabilityZoneId": self.ec2.catalog.zone_id(&s.zone),
            "defaultForAz": false,
            "mapPublicIpOnLaunch": s.public,
            "mapCustomerOwnedIpOnLaunch": false,
            "enableDns64": false,
            "ipv6Native": false,
            "privateDnsNameOptionsOnLaunch": {
                "hostnameType": "ip-name",
                "enableResourceNameDnsARecord": false,
                "enableResourceNameDnsAAAARecord": false,
            },
            "tagSet": tag_set(&s.tags),
        })
    }

    pub(crate) fn describe_security_groups(&mut self, p: Params<'_>) -> Result<Reply, AwsError> {
        let filters = Filters::read(
            p,
            &[
                "tag",
                "group-id",
                "group-name",
                "vpc-id",
                "description",
                "owner-id",
            ],
        )?;
        let page = self.page(p, (5, 1000))?;
        let found = by_id(
            &p.texts("GroupId"),
            self.ec2.groups.values(),
            |g| &g.id,
            |id| {
                AwsError::new(
                    "InvalidGroup.NotFound",
                    format!("The security group '{id}' does not exist"),
                )
            },
        )?;
        let names = p.texts("GroupName");
        if let Some(name) = names.iter().find(|n| !found.iter().any(|g| g.name == **n)) {
            return Err(AwsError::new(
                "InvalidGroup.NotFound",
                format!("The security group '{name}' does not exist in default VPC"),
            ));
        }
        let rows = found
            .into_iter()
            .filter(|g| names.is_empty() || names.contains(&g.name.as_str()))
            .filter(|g| filters.matches(*g))
            .map(|g| {
                let wire = json!({
                    "ownerId": self.ec2.account,
                    "groupId": g.id,
                    "groupName": g.name,
                    "groupDescription": g.name,
                    "securityGroupArn": self.arn("security-group", &g.id),
                    "vpcId": g.vpc_id,
                    "ipPermissions": [],
                    "ipPermissionsEgress": [
                        {"ipProtocol": "-1", "ipRanges": [{"cidrIp": "0.0.0.0/0"}], "groups": [], "ipv6Ranges": [], "prefixListIds": []}
                    ],
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
        let filters = Filters::read(
            p,
            &["tag", "group-name", "strategy", "state", "spread-level"],
        )?;
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
            .filter(|g| filters.matches(*g))
            .map(|g| {
                json!({
                    "groupName": g.name,
                    "groupId": g.id,
                    "groupArn": self.arn("placement-group", &g.name),
                    "strategy": g.strategy,
                    "state": g.state,
                    "partitionCount": g.partitions,
                    "spreadLevel": (g.strategy == "spread").then_some("rack"),
                    "tagSet": tag_set(&g.tags),
                })
            })
            .collect();
        Ok(Reply::Tree(json!({"placementGroupSet": rows})))
    }
}

/// A subnet with the properties that depend on its region.
struct InRegion<'a, 'b> {
    subnet: &'a Subnet,
    call: &'a Ec2Call<'b>,
}

impl Filterable for InRegion<'_, '_> {
    fn values(&self, name: &str) -> Vec<String> {
        match name {
            "availability-zone-id" | "availabilityZoneId" => {
                vec![self.call.ec2.catalog.zone_id(&self.subnet.zone).to_owned()]
            }
            "owner-id" => vec![self.call.ec2.account.clone()],
            "default-for-az" => vec!["false".to_owned()],
            name => self.subnet.values(name),
        }
    }

    fn tags(&self) -> &Tags {
        &self.subnet.tags
    }
}
