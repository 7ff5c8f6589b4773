//! Upgrades v1beta1 documents to v1 permanently.
//!
//! [`conversion`](crate::conversion) keeps fields without an equivalent in v1 in annotations, so that the API server can convert
//! back. Documents are not converted back: here the kubelet settings move from the NodePool to its EC2NodeClass (which becomes
//! several, if NodePools differ), and fields that v1 would reject are fixed or reported.

use std::collections::BTreeMap;

use karpenter_aws::api::labels::tags;
use serde_json::{Map, Value};

use crate::alpha::volume;
use crate::alpha::volume::Size;
use crate::conversion::{ConversionError, Kind, PLACEHOLDER, V1, V1BETA1, upgrade};
use crate::finding::{Finding, Notebook};
use crate::names;

/// The result of upgrading documents.
#[derive(Clone, Debug, Default)]
pub struct Upgraded {
    /// The replacement of each document: the upgraded document and the NodeClasses split off from it.
    pub documents: Vec<Vec<Value>>,
    /// The findings about all documents.
    pub findings: Vec<Finding>,
}

/// Upgrades NodePools, NodeClaims and EC2NodeClasses of v1beta1 and keeps those of v1, except that a class may get the kubelet
/// settings of its v1beta1 NodePools.
///
/// # Errors
/// Returns an error if a document is of another kind.
pub fn upgrade_all(documents: &[Value]) -> Result<Upgraded, ConversionError> {
    let mut result = Upgraded::default();
    for document in documents {
        let (new, mut notes) = upgrade_one(document)?;
        result.documents.push(vec![new]);
        result.findings.append(&mut notes.findings);
    }
    move_kubelets(&mut result);
    Ok(result)
}

fn upgrade_one(old: &Value) -> Result<(Value, Notebook), ConversionError> {
    let mut new = upgrade(old)?;
    let name = name_of(old).to_owned();
    let kind = old["kind"].as_str().unwrap_or_default();
    let mut notes = Notebook::new(kind, &name);
    match Kind::of(old) {
        Some((Kind::NodePool, V1BETA1)) => node_pool(old, &mut notes),
        Some((Kind::NodeClaim, V1BETA1)) => node_claim(&mut new, &mut notes),
        Some((Kind::EC2NodeClass, V1BETA1)) => ec2_node_class(old, &mut new, &mut notes),
        _ => return Ok((new, notes)),
    }
    // It describes the other version.
    remove_annotation(&mut new, names::LAST_APPLIED);
    Ok((new, notes))
}

fn node_pool(old: &Value, notes: &mut Notebook) {
    let disruption = &old["spec"]["disruption"];
    let expires = disruption["expireAfter"]
        .as_str()
        .is_some_and(|after| after != "Never");
    if expires {
        notes.note(
            "spec.disruption.expireAfter",
            "moves to spec.template.spec; expiration no longer waits for a replacement, and changing it replaces nodes",
            "",
        );
    }
    let underutilized = disruption["consolidationPolicy"] != "WhenEmpty";
    let ignored = disruption["consolidateAfter"]
        .as_str()
        .filter(|after| underutilized && *after != "Never");
    if let Some(after) = ignored {
        notes.loss(
            "spec.disruption.consolidateAfter",
            format!(
                "`{after}` had no effect with consolidationPolicy WhenUnderutilized, and becomes 0s"
            ),
            "set it after the conversion, to consolidate nodes only after that time without pod events",
        );
    }
}

fn node_claim(new: &mut Value, notes: &mut Notebook) {
    if remove_annotation(new, names::KUBELET_COMPATIBILITY).is_some() {
        notes.loss(
            "spec.kubelet",
            "is left out; v1 has the kubelet settings in the EC2NodeClass",
            "none, if the NodePool is converted too",
        );
    }
}

fn ec2_node_class(old: &Value, new: &mut Value, notes: &mut Notebook) {
    let family = old["spec"]["amiFamily"].as_str().unwrap_or_default();
    if family.is_empty() {
        notes.error(
            "spec.amiFamily",
            "is missing",
            "name the family of the images",
        );
    }
    if family == "Ubuntu" {
        remove_annotation(new, names::UBUNTU_COMPATIBILITY);
        let placeholder = new["spec"]["amiSelectorTerms"][0]["id"] == PLACEHOLDER;
        match placeholder {
            true => notes.loss(
                "spec.amiFamily",
                format!("the image family Ubuntu no longer exists; the placeholder `{PLACEHOLDER}` launches no nodes"),
                "name the images in amiSelectorTerms, such as name: ubuntu-eks/k8s_1.30/* with owner: \"099720109477\"",
            ),
            false => notes.note(
                "spec.amiFamily",
                "Ubuntu becomes AL2, which has the same user data, with Ubuntu's root volume",
                "",
            ),
        }
    }
    for field in [
        "subnetSelectorTerms",
        "securityGroupSelectorTerms",
        "amiSelectorTerms",
    ] {
        let terms = old["spec"][field].as_array().into_iter().flatten();
        for (index, term) in terms.enumerate() {
            let values = term["tags"].as_object().into_iter().flatten();
            for (key, _) in values.filter(|(_, v)| v.as_str().is_some_and(|v| v.contains(','))) {
                notes.loss(
                    &format!("spec.{field}[{index}].tags"),
                    format!(
                        "the value of `{key}` has a comma, which is not a separator since v0.33"
                    ),
                    "write a term for each of its parts",
                );
            }
        }
    }
    if let Some(map) = new.pointer_mut("/spec/tags").and_then(Value::as_object_mut) {
        map.retain(|key, _| {
            let restricted =
                tags::restriction(key).is_some() || names::OWN_TAGS.contains(&key.as_str());
            if restricted {
                let problem = format!("the tag `{key}` is reserved by Karpenter and is left out");
                notes.loss("spec.tags", problem, "use another key");
            }
            !restricted
        });
    }
    let mappings = new
        .pointer_mut("/spec/blockDeviceMappings")
        .and_then(Value::as_array_mut);
    for (index, mapping) in mappings.into_iter().flatten().enumerate() {
        let Some(size) = mapping.pointer_mut("/ebs/volumeSize") else {
            continue;
        };
        if volume::convert(size) == Size::Same(size.as_str().unwrap_or_default().to_owned()) {
            continue;
        }
        let at = format!("spec.blockDeviceMappings[{index}].ebs.volumeSize");
        if let Some(text) = volume::noted(size, &at, notes) {
            *size = text.into();
        }
    }
}

/// The index of a NodePool among the documents, with its class and its kubelet settings.
struct User {
    at: usize,
    class: String,
    kubelet: Option<Map<String, Value>>,
}

/// Moves the kubelet settings from annotations of NodePools to their classes: one class for each distinct block.
fn move_kubelets(result: &mut Upgraded) {
    let mut users: Vec<User> = Vec::new();
    let mut classes: BTreeMap<String, usize> = BTreeMap::new();
    for (at, document) in result.documents.iter().enumerate() {
        let document = &document[0];
        match Kind::of(document) {
            Some((Kind::EC2NodeClass, V1)) => {
                classes.insert(name_of(document).to_owned(), at);
            }
            Some((Kind::NodePool, V1)) => {
                let text = document["metadata"]["annotations"].get(names::KUBELET_COMPATIBILITY);
                let kubelet = text
                    .and_then(Value::as_str)
                    .and_then(|text| serde_json::from_str(text).ok());
                let reference = &document["spec"]["template"]["spec"]["nodeClassRef"];
                users.push(User {
                    at,
                    class: reference["name"].as_str().unwrap_or_default().to_owned(),
                    kubelet: kubelet.filter(|kubelet: &Map<String, Value>| !kubelet.is_empty()),
                });
            }
            _ => {}
        }
    }
    let mut taken: Vec<String> = classes.keys().cloned().collect();
    for (class, class_at) in classes {
        let mine: Vec<&User> = users.iter().filter(|user| user.class == class).collect();
        if mine.iter().all(|user| user.kubelet.is_none()) {
            continue;
        }
        let alone = mine.iter().all(|user| user.kubelet == mine[0].kubelet);
        let mut named: Vec<(&Map<String, Value>, String)> = Vec::new();
        for user in &mine {
            let Some(kubelet) = &user.kubelet else {
                continue;
            };
            let pool = name_of(&result.documents[user.at][0]).to_owned();
            let known = named.iter().find(|(known, _)| *known == kubelet);
            let called = match known {
                Some((_, called)) => called.clone(),
                None if alone => class.clone(),
                None => {
                    let mut called = format!("{class}-{pool}");
                    while taken.contains(&called) {
                        called.push_str("-kubelet");
                    }
                    called
                }
            };
            if known.is_none() {
                put_kubelet(&mut result.documents[class_at], &class, &called, kubelet);
                taken.push(called.clone());
                named.push((kubelet, called.clone()));
            }
            let document = &mut result.documents[user.at][0];
            document["spec"]["template"]["spec"]["nodeClassRef"]["name"] = called.clone().into();
            remove_annotation(document, names::KUBELET_COMPATIBILITY);
            let mut notes = Notebook::new(Kind::NodePool.as_str(), &pool);
            notes.note(
                "spec.template.spec.kubelet",
                format!("moves to the EC2NodeClass `{called}`"),
                "",
            );
            result.findings.append(&mut notes.findings);
        }
    }
    report_stranded(result);
}

/// Keeps settings whose class is not among the documents in the annotation.
fn report_stranded(result: &mut Upgraded) {
    let mut findings = Vec::new();
    for document in result
        .documents
        .iter_mut()
        .map(|documents| &mut documents[0])
    {
        let annotations = &document["metadata"]["annotations"];
        let Some(kubelet) = annotations.get(names::KUBELET_COMPATIBILITY) else {
            continue;
        };
        if kubelet == "{}" {
            remove_annotation(document, names::KUBELET_COMPATIBILITY);
            continue;
        }
        let class = &document["spec"]["template"]["spec"]["nodeClassRef"]["name"];
        let mut notes = Notebook::new(Kind::NodePool.as_str(), name_of(document));
        notes.loss(
            "spec.template.spec.kubelet",
            format!(
                "belongs to the EC2NodeClass `{}`, which is not among the documents",
                class.as_str().unwrap_or_default()
            ),
            "convert both together, or copy it to spec.kubelet there; until then it stays in the annotation",
        );
        findings.append(&mut notes.findings);
    }
    result.findings.append(&mut findings);
}

/// Sets the settings in the class of this name, which is `class` or a copy of it.
fn put_kubelet(
    documents: &mut Vec<Value>,
    class: &str,
    called: &str,
    kubelet: &Map<String, Value>,
) {
    if called != class {
        let mut copy = documents[0].clone();
        copy["metadata"]["name"] = called.into();
        copy["spec"]["kubelet"] = Value::Object(kubelet.clone());
        documents.push(copy);
    } else {
        documents[0]["spec"]["kubelet"] = Value::Object(kubelet.clone());
    }
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn remove_annotation(object: &mut Value, key: &str) -> Option<Value> {
    let metadata = object.get_mut("metadata")?.as_object_mut()?;
    let annotations = metadata.get_mut("annotations")?.as_object_mut()?;
    let removed = annotations.remove(key);
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
    removed
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pool(name: &str, class: &str, kubelet: Value) -> Value {
        json!({
            "apiVersion": "karpenter.sh/v1beta1", "kind": "NodePool", "metadata": { "name": name },
            "spec": { "template": { "spec": { "requirements": [], "kubelet": kubelet, "nodeClassRef": { "name": class } } } },
        })
    }

    fn class(name: &str, spec: Value) -> Value {
        let mut all = json!({ "amiFamily": "AL2", "role": "r" });
        for (key, value) in spec.as_object().unwrap() {
            all[key] = value.clone();
        }
        json!({ "apiVersion": "karpenter.k8s.aws/v1beta1", "kind": "EC2NodeClass", "metadata": { "name": name }, "spec": all })
    }

    fn texts(upgraded: &Upgraded) -> Vec<String> {
        upgraded.findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn nodepools_of_one_kubelet_share_their_class() {
        let kubelet = json!({ "maxPods": 20 });
        let documents = [
            pool("a", "c", kubelet.clone()),
            pool("b", "c", kubelet.clone()),
            class("c", json!({})),
        ];
        let upgraded = upgrade_all(&documents).unwrap();
        assert_eq!(upgraded.documents[2].len(), 1);
        assert_eq!(upgraded.documents[2][0]["spec"]["kubelet"], kubelet);
        assert_eq!(upgraded.documents[0][0]["metadata"], json!({ "name": "a" }));
    }

    #[test]
    fn nodepools_of_several_kubelets_get_a_class_each() {
        let documents = [
            pool("a", "c", json!({ "maxPods": 20 })),
            pool("b", "c", json!({ "maxPods": 30 })),
            pool("d", "c", Value::Null),
            class("c", json!({})),
            class("c-b", json!({})),
        ];
        let upgraded = upgrade_all(&documents).unwrap();
        let classes: Vec<String> = upgraded.documents[3]
            .iter()
            .map(|class| format!("{} {}", name_of(class), class["spec"]["kubelet"]["maxPods"]))
            .collect();
        assert_eq!(classes, ["c null", "c-a 20", "c-b-kubelet 30"]);
        let reference = |at: usize| {
            upgraded.documents[at][0]["spec"]["template"]["spec"]["nodeClassRef"]["name"].clone()
        };
        assert_eq!(
            [reference(0), reference(1), reference(2)],
            ["c-a", "c-b-kubelet", "c"]
        );
    }

    #[test]
    fn a_kubelet_without_its_class_is_reported() {
        let upgraded = upgrade_all(&[pool("a", "c", json!({ "maxPods": 20 }))]).unwrap();
        assert_eq!(texts(&upgraded).len(), 1);
        assert_eq!(
            upgraded.documents[0][0]["metadata"]["annotations"][names::KUBELET_COMPATIBILITY],
            r#"{"maxPods":20}"#
        );
    }

    #[test]
    fn fields_that_v1_rejects_are_fixed_or_reported() {
        let upgraded = upgrade_all(&[class(
            "c",
            json!({
                "amiFamily": "Ubuntu",
                "tags": { "karpenter.sh/nodepool": "x", "karpenter.sh/managed-by": "x", "a": "b" },
                "subnetSelectorTerms": [{ "tags": { "env": "a,b" } }],
                "blockDeviceMappings": [{ "ebs": { "volumeSize": "102400Mi" } }, { "ebs": { "volumeSize": "500M" } }],
            }),
        )])
        .unwrap();
        let new = &upgraded.documents[0][0]["spec"];
        assert_eq!(new["tags"], json!({ "a": "b" }));
        assert_eq!(new["blockDeviceMappings"][0]["ebs"]["volumeSize"], "100Gi");
        assert_eq!(new["blockDeviceMappings"][1]["ebs"]["volumeSize"], "1Gi");
        let fields: Vec<&str> = upgraded.findings.iter().map(|f| f.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "spec.amiFamily",
                "spec.subnetSelectorTerms[0].tags",
                "spec.tags",
                "spec.tags",
                "spec.blockDeviceMappings[1].ebs.volumeSize"
            ]
        );
    }

    #[test]
    fn documents_of_v1_are_kept() {
        let mut new = class("c", json!({}));
        new["apiVersion"] = "karpenter.k8s.aws/v1".into();
        let upgraded = upgrade_all(std::slice::from_ref(&new)).unwrap();
        assert_eq!(upgraded.documents, [[new]]);
        assert!(upgraded.findings.is_empty());
    }
}
