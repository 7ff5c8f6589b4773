//! What the harness itself costs: the floor under every other number.

fn main() {
    let mut suite = karpenter_bench::Suite::from_args("bench");
    suite.case("empty", |run| run.measure(1, || ()));
}
