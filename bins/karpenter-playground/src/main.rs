//! `karpenter-playground`: see `--help`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use karpenter_kube::admin::{self, Site};
use karpenter_kube::logging::JsonLines;
use karpenter_kube::metrics::Registry;
use karpenter_kwok::{CapacityPool, catalogue};
use karpenter_playground::args::{Args, FaultProfile, Verbosity};
use karpenter_playground::demo::{self, Screen};
use karpenter_playground::manifests;
use karpenter_playground::stack::{Settings, Stack};
use karpenter_testbed::Testbed;
use karpenter_testbed::faults::{Fault, Rule};
use karpenter_testbed::server::ServedOverHttps;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::prelude::*;

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
    // Two providers may be linked in; whoever asks first must find the one we mean. It is only refused if one is set.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();

    #[cfg(feature = "aws")]
    if args.provider == karpenter_playground::args::Provider::Aws {
        return run_aws(args).await.map(|()| true);
    }
    let mut settings = Settings {
        speed: args.speed,
        seed: args.seed,
        ..Settings::default()
    };
    settings.options.feature_gates = args.feature_gates;
    if let Some(path) = &args.instance_types {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let types = catalogue::parse(&text)
            .and_then(|types| types.iter().map(|t| t.instance_type()).collect());
        settings.instance_types = types.with_context(|| format!("reading {}", path.display()))?;
    }
    let stack = Stack::start(settings)
        .await
        .context("starting the control plane")?;
    break_things(&stack, args.faults);

    let _served = serve(&stack.testbed, args).await?;
    serve_metrics(&stack.registry, args).await?;
    println!("ready");

    let started = stack.clock.now();
    manifests::apply_files(&stack.client(), &args.apply).await?;
    let outcome = if args.demo {
        demo::run(&stack).await.map(|()| true)
    } else if args.exit_when_idle {
        idle(&stack, started).await
    } else {
        tokio::signal::ctrl_c()
            .await
            .context("waiting for Ctrl-C")
            .map(|()| true)
    };
    stack.shutdown().await;
    outcome
}

/// Opens the API server, and says where it is.
async fn serve(testbed: &Testbed, args: &Args) -> Result<ServedOverHttps> {
    let served = testbed
        .serve(args.listen)
        .await
        .with_context(|| format!("listening on {}", args.listen))?;
    served
        .write_kubeconfig(&args.kubeconfig)
        .with_context(|| format!("writing {}", args.kubeconfig.display()))?;
    println!("API server at {}", served.url());
    println!(
        "use it with:  export KUBECONFIG={}",
        args.kubeconfig.display()
    );
    println!("then try:     kubectl get nodepools,nodeclaims,nodes");
    Ok(served)
}

/// Opens the metrics until the process ends, if they are wanted, and says where they are.
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
    .with_context(|| format!("listening on {address}"))?;
    println!("metrics at    http://{bound}/metrics");
    Ok(())
}

#[cfg(feature = "aws")]
async fn run_aws(args: &Args) -> Result<()> {
    use karpenter_playground::aws;
    if args.demo || args.exit_when_idle || args.faults != FaultProfile::None {
        anyhow::bail!(
            "--demo, --exit-when-idle and --faults go with --provider kwok; AWS is broken over its own endpoint"
        );
    }
    let mut settings = aws::Settings {
        speed: args.speed,
        seed: args.seed,
        kubernetes: args.kubernetes.clone(),
        older_generations: true,
        ..aws::Settings::default()
    };
    settings.options.feature_gates = args.feature_gates;
    if args.no_controllers {
        let ground = aws::Ground::start(&settings)
            .await
            .context("starting AWS")?;
        wait_on_aws(&ground, args).await?;
        ground.shutdown().await;
    } else {
        let stack = aws::Stack::start(settings).await.context("starting AWS")?;
        serve_metrics(&stack.registry, args).await?;
        wait_on_aws(&stack.ground, args).await?;
        stack.shutdown().await;
    }
    Ok(())
}

/// Opens the API server, says where everything is, and waits to be stopped.
#[cfg(feature = "aws")]
async fn wait_on_aws(ground: &karpenter_playground::aws::Ground, args: &Args) -> Result<()> {
    use karpenter_playground::aws::{CLUSTER, REGION};
    let _served = serve(&ground.testbed, args).await?;
    println!("AWS at        {}", ground.endpoint());
    println!(
        "use it with:  export AWS_ENDPOINT_URL={} AWS_REGION={REGION} AWS_ACCESS_KEY_ID=x AWS_SECRET_ACCESS_KEY=x",
        ground.endpoint()
    );
    if args.no_controllers {
        let webhook = ground.webhook_port().unwrap_or_default();
        println!(
            "then start:   karpenter --cluster-name {CLUSTER} --interruption-queue {CLUSTER} --webhook-port {webhook}"
        );
    }
    println!("ready");
    manifests::apply_files(&ground.client(), &args.apply).await?;
    tokio::signal::ctrl_c().await.context("waiting for Ctrl-C")
}

async fn idle(stack: &Stack, started: jiff::Timestamp) -> Result<bool> {
    let mut screen = Screen::new(started);
    let every_pod_runs = demo::until_idle(stack, &mut screen).await?;
    screen.finish();
    println!("{}", demo::summary(stack, started).await?);
    Ok(every_pod_runs)
}

fn break_things(stack: &Stack, profile: FaultProfile) {
    if matches!(profile, FaultProfile::Api | FaultProfile::Chaos) {
        let faults = stack.testbed.faults();
        faults.add(
            Rule::new(Fault::Error {
                code: 503,
                retry_after: None,
            })
            .rate(0.02),
        );
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
            stack.cloud.exhaust(spot);
        }
    }
}
