//! EKS clusters and their zonal shifts.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::REGION;
use crate::services::permissions::{Auth, Permission};
use crate::wire::Reply;
use crate::wire::error::AwsError;
use crate::wire::params::Params;

/// An EKS cluster with its zonal shifts.
#[derive(Debug, Clone, PartialEq)]
pub struct Cluster {
    pub name: String,
    /// Kubernetes version, such as `1.34`.
    pub version: String,
    pub service_ipv4_cidr: Option<String>,
    pub service_ipv6_cidr: Option<String>,
    pub zonal_shift: bool,
    pub shifts: Vec<ZonalShift>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZonalShift {
    /// ID of the zone that traffic is shifted away from.
    pub away_from: String,
    /// Status: `APPLIED` or `NOT_APPLIED`.
    pub status: String,
    pub start: Timestamp,
    pub expiry: Timestamp,
}

/// Certificate authority of every cluster.
const CA: &str = "-----BEGIN CERTIFICATE-----\nZmFrZQ==\n-----END CERTIFICATE-----\n";

impl Cluster {
    /// Creates an active IPv4 cluster.
    #[must_use]
    pub fn new(name: &str, version: &str) -> Self {
        Self {
            name: name.to_owned(),
            version: version.to_owned(),
            service_ipv4_cidr: Some("10.100.0.0/16".to_owned()),
            service_ipv6_cidr: None,
            zonal_shift: false,
            shifts: vec![],
        }
    }
}

/// A call to EKS or zonal shift.
#[derive(Debug)]
pub(crate) struct EksCall<'a> {
    pub(crate) action: String,
    pub(crate) now: Timestamp,
    pub(crate) account: &'a str,
    pub(crate) clusters: &'a BTreeMap<String, Cluster>,
    pub(crate) auth: Auth<'a>,
}

fn seconds(at: Timestamp) -> f64 {
    at.as_millisecond() as f64 / 1000.0
}

impl EksCall<'_> {
    pub(crate) fn run(&mut self, params: &Value) -> Result<Reply, AwsError> {
        let p = Params(params);
        match self.action.as_str() {
            "DescribeCluster" => {
                let name = p.text("name").unwrap_or_default();
                let arn = self.arn(name);
                self.auth
                    .need(Permission::new("eks:DescribeCluster", arn))?;
                let cluster = self.clusters.get(name).ok_or_else(|| {
                    AwsError::new(
                        "ResourceNotFoundException",
                        format!("No cluster found for name: {name}."),
                    )
                })?;
                Ok(Reply::Tree(json!({"cluster": self.wire(cluster)})))
            }
            _ => self.managed_resource(p.text("resourceIdentifier").unwrap_or_default()),
        }
    }

    fn arn(&self, name: &str) -> String {
        format!("arn:aws:eks:{REGION}:{}:cluster/{name}", self.account)
    }

    fn managed_resource(&mut self, resource: &str) -> Result<Reply, AwsError> {
        let permission = Permission::new("arc-zonal-shift:GetManagedResource", resource)
            .with("arc-zonal-shift:ResourceIdentifier", resource);
        self.auth.need(permission)?;
        let found = self
            .clusters
            .values()
            .find(|c| c.zonal_shift && self.arn(&c.name) == resource);
        let Some(cluster) = found else {
            return Err(AwsError::new(
                "ResourceNotFoundException",
                format!("Resource {resource} is not managed by zonal shift."),
            ));
        };
        let live = cluster.shifts.iter().filter(|s| s.expiry > self.now);
        let shifts = live.zip(1..).map(|(s, n)| {
            json!({
                "appliedStatus": s.status,
                "awayFrom": s.away_from,
                "comment": "",
                "expiryTime": seconds(s.expiry),
                "resourceIdentifier": resource,
                "startTime": seconds(s.start),
                "zonalShiftId": format!("00000000-0000-4000-8000-{n:012}"),
            })
        });
        Ok(Reply::Tree(
            json!({"zonalShifts": shifts.collect::<Value>()}),
        ))
    }

    fn wire(&self, c: &Cluster) -> Value {
        let mut network =
            json!({"ipFamily": if c.service_ipv6_cidr.is_some() { "ipv6" } else { "ipv4" }});
        if let Some(cidr) = &c.service_ipv4_cidr {
            network["serviceIpv4Cidr"] = json!(cidr);
        }
        if let Some(cidr) = &c.service_ipv6_cidr {
            network["serviceIpv6Cidr"] = json!(cidr);
        }
        json!({
            "name": c.name,
            "arn": self.arn(&c.name),
            "version": c.version,
            "endpoint": format!("https://{}.eks.example", c.name),
            "kubernetesNetworkConfig": network,
            "status": "ACTIVE",
            "certificateAuthority": {"data": BASE64_STANDARD.encode(CA)},
        })
    }
}
