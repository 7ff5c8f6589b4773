//! `kubectl karpenter dashboard`: the page of Karpenter's leader, through the plugin's connection.
//!
//! The page has no authentication of its own, so its local address has a path that other users of this computer and pages of other
//! sites do not know, and that is new each time. The credentials of the kubeconfig are not sent to the page or to the server.

use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, HOST, IF_NONE_MATCH};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use karpenter_listener::{Connections, Listener};
use kube::client::Body;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cluster::causes;
use crate::flags::KubectlFlags;
use crate::output;
use crate::transport::{Server, ServerFlags};

/// The most open connections. A browser opens six.
const CONNECTIONS: usize = 32;

/// Serve Karpenter's dashboard on a local address until Ctrl-C.
///
/// The address has a secret path, which is new each time. The page only reads: it has no button that changes anything.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Port on 127.0.0.1; 0 selects a free port.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    port: u16,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    kubectl: KubectlFlags,
}

impl Args {
    /// Serves the page until the process is asked to stop.
    pub(crate) async fn run(&self) -> anyhow::Result<ExitCode> {
        let server = Server::connect(&self.kubectl, &self.server).await?;
        let address = (Ipv4Addr::LOCALHOST, self.port);
        let socket = TcpListener::bind(address).await;
        let socket = socket.with_context(|| format!("cannot listen on 127.0.0.1:{}", self.port))?;
        let address = socket
            .local_addr()
            .context("cannot read the local address")?;
        let prefix = format!("/{}/", secret()?);
        output::print(&format!(
            "The dashboard is at http://{address}{prefix}\nCtrl-C ends it.\n"
        ))?;
        let forward = Arc::new(Forward {
            hosts: [
                format!("127.0.0.1:{}", address.port()),
                format!("localhost:{}", address.port()),
            ],
            prefix,
            kubectl: self.kubectl.clone(),
            flags: self.server.clone(),
            server: Mutex::new(server),
        });
        let respond = move |request| {
            let forward = Arc::clone(&forward);
            async move { forward.respond(request).await }
        };
        let mut listener = Listener::new(socket, Connections::new(CONNECTIONS));
        // A stream lasts as long as the page is open.
        listener.lifetime = Duration::MAX;
        let ended = CancellationToken::new();
        listener.serve(respond, TaskTracker::new(), ended).await;
        Ok(ExitCode::SUCCESS)
    }
}

/// Reports whether another connection may get an answer.
fn is_stale(code: StatusCode) -> bool {
    matches!(
        code,
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::UNAUTHORIZED
    )
}

/// Returns 128 random bits in hexadecimal digits.
fn secret() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    let random = rustls::crypto::aws_lc_rs::default_provider().secure_random;
    random
        .fill(&mut bytes)
        .map_err(|_| anyhow!("cannot get random bytes from the system"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Forwards requests to the server.
struct Forward {
    hosts: [String; 2],
    prefix: String,
    kubectl: KubectlFlags,
    flags: ServerFlags,
    server: Mutex<Server>,
}

impl Forward {
    async fn respond(&self, request: Request<Incoming>) -> Response<Body> {
        // A foreign page that rebinds its name has another host.
        let host = request
            .headers()
            .get(HOST)
            .and_then(|host| host.to_str().ok());
        if !host.is_some_and(|host| self.hosts.iter().any(|ours| ours == host)) {
            return refused(
                StatusCode::FORBIDDEN,
                "the host must be 127.0.0.1 or localhost",
            );
        }
        let Some(path) = request
            .uri()
            .path_and_query()
            .and_then(|path| path.as_str().strip_prefix(&self.prefix))
        else {
            return refused(
                StatusCode::NOT_FOUND,
                "unknown path: use the address that was printed",
            );
        };
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return refused(
                StatusCode::METHOD_NOT_ALLOWED,
                "only GET and HEAD are served",
            );
        }
        let copy = || {
            let mut copy = Request::builder()
                .method(request.method())
                .uri(format!("/{path}"));
            for name in [ACCEPT, ACCEPT_ENCODING, IF_NONE_MATCH] {
                if let Some(value) = request.headers().get(&name) {
                    copy = copy.header(name, value);
                }
            }
            copy.body(Body::empty())
        };
        let (Ok(first), Ok(second)) = (copy(), copy()) else {
            return refused(StatusCode::BAD_REQUEST, "invalid request");
        };
        match self.send(first).await {
            Ok(response) if !is_stale(response.status()) => response,
            // The token may be too old. The leader may have changed, or the forwarded port may be closed: look for the leader again.
            first => match self.reconnect().await {
                Ok(()) => match self.send(second).await {
                    Ok(response) => response,
                    Err(why) => refused(StatusCode::BAD_GATEWAY, &why),
                },
                Err(why) => first.unwrap_or_else(|_| refused(StatusCode::BAD_GATEWAY, &why)),
            },
        }
    }

    async fn send(&self, request: Request<Body>) -> Result<Response<Body>, String> {
        // Streams last: the connection is not held for them.
        let sender = self.server.lock().await.sender();
        let response = sender.send(request).await;
        response.map_err(|error| format!("Karpenter cannot be reached: {error}"))
    }

    async fn reconnect(&self) -> Result<(), String> {
        let mut server = self.server.lock().await;
        let connected = Server::connect(&self.kubectl, &self.flags).await;
        *server = connected.map_err(|error| causes(error.as_ref()))?;
        Ok(())
    }
}

/// Returns a `Status`, which the page shows.
fn refused(code: StatusCode, message: &str) -> Response<Body> {
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code.as_u16(),
    });
    let mut response = Response::new(Body::from(status.to_string().into_bytes()));
    *response.status_mut() = code;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
