//! A full disk: nothing is left half-written, and what was there before stays.
//!
//! The largest file that the process may write stands for the space that is left. A file system that is full refuses a write with
//! another error at the same place.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use karpenter_core::fake;
use karpenter_decisions::bundle::catalogue::Catalogue;
use serde_json::json;

use crate::bundles::{captured, home, write};
use crate::fixture::{Cluster, Printed, run};
use crate::transport::Decisions;

/// Runs the plugin in a directory; no file may have more than that many blocks of 512 or 1024 bytes, as the shell counts them.
async fn with_room(blocks: u32, home: &Path, kubeconfig: &Path, args: &[&str]) -> Printed {
    let mut command = Command::new("sh");
    let limited = r#"trap '' XFSZ; ulimit -f "$0"; exec "$@""#;
    command
        .args(["-c", limited, &blocks.to_string()])
        .arg(env!("CARGO_BIN_EXE_kubectl-karpenter"))
        .args(args)
        .current_dir(home)
        .env("KUBECONFIG", kubeconfig)
        .env("HOME", home);
    run(command).await
}

/// Returns the content of each file of a directory.
fn contents(home: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(home).unwrap();
    let entries = entries.map(|entry| entry.unwrap());
    let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
    files
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read(entry.path()).unwrap())
        })
        .collect()
}

/// Checks that a process has failed with a line about a file that has no room.
fn refused(printed: &Printed, file: &str) {
    let words = format!("error: cannot write {file}: File too large (os error 27)\n");
    assert_eq!(
        (printed.code, printed.stdout.as_str(), &printed.stderr),
        (Some(1), "", &words)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capture_to_a_full_disk_leaves_no_file_and_keeps_the_old_one() {
    let home = home();
    let before = contents(home.path());
    let large = Decisions::answering("200 OK", "", &"x".repeat(4 << 20)).await;
    let url = large.url();
    let args = ["capture", "-o", "a.karpenter.zst", "--server", &url];
    let nowhere = Path::new("/nonexistent");
    let printed = with_room(64, home.path(), nowhere, &args).await;
    refused(&printed, "a.karpenter.zst");
    assert!(contents(home.path()) == before);
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_the_bundle_nor_the_key_to_its_names_is_kept_without_the_other() {
    let cluster = Cluster::start(&["default"]).await;
    cluster
        .testbed
        .load([json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node-a" } })]);
    // Instance types keep their names, so that the key is short and the bundle is long.
    let types = Catalogue::new([("default".to_owned(), fake::instance_types(600).to_vec())]);
    let home = cluster.home.path();
    std::fs::write(home.join("catalogue"), types.to_json()).unwrap();
    let capture = |bundle, key| {
        let redacted = ["capture", "--redact", "names", "--key", key, "-o", bundle];
        [
            &redacted[..],
            &["--without-controller", "--catalogue", "catalogue"],
        ]
        .concat()
    };
    let config = cluster.kubeconfig();
    let printed = with_room(1 << 20, home, &config, &capture("a", "key")).await;
    assert_eq!(printed.code, Some(0), "{printed:?}");
    let before = contents(home);
    let (bundle, key) = (before["a"].len(), before["key"].len());
    assert!(key < 8 * 512 && bundle > 8 * 1024, "{key}, {bundle}");
    for (file, key) in [("a", "key"), ("b", "other-key")] {
        let printed = with_room(8, home, &config, &capture(file, key)).await;
        refused(&printed, file);
        let printed = with_room(0, home, &config, &capture(file, key)).await;
        refused(&printed, key);
        assert!(contents(home) == before);
    }
}

#[tokio::test]
async fn the_first_decision_that_differs_is_kept_completely_or_not_at_all() {
    let home = home();
    let mut other = captured();
    other.decisions[1].digest = "0".repeat(64);
    write(&other, &home.path().join("b.karpenter.zst"));
    let before = contents(home.path());
    let nowhere = Path::new("/nonexistent");
    for file in ["a.karpenter.zst", "new.karpenter.zst"] {
        let args = ["replay", "b.karpenter.zst", "--bisect", file];
        let printed = with_room(0, home.path(), nowhere, &args).await;
        refused(&printed, file);
        assert!(contents(home.path()) == before);
    }
}
