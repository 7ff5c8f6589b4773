//! CPU profiles for `go tool pprof`: `--enable-profiling`, then `go tool pprof http://HOST:8080/debug/pprof/profile?seconds=10`.

use std::sync::Arc;

use karpenter_kube::admin::Profiler;
use pprof::ProfilerGuardBuilder;
use pprof::protos::Message;

/// Samples per second and core. Not a round number, so that sampling does not coincide with work at round intervals.
const FREQUENCY: i32 = 99;

/// Returns the profiler, which takes one profile at a time.
pub fn profiler() -> Profiler {
    Arc::new(|duration| {
        Box::pin(async move {
            // Code in which walking the stack from a signal handler is not safe.
            let unsafe_to_walk = ["libc", "libgcc", "pthread", "vdso"];
            let guard = ProfilerGuardBuilder::default()
                .frequency(FREQUENCY)
                .blocklist(&unsafe_to_walk)
                .build()
                .map_err(|error| format!("cannot take a profile: {error}"))?;
            tokio::time::sleep(duration).await;
            // Symbols are looked up in the binary, which takes a while.
            let encoded = tokio::task::spawn_blocking(move || {
                let report = guard.report().build()?.pprof()?;
                Ok::<_, pprof::Error>(report.write_to_bytes())
            });
            match encoded.await {
                Ok(Ok(Ok(bytes))) => Ok(bytes),
                Ok(Ok(Err(error))) => Err(format!("cannot encode the profile: {error}")),
                Ok(Err(error)) => Err(format!("cannot build the profile: {error}")),
                Err(error) => Err(format!("cannot build the profile: {error}")),
            }
        })
    })
}
