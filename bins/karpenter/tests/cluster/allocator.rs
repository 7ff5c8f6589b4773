//! The allocator of the binary: it is built by `.cargo/config.toml`.

use std::process::Command;

#[test]
fn a_thread_of_the_allocator_returns_freed_memory_within_two_seconds() {
    let output = Command::new(env!("CARGO_BIN_EXE_karpenter"))
        .arg("--version")
        .env("MALLOC_CONF", "stats_print:true")
        .output()
        .unwrap();
    let settings = String::from_utf8(output.stderr).unwrap();
    for setting in [
        "opt.background_thread: true",
        "opt.narenas: 2",
        "opt.dirty_decay_ms: 2000",
        "opt.muzzy_decay_ms: 0",
    ] {
        assert!(settings.contains(setting), "{setting}: {settings}");
    }
}
