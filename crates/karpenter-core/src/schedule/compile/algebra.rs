//! Requirements as small integers.
//!
//! Each distinct requirement, and each distinct set of requirements, is stored once and identified by a number. The
//! intersection of two of them is computed once and cached. A cluster has few distinct requirements, whatever its size, so in
//! the solver's loops the check whether a pod's requirements match a set of labels is one lookup.

//! A table can be layered over a frozen one: simulations share the frozen part and add their own entries.

use std::borrow::Borrow;
use std::hash::Hash;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::requirements::{Requirement, Requirements};

/// A label key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct KeyId(pub(crate) u32);

/// A requirement on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ReqId(pub(crate) u32);

/// A set of requirements, one per key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SetId(pub(crate) u32);

/// The set without requirements.
pub(crate) const ANYTHING: SetId = SetId(0);

type Set = Arc<[(KeyId, ReqId)]>;

#[derive(Clone, Debug, Default)]
struct Table {
    keys: Vec<(Arc<str>, bool)>,
    key_ids: FxHashMap<Arc<str>, KeyId>,
    reqs: Vec<(KeyId, Arc<Requirement>)>,
    req_ids: FxHashMap<Arc<Requirement>, ReqId>,
    sets: Vec<(Set, bool)>,
    set_ids: FxHashMap<Set, SetId>,
    meets: FxHashMap<(ReqId, ReqId), ReqId>,
    overlaps: FxHashMap<(ReqId, ReqId), bool>,
    joins: FxHashMap<(SetId, SetId), Option<SetId>>,
    narrowings: FxHashMap<(SetId, ReqId), Option<SetId>>,
}

/// Interned requirements and sets, with cached results; see the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct Algebra {
    base: Arc<Table>,
    own: Table,
}

impl Algebra {
    pub(crate) fn new() -> Self {
        let mut algebra = Self {
            base: Arc::default(),
            own: Table::default(),
        };
        algebra.set_of(Vec::new());
        algebra
    }

    /// Layers an empty table over this one, which is shared and no longer changes.
    pub(crate) fn layer(self: &Algebra) -> Self {
        debug_assert!(
            self.own.keys.is_empty() && self.own.sets.is_empty(),
            "freeze first"
        );
        Self {
            base: self.base.clone(),
            own: Table::default(),
        }
    }

    /// Makes all entries so far shareable. Valid only for a table that is not layered over another.
    pub(crate) fn freeze(self) -> Self {
        Self {
            base: Arc::new(self.own),
            own: Table::default(),
        }
    }

    /// Returns a copy that takes further entries; the numbers of those so far stay valid. Valid only for a frozen table.
    pub(crate) fn thaw(&self) -> Self {
        Self {
            base: Arc::default(),
            own: Table::clone(&self.base),
        }
    }

    /// Returns the entry of a key in one of the maps of the table, or of the one below.
    #[inline]
    fn find<K, Q, V: Copy>(&self, map: fn(&Table) -> &FxHashMap<K, V>, key: &Q) -> Option<V>
    where
        K: Borrow<Q> + Eq + Hash,
        Q: Eq + Hash + ?Sized,
    {
        let known = map(&self.base).get(key).or_else(|| map(&self.own).get(key));
        known.copied()
    }

    /// Returns an entry of one of the lists of the table and the one below, which comes first.
    #[inline]
    fn at<T>(&self, list: fn(&Table) -> &Vec<T>, index: u32) -> &T {
        let (index, base) = (index as usize, list(&self.base));
        match index.checked_sub(base.len()) {
            None => &base[index],
            Some(index) => &list(&self.own)[index],
        }
    }

    /// Returns the number of a key; `known` says whether a planned node may have the label although no requirement defines it.
    pub(crate) fn key(&mut self, key: &str, known: impl FnOnce() -> bool) -> KeyId {
        if let Some(id) = self.find_key(key) {
            return id;
        }
        let id = KeyId((self.base.keys.len() + self.own.keys.len()) as u32);
        let text: Arc<str> = key.into();
        self.own.keys.push((text.clone(), known()));
        self.own.key_ids.insert(text, id);
        id
    }

    pub(crate) fn find_key(&self, key: &str) -> Option<KeyId> {
        self.find(|table| &table.key_ids, key)
    }

    pub(crate) fn key_name(&self, key: KeyId) -> &Arc<str> {
        &self.at(|table| &table.keys, key.0).0
    }

    pub(crate) fn is_known(&self, key: KeyId) -> bool {
        self.at(|table| &table.keys, key.0).1
    }

    pub(crate) fn req(&mut self, requirement: &Requirement, known: impl FnOnce() -> bool) -> ReqId {
        if let Some(id) = self.find(|table| &table.req_ids, requirement) {
            return id;
        }
        let key = self.key(requirement.key(), known);
        let id = ReqId((self.base.reqs.len() + self.own.reqs.len()) as u32);
        let requirement = Arc::new(requirement.clone());
        self.own.reqs.push((key, requirement.clone()));
        self.own.req_ids.insert(requirement, id);
        id
    }

    pub(crate) fn requirement(&self, req: ReqId) -> &Arc<Requirement> {
        &self.at(|table| &table.reqs, req.0).1
    }

    pub(crate) fn key_of(&self, req: ReqId) -> KeyId {
        self.at(|table| &table.reqs, req.0).0
    }

    pub(crate) fn set(
        &mut self,
        requirements: &Requirements,
        known: impl Fn(&str) -> bool,
    ) -> SetId {
        let mut set: Vec<(KeyId, ReqId)> = Vec::with_capacity(requirements.len());
        for requirement in requirements.iter() {
            let req = self.req(requirement, || known(requirement.key()));
            set.push((self.key_of(req), req));
        }
        set.sort_unstable();
        self.set_of(set)
    }

    fn set_of(&mut self, set: Vec<(KeyId, ReqId)>) -> SetId {
        if let Some(id) = self.find(|table| &table.set_ids, set.as_slice()) {
            return id;
        }
        let id = SetId((self.base.sets.len() + self.own.sets.len()) as u32);
        let counts = set
            .iter()
            .any(|(_, req)| self.requirement(*req).min_values().is_some());
        let set: Set = set.into();
        self.own.sets.push((set.clone(), counts));
        self.own.set_ids.insert(set, id);
        id
    }

    pub(crate) fn members(&self, set: SetId) -> &Set {
        &self.at(|table| &table.sets, set.0).0
    }

    /// Reports whether a requirement of the set has minValues.
    pub(crate) fn has_min_values(&self, set: SetId) -> bool {
        self.at(|table| &table.sets, set.0).1
    }

    pub(crate) fn get(&self, set: SetId, key: KeyId) -> Option<ReqId> {
        let members = self.members(set);
        members
            .binary_search_by_key(&key, |member| member.0)
            .ok()
            .map(|at| members[at].1)
    }

    pub(crate) fn requirements(&self, set: SetId) -> Requirements {
        self.members(set)
            .iter()
            .map(|(_, req)| Requirement::clone(self.requirement(*req)))
            .collect()
    }

    /// Returns the intersection of two requirements.
    pub(crate) fn meet(&mut self, a: ReqId, b: ReqId) -> ReqId {
        if a == b {
            return a;
        }
        if let Some(met) = self.find(|table| &table.meets, &(a, b)) {
            return met;
        }
        let both = self.requirement(a).intersection(self.requirement(b));
        let met = self.req(&both, || false);
        self.own.meets.insert((a, b), met);
        met
    }

    /// Reports whether two requirements have a value in common.
    pub(crate) fn overlap(&mut self, a: ReqId, b: ReqId) -> bool {
        if let Some(known) = self.find(|table| &table.overlaps, &(a, b)) {
            return known;
        }
        let overlap = self.requirement(a).has_intersection(self.requirement(b));
        self.own.overlaps.insert((a, b), overlap);
        overlap
    }

    /// Returns the requirements of a planned node after `incoming` is added, or `None` if the two are incompatible.
    ///
    /// Keys that are neither defined nor known stay undefined: such a node never has the label, which satisfies an incoming
    /// NotIn or DoesNotExist.
    pub(crate) fn join(&mut self, node: SetId, incoming: SetId) -> Option<SetId> {
        if incoming == ANYTHING || node == incoming {
            return Some(node);
        }
        if let Some(known) = self.find(|table| &table.joins, &(node, incoming)) {
            return known;
        }
        let joined = self.compute_join(node, incoming);
        self.own.joins.insert((node, incoming), joined);
        joined
    }

    fn compute_join(&mut self, node: SetId, incoming: SetId) -> Option<SetId> {
        let incoming = self.members(incoming).clone();
        let mut joined: Vec<(KeyId, ReqId)> = self.members(node).to_vec();
        for (key, req) in incoming.iter().copied() {
            match joined.binary_search_by_key(&key, |member| member.0) {
                Ok(at) => {
                    let present = joined[at].1;
                    if !self.overlap(req, present) {
                        return None;
                    }
                    joined[at].1 = self.meet(present, req);
                }
                Err(at) => {
                    let requirement = self.requirement(req);
                    if requirement.is_never() {
                        return None;
                    }
                    if self.is_known(key) {
                        joined.insert(at, (key, req));
                    } else if !requirement.allows_absent() {
                        return None;
                    }
                }
            }
        }
        Some(self.set_of(joined))
    }

    /// Returns the set with one more requirement, or `None` if that requirement is incompatible or the node never has the label.
    pub(crate) fn narrow(&mut self, node: SetId, req: ReqId) -> Option<SetId> {
        if let Some(known) = self.find(|table| &table.narrowings, &(node, req)) {
            return known;
        }
        let one = self.set_of(vec![(self.key_of(req), req)]);
        let narrowed = self.compute_join(node, one);
        self.own.narrowings.insert((node, req), narrowed);
        narrowed
    }

    /// Reports whether a node whose labels are all defined by `node` meets every incoming requirement.
    pub(crate) fn strictly_compatible(&mut self, node: SetId, incoming: SetId) -> bool {
        let incoming = self.members(incoming).clone();
        incoming
            .iter()
            .all(|(key, req)| match self.get(node, *key) {
                Some(present) => self.overlap(*req, present),
                None => self.requirement(*req).allows_absent(),
            })
    }
}
