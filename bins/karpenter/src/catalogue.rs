//! `karpenter catalogue`: the instance types and offerings of NodePools as a JSON document, for `kubectl karpenter capture
//! --catalogue`. All calls to AWS and to the API server are reads.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use karpenter_api::v1::NodePool;
use karpenter_aws::api::EC2NodeClass;
use karpenter_aws::context::AwsSettings;
use karpenter_aws::operator::catalogue::catalogue;
use karpenter_aws::sdk::Aws;
use karpenter_decisions::bundle::catalogue::Catalogue;
use kube::api::ListParams;
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Print the instance types, offerings and prices of NodePools as JSON.
///
/// The NodePools and EC2NodeClasses are those of the files, or of the cluster without any. AWS is read only: the calls of
/// docs/iam-policy-shadow.json, and for an EC2NodeClass without a status those that find its subnets and AMIs. The options of the
/// controller go before the name of the command.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  karpenter --cluster-name demo catalogue > catalogue.json
  karpenter --cluster-name demo catalogue -f nodepools.yaml -f ec2nodeclasses.yaml")]
pub struct Args {
    /// YAML or JSON file with NodePools and EC2NodeClasses; may be repeated.
    #[arg(short, long = "filename", value_name = "FILE")]
    filename: Vec<PathBuf>,
}

/// The objects that instance types depend on.
#[derive(Debug, Default)]
struct Objects {
    pools: Vec<NodePool>,
    classes: Vec<EC2NodeClass>,
}

impl Args {
    pub async fn run(&self, aws: &Aws, settings: &AwsSettings) -> Result<()> {
        let objects = if self.filename.is_empty() {
            Objects::of_cluster().await?
        } else {
            Objects::of_files(&self.filename)?
        };
        let now = Timestamp::now();
        let types = catalogue(aws, settings, &objects.pools, &objects.classes, now).await?;
        println!("{}", Catalogue::new(types).to_json());
        Ok(())
    }
}

impl Objects {
    async fn of_cluster() -> Result<Self> {
        let client = Client::try_default()
            .await
            .context("cannot load the kubeconfig or the in-cluster configuration")?;
        let all = ListParams::default();
        let pools = Api::all(client.clone()).list(&all).await;
        let classes = Api::all(client).list(&all).await;
        Ok(Self {
            pools: pools.context("cannot list nodepools")?.items,
            classes: classes.context("cannot list ec2nodeclasses")?.items,
        })
    }

    fn of_files(paths: &[PathBuf]) -> Result<Self> {
        let mut objects = Self::default();
        for path in paths {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read `{}`", path.display()))?;
            objects.add(&text, path)?;
        }
        if objects.pools.is_empty() {
            bail!("cannot find a NodePool in the files");
        }
        Ok(objects)
    }

    /// Adds the NodePools and EC2NodeClasses of a file; other objects are left out.
    fn add(&mut self, text: &str, path: &Path) -> Result<()> {
        for (at, document) in documents(text).into_iter().enumerate() {
            let place = || format!("invalid document {} of `{}`", at + 1, path.display());
            let value: Value = serde_saphyr::from_str(&document).with_context(place)?;
            let listed = match value.get("items") {
                Some(Value::Array(items)) => items.clone(),
                _ => vec![value],
            };
            for object in listed {
                let version = object["apiVersion"].as_str().unwrap_or_default().to_owned();
                let kind = object["kind"].as_str().unwrap_or_default().to_owned();
                match (version.as_str(), kind.as_str()) {
                    ("karpenter.sh/v1", "NodePool") => {
                        self.pools.push(read(object).with_context(place)?);
                    }
                    ("karpenter.k8s.aws/v1", "EC2NodeClass") => {
                        self.classes.push(read(object).with_context(place)?);
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

fn read<T: DeserializeOwned>(object: Value) -> Result<T> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let kind = object["kind"].as_str().unwrap_or_default();
    let what = format!("{kind} {}", name.escape_default());
    serde_json::from_value(object).with_context(|| what)
}

/// Returns the documents of a YAML stream that are not empty.
fn documents(text: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    for line in text.lines() {
        if line.trim_end() == "---" {
            all.push(String::new());
        } else if let Some(last) = all.last_mut() {
            last.push_str(line);
            last.push('\n');
        }
    }
    let has_content = |document: &String| {
        let mut lines = document.lines().map(str::trim);
        lines.any(|line| !line.is_empty() && !line.starts_with('#'))
    };
    all.retain(has_content);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodepools_and_node_classes_of_all_documents_and_lists_are_read() {
        let text = "# first
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: a}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
      requirements: []
---
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: ConfigMap, metadata: {name: c}}
  - apiVersion: karpenter.k8s.aws/v1
    kind: EC2NodeClass
    metadata: {name: default}
    spec: {amiSelectorTerms: [{alias: al2023@latest}], subnetSelectorTerms: [{id: subnet-1}], securityGroupSelectorTerms: [{id: sg-1}]}
";
        let mut objects = Objects::default();
        objects.add(text, Path::new("all.yaml")).unwrap();
        assert_eq!((objects.pools.len(), objects.classes.len()), (1, 1));
    }

    #[test]
    fn an_invalid_document_is_named_by_its_number_and_file() {
        let text = "---\n{}\n---\napiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {name: a}\nspec: 7\n";
        let error = Objects::default()
            .add(text, Path::new("p.yaml"))
            .unwrap_err();
        let error = format!("{error:#}");
        assert!(
            error.starts_with("invalid document 2 of `p.yaml`: NodePool a: "),
            "{error}"
        );
    }
}
