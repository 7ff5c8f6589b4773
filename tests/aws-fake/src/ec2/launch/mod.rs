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
use spec::{Accepted, ReservationChoice, spread_full};

impl Ec2Call<'_> {
    /// Launches one instance for the request `origin`, an ID `r-…`; returns the instance's ID.
    ///
    /// # Errors
    /// Without quota, capacity or addresses; nothing has been changed then.
    pub(crate) fn launch(&mut self, accepted: &Accepted, origin: &str) -> Result<String, AwsError> {
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
        let special = accepted.lifecycle == Lifecycle::CapacityBlock;
        let chosen = match &accepted.reservation {
            ReservationChoice::Only(Some(id)) => {
                let reservation = self.ec2.reservations.get_mut(id).ok_or_else(|| {
                    AwsError::new(
                        "InvalidCapacityReservationId.NotFound",
                        format!("The capacity reservation '{id}' does not exist"),
                    )
                })?;
                let kind_fits =
                    reservation.block == (accepted.lifecycle == Lifecycle::CapacityBlock);
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

    fn create(&mut self, a: &Accepted, origin: &str, reservation: Option<String>) -> String {
        let id = self.ids.hex("i-", 17);
        let subnet = self.ec2.subnets.get_mut(&a.subnet);
        let interfaces: Vec<Interface> = match subnet {
            None => vec![],
            Some(subnet) => a
                .interfaces
                .iter()
                .map(|spec| {
                    subnet.reserve(16 * spec.prefixes);
                    Interface {
                        kind: spec.kind.clone(),
                        address: (spec.kind != "efa-only").then(|| subnet.take()).flatten(),
                        prefixes: spec.prefixes,
                    }
                })
                .collect(),
        };
        let primary = a.interfaces.iter().zip(&interfaces);
        let primary = primary.min_by_key(|(spec, _)| (spec.card, spec.device));
        let placement = a.placement.as_ref().map(|(group, wanted)| {
            let partition = wanted.or_else(|| group.partitions.map(|n| self.ids.up_to(n)));
            (group.id.clone(), partition)
        });
        let instance = Instance {
            id: id.clone(),
            reservation: origin.to_owned(),
            instance_type: a.instance_type.name.clone(),
            image: a.image.id.clone(),
            architecture: a.image.architecture.clone(),
            zone: a.zone.clone(),
            zone_id: self.ec2.catalog.zone_id(&a.zone).to_owned(),
            subnet: a.subnet.clone(),
            private_ip: primary
                .and_then(|(_, i)| i.address)
                .unwrap_or(Ipv4Addr::UNSPECIFIED),
            groups: primary
                .map(|(spec, _)| spec.groups.clone())
                .unwrap_or_default(),
            interfaces,
            tags: a.tags.clone(),
            launched: self.now,
            state: InstanceState::Pending,
            protected: false,
            lifecycle: a.lifecycle,
            spot_request: (a.lifecycle == Lifecycle::Spot).then(|| self.ids.hex("sir-", 8)),
            capacity_reservation: reservation,
            reservation_preference: a.reservation.names(),
            profile: a.profile.clone(),
            data: a.data.clone(),
            placement,
            windows: a.image.windows,
            vcpus: a.instance_type.vcpus,
            memory_mib: a.instance_type.memory_mib(),
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
}
