//! The cloud of a rehearsal: which offering a NodeClaim gets, and the answers of its provider.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use karpenter_api::labels;
use karpenter_api::v1::{NodeClaim, Operator};
use karpenter_core::cluster::Snapshot;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::offering::Offering;
use karpenter_core::overlay;
use karpenter_core::requirements::{Requirement, Requirements};

use crate::prices::{dollars, micro_dollars};
use crate::rehearse::agreement::size_class;
use crate::rehearse::plan::Launch;
use crate::rehearse::request::LaunchChoice;

/// The instance that a NodeClaim gets.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    labels: BTreeMap<String, String>,
    capacity: karpenter_api::ResourceList,
    allocatable: karpenter_api::ResourceList,
    micro_dollars: i64,
}

/// The instance types of each NodePool, and the launches that are under way.
pub(super) struct Cloud {
    choice: LaunchChoice,
    offered: BTreeMap<String, Arc<[InstanceType]>>,
    /// By NodeClaim.
    launching: BTreeMap<String, Chosen>,
    /// The last number in the name of a NodeClaim, by NodePool.
    numbers: BTreeMap<String, usize>,
}

impl Cloud {
    pub(super) fn new(choice: LaunchChoice) -> Self {
        Self {
            choice,
            offered: BTreeMap::new(),
            launching: BTreeMap::new(),
            numbers: BTreeMap::new(),
        }
    }

    /// Returns a name for a NodeClaim.
    pub(super) fn name(&mut self, snapshot: &Snapshot, pool: &str) -> String {
        let number = self.numbers.entry(pool.to_owned()).or_default();
        loop {
            *number += 1;
            let name = format!("{pool}-plan-{number}");
            if snapshot.node(&name).is_none() {
                return name;
            }
        }
    }

    /// Begins the launch of a NodeClaim.
    pub(super) fn launch(&mut self, claim: &str, chosen: Chosen) {
        self.launching.insert(claim.to_owned(), chosen);
    }

    /// Ends the launch of a NodeClaim that is being deleted.
    pub(super) fn cancel(&mut self, claim: &str) {
        self.launching.remove(claim);
    }

    /// Returns the provider's answer, and the price of the instance in millionths of a dollar per hour; `None` if no offering meets the
    /// requirements.
    pub(super) fn answer(&mut self, claim: &NodeClaim) -> Option<(NodeClaim, i64)> {
        let chosen = self.launching.remove(claim.name())?;
        let mut answer = claim.clone();
        answer.metadata.labels = Some(chosen.labels);
        answer.status.provider_id = Some(format!("rehearsed:///{}", claim.name()));
        answer.status.capacity = chosen.capacity;
        answer.status.allocatable = chosen.allocatable;
        Some((answer, chosen.micro_dollars))
    }

    /// Returns the instance that a NodeClaim gets; `None` if no offering meets its requirements.
    pub(super) fn choose(
        &mut self,
        snapshot: &Snapshot,
        pool: &str,
        claim: &NodeClaim,
    ) -> Option<(Chosen, Launch)> {
        let types = match self.offered.get(pool) {
            Some(known) => Arc::clone(known),
            None => {
                let types = overlay::offered(snapshot, snapshot.node_pool(pool)?)?;
                self.offered.insert(pool.to_owned(), Arc::clone(&types));
                types
            }
        };
        let names = &snapshot.config().well_known;
        let wanted = Requirements::from_api(&claim.spec.requirements, names).ok()?;
        let named = wanted.get(labels::INSTANCE_TYPE);
        let accepts = |theirs: &Requirements| wanted.intersects(theirs).is_ok();
        let options: Vec<(&InstanceType, &Offering)> = types
            .iter()
            .filter(|it| named.is_none_or(|named| named.has(&it.name)) && accepts(&it.requirements))
            .flat_map(|it| it.offerings.iter().map(move |offering| (it, offering)))
            .filter(|(_, offering)| offering.is_launchable() && accepts(&offering.requirements))
            .collect();
        let key = |(it, offering): &(&InstanceType, &Offering)| {
            let price = micro_dollars(offering.price);
            let price = match self.choice {
                LaunchChoice::Cheapest => price,
                LaunchChoice::Worst => -price,
            };
            let place = (offering.zone().map(str::to_owned), it.name.clone());
            (price, place)
        };
        let (instance_type, offering) = options.iter().copied().min_by_key(key)?;
        let kinds: BTreeSet<&str> = options.iter().map(|(it, _)| it.name.as_str()).collect();
        let zones: BTreeSet<Option<&str>> = options.iter().map(|(_, it)| it.zone()).collect();
        let allocatable = instance_type.allocatable_of(offering);
        let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
        let launch = Launch {
            node_pool: pool.to_owned(),
            count: 1,
            instance_type: instance_type.name.clone(),
            capacity_type: text(offering.capacity_type()),
            zone: match zones.len() {
                1 => text(offering.zone()),
                _ => String::new(),
            },
            price_per_hour: dollars(micro_dollars(offering.price)),
            instance_types: kinds.len(),
            size_class: size_class(
                instance_type.capacity.get("cpu"),
                instance_type.capacity.get("memory"),
            ),
        };
        let chosen = Chosen {
            labels: labels_of(claim, instance_type, offering),
            capacity: instance_type.capacity.to_quantities(),
            allocatable: allocatable.to_quantities(),
            micro_dollars: micro_dollars(offering.price),
        };
        Some((chosen, launch))
    }
}

fn labels_of(
    claim: &NodeClaim,
    instance_type: &InstanceType,
    offering: &Offering,
) -> BTreeMap<String, String> {
    let mut all = claim.metadata.labels.clone().unwrap_or_default();
    for requirement in &claim.spec.requirements {
        if requirement.operator == Operator::In
            && let [value] = requirement.values.as_slice()
        {
            all.insert(requirement.key.clone(), value.clone());
        }
    }
    let singles = |requirements: &Requirements| -> Vec<(String, String)> {
        let singles = requirements.iter();
        let singles = singles.filter_map(|requirement: &Requirement| {
            Some((
                requirement.key().to_owned(),
                requirement.single()?.to_owned(),
            ))
        });
        singles.collect()
    };
    all.extend(singles(&instance_type.requirements));
    all.extend(singles(&offering.requirements));
    all.insert(labels::INSTANCE_TYPE.into(), instance_type.name.clone());
    all
}
