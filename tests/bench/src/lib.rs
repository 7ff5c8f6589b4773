//! The harness of the workspace's benchmarks: measures named workloads and prints one JSON object per line.
//!
//! A bench target (`harness = false`) declares its name and its cases. `cargo xtask bench [--json] [NAME…]` finds and runs them:
//!
//! ```no_run
//! // In `fn main` of `benches/schedule.rs`:
//! let mut suite = karpenter_bench::Suite::from_args("schedule");
//! suite.case("diverse-10000", |run| {
//!     let pods: Vec<u64> = (0..10_000).collect();
//!     run.parameter("pods", pods.len());
//!     run.measure(pods.len(), || pods.iter().sum::<u64>());
//! });
//! ```
//!
//! The line holds at least `name` (`<target>-<case>`), `seconds` (the median of one iteration), `per_second` (items over
//! that), `peak_mib` (the process's highest resident memory during the case), `iterations` and `parameters`; of repeated
//! workloads also `cpu_seconds` (the median of one iteration on the processor, of all threads), and the `allocations` and
//! `round_mib` (most memory at once) of the calling thread in one iteration.

use std::hint::black_box;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
// The allocator of the controllers replaces the C library's, which the counter of allocations calls.
use tikv_jemallocator as _;

/// The measured time after which iterations end.
const MEASURED_TIME: Duration = Duration::from_secs(2);
const MAX_ITERATIONS: usize = 10_000;
const MIN_ITERATIONS: usize = 3;

/// A sequence of pseudo-random numbers from a seed: the workloads must be the same in every run.
pub struct Random(pub u64);

impl Random {
    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        // A linear congruential generator.
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    /// Returns one of `all`.
    pub fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// The cases of one bench target and the names selected on the command line.
pub struct Suite {
    target: &'static str,
    json: bool,
    list: bool,
    names: Vec<String>,
}

impl Suite {
    /// Reads `[--json] [--list] [NAME…]` from the command line. A NAME selects the case of that name and all whose names
    /// continue after a dash, so the target's name selects every case; without a NAME every case runs.
    pub fn from_args(target: &'static str) -> Self {
        Self::parse(target, std::env::args().skip(1))
    }

    fn parse(target: &'static str, arguments: impl Iterator<Item = String>) -> Self {
        let mut suite = Self {
            target,
            json: false,
            list: false,
            names: Vec::new(),
        };
        for argument in arguments {
            match argument.as_str() {
                "--json" => suite.json = true,
                "--list" => suite.list = true,
                // Cargo adds `--bench`; other options are those of other harnesses.
                option if option.starts_with('-') => {}
                _ => suite.names.push(argument),
            }
        }
        suite
    }

    fn selects(&self, name: &str) -> bool {
        self.names.is_empty()
            || self.names.iter().any(|wanted| {
                name.strip_prefix(wanted.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
            })
    }

    /// Runs a case if it is selected. The workload does its own setup, so that a case that is not selected costs nothing.
    pub fn case(&mut self, case: &str, workload: impl FnOnce(&mut Run)) {
        let name = format!("{}-{case}", self.target);
        if !self.selects(&name) {
            return;
        }
        if self.list {
            println!("{name}");
            return;
        }
        memory::reset_peak();
        let mut run = Run::default();
        workload(&mut run);
        let result = run.result(&name, memory::peak_mib());
        if self.json {
            println!("{result}")
        } else {
            println!("{}", line(&result))
        }
    }
}

/// The parameters and measurements of one case.
#[derive(Default)]
pub struct Run {
    parameters: Map<String, Value>,
    extra: Map<String, Value>,
    items: usize,
    samples: Vec<Duration>,
    busy: Vec<Duration>,
}

impl Run {
    /// Records a parameter of the workload, such as its size, in the field `parameters`.
    pub fn parameter(&mut self, name: &str, value: impl Into<Value>) {
        self.parameters.insert(name.to_owned(), value.into());
    }

    /// Records another result, such as a cost, a count of allocations or a percentile, in the field `name`.
    pub fn record(&mut self, name: &str, value: impl Into<Value>) {
        self.extra.insert(name.to_owned(), value.into());
    }

    /// Measures repeated rounds of a workload of `items`, after one round to warm up.
    pub fn measure<T>(&mut self, items: usize, mut work: impl FnMut() -> T) {
        self.measure_with(items, || (), |()| work());
    }

    /// Measures like [`Self::measure`], with a new input for every round, created outside the measured time.
    pub fn measure_with<I, T>(
        &mut self,
        items: usize,
        mut setup: impl FnMut() -> I,
        mut work: impl FnMut(I) -> T,
    ) {
        self.items = items;
        let input = black_box(setup());
        let memory = allocation_counter::measure(|| {
            black_box(work(input));
        });
        self.record("allocations", memory.count_total);
        self.record("round_mib", memory.bytes_max as f64 / 1024.0 / 1024.0);
        let mut total = Duration::ZERO;
        while self.samples.len() < MIN_ITERATIONS
            || (total < MEASURED_TIME && self.samples.len() < MAX_ITERATIONS)
        {
            let input = black_box(setup());
            let (start, busy) = (Instant::now(), cpu_time());
            let output = work(input);
            let elapsed = start.elapsed();
            if let (Some(before), Some(after)) = (busy, cpu_time()) {
                self.busy.push(after.saturating_sub(before));
            }
            black_box(output);
            total += elapsed;
            self.samples.push(elapsed);
        }
    }

    /// Measures a workload of `items` once, without warming up, and returns its result.
    pub fn measure_once<T>(&mut self, items: usize, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let output = work();
        self.sample(items, start.elapsed());
        output
    }

    /// Adds one measurement taken by the caller.
    pub fn sample(&mut self, items: usize, elapsed: Duration) {
        self.items = items;
        self.samples.push(elapsed);
    }

    fn result(mut self, name: &str, peak_mib: f64) -> Value {
        self.samples.sort_unstable();
        let median = self
            .samples
            .get(self.samples.len() / 2)
            .copied()
            .unwrap_or_default()
            .as_secs_f64();
        let per_second = if median > 0.0 {
            self.items as f64 / median
        } else {
            0.0
        };
        let mut result = json!({
            "name": name,
            "seconds": median,
            "per_second": per_second,
            "peak_mib": peak_mib,
            "iterations": self.samples.len(),
            "parameters": self.parameters,
        });
        self.busy.sort_unstable();
        if let Some(median) = self.busy.get(self.busy.len() / 2) {
            result["cpu_seconds"] = json!(median.as_secs_f64());
        }
        for (name, value) in self.extra {
            result[name] = value;
        }
        result
    }
}

/// Formats a result as a line of a table.
fn line(result: &Value) -> String {
    let number = |field: &str| result[field].as_f64().unwrap_or_default();
    let name = result["name"].as_str().unwrap_or_default();
    format!(
        "{name:<40} {:>12.6} s {:>14.0} /s {:>9.1} MiB  {}",
        number("seconds"),
        number("per_second"),
        number("peak_mib"),
        result["parameters"]
    )
}

/// Returns the CPU time of the process, of all threads including ended ones, which other load on the computer does not distort.
/// Returns None where the platform does not report it.
pub fn cpu_time() -> Option<Duration> {
    #[cfg(target_os = "linux")]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Duration::try_from(time).ok()
    }
    #[cfg(not(target_os = "linux"))]
    None
}

/// Returns the bytes that a workload allocates on this thread and does not free.
pub fn allocated(work: impl FnOnce()) -> i64 {
    allocation_counter::measure(work).bytes_current
}

/// The resident memory of this process on Linux; zero on other platforms.
mod memory {
    /// Resets the highest resident memory to the current one.
    pub(crate) fn reset_peak() {
        // Where the kernel does not allow it, the peak covers earlier cases too.
        let _unsupported = std::fs::write("/proc/self/clear_refs", "5");
    }

    /// Returns the highest resident memory since the last reset, in MiB.
    pub(crate) fn peak_mib() -> f64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        parse_peak(&status).unwrap_or(0.0)
    }

    pub(super) fn parse_peak(status: &str) -> Option<f64> {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))?;
        let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
        Some(kib / 1024.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suite(arguments: &[&str]) -> Suite {
        Suite::parse(
            "engine",
            arguments.iter().map(|argument| (*argument).to_owned()),
        )
    }

    #[test]
    fn a_name_selects_its_case_or_its_target() {
        assert!(suite(&["--bench"]).selects("engine-a"));
        assert!(suite(&["engine-a"]).selects("engine-a"));
        assert!(!suite(&["engine-a"]).selects("engine-b"));
        assert!(suite(&["engine"]).selects("engine-b"));
        assert!(!suite(&["eng"]).selects("engine-b"));
        assert!(!suite(&["testbed"]).selects("engine-b"));
        assert!(suite(&["--json"]).json);
    }

    #[test]
    fn the_median_and_the_rate_are_reported() {
        let mut run = Run::default();
        run.parameter("pods", 10);
        run.record("cost", 1.5);
        for millis in [900, 100, 200] {
            run.sample(10, Duration::from_millis(millis));
        }
        let result = run.result("engine-a", 3.0);
        assert_eq!(result["seconds"], 0.2);
        assert_eq!(result["per_second"], 50.0);
        assert_eq!(result["iterations"], 3);
        assert_eq!(result["parameters"]["pods"], 10);
        assert_eq!(result["cost"], 1.5);
        assert_eq!(result["peak_mib"], 3.0);
    }

    #[test]
    fn peak_memory_is_read_from_the_kernel_s_status() {
        assert_eq!(
            memory::parse_peak("Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n"),
            Some(2.0)
        );
        assert_eq!(memory::parse_peak(""), None);
    }

    #[test]
    fn allocations_and_processor_time_of_a_round_are_reported() {
        let mut run = Run::default();
        run.measure(1, || vec![0_u8; 3 << 20]);
        let result = run.result("engine-a", 3.0);
        assert_eq!(result["allocations"], 1);
        assert_eq!(result["round_mib"], 3.0);
        assert_eq!(result["cpu_seconds"].is_number(), cpu_time().is_some());
    }

    #[test]
    fn a_measured_workload_runs_at_least_three_times_after_warming_up() {
        let mut calls = 0;
        let mut run = Run::default();
        run.measure(1, || calls += 1);
        assert!(calls > MIN_ITERATIONS);
        assert_eq!(run.samples.len() + 1, calls);
    }
}
