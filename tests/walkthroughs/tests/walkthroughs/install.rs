//! Renders the charts with the values of users: manifests, and the environment of the container.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

pub const NAMESPACE: &str = "kube-system";

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the manifests of one of our charts.
pub fn render(chart: &str, values: &str) -> String {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(values.as_bytes()).unwrap();
    let output = Command::new("helm")
        .args(["template", "karpenter"])
        .arg(root().join("charts").join(chart))
        .args(["--namespace", NAMESPACE, "--values"])
        .arg(file.path())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "helm template {chart}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

pub fn documents(manifests: &str) -> Vec<Value> {
    let documents = manifests
        .split("\n---\n")
        .map(|text| text.trim_start_matches("---\n"));
    let documents = documents.map(|text| serde_saphyr::from_str::<Value>(text).unwrap());
    documents.filter(Value::is_object).collect()
}

/// Returns the environment that a kubelet sets in the container of the Deployment.
pub fn environment(manifests: &str) -> BTreeMap<String, String> {
    let documents = documents(manifests);
    let deployment = documents
        .iter()
        .find(|d| d["kind"] == "Deployment")
        .unwrap();
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(
        container["args"],
        Value::Null,
        "flags are set in the environment"
    );
    let resource = |kind: &str, name: &str| -> Option<String> {
        let value = &container["resources"][kind][name];
        let text = value.as_str().map(str::to_owned);
        text.or_else(|| value.as_i64().map(|n| n.to_string()))
    };
    let variables = container["env"].as_array().unwrap().iter();
    variables
        .map(|variable| {
            let name = variable["name"].as_str().unwrap();
            let from = &variable["valueFrom"];
            let value = if let Some(value) = variable["value"].as_str() {
                value.to_owned()
            } else if from["fieldRef"]["fieldPath"] == "metadata.namespace" {
                NAMESPACE.to_owned()
            } else {
                match from["resourceFieldRef"]["resource"].as_str().unwrap() {
                    // The kubelet uses the node's capacity without a limit.
                    "limits.memory" => {
                        resource("limits", "memory").map_or("8000000000".to_owned(), bytes)
                    }
                    "requests.cpu" => {
                        resource("requests", "cpu").map_or("0".to_owned(), millicores)
                    }
                    other => panic!("unknown resource field {other}"),
                }
            };
            (name.to_owned(), value)
        })
        .collect()
}

fn bytes(quantity: String) -> String {
    let units = [("Gi", 30), ("Mi", 20), ("Ki", 10)];
    let found = units.iter().find_map(|(unit, shift)| {
        let number: u64 = quantity.strip_suffix(unit)?.parse().ok()?;
        Some(number << shift)
    });
    found.map_or(quantity, |bytes| bytes.to_string())
}

fn millicores(quantity: String) -> String {
    match quantity.strip_suffix('m') {
        Some(milli) => milli.to_owned(),
        None => format!("{quantity}000"),
    }
}
