//! The disruption methods, one module each.

mod drift;
mod emptiness;
mod evaluation;
mod multi_node;
mod single_node;
mod static_drift;

use super::command::Method;
use super::pass::{Found, Pass};

pub(super) fn run(pass: &mut Pass<'_>) -> Found {
    match pass.method {
        Method::Emptiness => emptiness::run(pass),
        Method::StaticDrift => static_drift::run(pass),
        Method::Drift => drift::run(pass),
        Method::MultiNode => multi_node::run(pass),
        Method::SingleNode => single_node::run(pass),
    }
}
