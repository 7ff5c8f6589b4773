//! An interactive cluster: `up` leaves it running, `down` stops it.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};

use crate::cluster::Cluster;
use crate::paths::{controller_binary, root};
use crate::plane::{Left, Profile};
use crate::{binaries, process, suite};

fn folder() -> PathBuf {
    root().join("target/realcluster/up")
}

fn state() -> PathBuf {
    folder().join("state.json")
}

/// Starts a cluster with Karpenter and its kwok provider.
pub(crate) async fn up() -> Result<()> {
    ensure!(
        !state().exists(),
        "a cluster is already running; `cargo xtask realcluster down` stops it"
    );
    let binaries = binaries::build(true)?;
    let _ = fs::remove_dir_all(folder());
    let mut cluster = Cluster::start_in(&binaries, &folder(), Profile::Default).await?;
    suite::install_kwok(&cluster).await?;
    cluster
        .run(&controller_binary("karpenter-kwok")?, &BTreeMap::new())
        .await?;
    let kubeconfig = cluster.plane.kubeconfig();
    let controller = cluster
        .controller
        .take()
        .context("the controller is not started")?;
    let mut left = cluster.plane.leave();
    left.processes
        .insert("karpenter".to_owned(), controller.leave());
    fs::write(state(), serde_json::to_string_pretty(&left)?)?;
    println!("export KUBECONFIG={}", kubeconfig.display());
    println!("logs are in {}", folder().display());
    Ok(())
}

pub(crate) fn down() -> Result<()> {
    let text = fs::read_to_string(state()).context("no cluster is running")?;
    let left: Left = serde_json::from_str(&text)?;
    for name in process::end_all(&left.processes, &folder()) {
        println!("{name} ended");
    }
    fs::remove_dir_all(folder())?;
    Ok(())
}
