//! The options of the connection to the server of decisions.

use std::ffi::OsString;

use http::Uri;

/// The port on which Karpenter serves decisions by default.
const PORT: u16 = 8082;

const LEASE: &str = "karpenter-leader-election";

/// The ServiceAccount that the chart creates.
const VIEWER: &str = "karpenter-viewer";

/// The options of the connection; flattened into the arguments of a command.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Options of the connection to Karpenter")]
pub struct ServerFlags {
    /// URL of Karpenter's decisions; by default that of the kubeconfig's context, else its Service or a port-forward to the leader.
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
    /// ServiceAccount whose tokens are sent to Karpenter's Service; without a namespace, one of Karpenter's.
    #[arg(long, value_name = "[NAMESPACE/]NAME", env = "KARPENTER_VIEWER", default_value = VIEWER, value_parser = Viewer::parse)]
    pub viewer: Viewer,
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
            viewer: Viewer {
                namespace: None,
                name: VIEWER.to_owned(),
            },
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

/// A ServiceAccount whose tokens are sent to the server, as `[NAMESPACE/]NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Viewer {
    /// Absent for Karpenter's namespace.
    pub namespace: Option<String>,
    pub name: String,
}

impl Viewer {
    /// Parses `[NAMESPACE/]NAME`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, text),
        };
        let empty = |part: &str| part.is_empty() || part.contains('/');
        if empty(name) || namespace.is_some_and(empty) {
            return Err("must be as karpenter-viewer or shop/viewer".to_owned());
        }
        Ok(Self {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_viewer_is_a_name_with_or_without_a_namespace() {
        let viewer = |namespace: Option<&str>, name: &str| Viewer {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
        };
        let expected = viewer(None, "karpenter-viewer");
        assert_eq!(Viewer::parse("karpenter-viewer"), Ok(expected));
        assert_eq!(Viewer::parse("shop/team"), Ok(viewer(Some("shop"), "team")));
        for invalid in ["", "/", "shop/", "/team", "a/b/c"] {
            assert!(Viewer::parse(invalid).is_err(), "{invalid}");
        }
    }
}
