//! Names of labels, annotations, finalizers, tags and extended resources that the provider reads and writes.
//!
//! UPSTREAM: pkg/apis/v1/labels.go

use karpenter_api::labels;
use karpenter_api::validation::WellKnown;

/// The API group of EC2NodeClass, and the domain of the provider's labels.
pub const GROUP: &str = "karpenter.k8s.aws";

/// Instance category: `c` of `c6gn.2xlarge`.
pub const INSTANCE_CATEGORY: &str = "karpenter.k8s.aws/instance-category";
/// Instance generation: `6` of `c6gn.2xlarge`.
pub const INSTANCE_GENERATION: &str = "karpenter.k8s.aws/instance-generation";
/// Instance family: `c6gn` of `c6gn.2xlarge`.
pub const INSTANCE_FAMILY: &str = "karpenter.k8s.aws/instance-family";
/// Instance size: `2xlarge` of `c6gn.2xlarge`.
pub const INSTANCE_SIZE: &str = "karpenter.k8s.aws/instance-size";
/// Whether the instance family is a flex family.
pub const INSTANCE_CAPABILITY_FLEX: &str = "karpenter.k8s.aws/instance-capability-flex";
/// Number of vCPUs.
pub const INSTANCE_CPU: &str = "karpenter.k8s.aws/instance-cpu";
/// Manufacturer of the CPU: `aws`, `intel`, `amd`.
pub const INSTANCE_CPU_MANUFACTURER: &str = "karpenter.k8s.aws/instance-cpu-manufacturer";
/// Sustained clock speed of the CPU in MHz.
pub const INSTANCE_CPU_SUSTAINED_CLOCK_SPEED_MHZ: &str =
    "karpenter.k8s.aws/instance-cpu-sustained-clock-speed-mhz";
/// Memory in MiB, as EC2 reports it.
pub const INSTANCE_MEMORY: &str = "karpenter.k8s.aws/instance-memory";
/// Maximum EBS bandwidth in megabits per second.
pub const INSTANCE_EBS_BANDWIDTH: &str = "karpenter.k8s.aws/instance-ebs-bandwidth";
/// Baseline network bandwidth in megabits per second.
pub const INSTANCE_NETWORK_BANDWIDTH: &str = "karpenter.k8s.aws/instance-network-bandwidth";
/// `nitro`, `xen`, or empty for bare metal.
pub const INSTANCE_HYPERVISOR: &str = "karpenter.k8s.aws/instance-hypervisor";
/// Whether the hardware encrypts traffic between instances.
pub const INSTANCE_ENCRYPTION_IN_TRANSIT_SUPPORTED: &str =
    "karpenter.k8s.aws/instance-encryption-in-transit-supported";
/// Whether Nitro Enclaves are supported.
pub const NITRO_SANDBOX: &str = "karpenter.k8s.aws/nitro-sandbox";
/// Local NVMe storage in GB.
pub const INSTANCE_LOCAL_NVME: &str = "karpenter.k8s.aws/instance-local-nvme";
/// Name of the GPU, in lower case with dashes.
pub const INSTANCE_GPU_NAME: &str = "karpenter.k8s.aws/instance-gpu-name";
/// Manufacturer of the GPU, in lower case with dashes.
pub const INSTANCE_GPU_MANUFACTURER: &str = "karpenter.k8s.aws/instance-gpu-manufacturer";
/// Number of GPUs.
pub const INSTANCE_GPU_COUNT: &str = "karpenter.k8s.aws/instance-gpu-count";
/// Memory of one GPU in MiB.
pub const INSTANCE_GPU_MEMORY: &str = "karpenter.k8s.aws/instance-gpu-memory";
/// Name of the accelerator, in lower case with dashes.
pub const INSTANCE_ACCELERATOR_NAME: &str = "karpenter.k8s.aws/instance-accelerator-name";
/// Manufacturer of the accelerator, in lower case with dashes.
pub const INSTANCE_ACCELERATOR_MANUFACTURER: &str =
    "karpenter.k8s.aws/instance-accelerator-manufacturer";
/// Number of accelerators.
pub const INSTANCE_ACCELERATOR_COUNT: &str = "karpenter.k8s.aws/instance-accelerator-count";
/// [`TENANCY_DEFAULT`] or [`TENANCY_DEDICATED`].
pub const INSTANCE_TENANCY: &str = "karpenter.k8s.aws/instance-tenancy";
/// ID of the capacity reservation the instance runs in.
pub const CAPACITY_RESERVATION_ID: &str = "karpenter.k8s.aws/capacity-reservation-id";
/// `default` or `capacity-block`.
pub const CAPACITY_RESERVATION_TYPE: &str = "karpenter.k8s.aws/capacity-reservation-type";
/// Whether instances of the capacity reservation may be interrupted.
pub const CAPACITY_RESERVATION_INTERRUPTIBLE: &str =
    "karpenter.k8s.aws/capacity-reservation-interruptible";
/// ID of the placement group the instance runs in.
pub const PLACEMENT_GROUP_ID: &str = "karpenter.k8s.aws/placement-group-id";
/// Number of the partition within the placement group.
pub const PLACEMENT_GROUP_PARTITION: &str = "karpenter.k8s.aws/placement-group-partition";
/// ID of the zone, equal in all accounts.
pub const ZONE_ID: &str = "topology.k8s.aws/zone-id";
/// The zone's name as a label of the EBS CSI driver.
pub const EBS_CSI_ZONE: &str = "topology.ebs.csi.aws.com/zone";
/// The EC2NodeClass of a NodeClaim and of its node; also a tag of AWS resources.
pub const NODE_CLASS: &str = "karpenter.k8s.aws/ec2nodeclass";

/// Value of [`INSTANCE_TENANCY`]: shared hardware.
pub const TENANCY_DEFAULT: &str = "default";
/// Value of [`INSTANCE_TENANCY`]: hardware dedicated to this account.
pub const TENANCY_DEDICATED: &str = "dedicated";

/// The provider's labels that a NodePool or a pod may require.
pub const WELL_KNOWN: [&str; 29] = [
    ZONE_ID,
    INSTANCE_CATEGORY,
    INSTANCE_GENERATION,
    INSTANCE_FAMILY,
    INSTANCE_SIZE,
    INSTANCE_CAPABILITY_FLEX,
    INSTANCE_CPU,
    INSTANCE_CPU_MANUFACTURER,
    INSTANCE_CPU_SUSTAINED_CLOCK_SPEED_MHZ,
    INSTANCE_MEMORY,
    INSTANCE_EBS_BANDWIDTH,
    INSTANCE_NETWORK_BANDWIDTH,
    INSTANCE_HYPERVISOR,
    INSTANCE_ENCRYPTION_IN_TRANSIT_SUPPORTED,
    NITRO_SANDBOX,
    INSTANCE_LOCAL_NVME,
    INSTANCE_GPU_NAME,
    INSTANCE_GPU_MANUFACTURER,
    INSTANCE_GPU_COUNT,
    INSTANCE_GPU_MEMORY,
    INSTANCE_ACCELERATOR_NAME,
    INSTANCE_ACCELERATOR_MANUFACTURER,
    INSTANCE_ACCELERATOR_COUNT,
    INSTANCE_TENANCY,
    CAPACITY_RESERVATION_ID,
    CAPACITY_RESERVATION_TYPE,
    CAPACITY_RESERVATION_INTERRUPTIBLE,
    PLACEMENT_GROUP_ID,
    PLACEMENT_GROUP_PARTITION,
];

/// Annotation keys.
pub mod annotations {
    /// The static hash of an EC2NodeClass, on the EC2NodeClass and, from their creation, on its NodeClaims.
    pub const NODE_CLASS_HASH: &str = "karpenter.k8s.aws/ec2nodeclass-hash";
    /// The version of the hash algorithm behind [`NODE_CLASS_HASH`].
    pub const NODE_CLASS_HASH_VERSION: &str = "karpenter.k8s.aws/ec2nodeclass-hash-version";
    /// The instance profile a NodeClaim was launched with.
    pub const INSTANCE_PROFILE_NAME: &str = "karpenter.k8s.aws/instance-profile-name";
    /// On a NodeClaim: its instance has been tagged.
    pub const TAGGED: &str = "karpenter.k8s.aws/tagged";
    /// On a NodeClaim: its instance has the tag with the cluster's name.
    pub const CLUSTER_NAME_TAGGED: &str = "compatibility.karpenter.k8s.aws/cluster-name-tagged";
}

/// Finalizer keys.
pub mod finalizers {
    /// On an EC2NodeClass until the AWS resources created for it are deleted.
    pub const TERMINATION: &str = "karpenter.k8s.aws/termination";
}

/// Tags of AWS resources.
pub mod tags {
    /// The name of the instance in the AWS console.
    pub const NAME: &str = "Name";
    /// The NodeClaim of an instance.
    pub const NODE_CLAIM: &str = "karpenter.sh/nodeclaim";
    /// The NodePool of an instance.
    pub const NODE_POOL: &str = "karpenter.sh/nodepool";
    /// The cluster's name.
    pub const EKS_CLUSTER_NAME: &str = "eks:eks-cluster-name";
    /// The value of [`cluster`].
    pub const OWNED: &str = "owned";

    /// Returns the tag key that marks resources of a cluster: `kubernetes.io/cluster/NAME`.
    pub fn cluster(name: &str) -> String {
        format!("kubernetes.io/cluster/{name}")
    }

    /// Returns the reason why users may not set this tag; `None` if they may.
    ///
    /// UPSTREAM: pkg/apis/v1/labels.go, RestrictedTagPatterns
    pub fn restriction(key: &str) -> Option<&'static str> {
        if key.is_empty() {
            return Some("empty tag keys aren't supported");
        }
        if key.starts_with("kubernetes.io/cluster/") {
            return Some("tag contains a restricted tag matching kubernetes.io/cluster/");
        }
        match key {
            EKS_CLUSTER_NAME => Some("tag contains a restricted tag matching eks:eks-cluster-name"),
            NODE_POOL => Some("tag contains a restricted tag matching karpenter.sh/nodepool"),
            NODE_CLAIM => Some("tag contains a restricted tag matching karpenter.sh/nodeclaim"),
            super::NODE_CLASS => {
                Some("tag contains a restricted tag matching karpenter.k8s.aws/ec2nodeclass")
            }
            _ => None,
        }
    }
}

/// Extended resources of EC2 instances.
pub mod resources {
    /// NVIDIA GPUs.
    pub const NVIDIA_GPU: &str = "nvidia.com/gpu";
    /// AMD GPUs.
    pub const AMD_GPU: &str = "amd.com/gpu";
    /// Habana Gaudi accelerators.
    pub const HABANA_GAUDI: &str = "habana.ai/gaudi";
    /// Neuron devices.
    pub const AWS_NEURON: &str = "aws.amazon.com/neuron";
    /// Cores of Neuron devices.
    pub const AWS_NEURON_CORE: &str = "aws.amazon.com/neuroncore";
    /// Branch network interfaces, for pods with their own security groups.
    pub const AWS_POD_ENI: &str = "vpc.amazonaws.com/pod-eni";
    /// IP addresses for Windows pods.
    pub const PRIVATE_IPV4_ADDRESS: &str = "vpc.amazonaws.com/PrivateIPv4Address";
    /// Elastic Fabric Adapters.
    pub const EFA: &str = "vpc.amazonaws.com/efa";
    /// Requested by pods that need Nitro Enclaves; never part of an instance type's capacity.
    pub const NITRO_SANDBOX: &str = "eks.amazonaws.com/nitro-sandbox";

    /// The extended resources that NodeOverlays cannot set. GPUs are not among them: EC2 reports none for types with a part of
    /// a GPU, such as `g6f`.
    ///
    /// UPSTREAM: pkg/apis/v1/labels.go, karpv1.WellKnownResources
    pub const WELL_KNOWN: [&str; 5] = [HABANA_GAUDI, AWS_NEURON, AWS_NEURON_CORE, AWS_POD_ENI, EFA];
}

/// Returns the well-known labels and extended resources of the provider.
pub fn well_known() -> WellKnown {
    let known = WELL_KNOWN
        .into_iter()
        .fold(WellKnown::default(), WellKnown::with_label);
    resources::WELL_KNOWN
        .into_iter()
        .fold(known, WellKnown::with_resource)
        .with_restricted_domain(GROUP)
        .with_values(INSTANCE_TENANCY, [TENANCY_DEFAULT, TENANCY_DEDICATED])
        .with_normalized_key(EBS_CSI_ZONE, labels::ZONE)
}

#[cfg(test)]
mod tests {
    /// Conformance: AWS-labels-08
    #[test]
    fn the_resources_that_overlays_cannot_set_are_known() {
        let known = super::well_known();
        for resource in [
            "habana.ai/gaudi",
            "aws.amazon.com/neuron",
            "aws.amazon.com/neuroncore",
            "vpc.amazonaws.com/pod-eni",
            "vpc.amazonaws.com/efa",
        ] {
            assert!(known.is_resource(resource), "{resource}");
        }
        for resource in [
            "nvidia.com/gpu",
            "amd.com/gpu",
            "vpc.amazonaws.com/PrivateIPv4Address",
            "vpc.amazonaws.com/other",
        ] {
            assert!(!known.is_resource(resource), "{resource}");
        }
        assert_eq!(
            known.normalize_key("topology.ebs.csi.aws.com/zone"),
            "topology.kubernetes.io/zone"
        );
    }
}
