//! How fast bundles are written and read, and how large they are: `cargo xtask bench bundle`.
//!
//! `write` and `read` are of a cluster of 5,000 nodes and 100,000 pods. The goals are 3 s, 1.5 s, 50 MiB and, beside the snapshot, 16 MiB of
//! memory for writing (PLAN-07).

#![expect(clippy::unwrap_used, reason = "what fails here fails the benchmark")]

mod fleet;

use fleet::{NODES, PODS, fleet, now};
use karpenter_bench::Suite;
use karpenter_decisions::bundle::{self, Bundle, Settings};

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
}
