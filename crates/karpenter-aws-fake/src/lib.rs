//! What stands in for AWS in tests and the playground: EC2, SSM, SQS, IAM, STS, EKS, pricing, zonal shift and instance
//! metadata, over the protocols the official SDKs speak, in process or as an HTTP server on loopback.
//!
//! It knows nothing of Karpenter: it is written from AWS's published models and documentation, so that it can contradict the
//! provider. Requests are read by the parameter tables of botocore's models, so a misspelt, mistyped or missing parameter is
//! refused; a test compares every answer with the same models.
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
//! | module | question it answers |
//! |---|---|
//! | `fake` | what happens to a request: faults, limits, permissions, dispatch, long polls |
//! | `builder`, `control`, `admin` | how to set it up, look into it and turn its knobs, in process and over HTTP |
//! | `server` | how it is reached over HTTP |
//! | `wire` | how requests are understood and answers are written |
//! | `catalog` | which instance types exist, where, at what price |
//! | `ec2` | networks, images, templates, fleets, instances, reservations, status, events |
//! | `iam`, `sts`, `ssm`, `sqs`, `eks`, `pricing`, `metadata` | the other services |
//! | `machines` | how instances join a cluster of Kubernetes (feature `machines`) |
//! | `permissions` | which IAM permissions a call needs, and what a policy grants |
//! | `faults`, `limits`, `clock`, `settings` | what goes wrong, how often one may call, how time passes |

mod admin;
mod builder;
mod calls;
mod catalog;
mod clock;
mod control;
mod ec2;
mod eks;
mod fake;
mod faults;
mod glob;
mod iam;
mod ids;
mod limits;
#[cfg(feature = "machines")]
pub mod machines;
mod metadata;
mod permissions;
mod pricing;
mod server;
mod settings;
mod sqs;
mod ssm;
mod sts;
mod wire;

pub use builder::{Builder, DEFAULT_VPC};
pub use calls::Call;
pub use clock::Clock;
pub use ec2::{
    capacity::{CapacityReservation, Shortage},
    events::EventKind,
    filters::Tags,
    images::Image,
    instances::{Instance, InstanceState, Interface, Lifecycle},
    network::{PlacementGroup, SecurityGroup, Subnet},
    status::{ScheduledEvent, StatusReport},
    templates::LaunchTemplate,
};
pub use eks::{Cluster, ZonalShift};
pub use fake::{AwsFake, ConnectionLost};
pub use faults::{Cut, Fault};
pub use iam::{InstanceProfile, Role};
pub use limits::Rate;
pub use permissions::{Permission, Policy, PolicyError};
pub use server::Server;
pub use settings::Settings;

/// The account everything belongs to.
pub const ACCOUNT: &str = "123456789012";
