//! Objects by kind and name, and what they look like.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::Hasher;
use std::ops::Deref;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use karpenter_api::labels::{finalizers, taints};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::pod::Pod;

use super::print::{Print, Ranks};

/// Returns whether the PodDisruptionBudget covers a pod: it has the label `app: guarded`.
pub fn is_guarded(pod: &Pod) -> bool {
    let app = pod.shape.labels.get("app");
    app.is_some_and(|app| app == "guarded")
}

/// Adds the taint of nodes that are being disrupted.
pub fn disrupt(node: &mut Node) {
    let spec = node.spec.get_or_insert_default();
    let present = spec.taints.get_or_insert_default();
    present.retain(|taint| taint.key != taints::DISRUPTED);
    present.push(taints::disrupted());
}

/// Returns whether a Node has the taint of nodes that are being disrupted.
pub fn is_disrupted(node: &Node) -> bool {
    has_taint(node, taints::DISRUPTED)
}

pub fn has_taint(node: &Node, key: &str) -> bool {
    let present = node.spec.iter().flat_map(|it| it.taints.iter().flatten());
    present.into_iter().any(|taint| taint.key == key)
}

/// Returns whether a Node's condition Ready has this status.
pub fn has_ready(node: &Node, status: &str) -> bool {
    let all = node.status.iter();
    all.flat_map(|it| it.conditions.iter().flatten())
        .any(|it| it.type_ == "Ready" && it.status == status)
}

/// Returns whether Karpenter's finalizer holds an object.
pub fn has_finalizer(of: &impl Named) -> bool {
    let all = of.meta().finalizers.iter().flatten();
    all.into_iter().any(|it| it == finalizers::TERMINATION)
}

/// A kind of object, which has a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Pod,
    Node,
    NodeClaim,
    NodePool,
}

/// An object and its print.
#[derive(Debug)]
pub struct Stored<T> {
    pub value: Arc<T>,
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

impl<T> Deref for Stored<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
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
pub type ByName<T> = Arc<BTreeMap<String, Stored<T>>>;

#[derive(Clone, Debug, Default)]
pub struct Objects {
    pub pods: ByName<Pod>,
    pub nodes: ByName<Node>,
    pub claims: ByName<NodeClaim>,
    pub pools: ByName<NodePool>,
}

/// An object of one of the kinds.
pub trait Object: Clone + Debug + PartialEq {
    const KIND: Kind;

    fn all(objects: &Objects) -> &ByName<Self>;
    fn all_mut(objects: &mut Objects) -> &mut BTreeMap<String, Stored<Self>>;
    fn own_name(&self) -> &str;
}

/// An object with the metadata of the API.
pub trait Named: Object {
    fn meta(&self) -> &ObjectMeta;
    fn meta_mut(&mut self) -> &mut ObjectMeta;

    fn is_leaving(&self) -> bool {
        self.meta().deletion_timestamp.is_some()
    }
}

macro_rules! objects {
    ($($kind:ident $field:ident $it:ident $name:expr;)*) => {$(
        impl Object for $kind {
            const KIND: Kind = Kind::$kind;

            fn all(objects: &Objects) -> &ByName<Self> {
                &objects.$field
            }

            fn all_mut(objects: &mut Objects) -> &mut BTreeMap<String, Stored<Self>> {
                Arc::make_mut(&mut objects.$field)
            }

            fn own_name(&self) -> &str {
                let $it = self;
                $name
            }
        }
    )*};
}

macro_rules! named {
    ($($kind:ident)*) => {$(
        impl Named for $kind {
            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    )*};
}

objects! {
    Pod pods it &it.key.name;
    Node nodes it it.metadata.name.as_deref().unwrap_or_default();
    NodeClaim claims it it.name();
    NodePool pools it it.name();
}
named!(Node NodeClaim NodePool);

impl Objects {
    pub fn get<T: Object>(&self, name: &str) -> Option<&Stored<T>> {
        T::all(self).get(name)
    }

    pub fn pod(&self, name: &str) -> Option<&Stored<Pod>> {
        self.pods.get(name)
    }

    pub fn node(&self, name: &str) -> Option<&Stored<Node>> {
        self.nodes.get(name)
    }

    pub fn claim(&self, name: &str) -> Option<&Stored<NodeClaim>> {
        self.claims.get(name)
    }

    /// Returns the pods that are bound to a Node.
    pub fn pods_on<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a Stored<Pod>> {
        let pods = self.pods.values();
        pods.filter(move |pod| pod.node_name.as_deref() == Some(node))
    }

    /// Returns whether a pod exists and waits for a Node.
    pub fn waits(&self, pod: &str) -> bool {
        self.pod(pod)
            .is_some_and(|pod| pod.node_name.is_none() && pod.is_active())
    }

    fn prints(&self) -> impl Iterator<Item = &Arc<Print>> {
        let pods = self.pods.values().map(|it| &it.print);
        let nodes = self.nodes.values().map(|it| &it.print);
        let claims = self.claims.values().map(|it| &it.print);
        let pools = self.pools.values().map(|it| &it.print);
        pods.chain(nodes).chain(claims).chain(pools)
    }

    /// Returns how many pods the PodDisruptionBudget covers, and how many of them are healthy.
    pub fn guarded(&self) -> (usize, usize) {
        let pods = self.pods.values();
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
