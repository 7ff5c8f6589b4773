//! Turning planned nodes into NodeClaims.
//!
//! UPSTREAM: pkg/controllers/provisioning/scheduling/{nodeclaim,nodeclaimtemplate}.go

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use karpenter_api::labels;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::requirements::{Operator, Requirement, Requirements};
use crate::schedule::compile::algebra::SetId;
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{
    ClassId, OfferingKindId, PlannedId, ReservationId, RowId, Target, TemplateId,
};
use crate::schedule::place::planned_node::PlannedNode;
use crate::schedule::pods::class::PodState;
use crate::schedule::reasons::Unschedulable;
use crate::schedule::report::Report;
use crate::schedule::report::plan::{Placement, Plan, Unplaced};
use crate::schedule::report::planned_node_claim::{CheapestOffering, PlannedNodeClaim, Shape};
use crate::schedule::request::MinValuesPolicy;

/// What planned nodes with the same template, requirements, rows and reservations share.
type Shapes =
    FxHashMap<(TemplateId, SetId, Bits<RowId>, Rc<BTreeSet<ReservationId>>), Option<Arc<Shape>>>;

impl Report<'_, '_> {
    /// Builds the plan from the placements.
    pub(crate) fn into_plan(mut self) -> Plan {
        let mut plan = Plan {
            pools: self.solver.pools.clone(),
            ..Plan::default()
        };
        let mut shapes = Shapes::default();
        let mut dropped: Bits<PlannedId> = Bits::default();
        for index in self.planned.all().indices() {
            match self.node_claim(index, &mut shapes) {
                Some(claim) => plan.new_node_claims.push(claim),
                None => dropped.insert(index),
            }
        }
        let queue = self.queue;
        let mut reasons: FxHashMap<ClassId, Unschedulable> = FxHashMap::default();
        for queued in &queue.pods {
            let (key, buffer) = (&queued.pod.key, queued.buffer);
            let why = match queued.state {
                PodState::Placed(Target::Node(index)) => {
                    let pod = key.clone();
                    let node = self.solver.nodes[index].name.clone();
                    plan.existing.push(Placement { pod, node, buffer });
                    continue;
                }
                PodState::Placed(Target::Planned(planned)) if dropped.contains(planned) => {
                    Unschedulable::MinValuesAfterTruncation
                }
                PodState::Placed(Target::Planned(_)) => continue,
                PodState::Waiting => {
                    plan.undecided.push(key.clone());
                    continue;
                }
                PodState::Refused | PodState::Deferred => {
                    let why = reasons.entry(queued.class);
                    let why = why.or_insert_with(|| self.explain(queued.class)).clone();
                    match (queued.state, why) {
                        (PodState::Deferred, Unschedulable::NoFit(reasons)) => {
                            Unschedulable::ReservationWait(reasons)
                        }
                        (_, why) => why,
                    }
                }
            };
            let pod = key.clone();
            plan.unplaced.push(Unplaced { pod, buffer, why });
        }
        plan
    }

    /// Returns the NodeClaim of a planned node; `None` if truncating the list of instance types breaks minValues.
    fn node_claim(&mut self, index: PlannedId, shapes: &mut Shapes) -> Option<PlannedNodeClaim> {
        let planned = &self.planned[index];
        let (template, set, allowed) = (planned.template, planned.set, planned.allowed.as_deref());
        let rows = self
            .rows
            .rows_with_room(template, set, &planned.used, allowed);
        let key = (template, set, rows, planned.reservations.clone());
        let shape = match shapes.get(&key) {
            Some(shape) => shape.clone(),
            None => {
                let shape = self.shape(planned, &key.2).map(Arc::new);
                shapes.insert(key, shape.clone());
                shape
            }
        }?;
        let keys = |buffer: bool| {
            let pods = planned.pods.iter().map(|queued| &self.queue.pods[*queued]);
            let pods = pods.filter(|queued| queued.buffer == buffer);
            pods.map(|queued| queued.pod.key.clone()).collect()
        };
        let pool = self.solver.templates[template].name.as_str();
        let mut requests = self.solver.dimensions.resources(&planned.used);
        requests.add_assign(&shape.overhead);
        let mut claim = PlannedNodeClaim::of_shape(pool, shape, planned.drivers());
        claim.pods = keys(false);
        claim.buffer_pods = keys(true);
        claim.requests = requests;
        claim.min_values_relaxed = planned.min_values_relaxed;
        Some(claim)
    }

    /// Returns the parts shared by planned nodes with the same requirements and rows.
    fn shape(&mut self, planned: &PlannedNode, rows: &Bits<RowId>) -> Option<Shape> {
        let template = &self.solver.templates[planned.template];
        let catalogue = &self.solver.catalogues[template.catalogue];
        let names = &self.solver.snapshot.config().well_known;
        let algebra = &mut self.rows.algebra;
        let requirements = self.budgets.launch_requirements(planned, algebra);
        let mut requirements = requirements.unwrap_or_else(|| algebra.requirements(planned.set));
        let set = algebra.set(&requirements, |key| names.contains(key));
        let kinds = self.rows.kinds(template.catalogue, set);
        let mut priced: Vec<(f64, RowId)> = rows
            .iter()
            .filter_map(|row| Some((catalogue.price(row, &kinds)?, row)))
            .collect();
        let name = |row: RowId| catalogue.type_of(row).name.as_str();
        priced.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| name(a.1).cmp(name(b.1))));
        let mut instance_types: Vec<String> = Vec::with_capacity(priced.len());
        let mut seen = FxHashSet::default();
        for (_, row) in &priced {
            if seen.insert(name(*row)) {
                instance_types.push(name(*row).to_owned());
            }
        }
        let compatible_types = instance_types.len();
        instance_types.truncate(self.solver.policy.max_instance_types);
        if instance_types.len() < compatible_types {
            let left = priced.iter().map(|(_, row)| *row);
            let left: Bits<RowId> = left
                .filter(|row| instance_types.contains(&catalogue.type_of(*row).name))
                .collect();
            let (template, set) = (planned.template, planned.set);
            let unmet = self.rows.unmet_min_values(template, set, &left);
            if unmet.is_some() && self.solver.policy.min_values_policy == MinValuesPolicy::Strict {
                return None;
            }
        }
        let algebra = &self.rows.algebra;
        let values = |key: &str, offered: &Bits<OfferingKindId>| {
            let key = algebra.find_key(key);
            let mut values: Vec<String> = (offered.iter())
                .filter_map(|kind| algebra.get(catalogue.kinds[kind].set, key?))
                .flat_map(|req| algebra.requirement(req).values().map(str::to_owned))
                .collect();
            values.sort();
            values.dedup();
            values
        };
        let offers = |row: RowId| {
            let offers = catalogue.offers(row).iter();
            offers.filter(|offer| kinds.contains(offer.kind))
        };
        let cheapest = priced.first().and_then(|(price, row)| {
            let kind = offers(*row)
                .min_by(|a, b| a.price.total_cmp(&b.price))?
                .kind;
            let single = |key: &str| values(key, &Bits::from_iter([kind])).into_iter().next();
            let next = priced.iter().find(|(_, other)| name(*other) != name(*row));
            Some(CheapestOffering {
                instance_type: name(*row).to_owned(),
                zone: single(labels::ZONE),
                capacity_type: single(labels::CAPACITY_TYPE),
                hourly_price: *price,
                compatible_types,
                next: next.map(|(price, row)| (name(*row).to_owned(), *price)),
            })
        });
        let all_offers = || priced.iter().flat_map(|(_, row)| offers(*row));
        let offered: Bits<OfferingKindId> = all_offers().map(|offer| offer.kind).collect();
        let capacity_types = values(labels::CAPACITY_TYPE, &offered);
        let min_values = |requirements: &Requirements, key: &str| {
            requirements.get(key).and_then(Requirement::min_values)
        };
        if !capacity_types.is_empty() {
            let minimum = min_values(&requirements, labels::CAPACITY_TYPE);
            let offered = capacity_types.iter().map(String::as_str);
            let offered = Requirement::new(labels::CAPACITY_TYPE, Operator::In, offered);
            requirements.replace(offered.with_min_values(minimum));
        }
        let min_types = min_values(&requirements, labels::INSTANCE_TYPE);
        for label in [
            labels::INSTANCE_TYPE,
            labels::HOSTNAME,
            labels::REGISTERED,
            labels::INITIALIZED,
        ] {
            requirements.remove(label);
        }
        let mut all_labels = requirements.labels(|key| !names.contains(key));
        all_labels.extend(template.labels.clone());
        let reservations = planned.reservations.iter();
        let reservation = |id: &ReservationId| self.solver.reservations.ids[*id].clone();
        let mut types = priced.iter().map(|(_, row)| catalogue.type_of(*row));
        Some(Shape {
            pool: template.pool.clone(),
            labels: all_labels,
            requirements,
            instance_types: instance_types.into(),
            min_types,
            hourly_price: priced.first().map_or(0.0, |(price, _)| *price),
            zones: values(labels::ZONE, &offered),
            cheapest,
            overhead: template.least_overhead(Some(rows)),
            reservations: reservations.map(reservation).collect(),
            price_overlay: all_offers().any(|offer| offer.overlay),
            capacity_overlay: types.any(|of_row| of_row.capacity_overlay),
            prototype: OnceLock::new(),
        })
    }
}
