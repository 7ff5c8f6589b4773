//! The memory of this process: how much is resident, and returning what was freed to the operating system.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// How often the resident memory is read.
const INTERVAL: Duration = Duration::from_secs(10);
/// The least growth after which freed memory is returned, in bytes; an eighth of the memory of a larger process.
const GROWTH: u64 = 16 << 20;

/// Returns freed memory to the operating system whenever the process has grown, until `stop`. For the `main` function of a controller.
///
/// Objects that stay are allocated while lists are parsed and plans are made. What is freed afterwards lies between them, where the C
/// library keeps it: about 10 of 214 MiB in a cluster of 5,000 nodes (docs/performance.md). Does nothing with another C library than
/// glibc, which returns pages by itself or has no such function.
pub async fn return_freed_memory(stop: CancellationToken) {
    let mut last = 0;
    while stop
        .run_until_cancelled(tokio::time::sleep(INTERVAL))
        .await
        .is_some()
    {
        let Some(now) = resident() else { return };
        if !has_grown(last, now) {
            continue;
        }
        // It visits each free chunk, and other threads wait for memory meanwhile.
        if tokio::task::spawn_blocking(trim).await.is_err() {
            return;
        }
        last = resident().unwrap_or(now);
        tracing::debug!(
            logger = "controller",
            "resident-before-bytes" = now,
            "resident-bytes" = last,
            "returned freed memory to the operating system"
        );
    }
}

fn has_grown(last: u64, now: u64) -> bool {
    now >= last + GROWTH.max(last / 8)
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "the C library has no safe interface for it")]
fn trim() {
    // SAFETY: malloc_trim has no precondition, and takes the locks of the allocator as malloc does.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn trim() {}

/// Returns the resident memory of this process in bytes, without pages of its program file, which the kernel can drop; `None` where it
/// is not known, as on macOS.
#[cfg(target_os = "linux")]
pub(crate) fn resident() -> Option<u64> {
    let status = procfs::process::Process::myself().and_then(|process| process.status());
    Some(status.ok()?.rssanon? << 10)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn resident() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_returned_after_a_growth_of_an_eighth_and_of_16_mib() {
        const MIB: u64 = 1 << 20;
        assert!(has_grown(0, 16 * MIB));
        assert!(!has_grown(100 * MIB, 115 * MIB));
        assert!(has_grown(100 * MIB, 116 * MIB));
        assert!(!has_grown(800 * MIB, 899 * MIB));
        assert!(has_grown(800 * MIB, 900 * MIB));
        assert!(!has_grown(800 * MIB, 400 * MIB));
    }

    /// glibc alone keeps what was freed below memory that is in use.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn memory_freed_between_objects_that_stay_is_returned() {
        let mut objects: Vec<Option<Box<[u8; 2048]>>> = Vec::new();
        objects.resize_with(100_000, || Some(Box::new([1; 2048])));
        // One of 64 stays: 128 KiB of freed memory between any two.
        for (at, object) in objects.iter_mut().enumerate() {
            if at % 64 != 0 {
                *object = None;
            }
        }
        let before = resident().unwrap();
        trim();
        let after = resident().unwrap();
        assert!(objects.iter().flatten().all(|object| object[0] == 1));
        assert!(after + (100 << 20) < before, "{before} -> {after}");
    }
}
