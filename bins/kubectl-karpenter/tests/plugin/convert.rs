//! `kubectl karpenter convert`, as users run it.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn seeds() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/seeds")
}

fn convert(args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kubectl-karpenter"))
        .arg("convert")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Returns exit code, findings and documents, for a snapshot.
fn shown(output: &Output) -> String {
    format!(
        "exit {}\n{}\n{}",
        output.status.code().unwrap(),
        text(&output.stderr),
        text(&output.stdout)
    )
}

fn seed(path: &str, args: &[&str]) -> Output {
    let path = seeds().join(path);
    convert(&[&["-f", path.to_str().unwrap()], args].concat(), "")
}

const WITH_PROFILE: [&str; 3] = [
    "--default-instance-profile",
    "KarpenterNodeInstanceProfile-${CLUSTER_NAME}",
    "--check",
];

#[test]
fn the_just_in_time_walkthrough() {
    let path = "1-just-in-time-v0.16/provisioner.yaml";
    insta::assert_snapshot!(shown(&seed(path, &WITH_PROFILE)));
}

#[test]
fn the_windows_walkthrough() {
    let path = "2-windows-v0.29/provisioners.yaml";
    insta::assert_snapshot!(shown(&seed(path, &WITH_PROFILE)));
}

#[test]
fn the_layered_constraints_walkthrough() {
    let path = "3-layered-constraints-and-upgrade-v0.33/nodepool.yaml";
    insta::assert_snapshot!(shown(&seed(path, &["--check"])));
}

#[test]
fn other_kinds_pass_through_byte_for_byte() {
    for name in [
        "1-just-in-time-v0.16/inflate.yaml",
        "2-windows-v0.29/deployment-2019.yaml",
        "3-layered-constraints-and-upgrade-v0.33/pdb.yaml",
    ] {
        let input = std::fs::read_to_string(seeds().join(name)).unwrap();
        let output = convert(&["-f", "-", "--check"], &input);
        assert!(output.status.success());
        assert_eq!(text(&output.stdout), input, "{name}");
        assert_eq!(text(&output.stderr), "", "{name}");
    }
    let odd = "# a comment\r\n---\nkind: Secret   # kept\ndata: {a: 'x'}\n--- # two\n\n---\n\"quoted\": yes\n...\n";
    assert_eq!(text(&convert(&["-f", "-"], odd).stdout), odd);
}

#[test]
fn documents_of_v1_stay_unchanged() {
    let first = seed("3-layered-constraints-and-upgrade-v0.33/nodepool.yaml", &[]);
    let again = convert(&["-f", "-", "--check"], text(&first.stdout));
    assert!(again.status.success());
    assert_eq!(text(&again.stdout), text(&first.stdout));
    assert_eq!(text(&again.stderr), "");
}

/// One document for each kind of error, between valid documents.
#[test]
fn errors_and_losses_name_the_field_and_the_fix() {
    let input = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: karpenter-global-settings}
data:
  aws.defaultInstanceProfile: profile
  aws.tags: '{\"cost\": \"x\"}'
---
# This one is fine.
apiVersion: karpenter.sh/v1alpha5
kind: Provisioner
metadata: {name: fine}
spec:
  providerRef: {name: fine}
  kubeletConfiguration: {maxPods: 20, containerRuntime: dockerd}
  consolidation: {enabled: true}
  requirements:
  - {key: karpenter.k8s.aws/instance-pods, operator: Gt, values: ['20']}
---
apiVersion: karpenter.k8s.aws/v1alpha1
kind: AWSNodeTemplate
metadata: {name: fine}
spec:
  subnetSelector: {env: 'a, b', team: t}
  securityGroupSelector: {aws-ids: 'sg-1,sg-2', env: x}
  blockDeviceMappings:
  - {deviceName: /dev/xvda, ebs: {volumeSize: 1500M}}
---
apiVersion: karpenter.sh/v1alpha5
kind: Provisioner
metadata: {name: both}
spec:
  provider: {}
  providerRef: {name: fine}
  ttlSecondsAfterEmpty: 30
  consolidation: {enabled: true}
---
apiVersion: karpenter.k8s.aws/v1alpha1
kind: AWSNodeTemplate
metadata: {name: template}
spec: {launchTemplate: mine}
---
apiVersion: karpenter.sh/v1alpha5
kind: Provisioner
metadata: {name: malformed}
spec: {weight: heavy}
---
apiVersion: v1
kind: Pod
metadata: {name: p, annotations: {karpenter.sh/do-not-evict: 'true'}}
spec: {nodeSelector: {karpenter.sh/provisioner-name: fine}}
---
apiVersion: karpenter.sh/v1alpha5
kind: Machine
metadata: {name: m, labels: {karpenter.sh/provisioner-name: fine}}
spec: {machineTemplateRef: {name: fine}}
";
    insta::assert_snapshot!(shown(&convert(&["-f", "-"], input)));
}

#[test]
fn lists_and_kubelets_of_v1beta1_are_converted() {
    let input = "\
apiVersion: v1
kind: List
items:
- apiVersion: karpenter.sh/v1beta1
  kind: NodePool
  metadata: {name: a, annotations: {kubectl.kubernetes.io/last-applied-configuration: '{}'}}
  spec:
    template:
      spec:
        kubelet: {maxPods: 20}
        requirements: []
        nodeClassRef: {name: c}
- apiVersion: karpenter.k8s.aws/v1beta1
  kind: EC2NodeClass
  metadata: {name: c}
  spec: {amiFamily: Bottlerocket, role: r, subnetSelectorTerms: [{id: subnet-1}], securityGroupSelectorTerms: [{id: sg-1}]}
- apiVersion: v1
  kind: Namespace
  metadata: {name: other}
";
    insta::assert_snapshot!(shown(&convert(&["-f", "-"], input)));
}

#[test]
fn check_fails_only_on_lossy_conversions() {
    let pool = |disruption: &str| {
        format!(
            "apiVersion: karpenter.sh/v1beta1\nkind: NodePool\nmetadata: {{name: a}}\n\
             spec: {{template: {{spec: {{requirements: [], nodeClassRef: {{name: c}}}}}}, disruption: {disruption}}}\n"
        )
    };
    let lossy = pool("{consolidationPolicy: WhenUnderutilized, consolidateAfter: 30s}");
    let fine = pool("{consolidationPolicy: WhenEmpty, consolidateAfter: 30s}");
    let code = |args: &[&str], input: &str| convert(args, input).status.code();
    assert_eq!(code(&["-f", "-", "--check"], &lossy), Some(1));
    assert_eq!(code(&["-f", "-"], &lossy), Some(0));
    assert_eq!(code(&["-f", "-", "--check"], &fine), Some(0));
}

#[test]
fn several_files_are_one_stream() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (a, b) = (file("a.yaml", "a: 1"), file("b.yaml", "b: 2\n"));
    let output = convert(&["-f", &a, "-f", &b], "");
    assert_eq!(text(&output.stdout), "a: 1\n---\nb: 2\n");
}

#[test]
fn invalid_input_is_an_error_and_not_a_panic() {
    let broken = convert(&["-f", "-"], "a: 1\n---\nb: [\n");
    assert_eq!(broken.status.code(), Some(1));
    assert!(text(&broken.stderr).starts_with("error: document 2 is not YAML: "));
    let missing = convert(&["-f", "/does/not/exist"], "");
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).starts_with("error: cannot read `/does/not/exist`"));
}
