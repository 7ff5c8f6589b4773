//! Host ports of pods.
//!
//! UPSTREAM: pkg/scheduling/hostportusage.go

use std::net::IpAddr;

use karpenter_api::k8s_openapi::api::core::v1 as corev1;
use serde::{Deserialize, Serialize};

/// A host port. Two pods conflict over the same port and protocol if the addresses are equal or one is unspecified.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostPort {
    /// Address, `0.0.0.0` by default.
    pub ip: String,
    /// Port number.
    pub port: i32,
    /// Protocol, `TCP` by default.
    pub protocol: String,
}

impl HostPort {
    /// Reports whether pods with these ports cannot share a node.
    pub fn conflicts(&self, other: &Self) -> bool {
        self.port == other.port
            && self.protocol == other.protocol
            && same_address(&self.ip, &other.ip)
    }
}

/// Reports whether any two of the ports conflict.
pub(crate) fn conflict(a: &[HostPort], b: &[HostPort]) -> bool {
    a.iter()
        .any(|left| b.iter().any(|right| left.conflicts(right)))
}

/// Reports whether addresses are equal, or one is unspecified. An IPv4 address may be written as an IPv6 one.
fn same_address(a: &str, b: &str) -> bool {
    let address = |text: &str| text.parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
    let (left, right) = (address(a), address(b));
    let unspecified = |ip: &Option<IpAddr>| ip.is_some_and(|ip| ip.is_unspecified());
    a == b || (left.is_some() && left == right) || unspecified(&left) || unspecified(&right)
}

/// Returns the host ports of the regular containers.
pub(super) fn host_ports(spec: &corev1::PodSpec) -> Vec<HostPort> {
    let mut ports: Vec<HostPort> = spec
        .containers
        .iter()
        .flat_map(|container| container.ports.iter().flatten())
        .filter_map(|port| {
            let number = port.host_port.filter(|number| *number != 0)?;
            Some(HostPort {
                ip: port
                    .host_ip
                    .clone()
                    .filter(|ip| !ip.is_empty())
                    .unwrap_or_else(|| "0.0.0.0".to_owned()),
                port: number,
                protocol: port
                    .protocol
                    .clone()
                    .filter(|protocol| !protocol.is_empty())
                    .unwrap_or_else(|| "TCP".to_owned()),
            })
        })
        .collect();
    ports.sort();
    ports.dedup();
    ports
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(ip: &str, port: i32, protocol: &str) -> HostPort {
        HostPort {
            ip: ip.into(),
            port,
            protocol: protocol.into(),
        }
    }

    /// Conformance: SCH-222
    #[test]
    fn ports_conflict_on_equal_or_unspecified_addresses_only() {
        assert!(port("10.0.0.1", 80, "TCP").conflicts(&port("10.0.0.1", 80, "TCP")));
        assert!(port("0.0.0.0", 80, "TCP").conflicts(&port("10.0.0.1", 80, "TCP")));
        assert!(port("10.0.0.1", 80, "TCP").conflicts(&port("::", 80, "TCP")));
        assert!(port("10.0.0.1", 80, "TCP").conflicts(&port("::ffff:10.0.0.1", 80, "TCP")));
        assert!(port("10.0.0.1", 80, "TCP").conflicts(&port("::ffff:0.0.0.0", 80, "TCP")));
        assert!(port("fe80::1", 80, "TCP").conflicts(&port("fe80:0::1", 80, "TCP")));
        assert!(!port("10.0.0.1", 80, "TCP").conflicts(&port("10.0.0.2", 80, "TCP")));
        assert!(!port("not one", 80, "TCP").conflicts(&port("nor this", 80, "TCP")));
        assert!(!port("0.0.0.0", 80, "TCP").conflicts(&port("0.0.0.0", 80, "UDP")));
        assert!(!port("0.0.0.0", 80, "TCP").conflicts(&port("0.0.0.0", 81, "TCP")));
    }
}
