//! The project's one door for people and CI.

fn main() {}
