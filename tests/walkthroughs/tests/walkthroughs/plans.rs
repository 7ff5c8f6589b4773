//! Plans of what a walkthrough does next, to compare with what it then does.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::cluster::Cluster;

impl Cluster {
    /// Rehearses changes for an hour, as `kubectl karpenter plan` does.
    pub fn plan(&self, changes: &Value) -> Value {
        let body = json!({ "for": "1h", "changes": changes }).to_string();
        let head = "POST /apis/decisions.karpenter.sh/v1alpha1/plans HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json";
        let length = body.len();
        let request = format!("{head}\r\nContent-Length: {length}\r\n\r\n{body}");
        let mut stream = TcpStream::connect(("127.0.0.1", self.decisions)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(" 200 "), "{answer}");
        serde_json::from_str(body).unwrap()
    }

    /// Rehearses that a Deployment gets these replicas.
    pub fn plan_of_replicas(&self, deployment: &str, replicas: u32) -> Value {
        let mut object = self.get(&["deployment", deployment]);
        object["spec"]["replicas"] = replicas.into();
        self.plan(&json!([{ "apply": object }]))
    }
}

/// Returns the instance type of the only node that a plan launches, which does nothing else.
pub fn launched(plan: &Value) -> String {
    let steps = plan["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 1, "{plan}");
    assert_eq!(steps[0]["action"], "Launch", "{plan}");
    let launches = steps[0]["launches"].as_array().unwrap();
    assert_eq!(launches.len(), 1, "{plan}");
    assert_eq!(launches[0]["count"], 1, "{plan}");
    launches[0]["instanceType"].as_str().unwrap().to_owned()
}

/// Checks that a plan of a deleted Deployment does nothing but delete its only node, which is empty, half a minute after its pods have
/// ended.
pub fn deletes_only(plan: &Value, node: &Value) {
    let steps = plan["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 1, "{plan}");
    assert_eq!(steps[0]["action"], "Delete", "{plan}");
    assert_eq!(steps[0]["reason"], "Empty", "{plan}");
    assert_eq!(
        steps[0]["nodes"],
        json!([node["metadata"]["name"]]),
        "{plan}"
    );
    let waited = steps[0]["after"].as_i64().unwrap();
    assert!((28..110).contains(&waited), "{plan}");
}
