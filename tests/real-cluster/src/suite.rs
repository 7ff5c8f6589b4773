//! Runs the scenarios: prints one line for each, with its duration.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::binaries::Binaries;
use crate::case::Case;
use crate::cluster::Cluster;
use crate::objects::apply;
use crate::paths::controller_binary;
use crate::plane::{FLEET, free_ports};
use crate::scenarios::{Alone, Beside, aws};
use crate::{binaries, scenarios};

/// Timeout of a scenario.
const LONGEST: Duration = Duration::from_secs(400);

/// Passed and failed scenarios.
#[derive(Debug, Default)]
struct Results {
    passed: usize,
    failed: Vec<String>,
}

impl Results {
    fn report(&mut self, name: &str, since: Instant, result: Result<()>) {
        let seconds = since.elapsed().as_secs();
        match result {
            Ok(()) => {
                println!("ok      {seconds:4} s  {name}");
                self.passed += 1;
            }
            Err(problem) => {
                println!("FAILED  {seconds:4} s  {name}: {problem:#}");
                self.failed.push(name.to_owned());
            }
        }
    }

    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
    }
}

/// Whether a scenario is selected.
#[derive(Debug)]
struct Choice<'a> {
    quick: bool,
    words: &'a [String],
}

impl Choice<'_> {
    fn has(&self, name: &str, quick: bool) -> bool {
        let named = self.words.is_empty() || self.words.iter().any(|word| name.contains(word));
        named && (quick || !self.quick)
    }
}

/// Fails for a word that is in no scenario's name.
fn check_words(words: &[String]) -> Result<()> {
    let beside = scenarios::BESIDE.iter().map(|s| s.name);
    let alone = scenarios::ALONE.iter().map(|s| s.name);
    let names: Vec<&str> = beside
        .chain(alone)
        .chain(["from-go", "aws", "cluster-api"])
        .collect();
    for word in words {
        if !names.iter().any(|name| name.contains(word.as_str())) {
            bail!(
                "unknown scenario `{word}`: the scenarios are {}",
                names.join(", ")
            );
        }
    }
    Ok(())
}

/// Runs the scenarios whose names contain one of the words.
pub(crate) async fn run(quick: bool, words: &[String]) -> Result<()> {
    check_words(words)?;
    let binaries = match binaries::find(quick) {
        Ok(binaries) => binaries,
        Err(missing) => {
            println!(
                "skipped: cannot find {}; `cargo xtask realcluster build` builds the missing programs",
                missing.join(", ")
            );
            return Ok(());
        }
    };
    let choice = Choice { quick, words };
    let started = Instant::now();
    let (kwok, aws) = tokio::join!(
        on_a_cluster("kwok", kwok(&binaries, &choice)),
        on_a_cluster("aws", aws(&binaries, &choice)),
    );
    let mut results = Results::default();
    results.add(kwok);
    results.add(aws);
    // Alone, because Cluster API's managers need a core for themselves in a burst.
    results.add(on_a_cluster("cluster-api", cluster_api(&binaries, &choice)).await);
    println!(
        "real cluster: {} passed, {} failed in {} s{}",
        results.passed,
        results.failed.len(),
        started.elapsed().as_secs(),
        if quick { " (quick scenarios only)" } else { "" },
    );
    if !results.failed.is_empty() {
        bail!("failed: {}", results.failed.join(", "));
    }
    Ok(())
}

/// Returns the results of the scenarios of a cluster; a cluster that does not start is a failure, too.
async fn on_a_cluster(name: &str, scenarios: impl Future<Output = Result<Results>>) -> Results {
    let started = Instant::now();
    match scenarios.await {
        Ok(results) => results,
        Err(problem) => {
            let mut results = Results::default();
            results.report(&format!("cluster {name}"), started, Err(problem));
            results
        }
    }
}

/// Installs both charts for the kwok provider with every optional feature, and a KWOKNodeClass.
pub(crate) async fn install_kwok(cluster: &Cluster) -> Result<()> {
    install_kwok_with(cluster, &kwok_values()).await
}

/// Installs both charts for the kwok provider, and a KWOKNodeClass.
pub(crate) async fn install_kwok_with(cluster: &Cluster, values: &Value) -> Result<()> {
    let definitions = json!({ "provider": "kwok" });
    cluster.install(&definitions, values).await?;
    let class = json!({
        "apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": { "name": "default" },
    });
    apply(&cluster.client, &class).await
}

/// Installs both charts for the Cluster API provider, and a ClusterAPINodeClass, which is returned.
pub(crate) async fn install_cluster_api(cluster: &Cluster, mut values: Value) -> Result<Value> {
    values["provider"] = "cluster-api".into();
    values["clusterAPI"] = json!({ "cluster": format!("{FLEET}/c1") });
    let definitions = json!({ "provider": "cluster-api" });
    cluster.install(&definitions, &values).await?;
    let class = cluster_api_class();
    let class = json!({
        "apiVersion": format!("{}/v1alpha1", class["group"].as_str().unwrap_or_default()), "kind": class["kind"],
        "metadata": { "name": class["name"] }, "spec": {},
    });
    apply(&cluster.client, &class).await?;
    Ok(class)
}

/// Returns the reference of a NodePool to the ClusterAPINodeClass.
pub(crate) fn cluster_api_class() -> Value {
    json!({ "group": "karpenter.cluster.x-k8s.io", "kind": "ClusterAPINodeClass", "name": "default" })
}

/// Returns the chart values for the kwok provider.
pub(crate) fn kwok_values() -> Value {
    json!({
        "provider": "kwok",
        "settings": {
            "ignoreDRARequests": false,
            "featureGates": {
                "nodeRepair": true, "nodeOverlay": true, "staticCapacity": true, "capacityBuffer": true,
                "spotToSpotConsolidation": true,
            },
        },
    })
}

/// Runs a scenario and measures its duration.
async fn timed(scenario: impl Future<Output = Result<()>>) -> Result<()> {
    let within = tokio::time::timeout(LONGEST, scenario).await;
    within.with_context(|| format!("timed out after {} s", LONGEST.as_secs()))?
}

async fn kwok(binaries: &Binaries, choice: &Choice<'_>) -> Result<Results> {
    let mut results = Results::default();
    let beside: Vec<&Beside> = scenarios::BESIDE
        .iter()
        .filter(|s| choice.has(s.name, s.quick))
        .collect();
    let alone: Vec<&Alone> = scenarios::ALONE
        .iter()
        .filter(|s| choice.has(s.name, s.quick))
        .collect();
    if beside.is_empty() && alone.is_empty() {
        return Ok(results);
    }
    let mut cluster = Cluster::start(binaries).await?;
    let started = Instant::now();
    let installed = timed(scenarios::install::kwok(&cluster)).await;
    let is_installed = installed.is_ok();
    results.report("install-kwok", started, installed);
    if !is_installed {
        println!("logs are in {}", cluster.keep().display());
        return Ok(results);
    }
    cluster
        .run(&controller_binary("karpenter-kwok")?, &BTreeMap::new())
        .await?;

    let client = cluster.client.clone();
    let mut running: FuturesUnordered<BoxFuture<'_, (&str, Instant, Result<()>)>> = beside
        .into_iter()
        .map(|scenario| {
            let client = client.clone();
            Box::pin(async move {
                let started = Instant::now();
                let all = async {
                    let case = Case::new(&client, scenario.name).await?;
                    (scenario.run)(case.clone()).await?;
                    case.end().await.context("cannot clean up")
                };
                (scenario.name, started, timed(all).await)
            }) as BoxFuture<'_, _>
        })
        .collect();
    while let Some((name, started, result)) = running.next().await {
        results.report(name, started, result);
    }
    drop(running);
    for scenario in alone {
        let started = Instant::now();
        let all = async {
            let case = Case::new(&client, scenario.name).await?;
            (scenario.run)(&mut cluster, case.clone()).await?;
            case.end().await.context("cannot clean up")
        };
        let result = timed(all).await;
        results.report(scenario.name, started, result);
    }
    let started = Instant::now();
    let checked = cluster.check();
    results.report("kwok-rights-and-log", started, checked);
    end(cluster, &results).await?;
    Ok(results)
}

async fn aws(binaries: &Binaries, choice: &Choice<'_>) -> Result<Results> {
    let mut results = Results::default();
    let (mut from_go, all) = (choice.has("from-go", true), choice.has("aws", true));
    if from_go && scenarios::from_go::kubectl_is_missing() {
        println!("skipped: cannot find kubectl, which the scenario from-go needs");
        from_go = false;
    }
    if !from_go && !all {
        return Ok(results);
    }
    if from_go {
        // A cluster of its own: the API server knows new kinds as owners only after half a minute.
        let mut cluster = Cluster::start(binaries).await?;
        let started = Instant::now();
        let switched = timed(scenarios::from_go::forth_and_back(
            &mut cluster,
            choice.quick,
        ))
        .await;
        results.report("from-go", started, switched);
        end(cluster, &results).await?;
    }
    if !all {
        return Ok(results);
    }
    let mut cluster = Cluster::start(binaries).await?;
    let [webhook] = free_ports()?;
    let started = Instant::now();
    let installed = timed(scenarios::install::aws(&cluster, webhook)).await;
    let is_installed = installed.is_ok();
    results.report("aws-install", started, installed);
    if is_installed {
        aws::run(&mut cluster, |name, started, result| {
            results.report(name, started, result);
        })
        .await;
        let started = Instant::now();
        let checked = cluster.check();
        results.report("aws-rights-and-log", started, checked);
    }
    end(cluster, &results).await?;
    Ok(results)
}

async fn cluster_api(binaries: &Binaries, choice: &Choice<'_>) -> Result<Results> {
    let mut results = Results::default();
    if !choice.has("cluster-api", false) {
        return Ok(results);
    }
    let managers = tokio::task::spawn_blocking(binaries::cluster_api).await??;
    let mut cluster = Cluster::start(binaries).await?;
    scenarios::cluster_api::run(&mut cluster, &managers, |name, started, result| {
        results.report(name, started, result);
    })
    .await;
    end(cluster, &results).await?;
    Ok(results)
}

/// Stops the controller as a kubelet does, and keeps the logs of a failed run.
async fn end(mut cluster: Cluster, results: &Results) -> Result<()> {
    if let Some(controller) = cluster.controller.take() {
        controller.stop().await?;
    }
    if !results.failed.is_empty() {
        println!("logs are in {}", cluster.keep().display());
    }
    Ok(())
}
