//! Explores clusters, and prints what is violated.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use karpenter_explore::scenarios::read;
use karpenter_explore::search::{Bounds, Order, explore, story};
use karpenter_explore::world::{Faults, World};
use karpenter_explore::worlds;

/// Clones of states are most of the work.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Explore every order of events of the processes of karpenter-core in small clusters.
#[derive(Parser)]
struct Arguments {
    /// Number of states of each cluster after which the search ends.
    #[arg(long, default_value_t = 1_000_000)]
    states: usize,
    /// The most departures from the fair course, or steps with --shortest.
    #[arg(long, default_value_t = 40)]
    depth: usize,
    /// The most states at the bound whose fair course is followed, beside those after rare steps.
    #[arg(long, default_value_t = 20_000)]
    courses: usize,
    /// Find the counterexample with the fewest steps, not the one with the fewest departures.
    #[arg(long)]
    shortest: bool,
    /// The most faults.
    #[arg(long, default_value_t = 2)]
    faults: u8,
    /// The most changes of users.
    #[arg(long, default_value_t = 2)]
    changes: u8,
    /// A file of scenarios of Kamera.
    #[arg(long, value_name = "FILE")]
    scenario: Vec<PathBuf>,
    /// Clusters; all without any, unless there are scenarios.
    #[arg(value_parser = worlds::all().map(|it| it.0))]
    clusters: Vec<String>,
}

impl Arguments {
    /// Returns the first states that are asked for, by name.
    fn worlds(&self) -> anyhow::Result<Vec<(String, World)>> {
        let is_asked = |name: &str| match self.clusters.is_empty() {
            true => self.scenario.is_empty(),
            false => self.clusters.iter().any(|it| it == name),
        };
        let faults = Faults::one_of_each(self.faults, self.changes);
        let own = worlds::all().into_iter().filter(|it| is_asked(it.0));
        let own = own.map(|(name, build)| (name.to_owned(), build().with_faults(faults.clone())));
        let mut all: Vec<_> = own.collect();
        for path in &self.scenario {
            let file = path.display().to_string();
            let text = std::fs::read_to_string(path).context(file.clone())?;
            for scenario in read(&text).context(file.clone())? {
                let first = scenario.world().context(file.clone())?;
                all.push((scenario.name, first));
            }
        }
        Ok(all)
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let asked = Arguments::parse();
    let bounds = Bounds {
        order: match asked.shortest {
            true => Order::Steps,
            false => Order::Departures,
        },
        depth: asked.depth,
        states: asked.states,
        courses: asked.courses,
    };
    let template = "{elapsed_precise} [{bar:30}] {human_pos} states, {per_sec}, {msg}";
    let mut code = ExitCode::SUCCESS;
    for (name, first) in asked.worlds()? {
        let (started, bar) = (Instant::now(), ProgressBar::new(asked.states as u64));
        bar.set_style(ProgressStyle::with_template(template)?);
        let outcome = explore(&first, bounds, |states, frontier, depth| {
            bar.set_position(states as u64);
            bar.set_message(format!("depth {depth}, frontier {frontier}"));
        });
        bar.finish_and_clear();
        println!(
            "{name}: {} states, {} steps, depth {}{}, {} more states of fair courses, {:.1} s",
            outcome.states,
            outcome.steps,
            outcome.depth,
            if outcome.is_exhausted { " (all)" } else { "" },
            outcome.beyond,
            started.elapsed().as_secs_f64(),
        );
        if let Some(found) = &outcome.counterexample {
            code = ExitCode::FAILURE;
            println!("{}", story(&first, found));
        }
    }
    Ok(code)
}
