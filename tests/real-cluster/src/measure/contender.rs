//! Which controller is measured.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Value, json};

use super::how::How;
use crate::binaries::{UpstreamKwok, upstream_kwok};
use crate::cluster::Cluster;
use crate::helm::{KARPENTER, upgrade_from};
use crate::objects::{apply, documents};
use crate::paths::controller_binary;
use crate::suite::install_kwok_with;

#[derive(Clone, Debug)]
pub(super) enum Contender {
    Ours(PathBuf),
    Upstream(UpstreamKwok),
}

impl Contender {
    pub(super) fn new(how: &How) -> Result<Self> {
        Ok(match (&how.upstream, &how.controller) {
            (Some(version), _) => Self::upstream(version)?,
            (None, Some(binary)) => Self::Ours(binary.canonicalize()?),
            (None, None) => Self::Ours(controller_binary("karpenter-kwok")?),
        })
    }

    /// Returns upstream's controller of a version.
    pub(super) fn upstream(version: &str) -> Result<Self> {
        Ok(Self::Upstream(upstream_kwok(version)?))
    }

    /// Returns the path of the program.
    pub(super) fn program(&self) -> &Path {
        match self {
            Self::Ours(program) => program,
            Self::Upstream(upstream) => &upstream.program,
        }
    }

    /// Returns what it needs beside the environment of its Deployment.
    pub(super) fn environment(&self) -> BTreeMap<String, String> {
        match self {
            Self::Ours(_) => BTreeMap::new(),
            // Outside a pod it cannot find its own namespace.
            Self::Upstream(_) => {
                let namespace = KARPENTER.namespace.to_owned();
                BTreeMap::from([("LEADER_ELECTION_NAMESPACE".to_owned(), namespace)])
            }
        }
    }

    /// Installs its chart with its default settings and `values`, and a KWOKNodeClass.
    pub(super) async fn install(&self, cluster: &Cluster, mut values: Value) -> Result<()> {
        let sources = match self {
            Self::Ours(_) => {
                values["provider"] = "kwok".into();
                return install_kwok_with(cluster, &values).await;
            }
            Self::Upstream(upstream) => &upstream.sources,
        };
        let class = sources.join("apis/crds/karpenter.kwok.sh_kwoknodeclasses.yaml");
        for definition in documents(&fs::read_to_string(class)?)? {
            apply(&cluster.client, &definition).await?;
        }
        // The chart has no default for some gates.
        let gates = json!({ "staticCapacity": false, "capacityBuffer": false });
        let mut all = json!({
            "controller": { "image": { "repository": "upstream", "tag": "measured" } },
            "settings": { "featureGates": gates },
        });
        json_patch::merge(&mut all, &values);
        upgrade_from(&cluster.plane, KARPENTER, &sources.join("charts"), &all).await?;
        cluster.until_definitions_are_established().await?;
        let class = json!({
            "apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": { "name": "default" },
        });
        apply(&cluster.client, &class).await
    }
}
