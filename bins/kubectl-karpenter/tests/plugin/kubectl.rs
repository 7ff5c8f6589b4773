//! kubectl finds the plugin and its completion, and krew's manifest is complete. Skipped, with a message, without kubectl.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::fixture::{Cluster, run};
use crate::usable::kubectl_is_missing;

/// Returns a kubectl with the plugin, and nothing else of ours, in its PATH.
fn kubectl(cluster: &Cluster) -> Command {
    let bin = cluster.home.path().join("bin");
    if !bin.exists() {
        std::fs::create_dir(&bin).unwrap();
        let link = |target: &Path, name: &str| {
            std::os::unix::fs::symlink(target, bin.join(name)).unwrap();
        };
        link(
            Path::new(env!("CARGO_BIN_EXE_kubectl-karpenter")),
            "kubectl-karpenter",
        );
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("kubectl_complete-karpenter");
        link(&script, "kubectl_complete-karpenter");
    }
    let path = std::env::var("PATH").unwrap();
    let mut command = Command::new("kubectl");
    command
        .env("PATH", format!("{}:{path}", bin.display()))
        .env("KUBECONFIG", cluster.kubeconfig())
        .env("HOME", cluster.home.path());
    command
}

async fn succeeds(cluster: &Cluster, args: &[&str]) -> String {
    let mut command = kubectl(cluster);
    command.args(args);
    run(command).await.succeeds().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_lists_and_runs_the_plugin() {
    if kubectl_is_missing(Path::new("kubectl")) {
        return;
    }
    let cluster = Cluster::start(&["default"]).await;
    let plugins = succeeds(&cluster, &["plugin", "list", "--name-only"]).await;
    assert!(
        plugins.lines().any(|line| line == "kubectl-karpenter"),
        "{plugins}"
    );
    let help = succeeds(&cluster, &["karpenter", "--help"]).await;
    assert!(
        help.contains("Usage: kubectl karpenter <COMMAND>"),
        "{help}"
    );
    succeeds(&cluster, &["karpenter", "pause", "default", "--for", "1h"]).await;
    assert!(cluster.paused("default").await.is_some());
    succeeds(&cluster, &["karpenter", "resume", "--all"]).await;
    assert_eq!(cluster.paused("default").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_completes_commands_options_values_and_names_of_nodepools() {
    if kubectl_is_missing(Path::new("kubectl")) {
        return;
    }
    let cluster = Cluster::start(&["default", "batch"]).await;
    let complete = async |words: &[&str]| -> Vec<String> {
        let args = [&["__complete", "karpenter"], words].concat();
        let text = succeeds(&cluster, &args).await;
        let words = text
            .lines()
            .map(|line| line.split('\t').next().unwrap().to_owned());
        words.collect()
    };
    let commands = complete(&[""]).await;
    for command in ["convert", "pause", "resume", ":4"] {
        assert!(commands.iter().any(|word| word == command), "{commands:?}");
    }
    assert!(
        !commands.iter().any(|word| word == "__complete"),
        "{commands:?}"
    );
    let pools = complete(&["pause", ""]).await;
    assert!(
        pools.contains(&"batch".to_owned()) && pools.contains(&"default".to_owned()),
        "{pools:?}"
    );
    assert_eq!(complete(&["pause", "de"]).await, ["default", ":4"]);
    assert_eq!(
        complete(&["pause", "default", "--reas"]).await,
        ["--reasons", ":4"]
    );
    assert_eq!(
        complete(&["resume", "--context", ""]).await,
        ["testbed", ":4"]
    );
    let formats = complete(&["resume", "-o", ""]).await;
    assert_eq!(formats, ["json", "yaml", "wide", "name", ":4"]);
}

/// The checks of krew's `pkg/index/validation`, by hand.
#[test]
fn the_krew_manifest_is_complete_and_of_this_version() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/krew/karpenter.yaml");
    let manifest: Value = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(
        manifest["apiVersion"],
        "krew.googlecontainertools.github.com/v1alpha2"
    );
    assert_eq!(manifest["kind"], "Plugin");
    assert_eq!(manifest["metadata"]["name"], "karpenter");
    let spec = &manifest["spec"];
    let version = format!("v{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(spec["version"], version);
    let short = spec["shortDescription"].as_str().unwrap();
    assert!(!short.is_empty() && short.len() <= 50 && !short.contains('\n'));
    let platforms = spec["platforms"].as_array().unwrap();
    assert_eq!(platforms.len(), 4);
    for platform in platforms {
        let text = |field: &str| platform[field].as_str().unwrap();
        let labels = &platform["selector"]["matchLabels"];
        let archive = format!(
            "/{version}/kubectl-karpenter_{}_{}.tar.gz",
            labels["os"].as_str().unwrap(),
            labels["arch"].as_str().unwrap()
        );
        assert!(text("uri").starts_with("https://") && text("uri").ends_with(&archive));
        assert!(
            text("sha256").len() == 64 && text("sha256").bytes().all(|b| b.is_ascii_hexdigit())
        );
        assert_eq!(text("bin"), "kubectl-karpenter");
    }
}
