//! The NetworkPolicy: who may connect to which port.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{helm, objects, template};

const ALL_PORTS: &str = "
settings: {clusterName: demo}
webhook: {enabled: true}
";

/// Returns the peers of each port: none means that every client may connect.
fn peers(values: &str) -> BTreeMap<String, Value> {
    let policies = objects(&template("karpenter", values), "NetworkPolicy");
    let mut peers = BTreeMap::new();
    for rule in policies[0]["spec"]["ingress"].as_array().unwrap() {
        for port in rule["ports"].as_array().unwrap() {
            let name = port["port"].as_str().unwrap().to_owned();
            assert!(peers.insert(name, rule["from"].clone()).is_none());
        }
    }
    peers
}

#[test]
fn metrics_are_for_the_releases_namespace_and_for_labeled_ones_by_default() {
    needs_helm!();
    let of_metrics = json!([
        { "podSelector": {} },
        { "namespaceSelector": { "matchLabels": { "metrics": "enabled" } } },
    ]);
    let values = "{settings: {clusterName: demo}, networkPolicy: {enabled: true}}";
    // A kubelet needs no rule for its probes.
    let only = BTreeMap::from([("http-metrics".to_owned(), of_metrics.clone())]);
    assert_eq!(peers(values), only);
    // The API server has no fixed peer.
    let all = peers(&format!("{ALL_PORTS}networkPolicy: {{enabled: true}}\n"));
    assert_eq!(all["http-metrics"], of_metrics);
    assert_eq!(all["https-webhook"], Value::Null);
    assert_eq!(all.len(), 2);
}

#[test]
fn each_port_has_the_peers_of_its_value() {
    needs_helm!();
    let all = peers(&format!(
        "{ALL_PORTS}
networkPolicy:
  enabled: true
  metricsFrom: [{{namespaceSelector: {{matchLabels: {{team: monitoring}}}}, podSelector: {{}}}}]
  webhookFrom: [{{ipBlock: {{cidr: 10.0.1.0/24}}}}]
"
    ));
    assert_eq!(
        all["http-metrics"],
        json!([{ "namespaceSelector": { "matchLabels": { "team": "monitoring" } }, "podSelector": {} }])
    );
    assert_eq!(
        all["https-webhook"],
        json!([{ "ipBlock": { "cidr": "10.0.1.0/24" } }])
    );
    let open = "{settings: {clusterName: demo}, networkPolicy: {enabled: true, metricsFrom: []}}";
    assert_eq!(peers(open)["http-metrics"], Value::Null);
}

#[test]
fn a_peer_that_no_network_policy_knows_is_rejected_by_name() {
    needs_helm!();
    for (peer, named) in [("{cidr: 10.0.0.0/8}", "cidr"), ("{}", "metricsFrom")] {
        let values = format!(
            "{{settings: {{clusterName: demo}}, networkPolicy: {{enabled: true, metricsFrom: [{peer}]}}}}"
        );
        let refused = helm(&["template", "karpenter"], "karpenter", &values);
        let error = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success(), "{peer}");
        assert!(error.contains(named), "{peer}: {error}");
    }
}
