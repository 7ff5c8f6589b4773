//! Reports to CI which tests were skipped because a program is missing.
//!
//! A test that needs kubectl, Helm or Prometheus cannot run where they are not installed, and the test harness has no third
//! outcome: it reports `ok`, and captures the output of the test. `cargo xtask ci` counts the lines that [`skipped`] writes,
//! lists them in its summary, and fails on them in CI.

use std::fmt::Display;
use std::io::Write as _;

/// Prefix of the line of a skipped test; the program, the test and the reason follow, separated by `: `.
pub const PREFIX: &str = "skipped, missing program ";

/// Reports on standard error, past the capture of the test harness, that the running test is skipped because `program` cannot be
/// used.
pub fn skipped(program: &str, why: impl Display) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    // A closed standard error must not fail a test.
    let _ = writeln!(std::io::stderr(), "{PREFIX}{program}: {test}: {why}");
}
