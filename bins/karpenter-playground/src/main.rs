//! Karpenter on a laptop.

fn main() {}
