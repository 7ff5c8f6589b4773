//! Explores clusters: `karpenter-explore [--states N] [--depth N] [--shortest] [--faults N] [--changes N] [--scenario FILE]… [CLUSTER…]`.

use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use karpenter_explore::scenarios::read;
use karpenter_explore::search::{Bounds, Order, Progress, explore, story};
use karpenter_explore::world::{Faults, World};
use karpenter_explore::worlds;

/// Clones of states are most of the work.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// What the command line asks for.
struct Arguments {
    states: usize,
    depth: usize,
    order: Order,
    faults: u8,
    changes: u8,
    names: Vec<String>,
    scenarios: Vec<String>,
}

fn arguments() -> Result<Arguments, String> {
    let mut asked = Arguments {
        states: 1_000_000,
        depth: 40,
        order: Order::Departures,
        faults: 2,
        changes: 2,
        names: Vec::new(),
        scenarios: Vec::new(),
    };
    let mut all = std::env::args().skip(1);
    while let Some(argument) = all.next() {
        let mut number = || {
            let text = all.next().unwrap_or_default();
            text.parse::<usize>()
                .map_err(|_| format!("`{text}` is not a valid number for {argument}"))
        };
        if argument == "--scenario" {
            asked.scenarios.extend(all.next());
            continue;
        }
        match argument.as_str() {
            "--shortest" => asked.order = Order::Steps,
            "--states" => asked.states = number()?,
            "--depth" => asked.depth = number()?,
            "--faults" => asked.faults = u8::try_from(number()?).unwrap_or(u8::MAX),
            "--changes" => asked.changes = u8::try_from(number()?).unwrap_or(u8::MAX),
            _ => asked.names.push(argument),
        }
    }
    Ok(asked)
}

/// Returns a progress bar, which shows the states a second and the frontier.
fn bar(states: usize) -> ProgressBar {
    let bar = ProgressBar::new(states as u64);
    let template = "{elapsed_precise} [{bar:30}] {human_pos} states, {per_sec}, {msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

fn show(bar: &ProgressBar, progress: Progress) {
    bar.set_position(progress.states as u64);
    bar.set_message(format!(
        "depth {}, frontier {}",
        progress.depth, progress.frontier
    ));
}

/// Returns the largest amount of memory that the process had, in MiB.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or_default() / 1024
}

/// Returns the first states that are asked for, by name.
fn clusters(asked: &Arguments) -> Vec<(String, Result<World, String>)> {
    let faults = Faults {
        stale: 1,
        answers: 1,
        crashes: 1,
        early: 1,
        all: asked.faults,
        changes: asked.changes,
    };
    let is_asked = |name: &str| {
        asked.names.iter().any(|it| it == name)
            || (asked.names.is_empty() && asked.scenarios.is_empty())
    };
    let own = worlds::all()
        .into_iter()
        .filter(|named| is_asked(named.name));
    let mut all: Vec<_> = own
        .map(|named| {
            (
                named.name.to_owned(),
                Ok(named.world.with_faults(faults.clone())),
            )
        })
        .collect();
    for path in &asked.scenarios {
        let file = path.rsplit('/').next().unwrap_or(path);
        match std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}")) {
            Err(problem) => all.push((path.clone(), Err(problem))),
            Ok(text) => match read(file, &text) {
                Err(problem) => all.push((path.clone(), Err(problem.to_string()))),
                Ok(scenarios) => all.extend(scenarios.iter().map(|scenario| {
                    (
                        scenario.name.clone(),
                        scenario.world(file).map_err(|problem| problem.to_string()),
                    )
                })),
            },
        }
    }
    all
}

fn main() -> ExitCode {
    let asked = match arguments() {
        Ok(asked) => asked,
        Err(problem) => {
            eprintln!("error: {problem}");
            return ExitCode::FAILURE;
        }
    };
    let bounds = Bounds {
        order: asked.order,
        depth: asked.depth,
        states: asked.states,
    };
    let mut is_whole = true;
    for (name, first) in clusters(&asked) {
        let first = match first {
            Ok(first) => first,
            Err(problem) => {
                eprintln!("error: {problem}");
                return ExitCode::FAILURE;
            }
        };
        let bar = bar(asked.states);
        let outcome = explore(&first, bounds, |progress| show(&bar, progress));
        bar.finish_and_clear();
        println!(
            "{name}: {} states, {} steps, depth {}{}, {} more states of fair courses, {:.1} s, {} MiB",
            outcome.states,
            outcome.steps,
            outcome.depth,
            if outcome.is_exhausted { " (all)" } else { "" },
            outcome.beyond,
            outcome.took.as_secs_f64(),
            memory(),
        );
        if let Some(found) = &outcome.counterexample {
            is_whole = false;
            println!("{}", story(&first, found));
        }
    }
    if is_whole {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
