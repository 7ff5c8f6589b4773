//! Validation of the objects of `tests/` by the API server: recordings of another API server, and manifests of users.

use std::fs;

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::objects::{documents, dry_run, name};
use crate::paths::root;

/// An object, and whether it was accepted with the CRDs of Karpenter in Go.
#[derive(Debug, Deserialize)]
struct Verdict {
    name: String,
    object: Value,
    accepted: bool,
    defaulted_spec: Option<Value>,
}

fn lines<T: serde::de::DeserializeOwned>(file: &str) -> Result<Vec<T>> {
    let text = fs::read_to_string(root().join("tests/golden").join(file))?;
    let read = |line: &str| serde_json::from_str(line).with_context(|| line.to_owned());
    text.lines().map(read).collect()
}

/// Every recorded object is accepted or rejected as it was, with the same defaults.
async fn recorded_objects(cluster: &Cluster) -> Result<()> {
    for verdict in lines::<Verdict>("crd-validation-golden.jsonl")? {
        match (
            dry_run(&cluster.client, &verdict.object).await?,
            verdict.accepted,
        ) {
            (Ok(stored), true) => {
                let same = verdict
                    .defaulted_spec
                    .is_none_or(|spec| stored["spec"] == spec);
                ensure!(same, "{}: defaults are {}", verdict.name, stored["spec"]);
            }
            (Err(_), false) => {}
            (Ok(_), false) => bail!("{} is accepted", verdict.name),
            (Err(refusal), true) => bail!("{} is rejected: {refusal}", verdict.name),
        }
    }
    Ok(())
}

/// Every manifest of the walkthroughs is accepted.
async fn manifests(cluster: &Cluster) -> Result<()> {
    let seeds = root().join("tests/seeds");
    let mut folders = vec![seeds];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path)?.replace("${CLUSTER_NAME}", "real");
            for mut object in documents(&text)? {
                // Its CRD is installed only for another provider.
                if object["kind"] == "KWOKNodeClass" {
                    continue;
                }
                let namespaced = ["Deployment", "PodDisruptionBudget"];
                if namespaced.iter().any(|kind| object["kind"] == *kind) {
                    object["metadata"]["namespace"] = "default".into();
                }
                if let Err(refusal) = dry_run(&cluster.client, &object).await? {
                    bail!(
                        "{}: {} is rejected: {refusal}",
                        path.display(),
                        name(&object)
                    );
                }
            }
        }
    }
    Ok(())
}

/// All checks, with the CRDs of the AWS provider.
pub(super) async fn aws(cluster: &Cluster) -> Result<()> {
    recorded_objects(cluster).await?;
    manifests(cluster).await
}
