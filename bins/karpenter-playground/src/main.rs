//! `karpenter-playground`: see `--help`.

mod args;
mod demo;
mod kubeconfig;

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use karpenter_kube::admin;
use karpenter_kube::admin::Site;
use karpenter_kube::logging::JsonLines;
use karpenter_kube::metrics::Registry;
use karpenter_kwok::{CapacityPool, catalogue};
use karpenter_lab::local_cluster::{LocalCluster, LocalClusterSettings};
use karpenter_lab::manifests;
use karpenter_testbed::Testbed;
use karpenter_testbed::faults::{Fault, Rule};
use karpenter_testbed::server::ServedOverHttps;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::prelude::*;

use crate::args::{Args, FaultProfile, Verbosity};
use crate::demo::Screen;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    log(args.log_level);
    match run(&args).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("karpenter-playground: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn log(verbosity: Verbosity) {
    let level = match verbosity {
        Verbosity::Off => LevelFilter::OFF,
        Verbosity::Error => LevelFilter::ERROR,
        Verbosity::Info => LevelFilter::INFO,
        Verbosity::Debug => LevelFilter::DEBUG,
    };
    let ours = tracing_subscriber::filter::filter_fn(|metadata| {
        metadata.target().starts_with("karpenter")
    });
    let lines = JsonLines::new(std::io::stderr, env!("CARGO_PKG_VERSION"));
    tracing_subscriber::registry()
        .with(lines.with_filter(level).with_filter(ours))
        .init();
}

async fn run(args: &Args) -> Result<bool> {
    // Two crypto providers may be linked in: install ours as the default before its first use. Installing fails only if a default
    // is already set.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();

    #[cfg(feature = "aws")]
    if args.provider == args::Provider::Aws {
        return run_aws(args).await.map(|()| true);
    }
    let mut settings = LocalClusterSettings {
        speed: args.speed,
        seed: args.seed,
        ..LocalClusterSettings::default()
    };
    let decisions = decisions_address(args)?.filter(|_| !args.no_controllers);
    settings.options.feature_gates = args.feature_gates;
    settings.options.decisions_port = decisions.map_or(0, |address| address.port());
    if let Some(path) = &args.instance_types {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let types = catalogue::parse(&text)
            .and_then(|types| types.iter().map(|t| t.instance_type()).collect());
        settings.instance_types = types.with_context(|| format!("reading {}", path.display()))?;
    }
    let mut cluster = LocalCluster::without_controllers(settings)
        .await
        .context("cannot start the control plane")?;
    if !args.no_controllers {
        cluster.start_controllers();
    }
    break_things(&cluster, args.faults);

    let _served = serve(&cluster.testbed, args, decisions).await?;
    serve_metrics(&cluster.registry, args).await?;
    println!("ready");
    open(args, decisions);

    let started = cluster.clock.now();
    manifests::apply_files(&cluster.client(), &args.apply).await?;
    let outcome = if args.demo {
        demo::run(&cluster, &args.kubeconfig).await.map(|()| true)
    } else if args.exit_when_idle {
        idle(&cluster, started).await
    } else {
        tokio::signal::ctrl_c()
            .await
            .context("cannot wait for Ctrl-C")
            .map(|()| true)
    };
    cluster.shutdown().await;
    outcome
}

/// Serves the API server, and prints its address. `decisions` is the address on which the controllers serve decisions, if they do.
async fn serve(
    testbed: &Testbed,
    args: &Args,
    decisions: Option<SocketAddr>,
) -> Result<ServedOverHttps> {
    let served = testbed
        .serve(args.listen)
        .await
        .with_context(|| format!("cannot listen on {}", args.listen))?;
    served
        .write_kubeconfig(&args.kubeconfig)
        .with_context(|| format!("writing {}", args.kubeconfig.display()))?;
    if let Some(decisions) = decisions {
        kubeconfig::write_server(&args.kubeconfig, decisions)
            .with_context(|| format!("writing {}", args.kubeconfig.display()))?;
    }
    println!("API server at {}", served.url());
    println!(
        "use it with:  export KUBECONFIG={}",
        args.kubeconfig.display()
    );
    println!("then try:     kubectl get nodepools,nodeclaims,nodes");
    if let Some(decisions) = decisions {
        println!("and ask:      kubectl karpenter why pods");
        println!("dashboard at  http://{decisions}/");
    }
    Ok(served)
}

/// Opens the dashboard in the user's browser, if `--open` is set.
fn open(args: &Args, decisions: Option<SocketAddr>) {
    let Some(decisions) = decisions.filter(|_| args.open) else {
        return;
    };
    let program = if cfg!(target_os = "macos") {
        "open"
    } else {
        "xdg-open"
    };
    let started = Command::new(program)
        .arg(format!("http://{decisions}/"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    if let Err(error) = started {
        eprintln!("karpenter-playground: cannot open the dashboard with {program}: {error}");
    }
}

/// Returns a free loopback address for the decisions of the controllers; `None` if the feature gate is off.
fn decisions_address(args: &Args) -> Result<Option<SocketAddr>> {
    if !args.feature_gates.decision_records {
        return Ok(None);
    }
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let address = listener.and_then(|listener| listener.local_addr());
    address.map(Some).context("cannot find a free port")
}

/// Serves the metrics until the process exits, if `--metrics` is set, and prints their address.
async fn serve_metrics(registry: &Registry, args: &Args) -> Result<()> {
    let Some(address) = args.metrics else {
        return Ok(());
    };
    let site = Site::Metrics {
        registry: registry.clone(),
        profiler: None,
    };
    let bound = admin::serve(
        address,
        site,
        None,
        &TaskTracker::new(),
        CancellationToken::new(),
    )
    .await
    .with_context(|| format!("cannot listen on {address}"))?;
    println!("metrics at    http://{bound}/metrics");
    Ok(())
}

#[cfg(feature = "aws")]
async fn run_aws(args: &Args) -> Result<()> {
    use karpenter_lab::aws;
    if args.demo || args.exit_when_idle || args.faults != FaultProfile::None {
        anyhow::bail!(
            "--demo, --exit-when-idle and --faults need --provider kwok; inject faults of AWS through the endpoint of its fake"
        );
    }
    let mut settings = aws::AwsClusterSettings {
        speed: args.speed,
        seed: args.seed,
        kubernetes: args.kubernetes.clone(),
        older_generations: true,
        ..aws::AwsClusterSettings::default()
    };
    let decisions = decisions_address(args)?.filter(|_| !args.no_controllers);
    settings.options.feature_gates = args.feature_gates;
    settings.options.decisions_port = decisions.map_or(0, |address| address.port());
    if args.no_controllers {
        let cluster = aws::AwsCluster::start(&settings)
            .await
            .context("starting AWS")?;
        wait_on_aws(&cluster, args, decisions).await?;
        cluster.shutdown().await;
    } else {
        let cluster = aws::LocalCluster::start(settings)
            .await
            .context("starting AWS")?;
        serve_metrics(&cluster.registry, args).await?;
        wait_on_aws(&cluster.aws, args, decisions).await?;
        cluster.shutdown().await;
    }
    Ok(())
}

/// Serves the API server, prints all addresses, and waits for Ctrl-C.
#[cfg(feature = "aws")]
async fn wait_on_aws(
    cluster: &karpenter_lab::aws::AwsCluster,
    args: &Args,
    decisions: Option<SocketAddr>,
) -> Result<()> {
    use karpenter_lab::aws::{CLUSTER, REGION};
    let _served = serve(&cluster.testbed, args, decisions).await?;
    println!("AWS at        {}", cluster.endpoint());
    println!(
        "use it with:  export AWS_ENDPOINT_URL={} AWS_REGION={REGION} AWS_ACCESS_KEY_ID=x AWS_SECRET_ACCESS_KEY=x",
        cluster.endpoint()
    );
    if args.no_controllers {
        let webhook = cluster.webhook_port().unwrap_or_default();
        println!(
            "then start:   karpenter --cluster-name {CLUSTER} --interruption-queue {CLUSTER} --webhook-port {webhook}"
        );
    }
    println!("ready");
    open(args, decisions);
    manifests::apply_files(&cluster.client(), &args.apply).await?;
    tokio::signal::ctrl_c()
        .await
        .context("cannot wait for Ctrl-C")
}

async fn idle(cluster: &LocalCluster, started: jiff::Timestamp) -> Result<bool> {
    let mut screen = Screen::new(started);
    let every_pod_runs = demo::until_idle(cluster, &mut screen).await?;
    screen.finish();
    println!("{}", demo::summary(cluster, started).await?);
    Ok(every_pod_runs)
}

fn break_things(cluster: &LocalCluster, profile: FaultProfile) {
    if matches!(profile, FaultProfile::Api | FaultProfile::Chaos) {
        let faults = cluster.testbed.faults();
        faults.add(Rule::new(Fault::Error(503)).rate(0.02));
        faults.add(Rule::new(Fault::Conflict).rate(0.02));
        faults.add(Rule::new(Fault::LostAnswer).rate(0.01));
        faults.add(Rule::new(Fault::Latency(Duration::from_millis(200))).rate(0.05));
        faults.add(Rule::new(Fault::DropWatch { after: 200 }).rate(0.1));
    }
    if matches!(profile, FaultProfile::Capacity | FaultProfile::Chaos) {
        for zone in &catalogue::ZONES[..2] {
            let spot = CapacityPool {
                zone: Some((*zone).to_owned()),
                capacity_type: Some("spot".into()),
                instance_type: None,
            };
            cluster.cloud.exhaust(spot);
        }
    }
}
