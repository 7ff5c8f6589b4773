//! The charts, rendered by a real Helm and applied by a real kubectl to the embedded API server.
//!
//! Without Helm or a recent kubectl the tests are skipped.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

/// Without Helm, ends the test and reports it as skipped.
macro_rules! needs_helm {
    () => {
        let version = std::process::Command::new("helm").arg("version").output();
        if version.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
            skipped::skipped("helm", "it is not in PATH");
            return;
        }
    };
}

mod cluster_api;
mod custom;
mod kwok;
mod network;
mod older;
mod permissions;
mod shadow;
mod upstream;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use insta::assert_snapshot;
use karpenter_testbed::Testbed;
use tempfile::TempDir;

use crate::kubectl::usable;

/// The values of operators in the v0.33 and later walkthroughs.
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
/// All optional features enabled.
const FULL: &str = "
additionalLabels: {team: a}
additionalAnnotations: {note: b}
networkPolicy: {enabled: true}
legacy: {enabled: true}
webhook: {enabled: true}
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

/// The kwok provider, with AWS-only features enabled.
const KWOK: &str = "
provider: kwok
extraVolumes: [{name: types, configMap: {name: types}}]
controller:
  extraVolumeMounts: [{name: types, mountPath: /types}]
kwok: {instanceTypesFilePath: /types/types.json}
settings: {interruptionQueue: demo, clusterCABundle: QQ==}
";

fn charts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts")
}

fn helm(verb: &[&str], chart: &str, values: &str) -> Output {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(values.as_bytes()).unwrap();
    let mut command = Command::new("helm");
    command.args(verb).arg(charts().join(chart));
    if verb != ["lint"] {
        let options = ["--namespace", "kube-system", "--values"];
        command.args(options).arg(file.path());
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

/// Returns the lines of one template in Helm's output.
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
fn helm_lint_accepts_the_charts() {
    needs_helm!();
    for chart in ["karpenter", "karpenter-crd"] {
        rendered(&["lint"], chart, "");
    }
}

#[test]
fn dashboards_are_config_maps_for_grafana_and_explain_each_panel() {
    needs_helm!();
    assert!(objects(&template("karpenter", TODAY), "ConfigMap").is_empty());
    let values = format!("{TODAY}\ndashboards: {{enabled: true, namespace: monitoring}}\n");
    let maps = objects(&template("karpenter", &values), "ConfigMap");
    let mut panels = 0;
    for map in &maps {
        assert_eq!(map["metadata"]["namespace"], "monitoring");
        assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
        for (file, text) in map["data"].as_object().unwrap() {
            let board: serde_json::Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
            for panel in board["panels"].as_array().unwrap() {
                let description = panel["description"].as_str().unwrap_or_default();
                assert!(description.ends_with('.'), "{file}: {}", panel["title"]);
                panels += 1;
            }
        }
    }
    assert_eq!((maps.len(), panels), (4, 42));
}

/// Conformance: AWS-helm-01
#[test]
fn the_deployment_is_as_reviewed() {
    needs_helm!();
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

/// Conformance: AWS-helm-02
#[test]
fn the_roles_of_the_controller_are_as_reviewed() {
    needs_helm!();
    let manifests = template("karpenter", TODAY);
    let roles = ["clusterrole-core", "clusterrole", "role"]
        .map(|name| part(&manifests, &format!("karpenter/templates/{name}.yaml")));
    assert_snapshot!("roles", roles.join("\n---\n"));
}

/// Section 7.1 of core-api.md.
///
/// Conformance: API-163
#[test]
fn two_replicas_are_probed_protected_and_kept_off_karpenters_nodes() {
    needs_helm!();
    let manifests = template("karpenter", TODAY);
    let deployment = &objects(&manifests, "Deployment")[0];
    assert_eq!(deployment["spec"]["replicas"], 2);
    let pod = &deployment["spec"]["template"]["spec"];
    let probe = |probe: &str, path: &str, delay: i64| {
        let probe = &pod["containers"][0][probe];
        assert_eq!(probe["httpGet"]["path"], path);
        assert_eq!(probe["initialDelaySeconds"], delay, "{path}");
        assert_eq!(probe["timeoutSeconds"], 30, "{path}");
    };
    probe("livenessProbe", "/healthz", 30);
    probe("readinessProbe", "/readyz", 5);
    let affinity =
        &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    assert_eq!(
        affinity["nodeSelectorTerms"],
        serde_json::json!([{ "matchExpressions": [{ "key": "karpenter.sh/nodepool", "operator": "DoesNotExist" }] }])
    );
    let budget = &objects(&manifests, "PodDisruptionBudget")[0];
    assert_eq!(budget["spec"]["maxUnavailable"], 1);
}

/// Conformance: AWS-helm-03
#[test]
fn values_of_earlier_charts_are_applied_and_listed_in_the_notes() {
    needs_helm!();
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

/// Returns the pod of a values file.
fn pod(values: &str) -> serde_json::Value {
    let manifests = template("karpenter", values);
    let deployments = objects(&manifests, "Deployment");
    assert_eq!(deployments.len(), 1, "{manifests}");
    deployments[0]["spec"]["template"]["spec"].clone()
}

#[test]
fn templates_in_settings_are_rendered() {
    needs_helm!();
    let pod = pod("
settings:
  clusterName: '{{ .Release.Namespace }}-cluster'
  clusterEndpoint: 'https://{{ .Release.Name }}.example'
  interruptionQueue: '{{ .Release.Name }}'
  isolatedVPC: '{{ eq .Release.Name \"karpenter\" }}'
  reservedENIs: '{{ add 1 1 }}'
");
    let env = pod["containers"][0]["env"].as_array().unwrap();
    for (name, value) in [
        ("CLUSTER_NAME", "kube-system-cluster"),
        ("CLUSTER_ENDPOINT", "https://karpenter.example"),
        ("INTERRUPTION_QUEUE", "karpenter"),
        ("ISOLATED_VPC", "true"),
        ("RESERVED_ENIS", "2"),
    ] {
        let wanted = serde_json::json!({ "name": name, "value": value });
        assert!(env.contains(&wanted), "{name}: {env:?}");
    }
}

#[test]
fn init_containers_are_a_list_or_a_map_by_name() {
    needs_helm!();
    let wanted = serde_json::json!([{ "name": "wait", "image": "busybox" }]);
    for containers in ["[{name: wait, image: busybox}]", "{wait: {image: busybox}}"] {
        let pod = pod(&format!(
            "{{settings: {{clusterName: demo}}, initContainers: {containers}}}"
        ));
        assert_eq!(pod["initContainers"], wanted, "{containers}");
    }
}

#[test]
fn sidecars_get_the_controllers_mounts_and_their_own_take_precedence() {
    needs_helm!();
    let pod = pod("
settings: {clusterName: demo}
controller:
  extraVolumeMounts: [{name: a, mountPath: /a}, {name: b, mountPath: /b}]
  sidecarVolumeMounts: [{name: c, mountPath: /b}]
  sidecarContainer: [{name: side, image: side}]
");
    assert_eq!(
        pod["containers"][1]["volumeMounts"],
        serde_json::json!([{ "name": "c", "mountPath": "/b" }, { "name": "a", "mountPath": "/a" }])
    );
}

#[test]
fn pod_affinities_without_a_selector_select_this_release() {
    needs_helm!();
    let term = "requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone}]";
    let pod = pod(&format!(
        "{{settings: {{clusterName: demo}}, affinity: {{podAffinity: {{{term}}}, podAntiAffinity: {{{term}}}}}}}"
    ));
    for kind in ["podAffinity", "podAntiAffinity"] {
        let term = &pod["affinity"][kind]["requiredDuringSchedulingIgnoredDuringExecution"][0];
        assert_eq!(
            term["labelSelector"]["matchLabels"]["app.kubernetes.io/instance"], "karpenter",
            "{kind}: {term}"
        );
    }
}

#[test]
fn invalid_values_are_rejected_by_name() {
    needs_helm!();
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
        ("{settings: {clusterName: a}, provider: azure}", "provider"),
        (
            "{settings: {clusterName: a}, shadow: {enabled: true, changes: all}}",
            "changes",
        ),
    ] {
        let output = helm(&["template", "karpenter"], "karpenter", values);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{values}");
        assert!(error.contains(named), "{values}: {error}");
    }
}

/// Returns the objects of kind `kind` in Helm's output.
fn objects(manifests: &str, kind: &str) -> Vec<serde_json::Value> {
    let documents = manifests
        .split("\n---\n")
        .map(|text| text.trim_start_matches("---\n"));
    let objects =
        documents.filter_map(|text| serde_saphyr::from_str::<serde_json::Value>(text).ok());
    objects.filter(|object| object["kind"] == kind).collect()
}

#[test]
fn the_crds_are_those_of_the_provider() {
    needs_helm!();
    let names = |values: &str| -> Vec<String> {
        let definitions = objects(
            &template("karpenter-crd", values),
            "CustomResourceDefinition",
        );
        let mut names: Vec<String> = definitions
            .iter()
            .map(|d| d["metadata"]["name"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    };
    let of_all = [
        "capacitybuffers.autoscaling.x-k8s.io",
        "nodeclaims.karpenter.sh",
        "nodeoverlays.karpenter.sh",
        "nodepools.karpenter.sh",
    ];
    let with = |more: &[&str]| {
        let mut all: Vec<&str> = of_all.iter().chain(more).copied().collect();
        all.sort_unstable();
        all.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        names("provider: kwok"),
        with(&["kwoknodeclasses.karpenter.kwok.sh"])
    );
    assert_eq!(
        names("provider: cluster-api"),
        with(&["clusterapinodeclasses.karpenter.cluster.x-k8s.io"])
    );
    let of_kwok = template("karpenter-crd", "provider: kwok");
    assert!(!of_kwok.contains("\n  conversion:\n"), "{of_kwok}");
    assert_eq!(names("{}"), with(&["ec2nodeclasses.karpenter.k8s.aws"]));
    assert_eq!(
        names(older::OLDER),
        with(&[
            "awsnodetemplates.karpenter.k8s.aws",
            "ec2nodeclasses.karpenter.k8s.aws",
            "provisioners.karpenter.sh",
        ])
    );
    let refused = helm(&["template", "karpenter"], "karpenter-crd", "provider: gcp");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("provider"));
}

/// Returns kubectl for a served testbed.
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
    needs_helm!();
    if usable::kubectl_is_missing(Path::new("kubectl")) {
        return;
    }
    let testbed = Testbed::builder().start().await;
    let served = testbed.serve("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let home = tempfile::tempdir().unwrap();
    served
        .write_kubeconfig(&home.path().join("config"))
        .unwrap();
    let apply = ["apply", "--server-side", "--validate=strict", "-f", "-"];
    let older = format!("additionalAnnotations: {{note: b}}\n{}", older::OLDER);
    let definitions = template("karpenter-crd", &older);
    let kinds = definitions.matches("\nkind: CustomResourceDefinition");
    let applied = kubectl(&home, &apply, &definitions);
    assert_eq!(applied.lines().count(), kinds.count());
    kubectl(&home, &["create", "namespace", "fleet"], "");
    for values in [TODAY, MIDDLE, EARLY, FULL, KWOK, cluster_api::ONE_CLUSTER] {
        let manifests = template("karpenter", values);
        let objects = manifests.matches("\nkind: ").count();
        assert!(objects >= 11, "{manifests}");
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
