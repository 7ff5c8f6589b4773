//! Connects the API server to Services and kubelets: there is no pod network, so it uses a proxy, which knows the loopback port
//! behind each address.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::task::JoinHandle;

/// A proxy for `CONNECT`; it stops on drop.
#[derive(Debug)]
pub(crate) struct Egress {
    socket: PathBuf,
    routes: Arc<Mutex<BTreeMap<String, u16>>>,
    serving: JoinHandle<()>,
}

impl Egress {
    /// Listens on a socket in a directory: the API server uses TLS with proxies that have a port.
    pub(crate) fn start(folder: &Path) -> Result<Self> {
        let socket = folder.join("egress.sock");
        let listener = UnixListener::bind(&socket)
            .with_context(|| format!("cannot listen on {}", socket.display()))?;
        let routes = Arc::new(Mutex::new(BTreeMap::new()));
        let known = Arc::clone(&routes);
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let routes = Arc::clone(&known);
                tokio::spawn(async move {
                    // The API server sees a closed connection, and reports it to its caller.
                    let _ = pass_on(stream, &routes).await;
                });
            }
        });
        Ok(Self {
            socket,
            routes,
            serving,
        })
    }

    /// Forwards connections to `host` (such as `10.96.0.9:8443`) to a port on loopback.
    pub(crate) fn route(&self, host: &str, port: u16) {
        let mut routes = self.routes.lock();
        routes.insert(host.to_owned(), port);
    }

    /// Returns the API server's egress configuration.
    pub(crate) fn configuration(&self) -> String {
        format!(
            "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n  - name: cluster\n    connection: {{ proxyProtocol: HTTPConnect, transport: {{ uds: {{ udsName: \"{}\" }} }} }}\n",
            self.socket.display()
        )
    }
}

impl Drop for Egress {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn pass_on(stream: UnixStream, routes: &Mutex<BTreeMap<String, u16>>) -> Result<()> {
    let mut stream = BufReader::new(stream);
    let mut request = String::new();
    stream.read_line(&mut request).await?;
    let mut header = String::new();
    while stream.read_line(&mut header).await? > 2 {
        header.clear();
    }
    let host = target(&request)?;
    let port = {
        let routes = routes.lock();
        routes.get(host).copied()
    };
    let Some(port) = port else {
        stream
            .write_all(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            .await?;
        bail!("no route to {host}");
    };
    let mut behind = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    tokio::io::copy_bidirectional(&mut stream, &mut behind).await?;
    Ok(())
}

/// Returns the host and port of a CONNECT request line.
fn target(request: &str) -> Result<&str> {
    let mut words = request.split_whitespace();
    match (words.next(), words.next()) {
        (Some("CONNECT"), Some(host)) => Ok(host),
        _ => None.with_context(|| format!("invalid request `{}`: must be CONNECT", request.trim())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_connect_is_supported() {
        let line = "CONNECT 10.96.0.9:8443 HTTP/1.1\r\n";
        assert_eq!(target(line).unwrap(), "10.96.0.9:8443");
        assert!(target("GET / HTTP/1.1\r\n").is_err());
    }
}
