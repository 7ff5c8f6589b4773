//! Stand-in for AWS in tests and the playground: the calls of EC2, SSM, SQS, IAM, STS, EKS, pricing and zonal shift that
//! Karpenter makes, over the protocols of the official SDKs, in process or as an HTTP server on loopback.
//!
//! It shares no code with Karpenter: it is written from AWS's published models and documentation, so that it can
//! contradict the provider. Requests are parsed by the parameter tables of botocore's models, so a misspelled, mistyped
//! or missing parameter is refused; a test compares every response with the same models.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use karpenter_aws_fake::{AwsFake, Fault, Shortage};
//!
//! let aws = AwsFake::builder().cluster("demo").interruption_queue("demo").build();
//! aws.set_shortages(vec![Shortage::new("m5.*", "us-west-2a", "spot")]);
//! aws.add_fault(Fault::error("CreateFleet", "RequestLimitExceeded").times(2));
//! let server = aws.serve(0).await.unwrap(); // AWS_ENDPOINT_URL = server.url()
//! # drop(server);
//! # });
//! ```
//!
//! | module | content |
//! |---|---|
//! | `fake` | handling of a request: faults, limits, permissions, dispatch, long polls |
//! | `builder`, `control`, `admin` | initial state, reading and changing the state, in process and over HTTP |
//! | `server` | HTTP server |
//! | `wire` | parsing of requests and rendering of responses |
//! | `catalog` | instance types, zones and prices |
//! | `ec2` | networks, images, templates, fleets, instances, reservations, status, events |
//! | `services` | IAM with its permissions and policies, STS, SSM, SQS, EKS, pricing |
//! | `nodes` | nodes of running instances in a Kubernetes cluster (feature `nodes`) |
//! | `faults`, `limits`, `clock`, `settings` | injected faults, rate limits, time, settings |

mod admin;
mod builder;
mod calls;
mod catalog;
mod clock;
mod control;
mod ec2;
mod fake;
mod faults;
mod glob;
mod ids;
mod limits;
#[cfg(feature = "nodes")]
pub mod nodes;
mod server;
mod services;
mod settings;
mod wire;

pub use builder::{Builder, DEFAULT_VPC};
pub use calls::Call;
pub use clock::Clock;
pub use ec2::{
    capacity::{CapacityReservation, Shortage},
    filters::Tags,
    images::Image,
    instances::{Instance, InstanceState, Lifecycle},
    launch::templates::LaunchTemplate,
    network::{PlacementGroup, SecurityGroup, Subnet},
    status::{ScheduledEvent, StatusReport},
};
pub use fake::{AwsFake, ConnectionLost};
pub use faults::Fault;
pub use server::Server;
pub use services::{
    eks::{Cluster, ZonalShift},
    iam::{InstanceProfile, Role},
    permissions::{Permission, Policy, PolicyError},
};
pub use settings::AwsFakeSettings;

/// The only region.
pub const REGION: &str = "us-west-2";

/// ID of the account that owns all resources.
pub const ACCOUNT: &str = "123456789012";
