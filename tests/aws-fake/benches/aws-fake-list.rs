//! Listing ten thousand instances as Karpenter does: `cargo xtask bench aws-fake-list`.
//!
//! In process: the cost of the stand-in alone, from the bytes of the request to the bytes of the response.

#![expect(clippy::unwrap_used, reason = "what fails here fails the benchmark")]

use bytes::Bytes;
use http::Request;
use karpenter_aws_fake::{AwsFake, DEFAULT_VPC, Subnet};
use karpenter_bench::{Run, Suite, cpu_time};
use tokio::runtime::{Builder, Runtime};

const INSTANCES: usize = 10_000;
const PAGE: usize = 1000;
const SUBNET: &str = "subnet-0000000000000000f";
const IMAGE: &str =
    "/aws/service/eks/optimized-ami/1.34/amazon-linux-2023/x86_64/standard/recommended/image_id";

struct Account {
    fake: AwsFake,
    runtime: Runtime,
}

impl Account {
    /// Creates an account with the instances of a cluster.
    fn new() -> Self {
        let fake = AwsFake::builder()
            .unlimited()
            .page_size(PAGE)
            .settings(|s| s.record = false)
            .build();
        fake.add_subnet(Subnet::new(
            SUBNET,
            DEFAULT_VPC,
            "us-west-2a",
            ([10, 64, 0, 0].into(), 16),
        ));
        let account = Self {
            fake,
            runtime: Builder::new_current_thread().enable_all().build().unwrap(),
        };
        let image = account.fake.parameter(IMAGE).unwrap();
        let tags: String = [
            ("karpenter.sh/nodepool", "default"),
            ("karpenter.k8s.aws/ec2nodeclass", "default"),
            ("eks:eks-cluster-name", "test"),
        ]
        .iter()
        .zip(1..)
        .map(|((key, value), n)| {
            let tag = format!("TagSpecification.1.Tag.{n}");
            format!("&{tag}.Key={key}&{tag}.Value={value}")
        })
        .collect();
        for _ in 0..INSTANCES / PAGE {
            account.call(&format!(
                "Action=RunInstances&ImageId={image}&InstanceType=m5.large&SubnetId={SUBNET}&MinCount={PAGE}\
                 &MaxCount={PAGE}&TagSpecification.1.ResourceType=instance{tags}"
            ));
        }
        assert_eq!(account.fake.instances().len(), INSTANCES);
        account
    }

    fn call(&self, form: &str) -> Bytes {
        let request = Request::post("/").body(format!("{form}&Version=2016-11-15").into());
        let answer = self.runtime.block_on(self.fake.handle(request.unwrap()));
        let answer = answer.unwrap();
        assert_eq!(answer.status(), 200, "{:?}", answer.body());
        answer.into_body()
    }

    /// Lists all pages; returns the number of instances. The parsing of a client is not measured.
    fn list(&self) -> usize {
        let mut pages = 0;
        let mut token = String::new();
        loop {
            let page = self.call(&format!(
                "Action=DescribeInstances&MaxResults={PAGE}{token}\
                 &Filter.1.Name=tag-key&Filter.1.Value.1=karpenter.sh/nodepool\
                 &Filter.2.Name=tag-key&Filter.2.Value.1=karpenter.k8s.aws/ec2nodeclass\
                 &Filter.3.Name=tag:eks:eks-cluster-name&Filter.3.Value.1=test\
                 &Filter.4.Name=instance-state-name&Filter.4.Value.1=pending&Filter.4.Value.2=running"
            ));
            pages += 1;
            // The token is at the end.
            let end = String::from_utf8_lossy(&page[page.len().saturating_sub(300)..]).into_owned();
            let Some((_, rest)) = end.split_once("<nextToken>") else {
                return pages;
            };
            token = format!("&NextToken={}", rest.split_once('<').unwrap().0);
        }
    }
}

fn parameters(run: &mut Run) {
    run.parameter("instances", INSTANCES);
    run.parameter("page", PAGE);
}

fn main() {
    let mut suite = Suite::from_args("aws-fake-list");
    // After all instances have changed.
    suite.case("changed", |run| {
        parameters(run);
        let account = Account::new();
        let before = cpu_time();
        run.measure_once(INSTANCES, || assert_eq!(account.list(), INSTANCES / PAGE));
        if let Some((before, after)) = before.zip(cpu_time()) {
            run.record("cpu_seconds", (after - before).as_secs_f64());
        }
    });
    suite.case("unchanged", |run| {
        parameters(run);
        let account = Account::new();
        run.measure(INSTANCES, || assert_eq!(account.list(), INSTANCES / PAGE));
    });
}
