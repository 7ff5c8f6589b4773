//! Objects by kind and name, and what they look like.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::Hasher;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::pod::Pod;

use super::print::{Print, Ranks};

/// Returns whether the PodDisruptionBudget covers a pod: it has the label `app: guarded`.
pub fn is_guarded(pod: &Pod) -> bool {
    pod.shape
        .labels
        .get("app")
        .is_some_and(|app| app == "guarded")
}

/// A kind of object, which has a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Pods.
    Pod,
    /// Nodes.
    Node,
    /// NodeClaims.
    NodeClaim,
    /// NodePools.
    NodePool,
}

/// An object and its print.
#[derive(Debug)]
pub struct Stored<T> {
    /// The object.
    pub value: Arc<T>,
    /// What it looks like.
    pub print: Arc<Print>,
}

impl<T> Clone for Stored<T> {
    fn clone(&self) -> Self {
        Self {
            value: Arc::clone(&self.value),
            print: Arc::clone(&self.print),
        }
    }
}

impl<T: Debug> From<T> for Stored<T> {
    fn from(value: T) -> Self {
        let print = Arc::new(Print::of(&value));
        Self {
            value: Arc::new(value),
            print,
        }
    }
}

/// The objects of one kind, by name; a copy shares them until it is changed.
#[derive(Debug)]
pub struct ByName<T>(Arc<BTreeMap<String, Stored<T>>>);

impl<T> Default for ByName<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Clone for ByName<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Deref for ByName<T> {
    type Target = BTreeMap<String, Stored<T>>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<T> DerefMut for ByName<T> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        Arc::make_mut(&mut self.0)
    }
}

/// Objects.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// The pods.
    pub pods: ByName<Pod>,
    /// The Nodes.
    pub nodes: ByName<Node>,
    /// The NodeClaims.
    pub claims: ByName<NodeClaim>,
    /// The NodePools.
    pub pools: ByName<NodePool>,
}

impl Objects {
    fn prints(&self) -> impl Iterator<Item = &Arc<Print>> {
        let pods = self.pods.values().map(|it| &it.print);
        let nodes = self.nodes.values().map(|it| &it.print);
        let claims = self.claims.values().map(|it| &it.print);
        let pools = self.pools.values().map(|it| &it.print);
        pods.chain(nodes).chain(claims).chain(pools)
    }

    /// Returns how many pods the PodDisruptionBudget covers, and how many of them are healthy.
    pub fn guarded(&self) -> (usize, usize) {
        let pods = self.pods.values().map(|it| &it.value);
        let active = pods.filter(|pod| is_guarded(pod) && pod.deleted_at.is_none());
        active.fold((0, 0), |(all, ready), pod| {
            (all + 1, ready + usize::from(pod.ready))
        })
    }

    /// Returns a number that is the same for the same objects only.
    pub fn exact(&self) -> u64 {
        self.prints().fold(0, |sum: u64, print| {
            sum.wrapping_add(
                print
                    .exact
                    .rotate_left(7)
                    .wrapping_mul(0x9e37_79b9_7f4a_7c15),
            )
        })
    }

    /// Hashes the objects; pods of one workload are interchangeable.
    pub fn hash_into(&self, ranks: &Ranks, hasher: &mut impl Hasher) {
        let mut pods: Vec<_> = self
            .pods
            .values()
            .map(|it| (it.print.rank(ranks), &it.print))
            .collect();
        pods.sort_by_key(|(rank, _)| *rank);
        hasher.write_usize(pods.len());
        pods.iter()
            .for_each(|(_, print)| print.hash_into(ranks, hasher));
        for count in [self.nodes.len(), self.claims.len(), self.pools.len()] {
            hasher.write_usize(count);
        }
        let rest = self.prints().skip(self.pods.len());
        rest.for_each(|print| print.hash_into(ranks, hasher));
    }
}
