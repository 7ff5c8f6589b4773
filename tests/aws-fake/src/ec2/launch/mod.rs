//! Launches: templates, fleets and single instances. Here, launching an accepted request: quotas, reservations, pools, addresses.

mod fleet;
mod run;
mod spec;
pub(crate) mod templates;

use std::net::Ipv4Addr;

use super::instances::{Due, Instance, InstanceState, Interface, Lifecycle};
use super::status::StatusReport;
use super::{Ec2Call, Pool};
use crate::clock::later;
use crate::wire::error::AwsError;
use crate::wire::params::Params;
use spec::{Accepted, ReservationChoice, spread_full};

/// Source of a launch.
#[derive(Debug, Clone, Default)]
pub(crate) struct Origin {
    /// ID, name and version of the launch template.
    pub(crate) template: Option<(String, String, u32)>,
    pub(crate) fleet: Option<String>,
    pub(crate) client_token: String,
    pub(crate) reservation: String,
    pub(crate) launch_index: u32,
}

impl Ec2Call<'_> {
    /// Launches one instance; returns its ID.
    ///
    /// # Errors
    /// Without quota, capacity or addresses; nothing has been changed then.
    pub(crate) fn launch(
        &mut self,
        accepted: &Accepted,
        origin: &Origin,
    ) -> Result<String, AwsError> {
        self.check_quota(accepted)?;
        if let Some((group, _)) = &accepted.placement
            && spread_full(self, group, &accepted.zone)
        {
            return Err(AwsError::new(
                "UnfulfillableCapacity",
                "You've reached the limit of instances in this spread placement group. A spread placement group can have up to seven instances per Availability Zone.",
            ));
        }
        // Addresses are checked before capacity is taken, so that no rollback is needed.
        let wanted: u32 = accepted
            .interfaces
            .iter()
            .map(crate::ec2::launch::spec::InterfaceSpec::addresses)
            .sum();
        if self
            .ec2
            .subnets
            .get(&accepted.subnet)
            .is_none_or(|s| s.free() < wanted)
        {
            return Err(AwsError::new(
                "InsufficientFreeAddressesInSubnet",
                format!(
                    "There are not enough free addresses in subnet '{}' to satisfy the requested number of instances.",
                    accepted.subnet
                ),
            ));
        }
        let reservation = self.take_reservation(accepted)?;
        if reservation.is_none() {
            let pool = Pool::new(
                &accepted.instance_type.name,
                &accepted.zone,
                accepted.lifecycle,
            );
            if !self.ec2.pools.take(&pool) {
                return Err(self.no_capacity(accepted));
            }
        }
        Ok(self.create(accepted, origin, reservation))
    }

    fn no_capacity(&self, accepted: &Accepted) -> AwsError {
        let (name, zone) = (&accepted.instance_type.name, &accepted.zone);
        let pool = Pool::new(name, zone, accepted.lifecycle);
        if let Some(code) = self
            .ec2
            .pools
            .shortage(&pool)
            .and_then(|s| s.code.as_ref().map(|c| (c, &s.message)))
        {
            let (code, message) = code;
            return AwsError::new(code.clone(), message.as_ref().unwrap_or(code).clone());
        }
        let message = if accepted.lifecycle == Lifecycle::Spot {
            "There is no Spot capacity available that matches your request.".to_owned()
        } else {
            let others: Vec<&str> = self
                .ec2
                .catalog
                .zones
                .iter()
                .map(|(z, _)| z.as_str())
                .filter(|z| z != zone && self.ec2.catalog.offers(name, z))
                .filter(|z| self.ec2.pools.left(&Pool::new(name, z, accepted.lifecycle)) != Some(0))
                .collect();
            let elsewhere = match others.as_slice() {
                [] => String::new(),
                zones => format!(
                    " You can currently get {name} capacity by not specifying an Availability Zone in your request or choosing {}.",
                    zones.join(", ")
                ),
            };
            format!(
                "We currently do not have sufficient {name} capacity in the Availability Zone you requested ({zone}). Our system will be working on provisioning additional capacity.{elsewhere}"
            )
        };
        AwsError::new("InsufficientInstanceCapacity", message)
    }

    fn check_quota(&self, accepted: &Accepted) -> Result<(), AwsError> {
        let spot = accepted.lifecycle == Lifecycle::Spot;
        if spot && !self.settings.spot_role {
            return Err(AwsError::new(
                "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
                "The provided credentials do not have permission to create the service-linked role for EC2 Spot Instances.",
            ));
        }
        let Some(quota) = self.settings.on_demand_vcpus.filter(|_| !spot) else {
            return Ok(());
        };
        let used: u32 = self
            .ec2
            .instances
            .all()
            .filter(|i| i.state.is_alive() && i.lifecycle == Lifecycle::OnDemand)
            .map(|i| i.vcpus)
            .sum();
        if used.saturating_add(accepted.instance_type.vcpus) <= quota {
            return Ok(());
        }
        Err(AwsError::new(
            "VcpuLimitExceeded",
            format!(
                "You have requested more vCPU capacity than your current vCPU limit of {quota} allows for the instance bucket that the specified instance type belongs to. Please visit http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit."
            ),
        ))
    }

    /// Takes an instance out of the reservation that the launch targets or matches.
    fn take_reservation(&mut self, accepted: &Accepted) -> Result<Option<String>, AwsError> {
        if accepted.lifecycle == Lifecycle::Spot
            || accepted.reservation == ReservationChoice::Outside
        {
            return Ok(None);
        }
        let (name, zone) = (&accepted.instance_type.name, &accepted.zone);
        let exceeded = || {
            AwsError::new(
                "ReservationCapacityExceeded",
                "The requested reservation does not have sufficient compatible and available capacity for this request.",
            )
        };
        let special = matches!(
            accepted.lifecycle,
            Lifecycle::CapacityBlock | Lifecycle::InterruptibleCapacityReservation
        );
        let chosen = match &accepted.reservation {
            ReservationChoice::Only(Some(id)) => {
                let reservation = self.ec2.reservations.get_mut(id).ok_or_else(|| {
                    AwsError::new(
                        "InvalidCapacityReservationId.NotFound",
                        format!("The capacity reservation '{id}' does not exist"),
                    )
                })?;
                let kind_fits = reservation.block
                    == (accepted.lifecycle == Lifecycle::CapacityBlock)
                    && reservation.interruptible
                        == (accepted.lifecycle == Lifecycle::InterruptibleCapacityReservation);
                if !reservation.serves(name, zone) || !kind_fits {
                    return Err(exceeded());
                }
                Some(reservation)
            }
            ReservationChoice::Only(None) | ReservationChoice::Open => {
                self.ec2.reservations.values_mut().find(|r| {
                    r.serves(name, zone)
                        && r.match_criteria == "open"
                        && !r.block
                        && !r.interruptible
                        && r.available > 0
                })
            }
            ReservationChoice::Outside => None,
        };
        let must = special || matches!(accepted.reservation, ReservationChoice::Only(_));
        match chosen {
            Some(reservation) if reservation.available > 0 => {
                reservation.available -= 1;
                Ok(Some(reservation.id.clone()))
            }
            _ if must => Err(exceeded()),
            _ => Ok(None),
        }
    }

    fn create(&mut self, a: &Accepted, origin: &Origin, reservation: Option<String>) -> String {
        let id = self.ids.hex("i-", 17);
        let mut interfaces = Vec::new();
        for spec in &a.interfaces {
            let mut address = None;
            let mut public = None;
            if let Some(subnet) = self.ec2.subnets.get_mut(&a.subnet) {
                subnet.reserve(16 * spec.prefixes);
                if spec.kind != "efa-only" {
                    address = subnet.take();
                    public = spec
                        .public
                        .unwrap_or(subnet.public)
                        .then(|| self.ids.public_ip());
                }
            }
            interfaces.push(Interface {
                id: self.ids.hex("eni-", 17),
                card: spec.card,
                device: spec.device,
                kind: spec.kind.clone(),
                address,
                prefixes: spec.prefixes,
                ipv6: (0..spec.ipv6).map(|_| self.ids.ipv6()).collect(),
                groups: spec.groups.clone(),
                public,
            });
        }
        let primary = interfaces
            .iter()
            .find(|i| (i.card, i.device) == (0, 0))
            .or(interfaces.first());
        let private_ip = primary
            .and_then(|i| i.address)
            .unwrap_or(Ipv4Addr::UNSPECIFIED);
        let groups = primary.map(|i| i.groups.clone()).unwrap_or_default();
        let placement = a.placement.as_ref().map(|(group, wanted)| {
            let partition = wanted.or_else(|| group.partitions.map(|n| self.ids.up_to(n)));
            (group.id.clone(), group.name.clone(), partition)
        });
        let volumes = self.volumes(a);
        let instance = Instance {
            id: id.clone(),
            reservation: origin.reservation.clone(),
            launch_index: origin.launch_index,
            instance_type: a.instance_type.name.clone(),
            image: a.image.id.clone(),
            architecture: a.image.architecture.clone(),
            zone: a.zone.clone(),
            zone_id: self.ec2.catalog.zone_id(&a.zone).to_owned(),
            subnet: a.subnet.clone(),
            vpc: a.vpc.clone(),
            private_ip,
            interfaces,
            groups,
            tags: a.tags.clone(),
            launched: self.now,
            state: InstanceState::Pending,
            protected: Params(&a.data)
                .flag("DisableApiTermination")
                .unwrap_or(false),
            reason: None,
            lifecycle: a.lifecycle,
            spot_request: (a.lifecycle == Lifecycle::Spot).then(|| self.ids.hex("sir-", 8)),
            capacity_reservation: reservation,
            reservation_preference: a.reservation.names(),
            template: origin.template.clone(),
            fleet: origin.fleet.clone(),
            profile: a.profile.clone(),
            data: a.data.clone(),
            root_device: a.image.root_device.clone(),
            volumes,
            placement,
            windows: a.image.windows,
            vcpus: a.instance_type.vcpus,
            memory_mib: a.instance_type.memory_mib(),
            cores: a.instance_type.default_cores(),
            client_token: origin.client_token.clone(),
            status: StatusReport::default(),
            up_since: None,
            sequence: 0,
            rendered: None,
        };
        self.ec2.instances.add(instance);
        let up = later(self.now, self.settings.pending());
        self.ec2.instances.schedule(up, &id, Due::Running);
        self.ec2.emit_state(&id, self.now);
        id
    }

    /// Returns the image's volumes as the launch changes them, and the launch's own.
    fn volumes(&mut self, a: &Accepted) -> Vec<(String, u32, String, bool)> {
        let mut volumes: Vec<(String, u32, bool)> = a
            .image
            .volumes
            .iter()
            .map(|(device, size)| (device.clone(), *size, true))
            .collect();
        for mapping in Params(&a.data).list("BlockDeviceMapping") {
            let Some(device) = mapping.text("DeviceName") else {
                continue;
            };
            let ebs = mapping.inner("Ebs");
            let size = ebs.int("VolumeSize").and_then(|n| u32::try_from(n).ok());
            let with_instance = ebs.flag("DeleteOnTermination");
            match volumes.iter_mut().find(|(d, _, _)| d == device) {
                Some(volume) => {
                    volume.1 = size.unwrap_or(volume.1);
                    volume.2 = with_instance.unwrap_or(volume.2);
                }
                None => volumes.push((
                    device.to_owned(),
                    size.unwrap_or(8),
                    with_instance.unwrap_or(true),
                )),
            }
        }
        volumes
            .into_iter()
            .map(|(device, size, with)| (device, size, self.ids.hex("vol-", 17), with))
            .collect()
    }
}
