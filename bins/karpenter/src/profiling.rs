//! Profiles of the processor for `go tool pprof` and its kin: `--enable-profiling`, then
//! `go tool pprof http://HOST:8080/debug/pprof/profile?seconds=10`.

use std::sync::Arc;

use karpenter_kube::admin::Profiler;
use pprof::ProfilerGuardBuilder;
use pprof::protos::Message;

/// Samples a second and processor. No round number, so that what happens at round intervals is not always or never seen.
const FREQUENCY: i32 = 99;

/// Takes profiles, one at a time.
pub fn profiler() -> Profiler {
    Arc::new(|duration| {
        Box::pin(async move {
            // Code that must not be interrupted to walk the stack.
            let unsafe_to_walk = ["libc", "libgcc", "pthread", "vdso"];
            let guard = ProfilerGuardBuilder::default()
                .frequency(FREQUENCY)
                .blocklist(&unsafe_to_walk)
                .build()
                .map_err(|error| format!("a profile cannot be taken: {error}"))?;
            tokio::time::sleep(duration).await;
            // Names are looked up in the binary's own tables, which takes a while.
            let encoded = tokio::task::spawn_blocking(move || {
                let report = guard.report().build()?.pprof()?;
                Ok::<_, pprof::Error>(report.write_to_bytes())
            });
            match encoded.await {
                Ok(Ok(Ok(bytes))) => Ok(bytes),
                Ok(Ok(Err(error))) => Err(format!("the profile cannot be written: {error}")),
                Ok(Err(error)) => Err(format!("the profile cannot be read: {error}")),
                Err(error) => Err(format!("the profile was lost: {error}")),
            }
        })
    })
}
