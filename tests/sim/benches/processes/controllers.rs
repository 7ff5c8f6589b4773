//! Runs the controllers in a process of their own.

use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use karpenter_kube::client::Clients;
use karpenter_kube::clock::Clock;
use karpenter_kube::metrics::Registry;
use karpenter_kube::operator::Operator;
use karpenter_kube::options::Options;
use karpenter_kwok::{Cloud, KwokProvider, catalogue, controllers};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{Outcome, Process, commands, report, serve};

/// How the controllers run.
#[derive(Debug, Clone, Copy)]
pub struct Manner {
    /// Requests per second to the API server, and half as many again in a burst.
    pub qps: u32,
    /// The port of the server of decisions; 0: none.
    pub decisions: u16,
}

impl Default for Manner {
    /// Returns the defaults of a real cluster.
    fn default() -> Self {
        Self {
            qps: Options::default().kube_client_qps,
            decisions: 0,
        }
    }
}

/// The controllers in a process.
pub struct Controllers {
    pub process: Process,
    /// Seconds from their start until the model was in sync.
    pub synced_seconds: f64,
}

impl Controllers {
    /// Starts controllers for a cluster, which has answered with its kubeconfig and its time; waits until they are in sync.
    pub fn start(cluster: &Value, manner: Manner) -> Outcome<Self> {
        let arguments = [
            "--controllers".to_owned(),
            manner.qps.to_string(),
            manner.decisions.to_string(),
        ];
        let mut process = Process::start(&arguments)?;
        let synced = process.ask(&cluster.to_string())?;
        let synced_seconds = synced["synced_seconds"].as_f64().unwrap_or(f64::NAN);
        Ok(Self {
            process,
            synced_seconds,
        })
    }
}

/// Runs controllers until standard input ends.
pub fn run(arguments: &[String]) {
    let number = |at: usize| arguments.get(at).and_then(|a| a.parse::<u32>().ok());
    let manner = Manner {
        qps: number(0).unwrap_or(200),
        decisions: number(1).map_or(0, |port| port as u16),
    };
    serve(operate(manner));
}

async fn operate(manner: Manner) -> Outcome<()> {
    let mut commands = commands();
    let cluster: Value = serde_json::from_str(&commands.recv().await.ok_or("no cluster")?)?;
    let now: Timestamp = cluster["now"].as_str().unwrap_or_default().parse()?;
    let clock = Clock::new(now, 1.0);
    let kubeconfig = Kubeconfig::from_yaml(cluster["kubeconfig"].as_str().ok_or("no kubeconfig")?)?;
    let config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let options = Options {
        metrics_port: 0,
        decisions_port: manner.decisions,
        health_probe_port: 0,
        disable_leader_election: true,
        ..Options::default()
    };
    let (qps, registry) = (manner.qps, Registry::new());
    let clients = Clients::connect(&config, qps, qps.saturating_mul(3) / 2, &registry)?;
    let types = catalogue::generate();
    let types = types
        .iter()
        .filter_map(|t| t.instance_type().ok())
        .collect();
    let provider = KwokProvider::new(clients.api.clone(), clock, types, Cloud::new());
    let provider = Arc::new(provider);
    let kwok = Arc::clone(&provider);
    let started = Instant::now();
    let operator = Operator::builder(provider, clients, options)
        .clock(clock)
        .registry(registry.clone())
        .with(move |controllers| controllers::add(controllers, kwok))
        .build();
    let cx = Arc::clone(operator.context());
    let stop = CancellationToken::new();
    let running = tokio::spawn(operator.run(stop.clone()));
    let mut changes = cx.model.changes();
    while !cx.view().is_synced() {
        changes.changed().await?;
    }
    report(&json!({"synced_seconds": started.elapsed().as_secs_f64()}))?;
    while commands.recv().await.is_some() {}
    stop.cancel();
    running.await??;
    Ok(())
}
