//! Tests of the binary as it runs in a cluster: with the environment of the chart, against an API server and AWS on loopback,
//! with a real kubectl. Skipped, with a message, without a recent kubectl.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod allocator;
mod shadow;
#[path = "../../../../crates/karpenter-testbed/tests/kubectl/usable.rs"]
mod usable;

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use karpenter_aws_fake::{AwsFake, Fault};
use karpenter_lab::aws::{AwsCluster, AwsClusterSettings, CLUSTER, REGION};
use karpenter_testbed::server::ServedOverHttps;
use rustls::pki_types::PrivateKeyDer;
use skipped::skipped;
use tempfile::TempDir;
use tokio_rustls::TlsAcceptor;

const TIMEOUT: Duration = Duration::from_secs(120);

const MANIFESTS: &str = r#"
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: { name: default }
spec:
  role: KarpenterNodeRole-playground
  amiSelectorTerms: [{ alias: al2023@latest }]
  subnetSelectorTerms: [{ tags: { karpenter.sh/discovery: playground } }]
  securityGroupSelectorTerms: [{ tags: { karpenter.sh/discovery: playground } }]
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: { name: default }
spec:
  template:
    spec:
      nodeClassRef: { group: karpenter.k8s.aws, kind: EC2NodeClass, name: default }
      requirements:
        - { key: karpenter.sh/capacity-type, operator: In, values: [on-demand] }
        - { key: karpenter.k8s.aws/instance-category, operator: In, values: [c, m, r] }
  disruption: { consolidationPolicy: WhenEmptyOrUnderutilized, consolidateAfter: 0s }
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: inflate, namespace: default }
spec:
  replicas: 3
  selector: { matchLabels: { app: inflate } }
  template:
    metadata: { labels: { app: inflate } }
    spec:
      terminationGracePeriodSeconds: 0
      containers:
        - { name: inflate, image: pause, resources: { requests: { cpu: "1" } } }
"#;

/// The default feature gates of the chart.
const GATES: &str = "CapacityBuffer=false,DecisionRecords=true,FlightRecorder=false,NodeOverlay=false,NodeRepair=false,PodNomination=false,ReservedCapacity=true,SchedulingHints=false,SpotToSpotConsolidation=false,StaticCapacity=false";

/// The process, killed if the test fails.
struct Karpenter {
    child: Child,
    metrics: u16,
    probes: u16,
}

impl Drop for Karpenter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

impl Karpenter {
    /// Starts the binary with the environment of `charts/karpenter` with its default values, and with the rest of a pod's
    /// environment.
    fn start(home: &Path, endpoint: &str, more: &[(&str, &str)]) -> Self {
        let (metrics, probes) = (free_port(), free_port());
        let log = File::create(home.join("log")).unwrap();
        let errors = log.try_clone().unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_karpenter"))
            .env_clear()
            .envs([
                ("KUBERNETES_MIN_VERSION", "1.26.0-0"),
                ("KARPENTER_SERVICE", "karpenter"),
                ("SYSTEM_NAMESPACE", "kube-system"),
                ("MEMORY_LIMIT", "1073741824"),
                ("CPU_REQUESTS", "1000"),
                ("METRICS_PORT", &metrics.to_string()),
                ("HEALTH_PROBE_PORT", &probes.to_string()),
                ("DISABLE_WEBHOOK", "false"),
                ("WEBHOOK_PORT", &free_port().to_string()),
                ("DISABLE_LEGACY_RESOURCES", "false"),
                ("LOG_LEVEL", "info"),
                ("LOG_OUTPUT_PATHS", "stdout"),
                ("LOG_ERROR_OUTPUT_PATHS", "stderr"),
                ("FEATURE_GATES", GATES),
                ("AWS_FEATURE_GATES", "NodeClassCEL=false"),
                ("BATCH_MAX_DURATION", "10s"),
                ("BATCH_IDLE_DURATION", "1s"),
                ("PREFERENCE_POLICY", "Respect"),
                ("MIN_VALUES_POLICY", "Strict"),
                ("NODE_OVERHEAD_PRICE", "0.03"),
                ("CONSOLIDATE_AFTER_APPLIES_TO_DESTINATIONS", "true"),
                ("CLUSTER_NAME", CLUSTER),
                ("ISOLATED_VPC", "false"),
                ("EKS_CONTROL_PLANE", "false"),
                ("VM_MEMORY_OVERHEAD_PERCENT", "0.075"),
                ("INTERRUPTION_QUEUE", CLUSTER),
                ("RESERVED_ENIS", "0"),
                ("DISABLE_DRY_RUN", "false"),
                ("AMI_REFRESH_INTERVAL", "1m"),
                ("SUBNET_REFRESH_INTERVAL", "1m"),
            ])
            .envs([
                ("HOME", home.to_str().unwrap()),
                ("KUBECONFIG", home.join("kubeconfig").to_str().unwrap()),
                ("AWS_REGION", REGION),
                ("AWS_ENDPOINT_URL", endpoint),
                ("AWS_ACCESS_KEY_ID", "AKIATEST"),
                ("AWS_SECRET_ACCESS_KEY", "secret"),
            ])
            .envs(more.iter().copied())
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .unwrap();
        Self {
            child,
            metrics,
            probes,
        }
    }

    /// Sends SIGTERM, as Kubernetes does, and waits.
    fn stop(&mut self) -> ExitStatus {
        let pid = self.child.id().to_string();
        let killed = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(killed.unwrap().success());
        self.ended()
    }

    fn ended(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < TIMEOUT, "the process does not exit");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Returns the body of a page, if it is served successfully.
fn page(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    head.starts_with("HTTP/1.1 200").then(|| body.to_owned())
}

fn kubectl(home: &Path, args: &[&str], input: &str) -> Output {
    let mut child = Command::new("kubectl")
        .args(args)
        .env("KUBECONFIG", home.join("kubeconfig"))
        .env("HOME", home)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A client that does not read its input may have exited by now.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().unwrap()
}

fn log_of(home: &Path) -> String {
    std::fs::read_to_string(home.join("log")).unwrap_or_default()
}

fn succeeds(home: &Path, args: &[&str], input: &str) -> String {
    let output = kubectl(home, args, input);
    assert!(
        output.status.success(),
        "kubectl {args:?}: {}\nlog of karpenter:\n{}",
        String::from_utf8_lossy(&output.stderr),
        log_of(home)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn until<T>(home: &Path, what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(
            start.elapsed() < TIMEOUT,
            "timed out waiting for {what}; log of karpenter:\n{}",
            log_of(home)
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn kubectl_is_missing() -> bool {
    usable::kubectl_is_missing(Path::new("kubectl"))
}

/// A cluster without Karpenter, with its kubeconfig in a folder.
async fn aws_cluster() -> (AwsCluster, ServedOverHttps, TempDir) {
    let settings = AwsClusterSettings {
        pending_s: 1.0,
        ..AwsClusterSettings::default()
    };
    let cluster = AwsCluster::start(&settings).await.unwrap();
    let address = "127.0.0.1:0".parse().unwrap();
    let served = cluster.testbed.serve(address).await.unwrap();
    let home = TempDir::new().unwrap();
    let kubeconfig = home.path().join("kubeconfig");
    served.write_kubeconfig(&kubeconfig).unwrap();
    (cluster, served, home)
}

/// Runs a test on a cluster without Karpenter, with the folder of its kubeconfig and the endpoint of AWS.
async fn on_a_cluster(test: impl FnOnce(&Path, &str, &AwsFake) + Send + 'static) {
    let (cluster, served, home) = aws_cluster().await;
    let (endpoint, fake) = (cluster.endpoint(), cluster.fake.clone());
    let folder = home.path().to_owned();
    tokio::task::spawn_blocking(move || test(&folder, &endpoint, &fake))
        .await
        .unwrap();
    drop(served);
    cluster.shutdown().await;
}

fn nodes_are_launched_and_terminated(home: &Path, endpoint: &str, fake: &AwsFake) {
    let mut karpenter = Karpenter::start(home, endpoint, &[]);
    until(home, "readiness", || page(karpenter.probes, "/readyz"));
    page(karpenter.probes, "/healthz").unwrap();
    succeeds(home, &["apply", "-f", "-"], MANIFESTS);
    let wait = ["wait", "--for=condition=Ready", "--timeout=60s"];
    let ready = |what: &str| succeeds(home, &[&wait[..], &[what]].concat(), "");
    ready("ec2nodeclass/default");
    ready("nodepool/default");
    let rollout = ["rollout", "status", "deployment/inflate", "--timeout=120s"];
    succeeds(home, &rollout, "");
    let nodes = succeeds(home, &["get", "nodes", "-o", "wide"], "");
    assert!(nodes.contains(" Ready "), "{nodes}");
    let claims = succeeds(home, &["get", "nodeclaims"], "");
    assert!(claims.contains("on-demand"), "{claims}");
    let running = fake.instances();
    assert_eq!(running[0].tags["karpenter.sh/nodepool"], "default");
    let metrics = page(karpenter.metrics, "/metrics").unwrap();
    for name in [
        "karpenter_nodeclaims_created_total",
        "karpenter_cloudprovider_duration_seconds",
        "aws_sdk_go_request_total",
    ] {
        assert!(metrics.contains(name), "{name}");
    }

    succeeds(home, &["delete", "deployment", "inflate"], "");
    until(home, "the instances to be terminated", || {
        let alive = fake.instances().iter().any(|i| i.state.is_alive());
        (!alive).then_some(())
    });
    assert!(karpenter.stop().success(), "it exits gracefully on SIGTERM");
    let log = log_of(home);
    assert!(!log.contains("panicked"), "{log}");
    for line in log.lines() {
        assert!(line.starts_with('{'), "every line is JSON: {line}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_binary_launches_and_terminates_nodes_and_exits_on_sigterm() {
    if kubectl_is_missing() {
        return;
    }
    on_a_cluster(nodes_are_launched_and_terminated).await;
}

/// Returns Prometheus' answer to a query, as printed by `promtool`.
fn prometheus_query(server: &str, query: &str) -> String {
    let mut promtool = Command::new("promtool");
    let output = promtool.args(["query", "instant", server, query]).output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

fn metrics_are_scraped_over_tls(home: &Path, endpoint: &str) {
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = home.join("tls.crt");
    std::fs::write(&certificate, own.cert.pem()).unwrap();
    std::fs::write(home.join("tls.key"), own.signing_key.serialize_pem()).unwrap();
    let folder = home.to_str().unwrap();
    let karpenter = Karpenter::start(home, endpoint, &[("METRICS_CERT_DIR", folder)]);
    let config = home.join("prometheus.yaml");
    let job = |name: &str, tls: &str| {
        format!(
            "{{job_name: {name}, scheme: https, tls_config: {{server_name: localhost{tls}}}, \
             static_configs: [{{targets: ['127.0.0.1:{}']}}]}}",
            karpenter.metrics
        )
    };
    let trusting = job(
        "trusting",
        &format!(", ca_file: '{}'", certificate.display()),
    );
    let wary = job("wary", "");
    let text = format!(
        "global: {{scrape_interval: 250ms, scrape_timeout: 250ms}}\nscrape_configs: [{trusting}, {wary}]\n"
    );
    std::fs::write(&config, text).unwrap();
    let server = format!("http://127.0.0.1:{}", free_port());
    let mut prometheus = Command::new("prometheus")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={folder}/data"))
        .arg(server.replace("http://", "--web.listen-address="))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let scraped = r#"karpenter_build_info{job="trusting"}"#;
    until(home, "a scrape", || {
        let found = prometheus_query(&server, scraped);
        found.contains("version=").then_some(())
    });
    // Prometheus spreads the first scrapes of its jobs over an interval.
    let wary = until(home, "a refused scrape", || {
        let up = prometheus_query(&server, r#"up{job="wary"}"#);
        up.contains("=>").then_some(up)
    });
    prometheus.kill().unwrap();
    prometheus.wait().unwrap();
    assert!(wary.contains("=> 0 @"), "{wary}");
    assert!(page(karpenter.metrics, "/metrics").is_none(), "without TLS");
}

/// Skipped, with a message, without `prometheus`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prometheus_scrapes_the_metrics_over_tls_if_it_trusts_their_certificate() {
    let version = Command::new("prometheus").arg("--version").output();
    if version.is_err() {
        skipped("prometheus", "it is not in PATH");
        return;
    }
    on_a_cluster(|home, endpoint, _| metrics_are_scraped_over_tls(home, endpoint)).await;
}

/// Conformance: AWS-startup-01, AWS-log-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_settings_are_named_and_the_process_exits() {
    on_a_cluster(|home, endpoint, fake| {
        fake.deny(&["ec2:DescribeInstanceTypes"]);
        for (more, word) in [
            (("CLUSTER_NAME", ""), "cluster-name is required"),
            (("CLUSTER_NAME", CLUSTER), "ec2:DescribeInstanceTypes"),
            (("AWS_MAX_ATTEMPTS", "often"), "AWS_MAX_ATTEMPTS"),
            (("AWS_CA_BUNDLE", "/nowhere"), "AWS_CA_BUNDLE"),
        ] {
            let mut karpenter = Karpenter::start(home, endpoint, &[more]);
            assert!(!karpenter.ended().success());
            let log = log_of(home);
            let last = log.lines().last().unwrap_or_default();
            assert!(last.starts_with('{') && last.contains(word), "{log}");
            assert!(last.contains(r#""level":"ERROR""#), "{log}");
            let refused = more == ("CLUSTER_NAME", CLUSTER);
            let code = r#""aws-error-code":"UnauthorizedOperation""#;
            assert_eq!(last.contains(code), refused, "{log}");
        }
    })
    .await;
}

/// Returns the environment of a pod whose service account has a role (IRSA).
fn web_identity(home: &Path) -> [(String, String); 4] {
    let token = home.join("token");
    std::fs::write(&token, "a token").unwrap();
    [
        ("AWS_ACCESS_KEY_ID", ""),
        ("AWS_SECRET_ACCESS_KEY", ""),
        ("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/karpenter"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", token.to_str().unwrap()),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
}

/// More throttled answers than the attempts of a first call without its own retries for credentials.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn throttled_credentials_do_not_end_startup() {
    on_a_cluster(|home, endpoint, fake| {
        let throttled = Fault::error("AssumeRoleWithWebIdentity", "Throttling");
        fake.add_fault(throttled.times(4));
        let identity = web_identity(home);
        let more = identity.each_ref().map(|(n, v)| (n.as_str(), v.as_str()));
        let mut karpenter = Karpenter::start(home, endpoint, &more);
        until(home, "readiness", || page(karpenter.probes, "/readyz"));
        karpenter.stop();
        let asked = fake.call_counts();
        assert!(asked["AssumeRoleWithWebIdentity"] >= 5, "{asked:?}");
    })
    .await;
}

/// Terminates TLS and forwards the decrypted bytes.
async fn terminate_tls(
    listener: tokio::net::TcpListener,
    own: rcgen::CertifiedKey<rcgen::KeyPair>,
    to: String,
) {
    let key = PrivateKeyDer::Pkcs8(own.signing_key.serialize_der().into());
    let config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (acceptor, to) = (acceptor.clone(), to.clone());
        tokio::spawn(async move {
            // A client that does not trust the certificate closes the connection.
            let Ok(mut inside) = acceptor.accept(stream).await else {
                return;
            };
            let mut outside = tokio::net::TcpStream::connect(to).await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut inside, &mut outside).await;
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aws_ca_bundle_is_trusted() {
    let (cluster, served, home) = aws_cluster().await;
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let bundle = home.path().join("aws.pem");
    std::fs::write(&bundle, own.cert.pem()).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let to = cluster.endpoint().replace("http://", "");
    let proxy = tokio::spawn(terminate_tls(listener, own, to));
    let (endpoint, folder) = (format!("https://localhost:{port}"), home.path().to_owned());
    tokio::task::spawn_blocking(move || {
        let mut wary = Karpenter::start(&folder, &endpoint, &[]);
        assert!(!wary.ended().success(), "it is trusted without the bundle");
        let more = ("AWS_CA_BUNDLE", bundle.to_str().unwrap());
        let mut karpenter = Karpenter::start(&folder, &endpoint, &[more]);
        until(&folder, "readiness", || page(karpenter.probes, "/readyz"));
        karpenter.stop();
    })
    .await
    .unwrap();
    proxy.abort();
    drop(served);
    cluster.shutdown().await;
}
