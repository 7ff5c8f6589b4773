//! The valid NodeOverlays, and instance types with them applied.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use karpenter_api::v1::NodePool;
use karpenter_api::v1alpha1::NodeOverlay;
use karpenter_api::validation::WellKnown;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::overlay;
use karpenter_core::provider::{CloudProviderError, Overlays};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// The valid overlays, and the NodePools they were evaluated against. Cheap to clone; clones share the state.
#[derive(Debug, Clone, Default)]
pub struct Accepted {
    current: Arc<ArcSwap<Verdict>>,
}

#[derive(Debug, Default)]
struct Verdict {
    overlays: Vec<Arc<NodeOverlay>>,
    pools: BTreeMap<String, Arc<NodePool>>,
    applied: Mutex<FxHashMap<String, Applied>>,
}

/// Instance types of a NodePool with overlays applied, valid for this generation of the NodePool and these instance types.
#[derive(Debug)]
struct Applied {
    generation: Option<i64>,
    base: Arc<[InstanceType]>,
    types: Arc<[InstanceType]>,
}

impl Accepted {
    /// Publishes the valid overlays for these NodePools; returns false if nothing has changed.
    pub fn publish(
        &self,
        overlays: Vec<Arc<NodeOverlay>>,
        pools: BTreeMap<String, Arc<NodePool>>,
    ) -> bool {
        let current = self.current.load();
        let pairs = |all: &[Arc<NodeOverlay>]| -> Vec<_> {
            all.iter()
                .map(|o| (o.name().to_owned(), o.spec.clone()))
                .collect()
        };
        let specs = |pools: &BTreeMap<String, Arc<NodePool>>| -> Vec<_> {
            pools
                .values()
                .map(|pool| (pool.name().to_owned(), pool.metadata.generation))
                .collect()
        };
        if specs(&current.pools) == specs(&pools) && pairs(&current.overlays) == pairs(&overlays) {
            return false;
        }
        self.current.store(Arc::new(Verdict {
            overlays,
            pools,
            applied: Mutex::default(),
        }));
        true
    }

    /// Returns the overlays as a provider with these well-known labels reads them.
    pub(crate) fn seen(&self, names: &WellKnown) -> Arc<dyn Overlays> {
        Arc::new(Seen {
            accepted: self.clone(),
            names: names.clone(),
        })
    }

    /// Returns the instance types of `pool` with the overlays applied.
    ///
    /// # Errors
    /// A NodePool that has not been evaluated yet has none.
    pub(crate) fn apply(
        &self,
        pool: &NodePool,
        base: Arc<[InstanceType]>,
        names: &WellKnown,
    ) -> Result<Arc<[InstanceType]>, CloudProviderError> {
        let verdict = self.current.load();
        if !verdict.pools.contains_key(pool.name()) {
            return Err(CloudProviderError::UnevaluatedNodePool(
                pool.name().to_owned(),
            ));
        }
        if verdict.overlays.is_empty() {
            return Ok(base);
        }
        let generation = pool.metadata.generation;
        let mut applied = verdict.applied.lock();
        if let Some(known) = applied.get(pool.name())
            && known.generation == generation
            && Arc::ptr_eq(&known.base, &base)
        {
            return Ok(Arc::clone(&known.types));
        }
        let types = overlay::apply(&verdict.overlays, pool, &base, names);
        applied.insert(
            pool.name().to_owned(),
            Applied {
                generation,
                base,
                types: Arc::clone(&types),
            },
        );
        Ok(types)
    }
}

/// The overlays as a provider reads them.
struct Seen {
    accepted: Accepted,
    names: WellKnown,
}

impl Overlays for Seen {
    fn apply(
        &self,
        node_pool: &str,
        types: Arc<[InstanceType]>,
    ) -> Result<Arc<[InstanceType]>, CloudProviderError> {
        let pool = self.accepted.current.load().pools.get(node_pool).cloned();
        let pool =
            pool.ok_or_else(|| CloudProviderError::UnevaluatedNodePool(node_pool.to_owned()))?;
        self.accepted.apply(&pool, types, &self.names)
    }

    fn accepted(&self) -> Vec<Arc<NodeOverlay>> {
        self.accepted.current.load().overlays.clone()
    }
}

#[cfg(test)]
mod tests {
    use karpenter_core::fake;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pool_has_no_types_before_it_is_evaluated_and_stable_ones_afterwards() {
        let pool: NodePool = serde_json::from_value(json!({
            "metadata": {"name": "p", "generation": 1},
            "spec": {"template": {"spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}, "requirements": []}}},
        }))
        .unwrap();
        let overlay: NodeOverlay = serde_json::from_value(
            json!({"metadata": {"name": "o"}, "spec": {"requirements": [], "price": "0.5"}}),
        )
        .unwrap();
        let (accepted, base, names) = (Accepted::default(), fake::catalogue(), fake::well_known());
        let types = |pool: &NodePool| accepted.apply(pool, Arc::clone(&base), &names);
        assert!(matches!(
            types(&pool),
            Err(CloudProviderError::UnevaluatedNodePool(_))
        ));
        let pools: BTreeMap<String, Arc<NodePool>> =
            [("p".to_owned(), Arc::new(pool.clone()))].into();
        assert!(accepted.publish(vec![], pools.clone()));
        assert!(Arc::ptr_eq(&types(&pool).unwrap(), &base));
        assert!(accepted.publish(vec![Arc::new(overlay.clone())], pools.clone()));
        let first = types(&pool).unwrap();
        assert!(
            first[0]
                .offerings
                .iter()
                .all(|o| (o.price - 0.5).abs() < 1e-9)
        );
        assert!(Arc::ptr_eq(&first, &types(&pool).unwrap()), "applied once");
        let seen = accepted.seen(&names);
        let by_name = |pool: &str| seen.apply(pool, Arc::clone(&base));
        assert!(
            Arc::ptr_eq(&first, &by_name("p").unwrap()),
            "the provider reads the same"
        );
        assert!(matches!(
            by_name("q"),
            Err(CloudProviderError::UnevaluatedNodePool(_))
        ));
        assert!(
            !accepted.publish(vec![Arc::new(overlay)], pools),
            "unchanged"
        );
        assert!(Arc::ptr_eq(&first, &types(&pool).unwrap()));
    }
}
