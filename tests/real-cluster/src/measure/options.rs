//! Options of all measurements.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value};

/// Options of all measurements.
#[derive(Clone, Debug, Args)]
pub(crate) struct MeasureOptions {
    /// Path of the controller binary; by default the one that was built next to this program.
    #[arg(long)]
    pub(super) controller: Option<PathBuf>,
    /// Version of `sigs.k8s.io/karpenter`, for example 1.14.1: measure its controller for kwok instead of ours. Built with Go.
    #[arg(long)]
    pub(super) upstream: Option<String>,
    /// Measure the controller for Cluster API, with Cluster API's own controllers and its in-memory infrastructure. Built with Go.
    #[arg(long, conflicts_with = "upstream")]
    pub(super) cluster_api: bool,
    /// Let kube-scheduler prefer the nodes with the least free resources, instead of those with the most.
    #[arg(long)]
    pub(super) most_allocated: bool,
    /// Limit the API server's CPU time to this share of a core, for example 0.25.
    #[arg(long)]
    pub(super) api_server_cores: Option<f64>,
    /// Environment variable of the controller, for example BATCH_IDLE_DURATION=10s. May be repeated.
    #[arg(long = "env", value_parser = pair)]
    pub(super) environment: Vec<(String, String)>,
    /// Values of the chart, as JSON, for example {"settings":{"featureGates":{"podNomination":true}}}.
    #[arg(long, default_value = "{}", value_parser = values)]
    pub(super) values: Value,
    /// Print one line of JSON instead of a table.
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) fn values(text: &str) -> Result<Value, String> {
    let values: Map<String, Value> = serde_json::from_str(text).map_err(|e| e.to_string())?;
    Ok(values.into())
}

fn pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=');
    let (name, value) =
        pair.ok_or_else(|| format!("invalid variable `{text}`: must be NAME=VALUE"))?;
    Ok((name.to_owned(), value.to_owned()))
}
