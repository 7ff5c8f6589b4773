//! Which controller is measured.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::options::MeasureOptions;
use crate::binaries::{self, UpstreamKwok, upstream_kwok};
use crate::cluster::Cluster;
use crate::helm::{KARPENTER, upgrade_from};
use crate::objects::{apply, documents};
use crate::paths::controller_binary;
use crate::plane::{ClusterApi, offer};
use crate::suite::{cluster_api_class, install_cluster_api, install_kwok_with};

#[derive(Clone, Debug)]
pub(super) enum Contender {
    Ours(PathBuf),
    OursForClusterApi(PathBuf),
    Upstream(UpstreamKwok),
}

/// The sizes of the MachineDeployments of a measurement in CPUs, in each of two zones.
const SIZES: [u32; 3] = [64, 128, 192];

impl Contender {
    pub(super) fn new(options: &MeasureOptions) -> Result<Self> {
        if let Some(version) = &options.upstream {
            return Self::upstream(version);
        }
        let (name, ours): (_, fn(PathBuf) -> Self) = match options.cluster_api {
            true => ("karpenter-cluster-api", Self::OursForClusterApi),
            false => ("karpenter-kwok", Self::Ours),
        };
        Ok(ours(match &options.controller {
            Some(binary) => binary.canonicalize()?,
            None => controller_binary(name)?,
        }))
    }

    /// Returns upstream's controller of a version.
    pub(super) fn upstream(version: &str) -> Result<Self> {
        Ok(Self::Upstream(upstream_kwok(version)?))
    }

    /// Returns the path of the program.
    pub(super) fn program(&self) -> &Path {
        match self {
            Self::Ours(program) | Self::OursForClusterApi(program) => program,
            Self::Upstream(upstream) => &upstream.program,
        }
    }

    /// Returns what it needs beside the environment of its Deployment.
    pub(super) fn environment(&self) -> BTreeMap<String, String> {
        match self {
            Self::Ours(_) | Self::OursForClusterApi(_) => BTreeMap::new(),
            // Outside a pod it cannot find its own namespace.
            Self::Upstream(_) => {
                let namespace = KARPENTER.namespace.to_owned();
                BTreeMap::from([("LEADER_ELECTION_NAMESPACE".to_owned(), namespace)])
            }
        }
    }

    /// Returns the reference of NodePools to the NodeClass, if it is not a KWOKNodeClass.
    pub(super) fn node_class(&self) -> Option<Value> {
        matches!(self, Self::OursForClusterApi(_)).then(cluster_api_class)
    }

    /// Installs its chart with its default settings and `values`, and a NodeClass. Returns Cluster API's managers, if it needs them.
    pub(super) async fn install(
        &self,
        cluster: &Cluster,
        mut values: Value,
    ) -> Result<Option<ClusterApi>> {
        let sources = match self {
            Self::Ours(_) => {
                values["provider"] = "kwok".into();
                install_kwok_with(cluster, &values).await?;
                return Ok(None);
            }
            Self::OursForClusterApi(_) => {
                let managers = binaries::cluster_api().context("cannot build Cluster API")?;
                let managers = ClusterApi::start(&cluster.plane, &managers).await?;
                for size in SIZES {
                    for zone in ["a", "b"] {
                        offer(&cluster.client, size, zone, 1000).await?;
                    }
                }
                install_cluster_api(cluster, values).await?;
                return Ok(Some(managers));
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
        apply(&cluster.client, &class).await?;
        Ok(None)
    }
}
