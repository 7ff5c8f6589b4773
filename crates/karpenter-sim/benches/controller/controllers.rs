//! The controllers in a process of their own, and what they cost.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use karpenter_kube::client::Clients;
use karpenter_kube::clock::Clock;
use karpenter_kube::operator::Operator;
use karpenter_kube::options::Options;
use karpenter_kwok::{Cloud, KwokProvider, catalogue, controllers};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Starts a cluster and the controllers, measures, and prints what came of it.
pub fn measure(nodes: u64, pods: u64, steady: u64, burst: u64) {
    let outcome = Cluster::start(nodes, pods)
        .and_then(|cluster| tokio::runtime::Runtime::new()?.block_on(run(cluster, steady, burst)));
    match outcome {
        Ok(result) => println!("{result}"),
        Err(error) => {
            eprintln!("the measurement failed, {error}");
            std::process::exit(1);
        }
    }
}

/// The other process.
struct Cluster {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    kubeconfig: String,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // It ends by itself if it can no longer be reached.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Cluster {
    fn start(nodes: u64, pods: u64) -> Outcome<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--cluster", &nodes.to_string(), &pods.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().ok_or("no input")?;
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        let mut cluster = Self {
            child,
            input,
            output,
            kubeconfig: String::new(),
        };
        let first = cluster.answer()?;
        cluster.kubeconfig = first["kubeconfig"].as_str().unwrap_or_default().to_owned();
        Ok(cluster)
    }

    fn answer(&mut self) -> Outcome<Value> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }

    fn ask(&mut self, command: &str) -> Outcome<Value> {
        writeln!(self.input, "{command}")?;
        self.input.flush()?;
        self.answer()
    }
}

/// Resident memory in MiB.
fn rss_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / 1024.0
}

/// CPU seconds used so far.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = |at: usize| {
        let field = after_name.split_whitespace().nth(at);
        field.and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0)
    };
    // Fields 14 and 15 of proc(5), in hundredths of a second.
    (ticks(11) + ticks(12)) / 100.0
}

/// Waits until the process has been quiet for a while.
async fn settled() {
    let mut quiet = 0;
    while quiet < 5 {
        let before = cpu_seconds();
        tokio::time::sleep(Duration::from_secs(1)).await;
        quiet = if cpu_seconds() - before < 0.1 {
            quiet + 1
        } else {
            0
        };
    }
}

async fn run(mut cluster: Cluster, steady: u64, burst: u64) -> Outcome<Value> {
    let kubeconfig = Kubeconfig::from_yaml(&cluster.kubeconfig)?;
    let config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let options = Options {
        metrics_port: 0,
        health_probe_port: 0,
        disable_leader_election: true,
        ..Options::default()
    };
    let clients = Clients::connect(&config, options.kube_client_qps, options.kube_client_burst)?;
    let types = catalogue::generate();
    let types = types
        .iter()
        .filter_map(|t| t.instance_type().ok())
        .collect();
    let clock = Clock::real();
    let provider = KwokProvider::new(clients.api.clone(), clock, types, Cloud::new());
    let provider = Arc::new(provider);
    let kwok = Arc::clone(&provider);
    let started = Instant::now();
    let operator = Operator::builder(provider, clients, options)
        .clock(clock)
        .with(move |setup| controllers::add(setup, kwok))
        .build();
    let cx = Arc::clone(operator.context());
    let stop = CancellationToken::new();
    let running = tokio::spawn(operator.run(stop.clone()));
    let mut changes = cx.model.changes();
    while !cx.view().is_synced() {
        changes.changed().await?;
    }
    let mut result = json!({"synced_seconds": started.elapsed().as_secs_f64()});
    settled().await;
    result["rss_mib"] = json!(rss_mib());
    if steady > 0 {
        let (cpu, wall) = (cpu_seconds(), Instant::now());
        tokio::time::sleep(Duration::from_secs(steady)).await;
        result["idle_cores"] = json!((cpu_seconds() - cpu) / wall.elapsed().as_secs_f64());
        let (cpu, wall) = (cpu_seconds(), Instant::now());
        tokio::task::block_in_place(|| cluster.ask(&format!("events 100 {steady}")))?;
        let used = cpu_seconds() - cpu;
        result["steady_cpu_seconds"] = json!(used);
        result["steady_cores"] = json!(used / wall.elapsed().as_secs_f64());
    }
    if burst > 0 {
        tokio::task::block_in_place(|| cluster.ask(&format!("burst {burst}")))?;
        settled().await;
        let claims = tokio::task::block_in_place(|| cluster.ask("claims"))?;
        let idle = cx.options.batch_idle_duration.as_secs_f64();
        // The batch closes when nothing has come for the idle time.
        result["burst_seconds"] = json!(claims["seconds"].as_f64().unwrap_or(f64::NAN) - idle);
        result["burst_claims"] = claims["made"].clone();
    }
    result["rss_mib_after"] = json!(rss_mib());
    stop.cancel();
    running.await??;
    Ok(result)
}
