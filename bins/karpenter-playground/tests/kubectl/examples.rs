//! The manifests of docs/examples, each applied by itself.

use std::path::{Path, PathBuf};

use crate::playground::{Playground, kubectl_is_missing};

fn manifests(folder: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = std::fs::read_dir(root.join(folder)).unwrap();
    let files = files.map(|file| file.unwrap().path());
    let mut manifests: Vec<PathBuf> = files
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "yaml")
        })
        .collect();
    manifests.sort();
    manifests
}

#[test]
fn pods_run_with_the_examples_alone_though_their_feature_gates_are_off() {
    if kubectl_is_missing() {
        return;
    }
    let playground = Playground::start(&["--speed", "10"]);
    for file in manifests("docs/examples") {
        playground.succeeds(
            &["apply", "--validate=strict", "-f", file.to_str().unwrap()],
            None,
        );
    }
    playground.until_examples();
}

#[test]
fn every_example_for_aws_is_accepted() {
    if kubectl_is_missing() {
        return;
    }
    let playground = Playground::start(&["--speed", "10"]);
    playground.add_ec2_node_classes();
    let files = manifests("docs/examples/aws");
    assert!(files.len() > 15, "{files:?}");
    for file in files {
        let path = file.to_str().unwrap();
        playground.succeeds(&["apply", "--validate=strict", "-f", path], None);
        // The next file has its own object of the same name.
        playground.succeeds(&["delete", "--wait=false", "-f", path], None);
    }
}
