//! The extension of the kubeconfig by which `kubectl karpenter` finds the server of decisions.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result};
use kube::config::{Kubeconfig, NamedExtension};
use serde_json::json;

/// The name of the extension; `kubectl karpenter` reads its field `server`.
const EXTENSION: &str = "decisions.karpenter.sh";

/// Writes the address of the server of decisions into every context of the kubeconfig.
pub fn write_server(path: &Path, decisions: SocketAddr) -> Result<()> {
    let mut kubeconfig = Kubeconfig::read_from(path)?;
    let contexts = kubeconfig.contexts.iter_mut();
    for context in contexts.filter_map(|named| named.context.as_mut()) {
        let extensions = context.extensions.get_or_insert_default();
        extensions.retain(|named| named.name != EXTENSION);
        extensions.push(NamedExtension {
            name: EXTENSION.to_owned(),
            extension: json!({ "server": format!("http://{decisions}") }),
        });
    }
    let text = serde_saphyr::to_string(&kubeconfig).context("cannot serialize the kubeconfig")?;
    std::fs::write(path, text)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_context_names_the_server_and_keeps_everything_else() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("kubeconfig");
        let original = "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: c\n  cluster: {server: \"https://127.0.0.1:1\", certificate-authority-data: QQ==}\ncontexts:\n- name: c\n  context: {cluster: c, user: admin, namespace: default}\nusers:\n- name: admin\n  user: {token: secret}\n";
        std::fs::write(&path, original).unwrap();
        let before = serde_json::to_value(Kubeconfig::read_from(&path).unwrap()).unwrap();
        for port in [8082, 8083] {
            write_server(&path, SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
        }
        let after = Kubeconfig::read_from(&path).unwrap();
        let mut after = serde_json::to_value(after).unwrap();
        let context = after["contexts"][0]["context"].as_object_mut().unwrap();
        let extensions = context.remove("extensions").unwrap();
        let extension = json!({ "server": "http://127.0.0.1:8083" });
        assert_eq!(
            extensions,
            json!([{ "name": "decisions.karpenter.sh", "extension": extension }])
        );
        assert_eq!(after, before);
    }
}
