//! Claims of the naive solver: adding a pod to one, opening one, and what it takes of limits and reservations.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use karpenter_api::labels::{CAPACITY_TYPE_RESERVED, HOSTNAME};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::offering::DEFAULT_RESERVATION_ID;
use karpenter_core::requirements::{AllowUndefined, Requirement, Requirements};
use karpenter_core::resources::{NODES, Resources};

use super::{OpenClaim, Refusal, Solver};
use crate::template::{daemons, distinct_values, launchable};
use crate::{pod, volume};

impl Solver<'_> {
    /// Returns the claim with the pod added, if it fits (section 13).
    pub(super) fn fits_claim(
        &self,
        claim: &OpenClaim,
        pod: &Pod,
        strict_min_values: bool,
    ) -> Result<OpenClaim, Refusal> {
        let taints = &self.templates[claim.template].taints;
        let undefined = AllowUndefined::Keys(&self.world.well_known);
        let volumes = volume::volumes(self.world, pod).ok_or(Refusal::Unfit)?;
        let wanted = self.node_requirements(pod).ok_or(Refusal::Unfit)?;
        let ports = pod::host_ports(pod);
        if !pod::tolerates(pod, taints)
            || pod::ports_conflict(&claim.ports, &ports)
            || !claim.requirements.is_compatible(&wanted, undefined)
        {
            return Err(Refusal::Unfit);
        }
        let mut grown = claim.clone();
        self.require(&mut grown.requirements, &wanted);
        grown.requests.add_assign(&pod::requests(pod));
        grown.ports.extend(ports);
        let mut refusal = Refusal::Unfit;
        for alternative in &volumes.alternatives {
            if !grown.requirements.is_compatible(alternative, undefined) {
                continue;
            }
            let mut placed = grown.requirements.clone();
            self.require(&mut placed, alternative);
            let strict = pod::strict_requirements(pod).unwrap_or_default();
            let options = self.topology().options(pod, &strict, &placed);
            for requirements in combinations(&placed, &options, undefined) {
                match self.narrow(
                    &OpenClaim {
                        requirements,
                        ..grown.clone()
                    },
                    pod,
                    strict_min_values,
                ) {
                    Ok(claim) => return Ok(claim),
                    Err(Refusal::Reserved) => refusal = Refusal::Reserved,
                    Err(Refusal::Unfit) => {}
                }
            }
        }
        Err(refusal)
    }

    /// Keeps the instance types that can still be launched and the reservations that can still be held.
    fn narrow(
        &self,
        claim: &OpenClaim,
        pod: &Pod,
        strict_min_values: bool,
    ) -> Result<OpenClaim, Refusal> {
        let template = &self.templates[claim.template];
        let mut claim = claim.clone();
        let ports = [claim.ports.as_slice(), &pod::host_ports(pod)].concat();
        claim.types.retain(|&index| {
            let instance_type = &template.types[index];
            let (mut requests, daemon_ports) = daemons(
                self.world,
                &template.requirements,
                &template.taints,
                instance_type,
            );
            requests.add_assign(&claim.requests);
            instance_type
                .requirements
                .intersects(&claim.requirements)
                .is_ok()
                && !pod::ports_conflict(&daemon_ports, &ports)
                && instance_type.offerings.iter().any(|offering| {
                    launchable(self.world, offering, &claim.requirements)
                        && Resources::fits(&requests, &instance_type.allocatable_of(offering))
                })
        });
        if claim.types.is_empty() {
            return Err(Refusal::Unfit);
        }
        let wanted: Vec<Requirement> = claim
            .requirements
            .iter()
            .filter(|r| r.min_values().is_some())
            .cloned()
            .collect();
        for requirement in wanted {
            let distinct = distinct_values(
                requirement.key(),
                claim.types.iter().map(|&index| &template.types[index]),
            );
            if requirement
                .min_values()
                .is_some_and(|least| distinct < least as usize)
            {
                if strict_min_values || !claim.pods.is_empty() {
                    return Err(Refusal::Unfit);
                }
                claim
                    .requirements
                    .replace(requirement.with_min_values(u32::try_from(distinct).ok()));
            }
        }
        self.reserve(claim)
    }

    /// Sets the reservations that the claim holds (section 15).
    fn reserve(&self, mut claim: OpenClaim) -> Result<OpenClaim, Refusal> {
        let types = claim
            .types
            .iter()
            .map(|&index| &self.templates[claim.template].types[index]);
        let ids = types
            .flat_map(|instance_type| &instance_type.offerings)
            .filter(|offering| {
                offering.capacity_type() == Some(CAPACITY_TYPE_RESERVED)
                    && launchable(self.world, offering, &claim.requirements)
            });
        let ids: BTreeSet<String> = ids
            .filter_map(|offering| offering.single(DEFAULT_RESERVATION_ID))
            .map(str::to_owned)
            .collect();
        let free = |id: &String| {
            claim.reserved.contains(id) || self.reservations.get(id).is_some_and(|&left| left > 0)
        };
        let reserved: BTreeSet<String> = ids.iter().filter(|id| free(id)).cloned().collect();
        if self.settings.strict_reserved
            && reserved.is_empty()
            && (!ids.is_empty() || !claim.reserved.is_empty())
        {
            return Err(Refusal::Reserved);
        }
        claim.reserved = reserved;
        Ok(claim)
    }

    pub(super) fn commit(&mut self, index: usize, claim: OpenClaim) {
        let held = self.claims[index].reserved.clone();
        for id in claim.reserved.difference(&held) {
            self.reservations
                .entry(id.clone())
                .and_modify(|left| *left = left.saturating_sub(1));
        }
        for id in held.difference(&claim.reserved) {
            self.reservations
                .entry(id.clone())
                .and_modify(|left| *left += 1);
        }
        self.claims[index] = claim;
    }

    /// Returns an empty claim of the template with the instance types that its limits admit (section 6).
    pub(super) fn open(&self, index: usize) -> Option<OpenClaim> {
        let template = &self.templates[index];
        let remaining = &template.remaining;
        if remaining.contains(NODES) && remaining.get(NODES) <= 0 {
            return None;
        }
        let within = |instance_type: &InstanceType| {
            remaining
                .iter()
                .filter(|(name, _)| *name != NODES)
                .all(|(name, left)| instance_type.capacity.get(name) <= left)
        };
        let mut requirements = template.requirements.clone();
        requirements.add(Requirement::equal(
            HOSTNAME,
            &format!("hostname-placeholder-{:04}", self.claims.len()),
        ));
        Some(OpenClaim {
            template: index,
            requirements,
            types: (0..template.types.len())
                .filter(|&index| within(&template.types[index]))
                .collect(),
            pods: vec![],
            requests: Resources::new(),
            ports: vec![],
            reserved: BTreeSet::new(),
        })
    }

    /// Counts the claim's largest instance type against the limits.
    pub(super) fn take_limits(&mut self, index: usize, claim: &OpenClaim) {
        let template = &mut self.templates[index];
        let mut largest = Resources::new().with(NODES, 1);
        claim
            .types
            .iter()
            .for_each(|&index| largest.max_assign(&template.types[index].capacity));
        largest.retain(|name, _| template.remaining.contains(name));
        template.remaining.sub_assign(&largest);
    }
}

/// Returns the requirements with one option of each constraint, in the order of preference, without contradictions.
fn combinations(
    requirements: &Requirements,
    options: &[Vec<Requirement>],
    undefined: AllowUndefined<'_>,
) -> Vec<Requirements> {
    let Some((first, rest)) = options.split_first() else {
        return vec![requirements.clone()];
    };
    let with = |option: &Requirement| {
        let mut narrowed = requirements.clone();
        narrowed.add(option.clone());
        narrowed
    };
    let fits = |option: &&Requirement| {
        requirements.is_compatible(&[(*option).clone()].into_iter().collect(), undefined)
    };
    first
        .iter()
        .filter(fits)
        .map(with)
        .flat_map(|narrowed| combinations(&narrowed, rest, undefined))
        .collect()
}
