//! The controllers under load: their cost in a large cluster, and the latency of a burst.
//!
//! The API server runs in a process of its own (`--cluster`), reached over HTTPS as in a real cluster, so that the memory
//! and the CPU of the controllers' process (`--controllers`) are theirs alone. Every measurement has fresh processes, and a
//! cluster in the state that earlier controllers have left: a restart is measured.

mod cluster;
#[path = "../processes/mod.rs"]
mod processes;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use karpenter_bench::{Run, Suite};
use serde_json::{Value, json};

use processes::controllers::{Controllers, Manner};
use processes::{Outcome, Process};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).and_then(|a| a.parse().ok()).unwrap_or(0);
    // Two crypto providers may be linked; install the one we use before any other is chosen.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    match arguments.first().map(String::as_str) {
        Some("--cluster") => processes::serve(cluster::run(number(1), number(2))),
        Some("--controllers") => processes::controllers::run(&arguments[1..]),
        _ => suite(),
    }
}

/// How long a process may take to become idle.
const IDLE_TIMEOUT: Duration = Duration::from_secs(900);

/// Waits until a process has been idle for five seconds.
fn wait_idle(process: &Process) -> Outcome<()> {
    let start = Instant::now();
    let mut quiet = 0;
    while quiet < 5 {
        if start.elapsed() > IDLE_TIMEOUT {
            return Err("the process does not become idle".into());
        }
        let before = process.cpu_seconds();
        std::thread::sleep(Duration::from_secs(1));
        let used = process.cpu_seconds() - before;
        quiet = if used < 0.1 { quiet + 1 } else { 0 };
    }
    Ok(())
}

/// Starts a cluster and restarted controllers, after earlier ones have reconciled it.
fn restarted(size: Size, manner: Manner) -> Outcome<(Process, Controllers)> {
    let Size { nodes, pods } = size;
    let arguments = ["--cluster".to_owned(), nodes.to_string(), pods.to_string()];
    let mut cluster = Process::start(&arguments)?;
    let reached = cluster.answer()?;
    if nodes > 0 {
        let unthrottled = Manner {
            qps: 5_000,
            ..Manner::default()
        };
        let first = Controllers::start(&reached, unthrottled)?;
        wait_idle(&first.process)?;
        first.process.end();
    }
    let controllers = Controllers::start(&reached, manner)?;
    Ok((cluster, controllers))
}

/// The size of a cluster.
#[derive(Clone, Copy)]
struct Size {
    nodes: usize,
    pods: usize,
}

const LARGE: Size = Size {
    nodes: 5_000,
    pods: 100_000,
};
const LARGEST: Size = Size {
    nodes: 100_000,
    pods: 1_000_000,
};
const BURST: usize = 10_000;
const STEADY: Duration = Duration::from_secs(60);

/// Runs a measurement in a cluster of a size; an error fails the benchmark.
fn measured(run: &mut Run, size: Size, measure: impl FnOnce(&mut Run, Size) -> Outcome<()>) {
    run.parameter("nodes", size.nodes);
    run.parameter("pods", size.pods);
    if let Err(error) = measure(run, size) {
        eprintln!("the measurement failed, {error}");
        std::process::exit(1);
    }
}

fn resident(run: &mut Run, size: Size) -> Outcome<()> {
    let memory = |nodes: usize, pods: usize| -> Outcome<(f64, f64, f64)> {
        let (_cluster, controllers) = restarted(Size { nodes, pods }, Manner::default())?;
        wait_idle(&controllers.process)?;
        let process = &controllers.process;
        Ok((
            controllers.synced_seconds,
            process.rss_mib(),
            process.peak_mib(),
        ))
    };
    let (_, nothing, _) = memory(0, 0)?;
    let (_, nodes, _) = memory(size.nodes, 0)?;
    let (synced, all, peak) = memory(size.nodes, size.pods)?;
    run.sample(size.nodes + size.pods, Duration::from_secs_f64(synced));
    let bytes = |more: f64, less: f64, n: usize| (more - less) * f64::from(1 << 20) / n as f64;
    run.record("synced_seconds", synced);
    run.record("rss_mib", all);
    run.record("rss_peak_mib", peak);
    run.record("rss_mib_empty", nothing);
    run.record("bytes_per_node", bytes(nodes, nothing, size.nodes));
    run.record("bytes_per_pod", bytes(all, nodes, size.pods));
    Ok(())
}

fn steady(run: &mut Run, size: Size, rate: usize) -> Outcome<()> {
    run.parameter("events_per_second", rate);
    let (mut cluster, controllers) = restarted(size, Manner::default())?;
    let process = &controllers.process;
    wait_idle(process)?;
    let seconds = STEADY.as_secs();
    let before = process.cpu_seconds();
    std::thread::sleep(STEADY);
    let idle = process.cpu_seconds() - before;
    let before = process.cpu_seconds();
    let done = cluster.ask(&format!("events {rate} {seconds}"))?;
    let used = process.cpu_seconds() - before;
    let took = done["seconds"].as_f64().unwrap_or(f64::NAN);
    run.sample(rate * seconds as usize, Duration::from_secs_f64(used));
    run.record("cores", used / took);
    run.record("cores_idle", idle / STEADY.as_secs_f64());
    run.record("rss_mib", process.rss_mib());
    Ok(())
}

fn burst(run: &mut Run, size: Size) -> Outcome<()> {
    measure_burst(run, size, None)
}

/// The same while the plan of a day is made.
fn burst_beside_a_plan(run: &mut Run, size: Size) -> Outcome<()> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    measure_burst(run, size, Some(port))
}

/// Measures a burst, while the server of decisions at this port makes a plan.
fn measure_burst(run: &mut Run, size: Size, plan_at: Option<u16>) -> Outcome<()> {
    run.parameter("burst", BURST);
    let manner = Manner {
        decisions: plan_at.unwrap_or(0),
        ..Manner::default()
    };
    let (mut cluster, controllers) = restarted(size, manner)?;
    wait_idle(&controllers.process)?;
    let plan = plan_at.map(|port| std::thread::spawn(move || plan_a_day(port)));
    if plan.is_some() {
        std::thread::sleep(Duration::from_secs(2));
    }
    let cpu = controllers.process.cpu_seconds();
    cluster.ask(&format!("burst {BURST}"))?;
    let made = |claims: &Value| claims["made"].as_u64().unwrap_or(0);
    let (mut claims, mut still, mut beside) = (Value::Null, 0, true);
    while still < 10 {
        std::thread::sleep(Duration::from_millis(500));
        let now = cluster.ask("claims")?;
        if made(&now) > 0 && made(&now) == made(&claims) {
            still += 1;
        } else {
            still = 0;
            beside = plan.as_ref().is_none_or(|plan| !plan.is_finished());
        }
        claims = now;
    }
    if !beside {
        return Err("the plan ended before the burst was decided".into());
    }
    // The batch closes after an idle second.
    let after_batch = claims["seconds"].as_f64().unwrap_or(f64::NAN) - 1.0;
    run.sample(BURST, Duration::from_secs_f64(after_batch.max(0.0)));
    run.record("nodeclaims", made(&claims));
    run.record("seconds_after_batch", after_batch);
    run.record("cpu_seconds_used", controllers.process.cpu_seconds() - cpu);
    run.record("rss_mib", controllers.process.rss_mib());
    Ok(())
}

/// Asks for the plan of a day with another budget, and waits for it.
fn plan_a_day(port: u16) -> std::io::Result<String> {
    let body = json!({ "for": "24h", "changes": [{ "if": "budget.default=20%" }] }).to_string();
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    write!(
        stream,
        "POST /apis/decisions.karpenter.sh/v1alpha1/plans HTTP/1.0\r\nHost: localhost\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn suite() {
    let mut suite = Suite::from_args("controller");
    let large = |run: &mut Run, measure: fn(&mut Run, Size) -> Outcome<()>| {
        measured(run, LARGE, measure);
    };
    suite.case("resident-5k-nodes-100k-pods", |run| large(run, resident));
    suite.case("steady-100-pod-events", |run| {
        large(run, |run, size| steady(run, size, 100));
    });
    suite.case("burst-10k-pods", |run| large(run, burst));
    suite.case("burst-10k-pods-beside-a-plan", |run| {
        large(run, burst_beside_a_plan);
    });
    // They take 10 GiB and a quarter of an hour.
    suite.case("resident-100k-nodes-1m-pods", |run| {
        measured(run, LARGEST, resident);
    });
    suite.case("steady-1000-pod-events-100k-nodes", |run| {
        measured(run, LARGEST, |run, size| steady(run, size, 1000));
    });
}
