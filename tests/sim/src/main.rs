//! Runs simulations of many seeds: `cargo xtask sim --seeds N`.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use karpenter_sim::{SimulationSettings, run};

/// A third of a simulation's time goes into small short-lived objects.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Simulates whole clusters from random seeds.
#[derive(Parser)]
struct Arguments {
    /// Number of seeds.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Hours of disturbances.
    #[arg(long, default_value_t = 24.0)]
    hours: f64,
    /// Number of seeds that run in parallel; one per core unless given.
    #[arg(long)]
    threads: Option<usize>,
    /// Stop at the first seed that fails.
    #[arg(long)]
    fail_fast: bool,
    /// Print every line of the trace, and run the seeds one after the other.
    #[arg(long)]
    trace: bool,
    /// Let two replicas compete for the lease in every simulation.
    #[arg(long)]
    elects: bool,
    /// Print the controllers' log lines of these targets, in the syntax of `RUST_LOG`.
    #[arg(long)]
    log: Option<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(filter) = &arguments.log {
        tracing_subscriber::fmt()
            .with_env_filter(filter.as_str())
            .without_time()
            .with_writer(std::io::stderr)
            .init();
    }
    let settings = SimulationSettings {
        busy: Duration::from_secs_f64((arguments.hours * 3600.0).max(0.0)),
        keep_trace: arguments.trace,
        elects: arguments.elects.then_some(true),
        ..SimulationSettings::default()
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = match arguments.trace {
        true => 1,
        false => arguments.threads.unwrap_or(cores).max(1),
    };
    let end = arguments.seed.saturating_add(arguments.seeds);
    let next = AtomicU64::new(arguments.seed);
    let (done, failed) = (AtomicU64::new(0), AtomicU64::new(0));
    let (writes, launched) = (AtomicU64::new(0), AtomicU64::new(0));
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    let stop = arguments.fail_fast && failed.load(Ordering::SeqCst) > 0;
                    if seed >= end || stop {
                        return;
                    }
                    match run(seed, &settings) {
                        Ok(report) => {
                            writes.fetch_add(report.digest.1, Ordering::SeqCst);
                            launched.fetch_add(report.launched, Ordering::SeqCst);
                            for line in &report.trace {
                                println!("{line}");
                            }
                        }
                        Err(failure) => {
                            failed.fetch_add(1, Ordering::SeqCst);
                            for line in &failure.context {
                                println!("  {line}");
                            }
                            println!("FAILED {failure}");
                        }
                    }
                    let done = done.fetch_add(1, Ordering::SeqCst) + 1;
                    if done.is_multiple_of(50) {
                        println!("{done} seeds, {:.0} s", start.elapsed().as_secs_f64());
                    }
                }
            });
        }
    });
    let (done, failed) = (done.into_inner(), failed.into_inner());
    println!(
        "{done} seeds of {} simulated hours in {:.1} s, {} writes, {} instances, {failed} failed",
        arguments.hours,
        start.elapsed().as_secs_f64(),
        writes.into_inner(),
        launched.into_inner(),
    );
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
