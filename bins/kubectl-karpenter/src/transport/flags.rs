//! The options of the connection to the server of decisions.

use std::ffi::OsString;

use http::Uri;

/// The port on which Karpenter serves decisions by default.
const PORT: u16 = 8082;

const LEASE: &str = "karpenter-leader-election";

/// The options of the connection; flattened into the arguments of a command.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Options of the connection to Karpenter")]
pub struct ServerFlags {
    /// URL of Karpenter's decisions; by default that of the kubeconfig's context, else a port-forward to the leader.
    #[arg(long, value_name = "URL", env = "KARPENTER_SERVER", value_parser = url)]
    pub server: Option<Uri>,
    /// Namespace of Karpenter; by default the one of kube-system and karpenter that has its lease.
    #[arg(long, value_name = "NAME", env = "KARPENTER_NAMESPACE")]
    pub karpenter_namespace: Option<String>,
    /// Name of Karpenter's lease.
    #[arg(long, value_name = "NAME", default_value = LEASE)]
    pub leader_election_name: String,
    /// Port of Karpenter's decisions in its pod.
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    pub decisions_port: u16,
    /// The program that forwards a port.
    #[arg(skip = OsString::from("kubectl"))]
    pub kubectl: OsString,
}

impl Default for ServerFlags {
    fn default() -> Self {
        Self {
            server: None,
            karpenter_namespace: None,
            leader_election_name: LEASE.to_owned(),
            decisions_port: PORT,
            kubectl: OsString::from("kubectl"),
        }
    }
}

pub(super) fn url(text: &str) -> Result<Uri, String> {
    let url: Uri = text.parse().map_err(|_| "is not a valid URL".to_owned())?;
    let is_http = matches!(url.scheme_str(), Some("http" | "https"));
    match is_http && url.host().is_some_and(|host| !host.is_empty()) {
        true => Ok(url),
        false => Err("must be as http://127.0.0.1:8082".to_owned()),
    }
}
