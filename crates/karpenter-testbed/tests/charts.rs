//! The charts, rendered by a real Helm and applied by a real kubectl to the embedded API server.
//!
//! Where there is no Helm or no kubectl of today the tests say so and pass.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

#[path = "kubectl/usable.rs"]
mod usable;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use insta::assert_snapshot;
use karpenter_testbed::Testbed;
use tempfile::TempDir;

/// What an operator of the v0.33 and later walkthroughs sets.
const TODAY: &str = "
settings:
  clusterName: demo
  interruptionQueue: demo
controller:
  resources:
    requests: {cpu: 1, memory: 128Mi}
    limits: {cpu: 1, memory: 128Mi}
";
/// The values of the v0.29 walkthrough.
const MIDDLE: &str = "
serviceAccount:
  annotations:
    eks.amazonaws.com/role-arn: arn:aws:iam::123456789012:role/karpenter
settings:
  aws:
    clusterName: demo
    defaultInstanceProfile: KarpenterNodeInstanceProfile-demo
    interruptionQueueName: demo
    vmMemoryOverheadPercent: 0
    tags: {team: a}
  featureGates: {driftEnabled: true}
";
/// The values of the v0.16 walkthrough.
const EARLY: &str = "
clusterName: demo
clusterEndpoint: https://demo.eks.example
defaultProvisioner: {create: false}
aws:
  defaultInstanceProfile: KarpenterNodeInstanceProfile-demo
";
/// Everything that can be switched on.
const FULL: &str = "
additionalLabels: {team: a}
additionalAnnotations: {note: b}
networkPolicy: {enabled: true}
terminationGracePeriodSeconds: 0
hostNetwork: true
dnsConfig: {options: [{name: ndots, value: '1'}]}
imagePullSecrets: [{name: registry}]
initContainers:
  wait: {image: busybox, command: [sleep, '1']}
additionalClusterRoleRules:
  - {apiGroups: [example.com], resources: [things], verbs: [get]}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 10
        podAffinityTerm: {topologyKey: topology.kubernetes.io/zone}
extraVolumes: [{name: v, emptyDir: {}}]
controller:
  metrics: {tlsSecret: metrics}
  image: {tag: v1, digest: 'sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef'}
  env: [{name: A, value: b}]
  envFrom: [{configMapRef: {name: settings}}]
  extraVolumeMounts: [{name: v, mountPath: /v}]
  sidecarContainer: [{name: side, image: side}]
  sidecarVolumeMounts: [{name: v, mountPath: /v}]
settings:
  clusterName: demo
  ignoreDRARequests: false
  isolatedVPC: true
  reservedENIs: 2
  featureGates: {staticCapacity: true}
  awsFeatureGates: {nodeClassCEL: true}
";

fn charts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts")
}

fn is_missing(program: &str, argument: &str) -> bool {
    let missing = Command::new(program)
        .arg(argument)
        .output()
        .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
    if missing {
        println!("skipped: there is no {program}");
    }
    missing
}

fn helm(verb: &[&str], chart: &str, values: &str) -> Output {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(values.as_bytes()).unwrap();
    let mut command = Command::new("helm");
    command.args(verb).arg(charts().join(chart));
    if verb != ["lint"] {
        command.args(["--namespace", "kube-system", "--values"]);
        command.arg(file.path());
    }
    command.output().unwrap()
}

fn rendered(verb: &[&str], chart: &str, values: &str) -> String {
    let output = helm(verb, chart, values);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "helm {verb:?} {chart}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn template(chart: &str, values: &str) -> String {
    rendered(&["template", "karpenter"], chart, values)
}

/// The lines of one template in what Helm printed.
fn part<'a>(manifests: &'a str, path: &str) -> &'a str {
    let (_, rest) = manifests
        .split_once(&format!("# Source: {path}\n"))
        .unwrap();
    rest.split("\n---\n# Source: ").next().unwrap()
}

fn notes(values: &str) -> String {
    let printed = rendered(
        &["install", "karpenter", "--dry-run=client"],
        "karpenter",
        values,
    );
    printed.split_once("NOTES:\n").unwrap().1.trim().to_owned()
}

#[test]
fn helm_finds_no_fault_with_the_charts() {
    if is_missing("helm", "version") {
        return;
    }
    for chart in ["karpenter", "karpenter-crd"] {
        rendered(&["lint"], chart, "");
    }
}

#[test]
fn the_deployment_is_as_reviewed() {
    if is_missing("helm", "version") {
        return;
    }
    let deployment = "karpenter/templates/deployment.yaml";
    assert_snapshot!(
        "deployment",
        part(&template("karpenter", TODAY), deployment)
    );
    assert_snapshot!(
        "deployment-full",
        part(&template("karpenter", FULL), deployment)
    );
}

#[test]
fn what_the_controller_may_do_is_as_reviewed() {
    if is_missing("helm", "version") {
        return;
    }
    let manifests = template("karpenter", TODAY);
    let roles = ["clusterrole-core", "clusterrole", "role"]
        .map(|name| part(&manifests, &format!("karpenter/templates/{name}.yaml")));
    assert_snapshot!("roles", roles.join("\n---\n"));
}

/// Where OwnerReferencesPermissionEnforcement is on, whoever sets `blockOwnerDeletion` must be allowed to update the owner's finalizers.
#[test]
fn owners_that_the_controller_blocks_the_deletion_of_let_it_update_their_finalizers() {
    if is_missing("helm", "version") {
        return;
    }
    let manifests = template("karpenter", TODAY);
    let rules: Vec<serde_json::Value> = manifests
        .split("\n---\n")
        .map(|text| serde_saphyr::from_str(text.trim_start_matches("---\n")).unwrap())
        .filter(|object: &serde_json::Value| object["kind"] == "ClusterRole")
        .flat_map(|role| role["rules"].as_array().cloned().unwrap_or_default())
        .collect();
    for (group, owner) in [
        ("karpenter.sh", "nodepools"),
        ("karpenter.sh", "nodeclaims"),
        ("karpenter.sh", "provisioners"),
        ("karpenter.k8s.aws", "awsnodetemplates"),
    ] {
        let holds = |rule: &serde_json::Value, field: &str, wanted: &str| {
            let values = rule[field].as_array();
            values.is_some_and(|values| values.iter().any(|value| value == wanted))
        };
        let resource = format!("{owner}/finalizers");
        let allowed = rules.iter().any(|rule| {
            holds(rule, "apiGroups", group)
                && holds(rule, "resources", &resource)
                && holds(rule, "verbs", "update")
        });
        assert!(allowed, "{resource} of {group}");
    }
}

#[test]
fn values_of_earlier_charts_are_taken_over_and_pointed_out() {
    if is_missing("helm", "version") {
        return;
    }
    let environment = |values: &str| -> Vec<String> {
        let manifests = template("karpenter", values);
        let lines: Vec<&str> = part(&manifests, "karpenter/templates/deployment.yaml")
            .lines()
            .map(str::trim)
            .collect();
        lines
            .windows(2)
            .filter_map(|pair| {
                let name = pair[0].strip_prefix("- name: ")?;
                let value = pair[1].strip_prefix("value: ")?;
                Some(format!("{name}={}", value.trim_matches('"')))
            })
            .collect()
    };
    let middle = environment(MIDDLE);
    for wanted in [
        "CLUSTER_NAME=demo",
        "INTERRUPTION_QUEUE=demo",
        "VM_MEMORY_OVERHEAD_PERCENT=0",
        "AWS_DEFAULT_INSTANCE_PROFILE=KarpenterNodeInstanceProfile-demo",
    ] {
        assert!(
            middle.iter().any(|set| set == wanted),
            "{wanted}: {middle:?}"
        );
    }
    let early = environment(EARLY);
    for wanted in [
        "CLUSTER_NAME=demo",
        "CLUSTER_ENDPOINT=https://demo.eks.example",
        "AWS_DEFAULT_INSTANCE_PROFILE=KarpenterNodeInstanceProfile-demo",
    ] {
        assert!(early.iter().any(|set| set == wanted), "{wanted}: {early:?}");
    }
    assert_snapshot!("notes-today", notes(TODAY));
    assert_snapshot!("notes-middle", notes(MIDDLE));
    assert_snapshot!("notes-early", notes(EARLY));
}

#[test]
fn values_that_cannot_be_meant_are_refused_by_name() {
    if is_missing("helm", "version") {
        return;
    }
    for (values, named) in [
        ("{}", "settings.clusterName is required"),
        (
            "settings: {clusterName: a, preferencePolicy: Sometimes}",
            "preferencePolicy",
        ),
        (
            "settings: {clusterName: a, batchIdleDuration: 1}",
            "batchIdleDuration",
        ),
        (
            "settings: {clusterName: a, vmMemoryOverheadPercent: -1}",
            "vmMemoryOverheadPercent",
        ),
        (
            "{settings: {clusterName: a}, controller: {metrics: {port: 70000}}}",
            "port",
        ),
        (
            "settings: {clusterName: a, featureGates: {nodeRepair: maybe}}",
            "nodeRepair",
        ),
    ] {
        let output = helm(&["template", "karpenter"], "karpenter", values);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{values}");
        assert!(error.contains(named), "{values}: {error}");
    }
}

/// A kubectl for a served testbed.
fn kubectl(home: &TempDir, arguments: &[&str], input: &str) -> String {
    let mut child = Command::new("kubectl")
        .arg("--kubeconfig")
        .arg(home.path().join("config"))
        .arg("--cache-dir")
        .arg(home.path().join("cache"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let input = input.to_owned();
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(
        output.status.success(),
        "kubectl {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_accepts_every_object_of_the_charts() {
    if is_missing("helm", "version") || usable::kubectl_is_missing(Path::new("kubectl")) {
        return;
    }
    let testbed = Testbed::builder().start().await;
    let served = testbed.serve("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let home = tempfile::tempdir().unwrap();
    served
        .write_kubeconfig(&home.path().join("config"))
        .unwrap();
    let apply = ["apply", "--server-side", "--validate=strict", "-f", "-"];
    let definitions = template("karpenter-crd", "additionalAnnotations: {note: b}");
    assert_eq!(
        kubectl(&home, &apply, &definitions).lines().count(),
        definitions
            .matches("\nkind: CustomResourceDefinition")
            .count()
    );
    for values in [TODAY, MIDDLE, EARLY, FULL] {
        let manifests = template("karpenter", values);
        let objects = manifests.matches("\nkind: ").count();
        assert!(objects >= 13, "{manifests}");
        assert_eq!(kubectl(&home, &apply, &manifests).lines().count(), objects);
    }
    let annotated = kubectl(
        &home,
        &[
            "get",
            "crd",
            "nodepools.karpenter.sh",
            "-o",
            "jsonpath={.metadata.annotations.note}",
        ],
        "",
    );
    assert_eq!(annotated, "b");
}
