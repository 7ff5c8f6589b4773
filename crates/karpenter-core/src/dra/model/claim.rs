//! Resource claims and device classes: what is requested, and what is allocated already.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1 as wire;

use super::{DeviceId, Problem, qualified, quantities, quantity, selector_terms};
use crate::quantity::Quantity;
use crate::requirements::{LabelNames, Requirements};

/// The number of devices of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// This many.
    Exactly(usize),
    /// All matching devices that the node can access, at least one.
    All,
}

/// One alternative of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubRequest {
    /// Name in results: the request's, or `request/alternative`.
    pub name: String,
    /// The DeviceClass.
    pub class: String,
    /// CEL expressions that must all hold, in addition to those of the class.
    pub selectors: Vec<String>,
    /// The number of devices.
    pub count: Count,
    /// The requested amount of each capacity, by its name in the object.
    pub capacity: BTreeMap<String, Quantity>,
}

/// A request for devices: the first alternative that can be satisfied is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Name of the request.
    pub name: String,
    /// Alternatives in the order of preference; a plain request has one.
    pub alternatives: Vec<SubRequest>,
}

/// Devices of these requests must have the same value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchAttribute {
    /// Qualified name of the attribute.
    pub attribute: String,
    /// Requests (or `request/alternative`) it covers; none means all.
    pub requests: Vec<String>,
}

impl MatchAttribute {
    /// Reports whether the constraint covers an alternative of a request.
    pub fn covers(&self, request: &str, alternative: &str) -> bool {
        self.requests.is_empty()
            || self
                .requests
                .iter()
                .any(|name| name == request || name == alternative)
    }
}

/// The requests and constraints of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ClaimSpec {
    /// Its requests.
    pub requests: Vec<Request>,
    /// Its constraints.
    pub constraints: Vec<MatchAttribute>,
}

impl ClaimSpec {
    /// Parses the spec of a claim; the error names an unsupported feature.
    pub fn parse(claim: &wire::DeviceClaim) -> Result<Self, Problem> {
        let requests = claim.requests.iter().flatten().map(parse_request);
        let constraints = claim.constraints.iter().flatten().map(|constraint| {
            let attribute = constraint
                .match_attribute
                .clone()
                .ok_or(Problem::ConstraintKind)?;
            Ok(MatchAttribute {
                attribute,
                requests: constraint.requests.clone().unwrap_or_default(),
            })
        });
        Ok(Self {
            requests: requests.collect::<Result<_, _>>()?,
            constraints: constraints.collect::<Result<_, Problem>>()?,
        })
    }
}

fn parse_request(request: &wire::DeviceRequest) -> Result<Request, Problem> {
    let name = &request.name;
    let alternatives = if let Some(exactly) = &request.exactly {
        vec![SubRequest {
            name: name.clone(),
            class: exactly.device_class_name.clone(),
            selectors: selectors(name, exactly.selectors.as_deref())?,
            count: count(name, exactly.allocation_mode.as_deref(), exactly.count)?,
            capacity: capacity_requests(exactly.capacity.as_ref())?,
        }]
    } else {
        let parse = |sub: &wire::DeviceSubRequest| {
            Ok(SubRequest {
                name: format!("{name}/{}", sub.name),
                class: sub.device_class_name.clone(),
                selectors: selectors(name, sub.selectors.as_deref())?,
                count: count(name, sub.allocation_mode.as_deref(), sub.count)?,
                capacity: capacity_requests(sub.capacity.as_ref())?,
            })
        };
        request
            .first_available
            .iter()
            .flatten()
            .map(parse)
            .collect::<Result<Vec<_>, Problem>>()?
    };
    if alternatives.is_empty() {
        return Err(Problem::EmptyRequest {
            request: name.clone(),
        });
    }
    Ok(Request {
        name: name.clone(),
        alternatives,
    })
}

fn selectors(
    request: &str,
    selectors: Option<&[wire::DeviceSelector]>,
) -> Result<Vec<String>, Problem> {
    let expression = |selector: &wire::DeviceSelector| {
        selector
            .cel
            .as_ref()
            .map(|cel| cel.expression.clone())
            .ok_or_else(|| Problem::SelectorKind {
                request: request.to_owned(),
            })
    };
    selectors
        .unwrap_or_default()
        .iter()
        .map(expression)
        .collect()
}

fn count(request: &str, mode: Option<&str>, count: Option<i64>) -> Result<Count, Problem> {
    match mode.unwrap_or("ExactCount") {
        "" | "ExactCount" => {
            let count = usize::try_from(count.unwrap_or(1)).unwrap_or_default();
            Ok(Count::Exactly(count.max(1)))
        }
        "All" => Ok(Count::All),
        mode => Err(Problem::AllocationMode {
            request: request.to_owned(),
            mode: mode.to_owned(),
        }),
    }
}

fn capacity_requests(
    capacity: Option<&wire::CapacityRequirements>,
) -> Result<BTreeMap<String, Quantity>, Problem> {
    quantities(
        capacity
            .and_then(|capacity| capacity.requests.as_ref())
            .into_iter()
            .flatten(),
    )
}

/// A device class: expressions that all its devices meet, or why it cannot be used.
pub type Class = Result<Vec<String>, Problem>;

/// Parses a DeviceClass from its spec.
pub fn parse_class(spec: &wire::DeviceClassSpec) -> Class {
    selectors("class", spec.selectors.as_deref())
}

/// A device that is already allocated to a claim in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldDevice {
    /// The device.
    pub id: DeviceId,
    /// Whether other claims may hold a share of it.
    pub shared: bool,
    /// The amount used of each of its capacities, by qualified name.
    pub consumed: BTreeMap<String, Quantity>,
}

/// The allocation of a claim in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Held {
    /// Its devices.
    pub devices: Vec<HeldDevice>,
    /// Alternatives for the nodes it can be used on; `None` means all.
    pub nodes: Option<Vec<Requirements>>,
}

/// A ResourceClaim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whether it was created from a template for one pod, and so can only be used on that pod's node.
    pub from_template: bool,
    /// Its requests and constraints, or why they cannot be used.
    pub spec: Result<ClaimSpec, Problem>,
    /// Its allocation.
    pub held: Option<Held>,
    /// Uids of the pods that use it.
    pub reserved_for: Vec<String>,
}

impl Claim {
    /// Parses a Kubernetes ResourceClaim.
    pub fn parse(claim: &wire::ResourceClaim, names: &dyn LabelNames) -> Self {
        let metadata = &claim.metadata;
        let status = claim.status.as_ref();
        let allocation = status.and_then(|status| status.allocation.as_ref());
        let spec = ClaimSpec::parse(&claim.spec.devices.clone().unwrap_or_default());
        let held = allocation
            .map(|allocation| parse_held(allocation, names))
            .transpose();
        let (spec, held) = match held {
            Ok(held) => (spec, held),
            Err(problem) => (Err(problem), None),
        };
        let owners = metadata.owner_references.iter().flatten();
        let reserved = status.and_then(|status| status.reserved_for.as_ref());
        Self {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            from_template: owners
                .into_iter()
                .any(|o| o.kind == "Pod" && o.api_version == "v1"),
            spec,
            held,
            reserved_for: reserved
                .into_iter()
                .flatten()
                .filter(|consumer| consumer.resource == "pods")
                .map(|consumer| consumer.uid.clone())
                .collect(),
        }
    }
}

fn parse_held(
    allocation: &wire::AllocationResult,
    names: &dyn LabelNames,
) -> Result<Held, Problem> {
    let results = allocation
        .devices
        .as_ref()
        .and_then(|devices| devices.results.as_ref());
    let devices = results.into_iter().flatten().map(|result| {
        let consumed = result.consumed_capacity.iter().flatten();
        let consumed = consumed
            .map(|(name, value)| Ok((qualified(name, &result.driver), quantity(value)?)))
            .collect::<Result<_, Problem>>()?;
        let id = DeviceId {
            driver: result.driver.as_str().into(),
            pool: result.pool.as_str().into(),
            name: result.device.as_str().into(),
        };
        Ok(HeldDevice {
            id,
            shared: result.share_id.is_some(),
            consumed,
        })
    });
    let nodes = allocation.node_selector.as_ref();
    Ok(Held {
        devices: devices.collect::<Result<_, Problem>>()?,
        nodes: nodes
            .map(|selector| selector_terms(selector, names))
            .transpose()?,
    })
}
