//! Whether there is a kubectl that tests can use.

use std::path::Path;
use std::process::Command;

use skipped::skipped;

/// Those before ask for OpenAPI v2 to validate with, which the embedded server does not have.
pub const OLDEST: (u32, u32) = (1, 28);

/// Whether there is no kubectl, or none that is new enough; says so.
pub fn kubectl_is_missing(program: &Path) -> bool {
    let program_name = program.display();
    let asked = Command::new(program)
        .args(["version", "--client", "--output=json"])
        .output();
    let Ok(answer) = asked else {
        skipped("kubectl", format!("there is no `{program_name}`"));
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
        // Whatever cannot say its version fails its tests.
        _ => false,
    }
}

/// The release in what `kubectl version --client --output=json` prints: (1, 28).
pub fn version(json: &str) -> Option<(u32, u32)> {
    let (_, rest) = json.split_once("\"gitVersion\":")?;
    let (_, rest) = rest.split_once("\"v")?;
    let mut numbers = rest.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}
