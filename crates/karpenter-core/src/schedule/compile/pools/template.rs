//! NodePools, compiled: the state of a new planned node of each before any pod is placed on it.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use index_vec::Idx;
use karpenter_api::labels;
use karpenter_api::v1::NodePool;
use karpenter_api::validation::WellKnown;

use crate::pod::HostPort;
use crate::requirements::{Requirement, Requirements};
use crate::resources::Resources;
use crate::schedule::compile::algebra::{Algebra, KeyId, SetId};
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::capacity_index::CapacityIndex;
use crate::schedule::compile::catalogue::Catalogue;
use crate::schedule::compile::ids::{CatalogueId, RowId};
use crate::schedule::compile::pools::daemons::Daemon;
use crate::schedule::compile::vectors::{Dimensions, subtract};
use crate::schedule::reasons::PoolOutcome;
use crate::schedule::request::MinValuesPolicy;
use crate::taints::{Taint, untolerated};

/// Rows on which the same DaemonSets run.
#[derive(Clone, Debug)]
pub(crate) struct DaemonGroup {
    pub(crate) rows: Bits<RowId>,
    pub(crate) requests: Resources,
    pub(crate) ports: Vec<HostPort>,
}

/// A new planned node of a NodePool.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    pub(crate) pool: Arc<NodePool>,
    pub(crate) name: String,
    pub(crate) catalogue: CatalogueId,
    pub(crate) set: SetId,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) taints: Vec<Taint>,
    /// Rows that meet the NodePool's own requirements.
    pub(crate) rows: Bits<RowId>,
    /// The same, roomiest first.
    pub(crate) order: Arc<Vec<RowId>>,
    pub(crate) groups: Vec<DaemonGroup>,
    /// Room for pods after the DaemonSets, row by row.
    room: Vec<i64>,
    /// The number of resources.
    width: usize,
    /// The same, sorted; built on first use.
    index: OnceLock<CapacityIndex<RowId>>,
    /// Limited resources.
    pub(crate) limit_names: Vec<String>,
    /// The limits.
    pub(crate) limits: Vec<i64>,
    /// The remainder of each limit before this pass.
    pub(crate) limits_left: Vec<i64>,
    /// The place of the limit on `nodes`.
    pub(crate) node_limit: Option<usize>,
    /// The amount that each row uses of each limit.
    limit_costs: Vec<i64>,
}

/// The context that compiling a template needs.
pub(crate) struct TemplateCompiler<'a> {
    pub(crate) algebra: &'a mut Algebra,
    pub(crate) dimensions: &'a Dimensions,
    pub(crate) well_known: &'a WellKnown,
    pub(crate) daemons: &'a [Daemon],
    pub(crate) min_values: MinValuesPolicy,
}

impl Template {
    /// Compiles a NodePool; the error is the reason why it cannot be used.
    pub(crate) fn compile(
        pool: &Arc<NodePool>,
        (index, catalogue): (CatalogueId, &Catalogue),
        usage: &Resources,
        compiler: &mut TemplateCompiler<'_>,
    ) -> Result<Self, PoolOutcome> {
        let name = pool.metadata.name.clone().unwrap_or_default();
        let template = &pool.spec.template;
        let class = &template.spec.node_class_ref;
        let mut labels = template.metadata.labels.clone().unwrap_or_default();
        labels.insert(labels::NODE_POOL.to_owned(), name.clone());
        labels.insert(
            labels::node_class(&class.group, &class.kind),
            class.name.clone(),
        );
        let mut requirements =
            Requirements::from_api(&template.spec.requirements, compiler.well_known)
                .map_err(|problem| PoolOutcome::Invalid(problem.into()))?;
        requirements.add_all(&Requirements::from_labels(&labels, compiler.well_known));
        for label in [labels::REGISTERED, labels::INITIALIZED] {
            requirements.add(Requirement::equal(label, "true"));
        }
        let known = |key: &str| compiler.well_known.contains(key);
        let set = compiler.algebra.set(&requirements, known);
        let algebra = &mut *compiler.algebra;
        let mut rows = catalogue.rows_meeting_all(algebra, set);
        rows.intersect(&catalogue.rows_of(&catalogue.kinds_in(algebra, set)));
        if rows.is_empty() {
            return Err(PoolOutcome::NoCompatibleInstanceTypes { min_values: false });
        }
        if compiler.min_values == MinValuesPolicy::Strict
            && unmet_min_values(catalogue, compiler.algebra, set, &rows).is_some()
        {
            return Err(PoolOutcome::NoCompatibleInstanceTypes { min_values: true });
        }
        let taints: Vec<Taint> = template
            .spec
            .taints
            .iter()
            .flatten()
            .map(Taint::parse)
            .collect();
        let groups = daemon_groups(catalogue, set, &taints, compiler);
        let room = room_after_daemons(catalogue, &groups, compiler.dimensions);
        let limits = Resources::allocatable_from(&pool.spec.limits)
            .map_err(|problem| PoolOutcome::Invalid(problem.into()))?;
        let mut compiled = Self {
            pool: pool.clone(),
            name,
            catalogue: index,
            set,
            labels,
            taints,
            order: Arc::new(by_size(&rows, &room, compiler.dimensions.len())),
            rows,
            groups,
            room,
            width: compiler.dimensions.len(),
            index: OnceLock::new(),
            limit_names: limits.iter().map(|(name, _)| name.to_owned()).collect(),
            limits: limits.iter().map(|(_, value)| value).collect(),
            node_limit: limits.iter().position(|(name, _)| name == "nodes"),
            limits_left: limits
                .iter()
                .map(|(name, value)| value.saturating_sub(usage.get(name)))
                .collect(),
            limit_costs: Vec::new(),
        };
        for row in catalogue.row_type.indices() {
            let capacity = &catalogue.type_of(row).capacity;
            let cost = |name: &String| {
                if name == "nodes" {
                    1
                } else {
                    capacity.get(name)
                }
            };
            compiled
                .limit_costs
                .extend(compiled.limit_names.iter().map(cost));
        }
        Ok(compiled)
    }

    #[inline]
    pub(crate) fn row_room(&self, row: RowId) -> &[i64] {
        &self.room[row.index() * self.width..(row.index() + 1) * self.width]
    }

    /// Returns the amounts that a row uses of the limits.
    pub(crate) fn limit_costs(&self, row: RowId) -> &[i64] {
        let count = self.limit_names.len();
        &self.limit_costs[row.index() * count..(row.index() + 1) * count]
    }

    /// Returns the rows with room for `used`.
    pub(crate) fn rows_for(&self, used: &[i64]) -> Bits<RowId> {
        self.index
            .get_or_init(|| CapacityIndex::new(&self.rows, &self.room, self.width))
            .with_room_for(used)
    }

    /// Returns the largest DaemonSet overhead of any instance type, per resource.
    pub(crate) fn most_overhead(&self) -> Resources {
        let mut most = Resources::new();
        for group in &self.groups {
            most.max_assign(&group.requests);
        }
        most
    }

    /// Returns the smallest DaemonSet overhead of any instance type in `rows`, per resource.
    pub(crate) fn least_overhead(&self, rows: Option<&Bits<RowId>>) -> Resources {
        let has_rows = |group: &&DaemonGroup| match rows {
            None => true,
            Some(rows) => group.rows.iter().any(|row| rows.contains(row)),
        };
        let mut groups = self.groups.iter().filter(has_rows);
        let Some(first) = groups.next() else {
            return Resources::new();
        };
        let mut least = first.requests.clone();
        for group in groups {
            least.retain(|name, _| group.requests.contains(name));
            let names: Vec<(String, i64)> = least
                .iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect();
            for (name, value) in names {
                least.set(&name, value.min(group.requests.get(&name)));
            }
        }
        least
    }
}

/// A key with fewer different values than its minValues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnmetMinValues {
    pub(crate) key: KeyId,
    pub(crate) min_values: u32,
    pub(crate) found: u32,
}

/// Returns the first key with fewer different values over `rows` than its minValues.
pub(crate) fn unmet_min_values(
    catalogue: &Catalogue,
    algebra: &Algebra,
    set: SetId,
    rows: &Bits<RowId>,
) -> Option<UnmetMinValues> {
    if !algebra.has_min_values(set) {
        return None;
    }
    algebra.members(set).iter().find_map(|(key, req)| {
        let min_values = algebra.requirement(*req).min_values()?;
        let found = distinct_values(catalogue, algebra, *key, rows);
        (found < min_values).then_some(UnmetMinValues {
            key: *key,
            min_values,
            found,
        })
    })
}

/// Returns the number of different values of `key` that the instance types of `rows` list.
pub(crate) fn distinct_values(
    catalogue: &Catalogue,
    algebra: &Algebra,
    key: KeyId,
    rows: &Bits<RowId>,
) -> u32 {
    let mut values = rustc_hash::FxHashSet::default();
    for row in rows.iter() {
        if let Some(req) = catalogue.requirement(row, key) {
            let requirement = algebra.requirement(req);
            if !requirement.is_complement() {
                values.extend(requirement.values().map(str::to_owned));
            }
        }
    }
    values.len() as u32
}

fn daemon_groups(
    catalogue: &Catalogue,
    set: SetId,
    taints: &[Taint],
    compiler: &mut TemplateCompiler<'_>,
) -> Vec<DaemonGroup> {
    let mut running: Vec<(usize, Bits<RowId>)> = Vec::new();
    for (index, daemon) in compiler.daemons.iter().enumerate() {
        if untolerated(taints, &daemon.tolerations).is_some() {
            continue;
        }
        let mut rows = Bits::default();
        for alternative in &daemon.sets {
            let wanted = compiler
                .algebra
                .set(alternative, |key| compiler.well_known.contains(key));
            if compiler.algebra.join(set, wanted).is_none() {
                continue;
            }
            rows.unite(&catalogue.rows_meeting_all(compiler.algebra, wanted));
        }
        if !rows.is_empty() {
            running.push((index, rows));
        }
    }
    let mut groups: BTreeMap<Vec<usize>, Bits<RowId>> = BTreeMap::new();
    for row in catalogue.row_type.indices() {
        let daemons = running
            .iter()
            .filter(|(_, rows)| rows.contains(row))
            .map(|(index, _)| *index)
            .collect();
        groups.entry(daemons).or_default().insert(row);
    }
    groups
        .into_iter()
        .map(|(daemons, rows)| {
            let mut group = DaemonGroup {
                rows,
                requests: Resources::new(),
                ports: Vec::new(),
            };
            for daemon in daemons.iter().map(|index| &compiler.daemons[*index]) {
                group.requests.add_assign(&daemon.shape.requests);
                group.ports.extend(daemon.shape.host_ports.iter().cloned());
            }
            group
        })
        .collect()
}

fn room_after_daemons(
    catalogue: &Catalogue,
    groups: &[DaemonGroup],
    dimensions: &Dimensions,
) -> Vec<i64> {
    let width = dimensions.len();
    let mut room = catalogue.room.clone();
    for group in groups {
        let requests = dimensions.vector(&group.requests);
        for row in group.rows.iter() {
            subtract(
                &mut room[row.index() * width..(row.index() + 1) * width],
                &requests,
            );
        }
    }
    for row in catalogue.broken.iter() {
        room[row.index() * width..(row.index() + 1) * width].fill(i64::MIN);
    }
    room
}

/// Sorts rows by the sum of their resources relative to the largest amounts.
fn by_size(rows: &Bits<RowId>, room: &[i64], width: usize) -> Vec<RowId> {
    let mut most = vec![1.0_f64; width];
    for row in rows.iter() {
        for (most, room) in most.iter_mut().zip(&room[row.index() * width..]) {
            *most = most.max(*room as f64);
        }
    }
    let size = |row: RowId| -> f64 {
        most.iter()
            .zip(&room[row.index() * width..])
            .map(|(most, room)| *room as f64 / most)
            .sum()
    };
    let mut order: Vec<(f64, RowId)> = rows.iter().map(|row| (size(row), row)).collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    order.into_iter().map(|(_, row)| row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_by_the_sum_of_their_shares_of_the_largest_amounts() {
        // Of 8 and 100: 0.25 + 0.5, 1 + 0.1, 0.5 + 1, and the same again.
        let room = [2, 50, 8, 10, 4, 100, 4, 100];
        let rows: Bits<RowId> = (0..4).map(RowId).collect();
        let sorted: Vec<u32> = by_size(&rows, &room, 2).iter().map(|row| row.0).collect();
        assert_eq!(sorted, [2, 3, 1, 0]);
    }
}
