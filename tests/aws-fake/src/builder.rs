//! Initial state of the stand-in: a region with its networks, images, roles, a cluster and an interruption queue.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::ec2::filters::Tags;
use crate::ec2::{Ec2, images};
use crate::fake::{AwsState, Inner, Region};
use crate::ids::Ids;
use crate::limits::Buckets;
use crate::services::iam::Iam;
use crate::services::sqs::{Queue, Queues};
use crate::services::ssm::Ssm;
use crate::{
    ACCOUNT, AwsFake, AwsFakeSettings, Clock, Cluster, Fault, Image, Role, SecurityGroup, Subnet,
};

/// ID of the default VPC.
pub const DEFAULT_VPC: &str = "vpc-00000000000000001";

/// Builds the initial state of the stand-in.
///
/// The region us-west-2 starts with the VPC [`DEFAULT_VPC`], a private subnet per zone (`subnet-0000000000000000N`, 10.0.0.0/16
/// divided into /19), its default security group (`sg-00000000000000000`), a node security group
/// (`sg-00000000000000001`), both subnets and node group tagged `karpenter.sh/discovery=CLUSTER`, and the images and
/// SSM parameters that Amazon publishes for the cluster's Kubernetes version.
#[derive(Debug)]
pub struct Builder {
    clock: Clock,
    seed: u64,
    cluster: String,
    versions: Vec<String>,
    roles: Vec<String>,
    queue: Option<String>,
    settings: AwsFakeSettings,
    faults: Vec<Fault>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            clock: Clock::real(),
            seed: 0,
            cluster: "test".to_owned(),
            versions: vec!["1.34".to_owned()],
            roles: vec!["KarpenterNodeRole-test".to_owned()],
            queue: None,
            settings: AwsFakeSettings::default(),
            faults: vec![],
        }
    }
}

impl Builder {
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the seed of identifiers.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the EKS cluster's name (`test` by default). Its node role is `KarpenterNodeRole-NAME`.
    #[must_use]
    pub fn cluster(mut self, name: &str) -> Self {
        self.cluster = name.to_owned();
        self.roles = vec![format!("KarpenterNodeRole-{name}")];
        self
    }

    /// Sets the Kubernetes versions that images are published for; the first is the cluster's.
    #[must_use]
    pub fn kubernetes(mut self, versions: &[&str]) -> Self {
        self.versions = versions.iter().map(|v| (*v).to_owned()).collect();
        self
    }

    /// Adds an IAM role.
    #[must_use]
    pub fn role(mut self, name: &str) -> Self {
        self.roles.push(name.to_owned());
        self
    }

    /// Creates a queue that receives all interruption events.
    #[must_use]
    pub fn interruption_queue(mut self, name: &str) -> Self {
        self.queue = Some(name.to_owned());
        self
    }

    #[must_use]
    pub fn settings(mut self, change: impl FnOnce(&mut AwsFakeSettings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// Sets the maximum page size of every list call.
    #[must_use]
    pub fn page_size(self, size: usize) -> Self {
        self.settings(|s| {
            s.page_size = size;
            s.page_sizes.clear();
        })
    }

    /// Disables request rate limits.
    #[must_use]
    pub fn unlimited(self) -> Self {
        self.settings(|s| s.rate_limits = false)
    }

    #[must_use]
    pub fn fault(mut self, fault: Fault) -> Self {
        self.faults.push(fault);
        self
    }

    #[must_use]
    pub fn build(self) -> AwsFake {
        let now = self.clock.now();
        let mut ids = Ids::new(self.seed);
        let region = self.open_region(now);
        let mut iam = Iam::default();
        for name in &self.roles {
            let role = Role::new(name, ACCOUNT, &mut ids, now);
            iam.roles.insert(name.clone(), role);
        }
        let state = AwsState {
            account: ACCOUNT.to_owned(),
            caller: format!(
                "arn:aws:sts::{ACCOUNT}:assumed-role/KarpenterControllerRole/karpenter"
            ),
            region,
            iam,
            ids,
            settings: self.settings,
            faults: self.faults,
            policy: None,
            calls: vec![],
        };
        AwsFake {
            inner: Arc::new(Inner {
                clock: self.clock,
                state: Mutex::new(state),
                changes: watch::Sender::new(0),
            }),
        }
    }

    fn open_region(&self, now: jiff::Timestamp) -> Region {
        let mut ec2 = Ec2::new(ACCOUNT, now);
        let discovery = |tags: &mut Tags| {
            // eksctl adds the second tag to its resources.
            for key in ["karpenter.sh/discovery", "alpha.eksctl.io/cluster-name"] {
                tags.insert(key.to_owned(), self.cluster.clone());
            }
        };
        for (i, (zone, _)) in ec2.catalog.zones.iter().take(8).enumerate() {
            let third = u8::try_from(i * 32).unwrap_or(224);
            let id = format!("subnet-{:017x}", i + 1);
            let mut subnet =
                Subnet::new(&id, DEFAULT_VPC, zone, (Ipv4Addr::new(10, 0, third, 0), 19))
                    .tag("Name", &format!("{}-private-{zone}", self.cluster));
            discovery(&mut subnet.tags);
            ec2.subnets.insert(id, subnet);
        }
        for (n, name) in ["default", "node"].into_iter().enumerate() {
            let mut group = SecurityGroup::new(&format!("sg-{n:017x}"), name);
            if name == "node" {
                discovery(&mut group.tags);
            }
            ec2.groups.insert(group.id.clone(), group);
        }
        let mut ssm = Ssm::default();
        for version in &self.versions {
            let (published, parameters) = images::published(version, now);
            ec2.images
                .extend(published.into_iter().map(|i: Image| (i.id.clone(), i)));
            let parameters = parameters.into_iter();
            ssm.0.extend(parameters.map(|(path, id)| (path, (id, now))));
        }
        let version = self.versions.first().map_or("1.34", String::as_str);
        let cluster = Cluster::new(&self.cluster, version);
        let mut queues = Queues::default();
        if let Some(name) = &self.queue {
            queues.0.insert(name.clone(), Queue::new(name));
        }
        Region {
            ec2,
            ssm,
            queues,
            interruption_queue: self.queue.clone(),
            clusters: BTreeMap::from([(cluster.name.clone(), cluster)]),
            buckets: Buckets::default(),
        }
    }
}
