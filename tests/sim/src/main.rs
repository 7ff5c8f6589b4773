//! Runs simulations of many seeds: `cargo xtask sim --seeds N`.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use karpenter_sim::{SimulationSettings, run};
use rayon::prelude::*;

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
    /// Number of seeds that run in parallel; 0: one per core.
    #[arg(long, default_value_t = 0)]
    threads: usize,
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

fn main() -> Result<ExitCode, rayon::ThreadPoolBuildError> {
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
    // The trace of one seed after the other.
    let threads = if arguments.trace {
        1
    } else {
        arguments.threads
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
    pool.build_global()?;
    let [done, failed, launched] = [0; 3].map(AtomicU64::new);
    let start = Instant::now();
    let end = arguments.seed.saturating_add(arguments.seeds);
    (arguments.seed..end).into_par_iter().for_each(|seed| {
        if arguments.fail_fast && failed.load(Ordering::Relaxed) > 0 {
            return;
        }
        match run(seed, &settings) {
            Ok(report) => {
                launched.fetch_add(report.launched, Ordering::Relaxed);
                report.trace.iter().for_each(|line| println!("{line}"));
            }
            Err(failure) => {
                failed.fetch_add(1, Ordering::Relaxed);
                failure.context.iter().for_each(|line| println!("  {line}"));
                println!("FAILED {failure}");
            }
        }
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        if done.is_multiple_of(50) {
            println!("{done} seeds, {:.0} s", start.elapsed().as_secs_f64());
        }
    });
    let (done, failed) = (done.into_inner(), failed.into_inner());
    println!(
        "{done} seeds of {} simulated hours in {:.1} s, {} instances, {failed} failed",
        arguments.hours,
        start.elapsed().as_secs_f64(),
        launched.into_inner(),
    );
    Ok(match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}
