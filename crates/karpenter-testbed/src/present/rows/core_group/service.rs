//! Services and Endpoints.
//!
//! UPSTREAM: pkg/printers/internalversion/printers.go printService, printEndpoints

use serde_json::{Value, json};

use crate::present::rows::{AGE, NAME, Painting, SELECTOR, labels_text, painting_of, string, text};

pub(super) static SERVICE: Painting = painting_of(
    &[
        NAME,
        text("Type", "spec.type"),
        text("Cluster-IP", "spec.clusterIP"),
        text("External-IP", "spec.externalIPs"),
        text("Port(s)", "spec.ports"),
        AGE,
        SELECTOR,
    ],
    |view| {
        let kind = view.str("/spec/type");
        let port = |port: &Value| {
            let protocol = Some(string(port, "protocol"))
                .filter(|text| !text.is_empty())
                .unwrap_or_else(|| "TCP".into());
            match port["nodePort"].as_i64() {
                Some(node_port) if node_port > 0 => {
                    format!("{}:{node_port}/{protocol}", string(port, "port"))
                }
                _ => format!("{}/{protocol}", string(port, "port")),
            }
        };
        let ports: Vec<String> = view.list("/spec/ports").iter().map(port).collect();
        let ports = if ports.is_empty() {
            "<none>".to_owned()
        } else {
            ports.join(",")
        };
        let mut external: Vec<String> = Vec::new();
        if kind == "LoadBalancer" {
            for ingress in view.list("/status/loadBalancer/ingress") {
                let ip = string(ingress, "ip");
                external.push(if ip.is_empty() {
                    string(ingress, "hostname")
                } else {
                    ip
                });
            }
        }
        external.extend(
            view.list("/spec/externalIPs")
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned),
        );
        let external = match kind {
            "ExternalName" => view.str("/spec/externalName").to_owned(),
            "LoadBalancer" if external.is_empty() => "<pending>".to_owned(),
            _ if external.is_empty() => "<none>".to_owned(),
            _ => external.join(","),
        };
        vec![
            json!(view.name()),
            json!(kind),
            json!(view.or("/spec/clusterIP", "<none>")),
            json!(external),
            json!(ports),
            json!(view.age()),
            json!(labels_text(view.at("/spec/selector"))),
        ]
    },
);

pub(super) static ENDPOINTS: Painting =
    painting_of(&[NAME, text("Endpoints", "subsets"), AGE], |view| {
        let mut all = Vec::new();
        for subset in view.list("/subsets") {
            let addresses = subset["addresses"]
                .as_array()
                .map_or(&[][..], Vec::as_slice);
            let ports = subset["ports"].as_array().map_or(&[][..], Vec::as_slice);
            for address in addresses {
                let ip = string(address, "ip");
                if ports.is_empty() {
                    all.push(ip);
                } else {
                    all.extend(
                        ports
                            .iter()
                            .map(|port| format!("{ip}:{}", string(port, "port"))),
                    );
                }
            }
        }
        vec![
            json!(view.name()),
            json!(shortened(&all)),
            json!(view.age()),
        ]
    });

/// Formats the first three items, and the number of the others.
pub(in crate::present::rows) fn shortened(items: &[String]) -> String {
    match items.len() {
        0 => "<none>".to_owned(),
        1..=3 => items.join(","),
        more => format!("{} + {} more...", items[..3].join(","), more - 3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::present::rows::core_group::tests::cells;

    #[test]
    fn a_service_shows_ports_and_addresses() {
        let service = json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "clusterIP": "10.0.0.1", "selector": {"a": "b"},
            "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]}});
        assert_eq!(
            cells(&SERVICE, &service),
            "s | NodePort | 10.0.0.1 | <none> | 80:30080/TCP,53/UDP | <unknown> | a=b"
        );
    }
}
