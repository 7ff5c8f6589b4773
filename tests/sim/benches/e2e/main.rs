//! Workloads of upstream's performance suite, end to end: pods are placed on new nodes, then a third of them is deleted and
//! nodes are terminated.
//!
//! The cluster runs in a process of its own, the controllers in another (see `processes`); time is accelerated in both.
//! Seconds are the cluster's, and so are cores: CPU time per second of the cluster.

mod cluster;
#[path = "../processes/mod.rs"]
mod processes;
mod workloads;

use std::time::Duration;

use jiff::Timestamp;
use karpenter_bench::{Run, Suite};
use serde_json::{Value, json};

use processes::controllers::{Controllers, Manner};
use processes::{Outcome, Process};
use workloads::{Accepted, named};

/// Factor by which time is accelerated.
const SPEED: f64 = 2.0;
/// How long the cluster must be unchanged for a phase to be over, in the cluster's seconds.
const STILL: f64 = 300.0;
/// How long a phase may take, in the cluster's seconds.
const LONGEST: f64 = 3600.0;
/// Interval between reports of the cluster's state, in real time.
const LOOK: Duration = Duration::from_millis(400);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // Two crypto providers may be linked; install the one we use before any other is chosen.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    match arguments.first().map(String::as_str) {
        Some("--cluster") => processes::serve(cluster::run(SPEED)),
        Some("--controllers") => processes::controllers::run(&arguments[1..]),
        _ => suite(),
    }
}

fn suite() {
    let mut suite = Suite::from_args("e2e");
    for name in ["basic", "hostname", "wide"] {
        suite.case(name, |run| {
            if let Err(error) = measure(run, name) {
                eprintln!("the measurement failed, {error}");
                std::process::exit(1);
            }
        });
    }
}

/// Results of a phase.
struct Phase {
    seconds: f64,
    last: Value,
    mib: f64,
    cores: f64,
}

fn time(answer: &Value) -> Outcome<Timestamp> {
    Ok(answer["now"].as_str().unwrap_or_default().parse()?)
}

/// Runs a phase until the pods run, or until the cluster does not change any more.
fn phase(
    cluster: &mut Process,
    controllers: &Controllers,
    workload: &str,
    number: usize,
    pods: u64,
) -> Outcome<Phase> {
    let begun = time(&cluster.ask(&format!("phase {workload} {number}"))?)?;
    let cpu = controllers.process.cpu_seconds();
    let mut memory = Vec::new();
    let (mut changed, mut claims, mut used) = (begun, Value::Null, 0.0);
    loop {
        std::thread::sleep(LOOK);
        let look = cluster.ask("look")?;
        let now = time(&look)?;
        memory.push(controllers.process.rss_mib());
        let since = |then: Timestamp| now.duration_since(then).as_secs_f64();
        let placed = look["running"] == pods && look["pods"] == pods;
        if look["claims"] != claims || !placed {
            changed = now;
            claims = look["claims"].clone();
            used = controllers.process.cpu_seconds() - cpu;
        }
        let over = match number {
            0 => placed,
            _ => placed && since(changed) > STILL,
        };
        if over {
            memory.sort_by(f64::total_cmp);
            let seconds = changed.duration_since(begun).as_secs_f64();
            return Ok(Phase {
                seconds,
                mib: memory[memory.len() * 95 / 100],
                cores: used / seconds,
                last: look,
            });
        }
        if since(begun) > LONGEST {
            return Err(format!("not over after an hour, {look}").into());
        }
    }
}

/// Returns the sum of a metric's series with these labels.
fn counted(metrics: &Value, name: &str, labels: &str) -> f64 {
    let text = metrics["text"].as_str().unwrap_or_default();
    let series = text
        .lines()
        .filter(|line| line.starts_with(name) && line.contains(labels));
    series
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
        .sum()
}

fn measure(run: &mut Run, name: &str) -> Outcome<()> {
    let workload = named(name).ok_or("unknown workload")?;
    run.parameter("speed", SPEED);
    let mut cluster = Process::start(&["--cluster".to_owned()])?;
    let reached = cluster.answer()?;
    let manner = Manner {
        speed: SPEED,
        ..Manner::default()
    };
    let mut controllers = Controllers::start(&reached, manner)?;
    for (number, what) in ["scale_out", "consolidation"].into_iter().enumerate() {
        let replicas = workload.deployments.iter().map(|d| d.replicas[number]);
        let pods = u64::from(replicas.sum::<u32>());
        let phase = phase(&mut cluster, &controllers, name, number, pods)?;
        let metrics = controllers.process.ask("metrics")?;
        let price = controllers.process.ask("price")?;
        if number == 0 {
            run.sample(pods as usize, Duration::from_secs_f64(phase.seconds));
        }
        let claims = phase.last["claims"].as_array().map_or(0, Vec::len);
        run.record(
            what,
            json!({
                "pods": pods, "seconds": phase.seconds, "nodes": claims,
                "cpu": phase.last["cpu"], "memory": phase.last["memory"],
                "evictions": counted(&metrics, "karpenter_pods_eviction_requests_total", "code=\"201\"")
                    + counted(&metrics, "karpenter_pods_eviction_requests_total", "code=\"200\""),
                "dollars_per_hour": price["hourly"], "rss_mib": phase.mib, "cores": phase.cores,
                "accepted": accepted(workload.accepted[number]),
            }),
        );
    }
    run.parameter("workload", workload.name);
    run.record("synced_seconds", controllers.synced_seconds);
    run.record("rss_peak_mib", controllers.process.peak_mib());
    controllers.process.end();
    Ok(())
}

fn accepted(accepted: Accepted) -> Value {
    json!({
        "seconds": accepted.seconds, "cpu": accepted.cpu, "memory": accepted.memory, "rss_mib": accepted.mib,
        "cores": accepted.cores,
    })
}
