//! Reading and changing the stand-in from a test, in process.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::catalog::InstanceType;
use crate::ec2::Pool;
use crate::fake::{AwsState, Region};
use crate::{
    AwsFake, AwsFakeSettings, Builder, Call, CapacityReservation, Cluster, Fault, Image, Instance,
    InstanceProfile, InstanceState, LaunchTemplate, Lifecycle, Permission, PlacementGroup, Policy,
    Role, ScheduledEvent, SecurityGroup, Shortage, StatusReport, Subnet, calls,
};

impl AwsFake {
    /// Creates a builder of the initial state.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    fn with<T>(&self, read: impl FnOnce(&mut Region) -> T) -> T {
        read(&mut self.current().region)
    }

    /// Changes the region; delivers the events that follow.
    fn change<T>(&self, act: impl FnOnce(&mut Region, Timestamp) -> T) -> T {
        let now = self.inner.clock.now();
        let result = {
            let mut state = self.current();
            let result = act(&mut state.region, now);
            state.apply_due(now);
            result
        };
        self.changed();
        result
    }

    // --- reading ---------------------------------------------------------------------------------

    /// Returns all instances that EC2 still lists or knows, in launch order.
    #[must_use]
    pub fn instances(&self) -> Vec<Instance> {
        self.with(|r| r.ec2.instances.all().cloned().collect())
    }

    /// Returns the instances in one state, in launch order.
    #[must_use]
    pub fn instances_in(&self, state: InstanceState) -> Vec<Instance> {
        self.with(|r| {
            r.ec2
                .instances
                .all()
                .filter(|i| i.state == state)
                .cloned()
                .collect()
        })
    }

    #[must_use]
    pub fn instance(&self, id: &str) -> Option<Instance> {
        self.with(|r| r.ec2.instances.get(id).cloned())
    }

    /// Returns the record of an instance type in DescribeInstanceTypes, with EC2's element names (`memoryInfo`,
    /// `networkInfo`, …).
    #[must_use]
    pub fn instance_type(&self, name: &str) -> Option<Value> {
        self.with(|r| {
            r.ec2
                .catalog
                .types
                .get(name)
                .map(|known| known.wire.clone())
        })
    }

    #[must_use]
    pub fn image(&self, id: &str) -> Option<Image> {
        self.with(|r| r.ec2.images.get(id).cloned())
    }

    /// Returns all launch templates, ordered by ID.
    #[must_use]
    pub fn launch_templates(&self) -> Vec<LaunchTemplate> {
        self.with(|r| r.ec2.templates.values().cloned().collect())
    }

    /// Returns all instance profiles, ordered by name.
    #[must_use]
    pub fn instance_profiles(&self) -> Vec<InstanceProfile> {
        self.current().iam.profiles.values().cloned().collect()
    }

    #[must_use]
    pub fn capacity_reservation(&self, id: &str) -> Option<CapacityReservation> {
        self.with(|r| r.ec2.reservations.get(id).cloned())
    }

    /// Returns the value of an SSM parameter.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<String> {
        self.with(|r| r.ssm.0.get(name).map(|(value, _)| value.clone()))
    }

    /// Returns the bodies of the messages in a queue, including those in flight.
    #[must_use]
    pub fn messages(&self, queue: &str) -> Vec<String> {
        self.with(|r| {
            let queue = r.queues.0.get(queue);
            queue
                .into_iter()
                .flat_map(|q| q.bodies().map(str::to_owned).collect::<Vec<_>>())
                .collect()
        })
    }

    /// Returns every call since the start or the last [`AwsFake::forget_calls`].
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.state().calls.clone()
    }

    #[must_use]
    pub fn call_counts(&self) -> BTreeMap<String, usize> {
        calls::counts(&self.state().calls)
    }

    /// Removes the recorded calls.
    pub fn forget_calls(&self) {
        self.state().calls.clear();
    }

    /// Returns every permission that the recorded calls needed, without duplicates.
    #[must_use]
    pub fn needed_permissions(&self) -> Vec<Permission> {
        let mut all: Vec<Permission> = self
            .state()
            .calls
            .iter()
            .flat_map(|c| c.permissions.clone())
            .collect();
        all.sort();
        all.dedup();
        all
    }

    /// Returns the actions of the recorded calls that were refused for lack of permission.
    #[must_use]
    pub fn forbidden(&self) -> BTreeSet<String> {
        let codes = [
            "UnauthorizedOperation",
            "AccessDenied",
            "AccessDeniedException",
        ];
        let calls = self.calls().into_iter();
        calls
            .filter(|call| call.error.as_deref().is_some_and(|c| codes.contains(&c)))
            .map(|call| call.action)
            .collect()
    }

    // --- changing --------------------------------------------------------------------------------

    pub fn set(&self, change: impl FnOnce(&mut AwsFakeSettings)) {
        change(&mut self.state().settings);
        self.changed();
    }

    /// Denies these actions of IAM, with `*` and `?`, and no others any more.
    pub fn deny(&self, actions: &[&str]) {
        self.set(|s| s.denied = actions.iter().map(|a| (*a).to_owned()).collect());
    }

    /// Adds a fault at the end of the list.
    pub fn add_fault(&self, fault: Fault) {
        self.state().faults.push(fault);
    }

    /// Fails every call of an action with this code.
    pub fn fail(&self, action: &str, code: &str) {
        self.add_fault(Fault::error(action, code).always());
    }

    pub fn clear_faults(&self) {
        self.state().faults.clear();
    }

    /// Enforces a policy, or removes it.
    pub fn set_policy(&self, policy: Option<Policy>) {
        self.state().policy = policy;
    }

    /// Replaces the list of pools without capacity.
    pub fn set_shortages(&self, shortages: Vec<Shortage>) {
        self.change(|r, _| r.ec2.pools.shortages = shortages);
    }

    /// Sets the number of instances left in one pool, spot or on-demand.
    pub fn set_capacity(&self, instance_type: &str, zone: &str, spot: bool, instances: u32) {
        let lifecycle = if spot {
            Lifecycle::Spot
        } else {
            Lifecycle::OnDemand
        };
        let pool = Pool::new(instance_type, zone, lifecycle);
        self.change(|r, _| r.ec2.pools.set(pool, instances));
    }

    pub fn set_price(&self, instance_type: &str, price: f64) {
        self.change(|r, _| r.ec2.catalog.set_price(instance_type, price));
    }

    /// Adds or replaces a subnet; its VPC is created when missing.
    pub fn add_subnet(&self, subnet: Subnet) {
        self.change(|r, _| {
            r.ec2.subnets.insert(subnet.id.clone(), subnet);
        });
    }

    pub fn set_free_addresses(&self, subnet: &str, free: u32) {
        self.change(|r, _| {
            if let Some(subnet) = r.ec2.subnets.get_mut(subnet) {
                subnet.leave(free);
            }
        });
    }

    pub fn add_security_group(&self, group: SecurityGroup) {
        self.change(|r, _| r.ec2.groups.insert(group.id.clone(), group));
    }

    pub fn add_image(&self, image: Image) {
        self.change(|r, _| {
            r.ec2.images.insert(image.id.clone(), image);
        });
    }

    pub fn remove_image(&self, id: &str) {
        self.change(|r, _| {
            r.ec2.images.remove(id);
        });
    }

    pub fn add_placement_group(&self, group: PlacementGroup) {
        self.change(|r, _| r.ec2.placement_groups.insert(group.id.clone(), group));
    }

    pub fn add_capacity_reservation(&self, reservation: CapacityReservation) {
        self.change(|r, _| {
            let id = reservation.id.clone();
            r.ec2.reservations.insert(id, reservation);
        });
    }

    /// Cancels a capacity reservation: its instances keep running as on-demand instances.
    pub fn cancel_capacity_reservation(&self, id: &str) {
        self.change(|r, _| {
            if let Some(reservation) = r.ec2.reservations.get_mut(id) {
                reservation.state = "cancelled".to_owned();
                reservation.available = 0;
            }
        });
    }

    /// Adds an instance type of x86_64 that is new: offered in every zone, without a price.
    pub fn add_instance_type(&self, name: &str) {
        let record = json!({
            "instanceType": name, "currentGeneration": true,
            "supportedUsageClasses": ["on-demand"], "supportedVirtualizationTypes": ["hvm"],
            "bareMetal": false, "hypervisor": "nitro",
            "processorInfo": { "supportedArchitectures": ["x86_64"], "manufacturer": "Unknown" },
            "vCpuInfo": { "defaultVCpus": 2, "defaultCores": 1, "defaultThreadsPerCore": 2 },
            "memoryInfo": { "sizeInMiB": 4096 }, "instanceStorageSupported": false,
            "networkInfo": {
                "networkPerformance": "unheard of", "maximumNetworkInterfaces": 3, "maximumNetworkCards": 1,
                "defaultNetworkCardIndex": 0, "ipv4AddressesPerInterface": 10, "ipv6AddressesPerInterface": 10,
                "ipv6Supported": true, "enaSupport": "required", "efaSupported": false,
                "networkCards": [{ "networkCardIndex": 0, "maximumNetworkInterfaces": 3 }],
            },
        });
        let added = InstanceType::new(record);
        self.change(|r, _| added.map(|added| r.ec2.catalog.add(added.into())));
    }

    /// Offers all recorded instance types in every zone, including those that only other regions offer.
    pub fn offer_recorded_instance_types(&self) {
        self.change(|r, _| r.ec2.catalog.offer_recorded());
    }

    /// Removes the instance types that `keep` rejects.
    pub fn keep_instance_types(&self, keep: impl Fn(&str) -> bool) {
        self.change(|r, _| {
            r.ec2.catalog.types.retain(|name, _| keep(name));
            r.ec2.catalog.offered.retain(|name, _| keep(name));
        });
    }

    /// Sets an SSM parameter, also under `/aws`.
    pub fn put_parameter(&self, name: &str, value: &str) {
        self.change(|r, now| {
            r.ssm.0.insert(name.to_owned(), (value.to_owned(), now));
        });
    }

    pub fn remove_parameter(&self, name: &str) {
        self.change(|r, _| r.ssm.0.remove(name));
    }

    pub fn add_role(&self, name: &str) {
        let now = self.inner.clock.now();
        let mut state = self.state();
        let state = &mut *state;
        let role = Role::new(name, &state.account, &mut state.ids, now);
        state.iam.roles.insert(name.to_owned(), role);
    }

    /// Adds an instance profile with `role`, as if a user had created it.
    pub fn add_instance_profile(&self, name: &str, role: Option<&str>) {
        // Created in the past, so that EC2 sees it already.
        let created = Timestamp::UNIX_EPOCH;
        let mut state = self.state();
        let profile = InstanceProfile {
            name: name.to_owned(),
            arn: format!("arn:aws:iam::{}:instance-profile/{name}", state.account),
            id: state.ids.upper("AIPA"),
            path: "/".to_owned(),
            role: role.map(str::to_owned),
            tags: BTreeMap::new(),
            created,
            changed: created,
        };
        state.iam.profiles.insert(name.to_owned(), profile);
    }

    /// Adds or replaces an EKS cluster, with its zonal shifts.
    pub fn add_cluster(&self, cluster: Cluster) {
        self.change(|r, _| {
            r.clusters.insert(cluster.name.clone(), cluster);
        });
    }

    #[must_use]
    pub fn eks_cluster(&self, name: &str) -> Option<Cluster> {
        self.with(|r| r.clusters.get(name).cloned())
    }

    /// Changes the Kubernetes version of an EKS cluster's control plane.
    pub fn upgrade(&self, name: &str, version: &str) {
        self.change(|r, _| {
            if let Some(cluster) = r.clusters.get_mut(name) {
                version.clone_into(&mut cluster.version);
            }
        });
    }

    // --- triggering events -----------------------------------------------------------------------

    /// Sends an interruption warning for a spot instance and terminates it two minutes later. Returns whether it was
    /// alive.
    pub fn interrupt_spot(&self, id: &str) -> bool {
        self.change(|r, now| r.ec2.interrupt(id, now))
    }

    /// Sends a rebalance recommendation for a spot instance.
    pub fn recommend_rebalance(&self, id: &str) {
        self.change(|r, now| r.ec2.emit_rebalance(id, now));
    }

    /// Schedules an event that DescribeInstanceStatus returns.
    pub fn schedule_event(&self, id: &str, event: ScheduledEvent) {
        self.change(|r, _| {
            if let Some(instance) = r.ec2.instances.get_mut(id) {
                instance.status.events.push(event);
            }
        });
    }

    /// Sets the status of an instance in DescribeInstanceStatus.
    pub fn set_status(&self, id: &str, status: StatusReport) {
        self.change(|r, _| {
            if let Some(instance) = r.ec2.instances.get_mut(id) {
                instance.status = status;
            }
        });
    }

    /// Enables or disables termination protection of an instance.
    pub fn protect(&self, id: &str, protected: bool) {
        self.change(|r, _| {
            if let Some(instance) = r.ec2.instances.get_mut(id) {
                instance.protected = protected;
            }
        });
    }

    /// Terminates an instance without a call of the controller.
    pub fn terminate(&self, id: &str) {
        let shutting_down = self.state().settings.shutting_down();
        self.change(|r, now| r.ec2.terminate(id, now, shutting_down));
    }

    /// Sends a message to a queue. Returns whether the queue exists.
    pub fn send_message(&self, queue: &str, body: &str) -> bool {
        let now = self.inner.clock.now();
        let sent = {
            let mut state = self.state();
            let AwsState { region, ids, .. } = &mut *state;
            let queue = region.queues.0.get_mut(queue);
            queue.map(|q| q.send(body.to_owned(), now, ids)).is_some()
        };
        self.changed();
        sent
    }
}
