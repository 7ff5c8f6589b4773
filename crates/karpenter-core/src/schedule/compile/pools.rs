//! The NodePools that can be used, with their instance types.

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
use crate::schedule::compile::daemons::Daemon;
use crate::schedule::compile::ids::{CatalogueId, TemplateId};
use crate::schedule::compile::template::{Template, TemplateCompiler};
use crate::schedule::compile::vectors::Dimensions;
use crate::schedule::report::plan::PoolReport;
use crate::schedule::report::reasons::PoolOutcome;
use crate::schedule::request::MinValuesPolicy;

/// The NodePools, compiled.
pub(crate) struct Pools {
    pub(crate) algebra: Algebra,
    pub(crate) catalogues: IndexVec<CatalogueId, Catalogue>,
    pub(crate) reservations: Reservations,
    pub(crate) templates: IndexVec<TemplateId, Template>,
    /// The outcome of each NodePool, in the order they are tried.
    pub(crate) reports: Vec<PoolReport>,
}

impl Pools {
    pub(crate) fn compile(
        snapshot: &Snapshot,
        min_values: MinValuesPolicy,
        daemons: &[Daemon],
        dimensions: &Dimensions,
    ) -> Self {
        let well_known = &snapshot.config().well_known;
        let is_known = |key: &str| well_known.contains(key);
        let mut algebra = Algebra::new();
        let mut reservations = Reservations::default();
        let mut catalogues: IndexVec<CatalogueId, Catalogue> = IndexVec::new();
        let mut templates = IndexVec::new();
        let mut reports = Vec::new();
        let pools = instance_types(snapshot);
        let usage = usage(snapshot, &pools);
        for (pool, types) in pools {
            let name = pool.metadata.name.clone().unwrap_or_default();
            let outcome = types.and_then(|types| {
                let found = catalogues.position(|catalogue| Arc::ptr_eq(&catalogue.types, &types));
                let index = found.unwrap_or_else(|| {
                    let mut compiler = Compiler {
                        algebra: &mut algebra,
                        dimensions,
                        reservations: &mut reservations,
                        reservation_label: &snapshot.config().reservation_id_label,
                        is_known: &is_known,
                    };
                    catalogues.push(Catalogue::compile(types, &mut compiler))
                });
                let mut compiler = TemplateCompiler {
                    algebra: &mut algebra,
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
        promise_to_waiting(snapshot, &mut reservations);
        Self {
            algebra: algebra.freeze(),
            catalogues,
            reservations,
            templates,
            reports,
        }
    }
}

/// Returns the NodePool whose name is most similar to `name`, if one differs in two characters at most.
pub(crate) fn similar_pool(snapshot: &Snapshot, name: &str) -> Option<String> {
    let near = |pool: &Arc<NodePool>| {
        let distance = strsim::osa_distance(pool.name(), name);
        // A name of two characters is similar to all others of two characters.
        (distance <= 2 && distance < name.len()).then(|| (distance, pool.name().to_owned()))
    };
    let (_, nearest) = snapshot.node_pools().filter_map(near).min()?;
    Some(nearest)
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

/// Returns the resources that the nodes of each NodePool use of its limits.
fn usage(snapshot: &Snapshot, pools: &[Pool]) -> BTreeMap<String, Resources> {
    let mut usage: BTreeMap<String, Resources> = BTreeMap::new();
    let mut sizes: FxHashMap<&str, Sizes<'_>> = FxHashMap::default();
    let types_of = |name: &str| {
        pools.iter().find_map(|(pool, types)| {
            let found = pool.name() == name && !pool.spec.limits.is_empty();
            types.as_ref().ok().filter(|_| found)
        })
    };
    for node in snapshot.nodes().filter(|node| !node.is_deleting()) {
        let Some(name) = node.node_pool() else {
            continue;
        };
        let types = node.is_launching().then(|| types_of(name)).flatten();
        let used = match types {
            Some(types) => {
                let sizes = sizes.entry(name).or_insert_with(|| Sizes::of(types));
                sizes.usage(node)
            }
            None => known_usage(node),
        };
        usage.entry(name.to_owned()).or_default().add_assign(&used);
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
