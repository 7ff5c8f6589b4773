//! Tells CI which tests were skipped for want of a program.
//!
//! A test that needs kubectl, Helm or Prometheus cannot fail where they are not installed, and the test harness knows no third
//! outcome: it says `ok`, and captures what the test prints. `cargo xtask ci` counts the lines that [`skipped`] writes, names them
//! in its summary, and fails on them in CI.

use std::fmt::Display;
use std::io::Write as _;

/// How the line of a skipped test begins; the program, the test and the reason follow, separated by `: `.
pub const PREFIX: &str = "skipped for want of ";

/// Says that the running test is skipped because `program` cannot be used, past the capture of the test harness.
pub fn skipped(program: &str, why: impl Display) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    // A closed standard error is no reason to fail a test.
    let _ = writeln!(std::io::stderr(), "{PREFIX}{program}: {test}: {why}");
}
