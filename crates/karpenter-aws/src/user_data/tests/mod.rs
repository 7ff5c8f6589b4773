//! Every family with every kubelet option: the text as reviewed snapshots, and its meaning as independent parsers read
//! it.

mod custom;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mail_parser::MimeHeaders;
use serde_json::{Map, Value, json};

use super::*;

/// Returns the kubelet options that exist for more than one family.
fn options() -> Vec<(&'static str, Value)> {
    vec![
        ("clusterDNS", json!(["10.0.100.10"])),
        ("maxPods", json!(58)),
        ("podsPerCore", json!(2)),
        (
            "systemReserved",
            json!({"memory": "100Mi", "cpu": "80m", "ephemeral-storage": "1"}),
        ),
        ("kubeReserved", json!({"cpu": "90m", "memory": "893Mi"})),
        (
            "evictionHard",
            json!({"memory.available": "5%", "nodefs.available": "500Mi"}),
        ),
        ("evictionSoft", json!({"memory.available": "10%"})),
        (
            "evictionSoftGracePeriod",
            json!({"memory.available": "1m30s"}),
        ),
        ("evictionMaxPodGracePeriod", json!(300)),
        ("imageGCHighThresholdPercent", json!(80)),
        ("imageGCLowThresholdPercent", json!(70)),
        ("cpuCFSQuota", json!(false)),
    ]
}

fn settings(kubelet: &[(&str, Value)]) -> NodeSettings {
    let taint = |key: &str, value: &str, effect: &str| NodeTaint {
        key: key.to_owned(),
        value: value.to_owned(),
        effect: effect.to_owned(),
    };
    NodeSettings {
        cluster: Cluster {
            name: "prod".to_owned(),
            endpoint: "https://prod.example.com".to_owned(),
            certificate_authority: Some("Y2EtYnVuZGxl".to_owned()),
            service_cidr: Some("10.100.0.0/16".to_owned()),
        },
        labels: kubelet_labels([
            ("team", "search"),
            ("karpenter.sh/capacity-type", "spot"),
            ("node.kubernetes.io/instance-type", "m5.large"),
        ]),
        taints: kubelet_taints(
            vec![taint("dedicated", "search", "NoSchedule")],
            vec![taint("cni/not-ready", "", "NoExecute")],
        ),
        kubelet: kubelet
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.clone()))
            .collect(),
        ..NodeSettings::default()
    }
}

fn with_custom(custom: &str) -> NodeSettings {
    NodeSettings {
        custom: Some(custom.to_owned()),
        ..settings(&[("maxPods", json!(58))])
    }
}

fn text(family: AmiFamily, settings: &NodeSettings) -> String {
    let generated = generate(family, settings).unwrap();
    assert_eq!(
        STANDARD.decode(generated.encoded()).unwrap(),
        generated.text.as_bytes()
    );
    generated.text
}

fn refusal(family: AmiFamily, settings: &NodeSettings) -> String {
    let error = generate(family, settings).unwrap_err();
    assert!(!error.is_transient());
    error.to_string()
}

/// Returns content type and content of the parts of a MIME document.
fn mime_parts(text: &str) -> Vec<(String, String)> {
    let message = mail_parser::MessageParser::default().parse(text).unwrap();
    message
        .parts
        .iter()
        .skip(1)
        .map(|part| {
            let kind = part.content_type().unwrap();
            let kind = format!("{}/{}", kind.ctype(), kind.subtype().unwrap());
            let content = String::from_utf8(part.contents().to_vec()).unwrap();
            (kind, content)
        })
        .collect()
}

/// Returns the arguments of the bootstrap call, as a shell splits them.
fn bootstrap_call(script: &str) -> Vec<String> {
    let (_, call) = script.split_once("/etc/eks/bootstrap.sh").unwrap();
    shlex::split(&call.replace("\\\n", " ")).unwrap()
}

fn kubelet_flags(line: &str) -> Vec<String> {
    shlex::split(line).unwrap()
}

fn flag_for(option: &str, value: &Value) -> Option<String> {
    let joined = |between: char| {
        let mut entries: Vec<String> = value
            .as_object()
            .unwrap()
            .iter()
            .map(|(key, value)| format!("{key}{between}{}", value.as_str().unwrap()))
            .collect();
        entries.sort();
        entries.join(",")
    };
    Some(match option {
        "clusterDNS" => return None,
        "maxPods" => format!("--max-pods={value}"),
        "podsPerCore" => format!("--pods-per-core={value}"),
        "systemReserved" => format!("--system-reserved={}", joined('=')),
        "kubeReserved" => format!("--kube-reserved={}", joined('=')),
        "evictionHard" => format!("--eviction-hard={}", joined('<')),
        "evictionSoft" => format!("--eviction-soft={}", joined('<')),
        "evictionSoftGracePeriod" => format!("--eviction-soft-grace-period={}", joined('=')),
        "evictionMaxPodGracePeriod" => format!("--eviction-max-pod-grace-period={value}"),
        "imageGCHighThresholdPercent" => format!("--image-gc-high-threshold={value}"),
        "imageGCLowThresholdPercent" => format!("--image-gc-low-threshold={value}"),
        "cpuCFSQuota" => format!("--cpu-cfs-quota={value}"),
        other => panic!("no flag for {other}"),
    })
}

const COMMON_FLAGS: [&str; 2] = [
    "--node-labels=karpenter.sh/capacity-type=spot,karpenter.sh/do-not-sync-taints=true,team=search",
    "--register-with-taints=dedicated=search:NoSchedule,cni/not-ready=:NoExecute,karpenter.sh/unregistered=:NoExecute",
];

fn flags_for(kubelet: &[(&str, Value)]) -> Vec<String> {
    let own = kubelet
        .iter()
        .filter_map(|(option, value)| flag_for(option, value));
    COMMON_FLAGS
        .map(str::to_owned)
        .into_iter()
        .chain(own)
        .collect()
}

/// Runs the check with each option alone, with none, and with all at once.
fn each_option(mut check: impl FnMut(&[(&'static str, Value)])) {
    check(&[]);
    for option in options() {
        check(&[option]);
    }
    check(&options());
}

/// Renders the text without options, then the difference that each option makes.
fn by_option(family: AmiFamily) -> String {
    let base = text(family, &settings(&[]));
    let mut all = format!("# no options\n{base}\n");
    for option in options() {
        let name = option.0;
        let changed = text(family, &settings(&[option]));
        let added: Vec<&str> = changed
            .lines()
            .filter(|line| !base.lines().any(|other| other == *line))
            .collect();
        all.push_str(&format!("\n# {name}\n{}\n", added.join("\n")));
    }
    all
}

/// Conformance: AWS-userdata-09
#[test]
fn al2_calls_bootstrap_with_flags() {
    insta::assert_snapshot!(by_option(AmiFamily::Al2));
    each_option(|kubelet| {
        let parts = mime_parts(&text(AmiFamily::Al2, &settings(kubelet)));
        assert_eq!(parts.len(), 1);
        assert_eq!(parts[0].0, "text/x-shellscript");
        let mut expected: Vec<String> = [
            "prod",
            "--apiserver-endpoint",
            "https://prod.example.com",
            "--b64-cluster-ca",
            "Y2EtYnVuZGxl",
        ]
        .map(str::to_owned)
        .to_vec();
        if kubelet.iter().any(|(option, _)| *option == "clusterDNS") {
            expected.extend(["--dns-cluster-ip", "10.0.100.10"].map(str::to_owned));
        }
        expected.extend(["--use-max-pods", "false", "--kubelet-extra-args"].map(str::to_owned));
        let mut call = bootstrap_call(&parts[0].1);
        let flags = call.pop().unwrap();
        assert_eq!(call, expected);
        assert_eq!(kubelet_flags(&flags), flags_for(kubelet));
    });
}

/// Conformance: AWS-userdata-12
#[test]
fn windows_calls_bootstrap_with_flags() {
    insta::assert_snapshot!(by_option(AmiFamily::Windows2022));
    each_option(|kubelet| {
        let settings = settings(kubelet);
        let generated = text(AmiFamily::Windows2022, &settings);
        for family in [AmiFamily::Windows2019, AmiFamily::Windows2025] {
            assert_eq!(text(family, &settings), generated);
        }
        let inside = generated
            .strip_prefix("<powershell>\n")
            .and_then(|rest| rest.strip_suffix("\n</powershell>"))
            .unwrap();
        let (_, arguments) = inside.split_once("& $EKSBootstrapScriptFile ").unwrap();
        // Without quotes in the values, PowerShell splits them as a shell does.
        let arguments = shlex::split(arguments).unwrap();
        let mut expected: Vec<String> = [
            "-EKSClusterName",
            "prod",
            "-APIServerEndpoint",
            "https://prod.example.com",
            "-Base64ClusterCA",
            "Y2EtYnVuZGxl",
            "-KubeletExtraArgs",
        ]
        .map(str::to_owned)
        .to_vec();
        assert_eq!(arguments[..7], expected);
        assert_eq!(kubelet_flags(&arguments[7]), flags_for(kubelet));
        expected.clear();
        if kubelet.iter().any(|(option, _)| *option == "clusterDNS") {
            expected.extend(["-DNSClusterIP", "10.0.100.10"].map(str::to_owned));
        }
        assert_eq!(arguments[8..], expected);
    });
}

/// Conformance: AWS-userdata-10
#[test]
fn al2023_passes_the_kubelet_configuration_through() {
    insta::assert_snapshot!(by_option(AmiFamily::Al2023));
    let taints = json!([
        {"key": "dedicated", "value": "search", "effect": "NoSchedule"},
        {"key": "cni/not-ready", "effect": "NoExecute"},
        {"key": "karpenter.sh/unregistered", "effect": "NoExecute"},
    ]);
    let nested = (
        "memorySwap",
        json!({"swapBehavior": "LimitedSwap", "on": [[1, "2"], [], {}], "y": null, "1:30": {"a b": "1:30"}}),
    );
    each_option(|kubelet| {
        let kubelet: Vec<_> = kubelet.iter().cloned().chain([nested.clone()]).collect();
        let parts = mime_parts(&text(AmiFamily::Al2023, &settings(&kubelet)));
        assert_eq!(parts.len(), 1);
        assert_eq!(parts[0].0, "application/node.eks.aws");
        let config: Value = serde_saphyr::from_str(&parts[0].1).unwrap();
        let mut expected: Map<String, Value> = kubelet
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.clone()))
            .collect();
        expected.insert("registerWithTaints".to_owned(), taints.clone());
        assert_eq!(
            config,
            json!({
                "apiVersion": "node.eks.aws/v1alpha1",
                "kind": "NodeConfig",
                "spec": {
                    "cluster": {
                        "name": "prod",
                        "apiServerEndpoint": "https://prod.example.com",
                        "certificateAuthority": "Y2EtYnVuZGxl",
                        "cidr": "10.100.0.0/16",
                    },
                    "kubelet": {
                        "config": expected,
                        "flags": ["--node-labels=\"karpenter.sh/capacity-type=spot,karpenter.sh/do-not-sync-taints=true,team=search\""],
                    },
                },
            })
        );
    });
}

/// Parses TOML with an independent parser.
fn toml(text: &str) -> Value {
    fn plain(mut value: toml_span::Value<'_>) -> Value {
        use toml_span::value::ValueInner;
        match value.take() {
            ValueInner::String(text) => text.into(),
            ValueInner::Integer(number) => number.into(),
            ValueInner::Float(number) => number.into(),
            ValueInner::Boolean(flag) => flag.into(),
            ValueInner::Array(list) => list.into_iter().map(plain).collect(),
            ValueInner::Table(table) => table
                .into_iter()
                .map(|(key, value)| (key.to_string(), plain(value)))
                .collect(),
        }
    }
    plain(toml_span::parse(text).unwrap())
}

/// Conformance: AWS-userdata-11
#[test]
fn bottlerocket_has_its_own_settings() {
    insta::assert_snapshot!(by_option(AmiFamily::Bottlerocket));
    each_option(|kubelet| {
        let mut expected = json!({
            "cluster-name": "prod",
            "api-server": "https://prod.example.com",
            "cluster-certificate": "Y2EtYnVuZGxl",
            "node-labels": {
                "karpenter.sh/capacity-type": "spot",
                "karpenter.sh/do-not-sync-taints": "true",
                "team": "search",
            },
            "node-taints": {
                "dedicated": ["search:NoSchedule"],
                "cni/not-ready": [":NoExecute"],
                "karpenter.sh/unregistered": [":NoExecute"],
            },
        });
        for (option, value) in kubelet {
            let (key, value) = match *option {
                "clusterDNS" => ("cluster-dns-ip", value[0].clone()),
                "maxPods" => ("max-pods", value.clone()),
                // Bottlerocket has no such setting; the node class validation reports it.
                "podsPerCore" => continue,
                "systemReserved" => ("system-reserved", value.clone()),
                "kubeReserved" => ("kube-reserved", value.clone()),
                "evictionHard" => ("eviction-hard", value.clone()),
                "evictionSoft" => ("eviction-soft", value.clone()),
                "evictionSoftGracePeriod" => ("eviction-soft-grace-period", value.clone()),
                "evictionMaxPodGracePeriod" => ("eviction-max-pod-grace-period", value.clone()),
                "imageGCHighThresholdPercent" => ("image-gc-high-threshold-percent", json!("80")),
                "imageGCLowThresholdPercent" => ("image-gc-low-threshold-percent", json!("70")),
                "cpuCFSQuota" => ("cpu-cfs-quota-enforced", value.clone()),
                other => panic!("no setting for {other}"),
            };
            expected[key] = value;
        }
        assert_eq!(
            toml(&text(AmiFamily::Bottlerocket, &settings(kubelet))),
            json!({"settings": {"kubernetes": expected}})
        );
    });
}
