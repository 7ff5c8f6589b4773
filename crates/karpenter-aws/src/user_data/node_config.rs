//! AL2023: the user's parts, then a `NodeConfig` document for nodeadm.
//!
//! nodeadm merges the documents it finds, and later ones take precedence, so Karpenter's is last. All kubelet settings
//! are passed through; only labels are a flag, because KubeletConfiguration has no field for them.
// UPSTREAM: pkg/providers/amifamily/bootstrap/nodeadm.go

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::document::{UserData, UserDataError};
use super::kubelet::node_labels_flag;
use super::mime;
use super::settings::NodeSettings;

pub(super) fn generate(settings: &NodeSettings) -> Result<UserData, UserDataError> {
    let mut parts = match settings.custom.as_deref().unwrap_or_default() {
        "" => Vec::new(),
        text if mime::is_mime(text) => mime::parse(text)?,
        text if is_script(text) => vec![mime::Part::script(text.to_owned())],
        text => vec![mime::Part::new(mime::NODE_CONFIG, text.to_owned())],
    };
    parts.push(mime::Part::new(
        mime::NODE_CONFIG,
        format!(
            "# Karpenter Generated NodeConfig\n{}",
            yaml(&node_config(settings)?)
        ),
    ));
    Ok(UserData::new(mime::render(&parts)))
}

/// Returns whether a text without headers is a script: it is a document for nodeadm if it parses as a map.
// DIFFERS: a text with an interpreter line is a script even if it parses as YAML (`echo "a: b"` does).
fn is_script(text: &str) -> bool {
    text.trim_start().starts_with("#!")
        || serde_saphyr::from_multiple::<Option<Map<String, Value>>>(text).is_err()
}

fn node_config(settings: &NodeSettings) -> Result<Value, UserDataError> {
    let cluster = &settings.cluster;
    let cidr = cluster
        .service_cidr
        .as_deref()
        .filter(|cidr| !cidr.is_empty())
        .ok_or(UserDataError::ServiceCidrUnknown)?;
    let mut details = json!({
        "name": cluster.name,
        "apiServerEndpoint": cluster.endpoint,
        "cidr": cidr,
    });
    if let Some(authority) = cluster
        .certificate_authority
        .as_deref()
        .filter(|authority| !authority.is_empty())
    {
        STANDARD
            .decode(authority)
            .map_err(UserDataError::CertificateAuthority)?;
        details["certificateAuthority"] = authority.into();
    }

    let mut config = settings.kubelet.clone();
    if !settings.taints.is_empty() {
        let taints: Vec<Value> = settings
            .taints
            .iter()
            .map(|taint| {
                let mut entry = json!({ "key": taint.key, "effect": taint.effect });
                if !taint.value.is_empty() {
                    entry["value"] = taint.value.as_str().into();
                }
                entry
            })
            .collect();
        config.insert("registerWithTaints".to_owned(), taints.into());
    }
    let mut kubelet = json!({ "config": config });
    if let Some(flag) = node_labels_flag(&settings.labels) {
        kubelet["flags"] = json!([flag]);
    }

    let mut spec = json!({ "cluster": details, "kubelet": kubelet });
    if settings.raid0 {
        spec["instance"] = json!({ "localStorage": { "strategy": "RAID0" } });
    }
    Ok(json!({
        "apiVersion": "node.eks.aws/v1alpha1",
        "kind": "NodeConfig",
        "spec": spec,
    }))
}

/// Renders a document in block style with all strings quoted.
///
/// nodeadm reads YAML 1.1, in which `on`, `010` and `1:30` are not strings. JSON's string syntax is YAML's
/// double-quoted one, so all strings are quoted in JSON's syntax.
fn yaml(value: &Value) -> String {
    let mut text = String::new();
    write_yaml(&mut text, value, 0);
    text
}

fn write_yaml(text: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (index, (key, value)) in map.iter().enumerate() {
                // The first key of a list's element follows the dash.
                if index > 0 || !text.ends_with("- ") {
                    text.push_str(&"  ".repeat(depth));
                }
                if is_plain(key) {
                    text.push_str(key);
                } else {
                    text.push_str(&Value::from(key.as_str()).to_string());
                }
                text.push(':');
                write_nested(text, value, depth + 1);
            }
        }
        Value::Array(list) if !list.is_empty() => {
            for value in list {
                text.push_str(&"  ".repeat(depth));
                text.push_str("- ");
                match value {
                    Value::Object(map) if !map.is_empty() => write_yaml(text, value, depth + 1),
                    // A list in a list, or a scalar, in JSON's syntax.
                    _ => {
                        text.push_str(&value.to_string());
                        text.push('\n');
                    }
                }
            }
        }
        scalar => {
            text.push_str(&scalar.to_string());
            text.push('\n');
        }
    }
}

fn write_nested(text: &mut String, value: &Value, depth: usize) {
    let nested = match value {
        Value::Object(map) => !map.is_empty(),
        Value::Array(list) => !list.is_empty(),
        _ => false,
    };
    text.push(if nested { '\n' } else { ' ' });
    write_yaml(text, value, depth);
}

/// Returns whether a key needs no quotes in any version of YAML.
fn is_plain(key: &str) -> bool {
    const WORDS: [&str; 10] = [
        "y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan",
    ];
    key.starts_with(|first: char| first.is_ascii_alphabetic())
        && key
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'/'))
        && !WORDS.contains(&key.to_ascii_lowercase().as_str())
}
