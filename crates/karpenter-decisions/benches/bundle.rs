//! How fast bundles are written and read, and how large they are: `cargo xtask bench bundle`.
//!
//! `write` and `read` are of a cluster of 5,000 nodes and 100,000 pods. The goals are 3 s, 1.5 s, 50 MiB and, beside the snapshot, 16 MiB of
//! memory for writing (PLAN-07). `recorded` is what the flight recorder keeps for a change of a pod, with a pass after every ten changes:
//! at most the 4 KiB that it counts.

#![expect(clippy::unwrap_used, reason = "what fails here fails the benchmark")]

mod fleet;

use std::sync::Arc;

use fleet::{NODES, PODS, fleet, now};
use karpenter_bench::Suite;
use karpenter_core::cluster::Cluster;
use karpenter_core::pod::Pod;
use karpenter_decisions::bundle::{self, Bundle, Settings};

/// How many pods change.
const CHANGES: usize = 5_000;

fn captured() -> Bundle {
    Bundle::new("fake", "bench", fleet(), Settings::at(now()))
}

/// Counts what is written.
#[derive(Default)]
struct Counted(u64);

impl std::io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn main() {
    let mut suite = Suite::from_args("bundle");
    suite.case("write", |run| {
        let bundle = captured();
        run.parameter("nodes", NODES);
        run.parameter("pods", NODES * PODS);
        let mut file = Counted::default();
        let written = allocation_counter::measure(|| bundle::write(&bundle, &mut file).unwrap());
        run.record("bytes", file.0);
        run.record("memory", written.bytes_max);
        run.measure(NODES * PODS, || {
            bundle::write(&bundle, Counted::default()).unwrap();
        });
    });
    suite.case("read", |run| {
        let mut file = Vec::new();
        bundle::write(&captured(), &mut file).unwrap();
        run.parameter("nodes", NODES);
        run.parameter("pods", NODES * PODS);
        run.measure(NODES * PODS, || bundle::read(file.as_slice()).unwrap());
    });
    suite.case("recorded", |run| {
        let mut cluster = Cluster::from(fleet());
        let pods: Vec<Arc<Pod>> = cluster.snapshot().pods().take(CHANGES).cloned().collect();
        let mut states = Vec::new();
        let memory = allocation_counter::measure(|| {
            for (number, pod) in pods.iter().enumerate() {
                let mut pod = Pod::clone(pod);
                pod.ready = !pod.ready;
                cluster.insert_pod(pod);
                if number % 10 == 0 {
                    states.push(cluster.snapshot());
                }
            }
        });
        run.parameter("changes", CHANGES);
        run.record("bytes", memory.bytes_current / CHANGES as i64);
        run.measure_once(states.len(), || drop(states));
    });
}
