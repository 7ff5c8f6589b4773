//! Scenarios on a real cluster.

pub(crate) mod aws;
mod chaos;
pub(crate) mod cluster_api;
mod decisions;
mod devices;
mod disruption;
mod faults;
pub(crate) mod from_go;
pub(crate) mod install;
#[path = "../../../../bins/karpenter-playground/tests/kubectl/marked.rs"]
mod marked;
mod scaling;
mod verdicts;

use anyhow::Result;
use futures::future::BoxFuture;

use crate::case::Case;
use crate::cluster::Cluster;

/// A scenario that runs concurrently with others.
pub(crate) struct Beside {
    pub(crate) name: &'static str,
    /// Whether it is part of every CI run.
    pub(crate) quick: bool,
    pub(crate) run: fn(Case) -> BoxFuture<'static, Result<()>>,
}

/// A scenario that has the cluster for itself, because it breaks it.
pub(crate) struct Alone {
    pub(crate) name: &'static str,
    pub(crate) quick: bool,
    pub(crate) run: for<'a> fn(&'a mut Cluster, Case) -> BoxFuture<'a, Result<()>>,
}

macro_rules! beside {
    ($name:literal, $quick:literal, $run:path) => {
        Beside {
            name: $name,
            quick: $quick,
            run: |case| Box::pin($run(case)),
        }
    };
}

macro_rules! alone {
    ($name:literal, $quick:literal, $run:path) => {
        Alone {
            name: $name,
            quick: $quick,
            run: |cluster, case| Box::pin($run(cluster, case)),
        }
    };
}

pub(crate) const BESIDE: &[Beside] = &[
    beside!("scale", true, scaling::out_and_in),
    beside!("static", true, scaling::static_pool),
    beside!("overlay", false, scaling::overlay),
    beside!("buffer", false, scaling::buffer),
    beside!("devices", false, devices::two_devices_for_three_pods),
    beside!("drift-budget", true, disruption::drift_within_the_budget),
    beside!("drift-pdb", false, disruption::drift_within_the_pdb),
    beside!("expiry", false, disruption::expiry),
    beside!("repair", false, disruption::repair),
    beside!("do-not-disrupt", false, disruption::do_not_disrupt),
    beside!("chaos-taint", false, chaos::every_node_is_tainted),
];

pub(crate) const ALONE: &[Alone] = &[
    alone!("decisions", true, decisions::asked),
    alone!("shadow", true, decisions::shadow),
    alone!("killed", true, faults::killed_in_a_burst),
    alone!("api-server-gone", false, faults::api_server_gone),
];
