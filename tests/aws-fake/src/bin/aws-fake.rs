//! The stand-in for AWS as a process: `aws-fake --port 5556`, then `AWS_ENDPOINT_URL=http://127.0.0.1:5556`.

use std::io::Write as _;

use clap::Parser;
use karpenter_aws_fake::{AwsFake, Clock, Policy};

/// Serve EC2, SSM, SQS, IAM, STS, EKS, pricing, zonal shift and instance metadata on loopback; /_admin changes the
/// state.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// Port on 127.0.0.1; 0 takes a free one and prints it.
    #[arg(long, default_value_t = 5556)]
    port: u16,
    /// Region; may be repeated, the first is the home region.
    #[arg(long, default_value = "us-west-2")]
    region: Vec<String>,
    /// Name of the EKS cluster, and of its interruption queue.
    #[arg(long, default_value = "test")]
    cluster: String,
    /// Kubernetes version to publish images for; may be repeated, the first is the cluster's.
    #[arg(long, default_value = "1.34")]
    kubernetes: Vec<String>,
    /// Elements per page of all list calls; by default pages of 2, larger for the catalogs.
    #[arg(long)]
    page_size: Option<usize>,
    /// Disable request rate limits.
    #[arg(long)]
    unlimited: bool,
    /// Speed of the clock relative to the wall clock.
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
    /// File with an IAM policy to enforce.
    #[arg(long)]
    policy: Option<std::path::PathBuf>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::parse();
    let versions: Vec<&str> = options.kubernetes.iter().map(String::as_str).collect();
    let mut builder = AwsFake::builder()
        .clock(Clock::new(jiff::Timestamp::now(), options.speed))
        .cluster(&options.cluster)
        .kubernetes(&versions)
        .interruption_queue(&options.cluster);
    for region in &options.region {
        builder = builder.region(region);
    }
    if let Some(size) = options.page_size {
        builder = builder.page_size(size);
    }
    if options.unlimited {
        builder = builder.unlimited();
    }
    if let Some(path) = &options.policy {
        builder = builder.policy(Policy::parse(&std::fs::read_to_string(path)?)?);
    }
    let server = builder.build().serve(options.port).await?;
    writeln!(std::io::stdout(), "{}", server.url())?;
    std::io::stdout().flush()?;
    tokio::signal::ctrl_c().await?;
    Ok(())
}
