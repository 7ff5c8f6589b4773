//! Replays of recordings of real API servers: `tests/golden/*.jsonl`.
//!
//! Every different response of the embedded server must be listed in `tests/golden/differences.toml` with its reason, and every
//! listed response must differ.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use karpenter_testbed::Testbed;
use serde_json::{Value, json};
use tower::Service;

const TIME: &str = "2026-01-02T03:04:05Z";

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn lines(file: &str) -> Vec<Value> {
    std::fs::read_to_string(repository().join("tests/golden").join(file))
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Returns the reviewed differences of a file, by case.
fn differences(file: &str) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(repository().join("tests/golden/differences.toml")).unwrap();
    let table: toml::Table = text.parse().unwrap();
    table
        .get(file)
        .and_then(toml::Value::as_table)
        .map(|cases| {
            cases
                .iter()
                .map(|(k, v)| (k.clone(), v.as_str().unwrap().to_owned()))
                .collect()
        })
        .unwrap_or_default()
}

/// Fails unless exactly the reviewed cases differ.
fn assert_reviewed(file: &str, differing: &BTreeMap<String, String>) {
    let reviewed = differences(file);
    let mut report = String::new();
    for (case, what) in differing {
        if !reviewed.contains_key(case) {
            report.push_str(&format!("{case} differs without a reason:\n{what}\n"));
        }
    }
    for case in reviewed.keys() {
        if !differing.contains_key(case) {
            report.push_str(&format!("{case} is listed but does not differ\n"));
        }
    }
    assert!(report.is_empty(), "{file}\n{report}");
}

async fn testbed() -> Testbed {
    let testbed = Testbed::builder().seed(7).start().await;
    let crds = std::fs::read_dir(repository().join("crds"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .map(|path| serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap());
    testbed.apply_crds(crds.collect::<Vec<_>>()).await.unwrap();
    testbed
}

struct Answer {
    code: u16,
    warning: Option<String>,
    body: Value,
}

async fn ask(testbed: &Testbed, step: &Value, path: &str, body: Option<&Value>) -> Answer {
    let mut request = Request::builder()
        .method(step["method"].as_str().unwrap())
        .uri(path)
        .header("user-agent", "<user-agent>/1.0");
    for (header, field) in [("content-type", "content_type"), ("accept", "accept")] {
        if let Some(value) = step[field].as_str() {
            request = request.header(header, value);
        }
    }
    let body = body
        .map(|b| serde_json::to_vec(b).unwrap())
        .unwrap_or_default();
    let request = request.body(Full::new(Bytes::from(body))).unwrap();
    let response = testbed.server().service(true).call(request).await.unwrap();
    let code = response.status().as_u16();
    let warning = response
        .headers()
        .get("warning")
        .map(|w| w.to_str().unwrap().to_owned());
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    Answer {
        code,
        warning,
        body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
    }
}

/// Masks values that differ between runs, as the recordings do.
fn mask(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.remove("description");
            // Entries of one second are ordered by manager; the recorded ones were seconds apart.
            if let Some(fields) = map.get_mut("managedFields").and_then(Value::as_array_mut) {
                fields.sort_by_key(Value::to_string);
            }
            if map.contains_key("generateName") {
                map.insert("name".into(), "<generated>".into());
            }
            for (key, value) in map.iter_mut() {
                match (key.as_str(), &value) {
                    ("resourceVersion", Value::String(s)) if !s.is_empty() => {
                        *value = "<rv>".into()
                    }
                    ("uid", Value::String(_)) => *value = "<uid>".into(),
                    ("message", Value::String(s)) => *value = mask_message(s).into(),
                    ("cells", Value::Array(_)) => mask_ages(value),
                    ("continue", Value::String(s)) if !s.is_empty() => *value = "<continue>".into(),
                    (_, Value::String(s)) if s.parse::<jiff::Timestamp>().is_ok() => {
                        *value = "<time>".into()
                    }
                    _ => mask(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(mask),
        _ => {}
    }
}

/// Masks revisions and UIDs in a message.
fn mask_message(text: &str) -> String {
    let uid = regex::Regex::new("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").unwrap();
    let revision = regex::Regex::new(r"(current: |\()\d+").unwrap();
    let text = uid.replace_all(text, "<uid>");
    revision.replace_all(&text, "$1<rv>").into_owned()
}

fn mask_ages(cells: &mut Value) {
    let age = regex::Regex::new(r"^\d+s$").unwrap();
    for cell in cells.as_array_mut().unwrap() {
        if cell.as_str().is_some_and(|c| age.is_match(c)) {
            *cell = "<age>".into();
        }
    }
}

/// Restores masked values of a recording.
fn unmask(value: &mut Value, rv: &str, uid: &str) {
    match value {
        Value::Object(map) => map.values_mut().for_each(|v| unmask(v, rv, uid)),
        Value::Array(items) => items.iter_mut().for_each(|v| unmask(v, rv, uid)),
        Value::String(s) => match s.as_str() {
            "<rv>" => rv.clone_into(s),
            "<uid>" => uid.clone_into(s),
            "<time>" => TIME.clone_into(s),
            _ => {}
        },
        _ => {}
    }
}

fn drop_keys(value: &mut Value, keys: &[&str]) {
    match value {
        Value::Object(map) => {
            map.retain(|k, _| !keys.contains(&k.as_str()));
            map.values_mut().for_each(|v| drop_keys(v, keys));
        }
        Value::Array(items) => items.iter_mut().for_each(|v| drop_keys(v, keys)),
        _ => {}
    }
}

/// A typed server omits empty messages; ours keeps them as given.
fn drop_empty_messages(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|k, v| k != "message" || v != "");
            map.values_mut().for_each(drop_empty_messages);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_empty_messages),
        _ => {}
    }
}

async fn replay(file: &str, ignored: &[&str], stale: &[i64]) {
    let testbed = testbed().await;
    let mut differing = BTreeMap::new();
    for step in lines(file) {
        let seq = step["seq"].as_i64().unwrap();
        // The recorded core server had only the beta version of this API.
        let path = step["path"]
            .as_str()
            .unwrap()
            .replace("policy/v1beta1", "policy/v1");
        let mut body = step["request"].clone();
        let text = body.to_string().replace("policy/v1beta1", "policy/v1");
        body = serde_json::from_str(&text).unwrap();
        let object_path = path
            .split('?')
            .next()
            .unwrap()
            .trim_end_matches("/status")
            .to_owned();
        let get = json!({"method": "GET", "accept": "application/json"});
        let current = ask(&testbed, &get, &object_path, None).await.body;
        let text_of = |key: &str| current["metadata"][key].as_str().unwrap_or("1").to_owned();
        let rv = if stale.contains(&seq) {
            "1".to_owned()
        } else {
            text_of("resourceVersion")
        };
        let uid = if step["name"] == "precond uid" {
            "nope".to_owned()
        } else {
            text_of("uid")
        };
        unmask(&mut body, &rv, &uid);
        if step["name"] == "watch too old" {
            testbed.compact();
        }
        let body = (!body.is_null()).then_some(&body);
        let mut answer = ask(&testbed, &step, &path, body).await;
        let expected_text = step["response"]
            .to_string()
            .replace("policy/v1beta1", "policy/v1");
        let mut expected: Value = serde_json::from_str(&expected_text).unwrap();
        for value in [&mut answer.body, &mut expected] {
            mask(value);
            drop_keys(value, ignored);
            if file.contains("core") {
                drop_empty_messages(value);
            }
        }
        let mut why = String::new();
        if i64::from(answer.code) != step["status"].as_i64().unwrap() {
            why.push_str(&format!(
                "  status {} instead of {}\n",
                answer.code, step["status"]
            ));
        }
        if answer.warning.as_deref() != step["warning"].as_str() {
            why.push_str(&format!(
                "  warning {:?} instead of {}\n",
                answer.warning, step["warning"]
            ));
        }
        if answer.body != expected {
            why.push_str(&format!(
                "  is       {}\n  expected {expected}\n",
                answer.body
            ));
        }
        if !why.is_empty() {
            let name = step["name"].as_str().unwrap();
            differing.insert(
                format!("{seq}"),
                format!("  {name} {} {path}\n{why}", step["method"]),
            );
        }
    }
    assert_reviewed(file, &differing);
}

#[tokio::test]
async fn custom_resources_answer_as_recorded() {
    replay("apiserver-cr-golden.jsonl", &[], &[4, 21]).await;
}

/// Managed fields and generations are not compared: the recorded server is older than subresources in managed fields and
/// generations of pods.
#[tokio::test]
async fn core_kinds_answer_as_recorded() {
    replay(
        "apiserver-core-golden.jsonl",
        &["managedFields", "generation"],
        &[],
    )
    .await;
}

#[tokio::test]
async fn crds_accept_and_reject_objects_as_recorded() {
    let file = "crd-validation-golden.jsonl";
    let testbed = testbed().await;
    let mut differing = BTreeMap::new();
    for case in lines(file) {
        let name = case["name"].as_str().unwrap();
        let object = &case["object"];
        let plural = match object["kind"].as_str().unwrap() {
            "NodePool" => "nodepools",
            "EC2NodeClass" => "ec2nodeclasses",
            other => panic!("{other}"),
        };
        let path = format!(
            "/apis/{}/{plural}?dryRun=All",
            object["apiVersion"].as_str().unwrap()
        );
        let step = json!({"method": "POST", "content_type": "application/json", "accept": "application/json"});
        let answer = ask(&testbed, &step, &path, Some(object)).await;
        let causes: Vec<Value> = answer.body["details"]["causes"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|c| json!({"field": c["field"], "message": c["message"]}))
            .collect();
        let same = i64::from(answer.code) == case["status"].as_i64().unwrap()
            && Value::from(causes.clone()) == case["causes"]
            && (case["defaulted_spec"].is_null() || answer.body["spec"] == case["defaulted_spec"]);
        if !same {
            // Kinds whose CRD is not in the repository yet differ as a whole.
            let kind = object["kind"].as_str().unwrap();
            let key = if answer.code == 404 {
                format!("{kind} *")
            } else {
                format!("{kind} {name}")
            };
            differing.insert(
                key,
                format!(
                    "  {} {}\n  is       {} {}\n  expected {} {}\n",
                    answer.code,
                    case["status"],
                    Value::from(causes),
                    if answer.code < 300 {
                        &answer.body["spec"]
                    } else {
                        &answer.body["message"]
                    },
                    case["causes"],
                    case["defaulted_spec"],
                ),
            );
        }
    }
    assert_reviewed(file, &differing);
}
