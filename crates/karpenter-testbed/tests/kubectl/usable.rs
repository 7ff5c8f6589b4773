//! Checks for a kubectl that tests can use.

use std::path::Path;
use std::process::Command;

use skipped::skipped;

/// Older versions validate with OpenAPI v2, which the embedded server does not serve.
pub const OLDEST: (u32, u32) = (1, 28);

/// Whether there is no kubectl, or none that is recent enough; reports a skipped test then.
pub fn kubectl_is_missing(program: &Path) -> bool {
    let program_name = program.display();
    let asked = Command::new(program)
        .args(["version", "--client", "--output=json"])
        .output();
    let Ok(answer) = asked else {
        skipped("kubectl", format!("cannot find `{program_name}`"));
        return true;
    };
    match version(&String::from_utf8_lossy(&answer.stdout)) {
        Some(found) if found < OLDEST => {
            let ((major, minor), (from, on)) = (found, OLDEST);
            skipped(
                "kubectl",
                format!("`{program_name}` is of {major}.{minor}, not of {from}.{on} or later"),
            );
            true
        }
        // A kubectl without a version fails its tests.
        _ => false,
    }
}

/// Returns the release in the output of `kubectl version --client --output=json`: (1, 28).
pub fn version(json: &str) -> Option<(u32, u32)> {
    let (_, rest) = json.split_once("\"gitVersion\":")?;
    let (_, rest) = rest.split_once("\"v")?;
    let mut numbers = rest.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}
