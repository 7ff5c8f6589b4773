//! From claims to NodeClaims.
//!
//! UPSTREAM: pkg/controllers/provisioning/scheduling/{nodeclaim,nodeclaimtemplate}.go

use karpenter_api::{
    hash,
    k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference,
    labels::{self, annotations},
    v1::NodePool,
};

use super::{
    bits::Bits,
    plan::{ClaimDraft, Placement, Plan, Unplaced, WhyNot},
    request::{MinValuesPolicy, ReservedMode},
    run::{Fate, Run},
    template::unmet_min_values,
    topology::Host,
};
use crate::requirements::{Operator, Requirement};

/// What the instance types left for a claim say.
struct Options {
    /// Rows by price.
    rows: Vec<(f64, u32)>,
    /// Names by price, each once.
    names: Vec<String>,
    capacity_types: Vec<String>,
    price_overlay: bool,
    capacity_overlay: bool,
}

impl Run<'_> {
    /// Turns what was placed into a plan.
    pub(super) fn into_plan(mut self) -> Plan {
        let mut plan = Plan {
            pools: self.solver.pools.clone(),
            ..Plan::default()
        };
        let mut dropped = vec![false; self.claims.len()];
        for (index, dropped) in dropped.iter_mut().enumerate() {
            match self.draft(index) {
                Some(draft) => plan.new_claims.push(draft),
                None => *dropped = true,
            }
        }
        let mut reasons: Vec<Option<WhyNot>> = vec![None; self.classes.len()];
        for index in 0..self.items.len() {
            let item = &self.items[index];
            let (pod, buffer, class, fate) =
                (item.pod.key.clone(), item.buffer, item.class, item.fate);
            match fate {
                Fate::Placed(Host::Machine(machine)) => {
                    plan.existing.push(Placement {
                        pod,
                        node: self.solver.machines[machine].name.clone(),
                        buffer,
                    });
                }
                Fate::Placed(Host::Claim(claim)) if dropped[claim] => {
                    plan.unplaced.push(Unplaced {
                        pod,
                        buffer,
                        why: WhyNot::MinValuesAfterTruncation,
                    });
                }
                Fate::Placed(Host::Claim(_)) => {}
                Fate::Waiting => plan.undecided.push(pod),
                Fate::Refused | Fate::Deferred => {
                    let why = match &reasons[class] {
                        Some(why) => why.clone(),
                        None => {
                            let why = self.explain(class);
                            reasons[class] = Some(why.clone());
                            why
                        }
                    };
                    let why = match (fate, why) {
                        (Fate::Deferred, WhyNot::NoFit(reasons)) => {
                            WhyNot::ReservationWait(reasons)
                        }
                        (_, why) => why,
                    };
                    plan.unplaced.push(Unplaced { pod, buffer, why });
                }
            }
        }
        plan
    }

    /// The NodeClaim of a claim; `None` if cutting the list of instance types breaks minValues.
    fn draft(&mut self, index: usize) -> Option<ClaimDraft> {
        let claim = self.claims[index].clone();
        let template = &self.solver.templates[claim.template];
        let catalogue = &self.solver.catalogues[template.catalogue];
        let names = &self.solver.snapshot.config().well_known;
        let mut requirements = self.algebra.requirements(claim.set);
        let reservations: Vec<String> = claim
            .reservations
            .iter()
            .map(|id| self.solver.reservations.ids[*id].clone())
            .collect();
        let tracked = self.request.reserved_mode != ReservedMode::Off && catalogue.has_reservations;
        if !reservations.is_empty() {
            let label = &self.solver.snapshot.config().reservation_id_label;
            requirements.replace(Requirement::equal(
                labels::CAPACITY_TYPE,
                labels::CAPACITY_TYPE_RESERVED,
            ));
            requirements.replace(Requirement::new(
                label,
                Operator::In,
                reservations.iter().map(String::as_str),
            ));
        } else if tracked {
            // DIFFERS: a claim that holds no reservation does not ask for reserved capacity.
            requirements.add(Requirement::new(
                labels::CAPACITY_TYPE,
                Operator::NotIn,
                [labels::CAPACITY_TYPE_RESERVED],
            ));
        }
        let set = self.algebra.set(&requirements, |key| names.contains(key));
        let rows = self.rows_with_room(
            claim.template,
            claim.set,
            &claim.used,
            claim.allowed.as_deref(),
        );
        let options = self.options(claim.template, set, &rows);
        let mut cut = options.names.clone();
        cut.truncate(self.request.max_instance_types);
        if cut.len() < options.names.len() {
            let kept = |row: &usize| cut.contains(&catalogue.type_of(*row).name);
            let left: Bits = options
                .rows
                .iter()
                .map(|(_, row)| *row as usize)
                .filter(kept)
                .collect();
            let unmet = unmet_min_values(catalogue, &self.algebra, claim.set, &left).is_some();
            if unmet && self.request.min_values_policy == MinValuesPolicy::Strict {
                return None;
            }
        }
        let min_values = requirements
            .get(labels::INSTANCE_TYPE)
            .and_then(Requirement::min_values);
        requirements.replace(
            Requirement::new(
                labels::INSTANCE_TYPE,
                Operator::In,
                cut.iter().map(String::as_str),
            )
            .with_min_values(min_values),
        );
        if !options.capacity_types.is_empty() {
            let min_values = requirements
                .get(labels::CAPACITY_TYPE)
                .and_then(Requirement::min_values);
            let offered = options.capacity_types.iter().map(String::as_str);
            requirements.replace(
                Requirement::new(labels::CAPACITY_TYPE, Operator::In, offered)
                    .with_min_values(min_values),
            );
        }
        for label in [labels::HOSTNAME, labels::REGISTERED, labels::INITIALIZED] {
            requirements.remove(label);
        }
        let mut requests = self.solver.dimensions.resources(&claim.used);
        requests.add_assign(&template.least_overhead(Some(&rows)));
        let mut node_claim = template.pool.spec.template.to_node_claim();
        node_claim.spec.requirements = requirements.to_node_selector_requirements();
        node_claim.spec.resources.requests = requests.to_quantities();
        let custom = requirements.labels(|key| !names.contains(key));
        let metadata = &mut node_claim.metadata;
        metadata.generate_name = Some(format!("{}-", template.name));
        metadata.owner_references = Some(vec![owner(&template.pool)]);
        let mut all_labels = custom;
        all_labels.extend(template.labels.clone());
        metadata.labels = Some(all_labels);
        let marks = metadata.annotations.get_or_insert_default();
        marks.insert(
            annotations::NODE_POOL_HASH.to_owned(),
            hash::node_pool(&template.pool),
        );
        marks.insert(
            annotations::NODE_POOL_HASH_VERSION.to_owned(),
            hash::NODE_POOL_HASH_VERSION.to_owned(),
        );
        let relaxed = claim.min_values_relaxed;
        marks.insert(
            annotations::MIN_VALUES_RELAXED.to_owned(),
            relaxed.to_string(),
        );
        if options.price_overlay {
            marks.insert(
                annotations::PRICE_OVERLAY_APPLIED.to_owned(),
                "true".to_owned(),
            );
        }
        if options.capacity_overlay {
            marks.insert(
                annotations::CAPACITY_OVERLAY_APPLIED.to_owned(),
                "true".to_owned(),
            );
        }
        let key = |buffer: bool| {
            let items = claim.pods.iter().map(|item| &self.items[*item as usize]);
            items
                .filter(move |item| item.buffer == buffer)
                .map(|item| item.pod.key.clone())
                .collect()
        };
        Some(ClaimDraft {
            node_pool: template.name.clone(),
            pods: key(false),
            buffer_pods: key(true),
            instance_types: cut,
            requests,
            hourly_price: options.rows.first().map_or(0.0, |(price, _)| *price),
            min_values_relaxed: relaxed,
            reservations,
            claim: node_claim,
        })
    }

    fn options(&mut self, template: usize, set: super::algebra::SetId, rows: &Bits) -> Options {
        let catalogue_index = self.solver.templates[template].catalogue;
        let kinds = self.kinds(catalogue_index, set);
        let catalogue = &self.solver.catalogues[catalogue_index];
        let mut priced: Vec<(f64, u32)> = rows
            .iter()
            .filter_map(|row| Some((catalogue.price(row, &kinds)?, row as u32)))
            .collect();
        let name = |row: u32| catalogue.type_of(row as usize).name.as_str();
        priced.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| name(a.1).cmp(name(b.1))));
        let mut names: Vec<String> = Vec::with_capacity(priced.len());
        let mut seen = rustc_hash::FxHashSet::default();
        let mut offered = Bits::default();
        let mut price_overlay = false;
        let mut capacity_overlay = false;
        for (_, row) in &priced {
            if seen.insert(name(*row)) {
                names.push(name(*row).to_owned());
            }
            capacity_overlay |= catalogue.type_of(*row as usize).capacity_overlay;
            for offer in catalogue
                .offers(*row as usize)
                .iter()
                .filter(|offer| kinds.contains(offer.kind as usize))
            {
                offered.insert(offer.kind as usize);
                price_overlay |= offer.overlay;
            }
        }
        let key = self.algebra.find_key(labels::CAPACITY_TYPE);
        let mut capacity_types: Vec<String> = offered
            .iter()
            .filter_map(|kind| self.algebra.get(catalogue.kinds[kind].set, key?))
            .flat_map(|req| {
                self.algebra
                    .requirement(req)
                    .values()
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            })
            .collect();
        capacity_types.sort();
        capacity_types.dedup();
        Options {
            rows: priced,
            names,
            capacity_types,
            price_overlay,
            capacity_overlay,
        }
    }
}

fn owner(pool: &NodePool) -> OwnerReference {
    OwnerReference {
        api_version: "karpenter.sh/v1".to_owned(),
        kind: "NodePool".to_owned(),
        name: pool.metadata.name.clone().unwrap_or_default(),
        uid: pool.metadata.uid.clone().unwrap_or_default(),
        block_owner_deletion: Some(true),
        controller: None,
    }
}
