//! The memory of this process.

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
