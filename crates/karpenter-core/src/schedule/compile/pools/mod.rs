//! The NodePools that can be used, with their instance types.

pub(crate) mod daemons;
pub(crate) mod template;

use std::collections::BTreeMap;
use std::sync::Arc;

use index_vec::IndexVec;
use karpenter_api::v1::{NodePool, Operator};
use rustc_hash::FxHashMap;

use crate::cluster::Snapshot;
use crate::instance_type::InstanceType;
use crate::limits::{Sizes, known_usage};
use crate::overlay;
use crate::resources::Resources;
use crate::schedule::compile::algebra::Algebra;
use crate::schedule::compile::catalogue::{Catalogue, Compiler, Reservations};
use crate::schedule::compile::ids::{CatalogueId, TemplateId};
use crate::schedule::compile::pools::daemons::Daemon;
use crate::schedule::compile::pools::template::{Template, TemplateCompiler};
use crate::schedule::compile::solver::Solver;
use crate::schedule::compile::vectors::Dimensions;
use crate::schedule::reasons::{PoolOutcome, PoolReport};
use crate::schedule::request::MinValuesPolicy;
use crate::spelling::nearest;
use crate::taints::{Effect, Taint};

/// The NodePools, compiled.
pub(crate) struct Pools {
    pub(crate) algebra: Algebra,
    pub(crate) catalogues: IndexVec<CatalogueId, Arc<Catalogue>>,
    pub(crate) reservations: Reservations,
    pub(crate) templates: IndexVec<TemplateId, Template>,
    pub(crate) usage: Arc<Usage>,
    /// The outcome of each NodePool, in the order they are tried.
    pub(crate) reports: Vec<PoolReport>,
}

/// What the nodes of each NodePool with limits use of them.
pub(crate) type Usage = BTreeMap<String, Resources>;

/// Reports whether there is a taint with effect PreferNoSchedule.
pub(crate) fn is_soft(taints: &[Taint]) -> bool {
    let mut taints = taints.iter();
    taints.any(|taint| taint.effect == Some(Effect::PreferNoSchedule))
}

impl Pools {
    pub(crate) fn compile(
        snapshot: &Snapshot,
        min_values: MinValuesPolicy,
        daemons: &[Daemon],
        dimensions: &Dimensions,
    ) -> Self {
        let pools = instance_types(snapshot);
        let usage = Arc::new(usage(snapshot, &pools));
        let mut compiled = Self {
            algebra: Algebra::new(),
            catalogues: IndexVec::new(),
            reservations: Reservations::default(),
            templates: IndexVec::new(),
            reports: Vec::new(),
            usage,
        };
        compiled.add_all(snapshot, pools, min_values, daemons, dimensions);
        promise_to_waiting(snapshot, &mut compiled.reservations);
        compiled.algebra = compiled.algebra.freeze();
        compiled
    }

    /// Compiles the NodePools of a changed copy of a solver's snapshot; shares the solver's catalogues if they are the same.
    pub(crate) fn recompile(
        solver: &Solver,
        copy: &Snapshot,
        min_values: MinValuesPolicy,
        daemons: &[Daemon],
    ) -> Self {
        let pools = instance_types(copy);
        let is_known = |types: &Arc<[InstanceType]>| {
            let mut known = solver.catalogues.iter();
            known.any(|catalogue| Arc::ptr_eq(&catalogue.types, types))
        };
        let mut types = pools.iter().filter_map(|(_, types)| types.as_ref().ok());
        // The usage of launching nodes depends on the instance types, and is known for NodePools that had limits.
        let limited = |pool: &NodePool| {
            pool.spec.limits.is_empty()
                || solver
                    .snapshot
                    .node_pool(pool.name())
                    .is_some_and(|old| !old.spec.limits.is_empty())
        };
        if !types.all(is_known) || !pools.iter().all(|(pool, _)| limited(pool)) {
            return Self::compile(copy, min_values, daemons, &solver.dimensions);
        }
        let mut compiled = Self {
            algebra: solver.algebra.thaw(),
            catalogues: solver.catalogues.clone(),
            reservations: solver.reservations.clone(),
            templates: IndexVec::new(),
            reports: Vec::new(),
            usage: solver.usage.clone(),
        };
        compiled.add_all(copy, pools, min_values, daemons, &solver.dimensions);
        compiled.algebra = compiled.algebra.freeze();
        compiled
    }

    /// Reports whether some NodePool has a taint with effect PreferNoSchedule.
    pub(crate) fn has_soft_taints(&self) -> bool {
        self.templates
            .iter()
            .any(|template| is_soft(&template.taints))
    }

    /// Reports whether limits or reservations may be released during a pass.
    pub(crate) fn releases_capacity(&self) -> bool {
        self.templates.iter().any(|template| {
            !template.limit_names.is_empty() || self.catalogues[template.catalogue].has_reservations
        })
    }

    fn add_all(
        &mut self,
        snapshot: &Snapshot,
        pools: Vec<Pool>,
        min_values: MinValuesPolicy,
        daemons: &[Daemon],
        dimensions: &Dimensions,
    ) {
        let well_known = &snapshot.config().well_known;
        let is_known = |key: &str| well_known.contains(key);
        let Self {
            algebra,
            catalogues,
            reservations,
            templates,
            reports,
            usage,
        } = self;
        for (pool, types) in pools {
            let name = pool.metadata.name.clone().unwrap_or_default();
            let outcome = types.and_then(|types| {
                let found = catalogues.position(|catalogue| Arc::ptr_eq(&catalogue.types, &types));
                let index = found.unwrap_or_else(|| {
                    let mut compiler = Compiler {
                        algebra,
                        dimensions,
                        reservations,
                        reservation_label: &snapshot.config().reservation_id_label,
                        is_known: &is_known,
                    };
                    catalogues.push(Arc::new(Catalogue::compile(types, &mut compiler)))
                });
                let mut compiler = TemplateCompiler {
                    algebra,
                    dimensions,
                    well_known,
                    daemons,
                    min_values,
                };
                let none = Resources::new();
                Template::compile(
                    &pool,
                    (index, &catalogues[index]),
                    usage.get(&name).unwrap_or(&none),
                    &mut compiler,
                )
            });
            let outcome = match outcome {
                Ok(template) => {
                    templates.push(template);
                    PoolOutcome::Used
                }
                Err(outcome) => outcome,
            };
            reports.push(PoolReport {
                node_pool: name,
                outcome,
            });
        }
        for name in snapshot.instance_type_pools() {
            if snapshot.node_pool(name).is_none() {
                reports.push(PoolReport {
                    node_pool: name.to_owned(),
                    outcome: PoolOutcome::NotFound {
                        similar: similar_pool(snapshot, name),
                    },
                });
            }
        }
    }
}

/// Returns the NodePool whose name is most similar to `name`, if one differs in two characters at most.
pub(crate) fn similar_pool(snapshot: &Snapshot, name: &str) -> Option<String> {
    let known = snapshot.node_pools().map(|pool| pool.name());
    nearest(name, known).map(str::to_owned)
}

/// A NodePool with its instance types, or why it is not used.
type Pool = (Arc<NodePool>, Result<Arc<[InstanceType]>, PoolOutcome>);

/// Returns the NodePools in the order they are tried, each with its instance types, or why it cannot be used.
fn instance_types(snapshot: &Snapshot) -> Vec<Pool> {
    let mut pools: Vec<Arc<NodePool>> = snapshot.node_pools().cloned().collect();
    pools.sort_by(|a, b| NodePool::scheduling_order(a, b));
    let mut overlays: Vec<_> = snapshot.node_overlays().cloned().collect();
    if !snapshot.config().node_overlays {
        overlays.clear();
    }
    pools
        .into_iter()
        .map(|pool| {
            let name = pool.metadata.name.clone().unwrap_or_default();
            let ready = pool
                .status
                .conditions
                .iter()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True");
            let types = if pool.is_static() {
                Err(PoolOutcome::Static)
            } else if pool.is_deleting() {
                Err(PoolOutcome::Deleting)
            } else if !ready {
                Err(PoolOutcome::NotReady)
            } else {
                match snapshot.instance_types(&name) {
                    None => Err(PoolOutcome::Unevaluated),
                    Some(Err(problem)) => Err(PoolOutcome::Unknown(problem.clone())),
                    Some(Ok(types)) if types.is_empty() => {
                        Err(PoolOutcome::Unknown("no instance types".to_owned()))
                    }
                    Some(Ok(types)) => Ok(if overlays.is_empty() {
                        types.clone()
                    } else {
                        overlay::apply(&overlays, &pool, types, &snapshot.config().well_known)
                    }),
                }
            };
            (pool, types)
        })
        .collect()
}

/// Returns the resources that the nodes of each NodePool with limits use of them.
fn usage(snapshot: &Snapshot, pools: &[Pool]) -> Usage {
    let mut usage = Usage::new();
    let limited = pools
        .iter()
        .filter(|(pool, _)| !pool.spec.limits.is_empty());
    let limited: FxHashMap<&str, &Pool> = { limited }.map(|each| (each.0.name(), each)).collect();
    if limited.is_empty() {
        return usage;
    }
    let mut sizes: FxHashMap<&str, Sizes<'_>> = FxHashMap::default();
    for node in snapshot.nodes().filter(|node| !node.is_deleting()) {
        let of_pool = node
            .node_pool()
            .and_then(|name| limited.get_key_value(name));
        let Some((name, (_, types))) = of_pool else {
            continue;
        };
        let used = match types {
            Ok(types) if node.is_launching() => {
                let sizes = sizes.entry(name).or_insert_with(|| Sizes::of(types));
                sizes.usage(node)
            }
            _ => known_usage(node),
        };
        let all = usage.entry((*name).to_owned()).or_default();
        all.add_assign(&used);
    }
    usage
}

/// Deducts from reservations the instances of NodeClaims that are not launched yet: the provider counts an instance when it
/// launches it. Upstream plans nothing in the meantime.
fn promise_to_waiting(snapshot: &Snapshot, reservations: &mut Reservations) {
    if reservations.ids.is_empty() {
        return;
    }
    let label = &snapshot.config().reservation_id_label;
    let claims = snapshot.node_claims();
    let waiting = claims.filter(|claim| claim.status.provider_id.is_none() && !claim.is_deleting());
    for requirement in waiting.flat_map(|claim| &claim.spec.requirements) {
        if requirement.key == *label && requirement.operator == Operator::In {
            requirement
                .values
                .iter()
                .for_each(|id| reservations.promise(id));
        }
    }
}
