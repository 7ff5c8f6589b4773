//! The TLS listener: the same answers as on the loopback addresses, for clients whose token may see them.
//!
//! 1. The token of `Authorization: Bearer` or `X-Karpenter-Token` is reviewed by the API server (TokenReview, with an audience of our
//!    own: a token for the API server is refused, so that none is sent here).
//! 2. What it asks is reviewed, too (SubjectAccessReview, [`attributes`]).
//! 3. A user who may not see the pods of all namespaces cannot name objects in the namespaces of others, and has the names in
//!    these blanked in answers and failures ([`karpenter_decisions::blank`]).
//!
//! A replica that does not lead passes requests on to the leader, once ([`forward`]); the leader reviews them.

mod attributes;
mod cache;
mod forward;
mod review;
mod searches;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_TYPE};
use http::{HeaderValue, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use karpenter_decisions::blank::{blank, namespaces, referred};
use karpenter_listener::Connections;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::query::Ask;
use super::status::{self, Failure};
use super::{CONNECTIONS, Server};
use crate::admin::{Certificate, CertificateError};
use crate::lease::Endpoint;
use attributes::Attributes;
use review::{Review, Reviewer};
use searches::Searches;

/// The most other namespaces in an answer whose visibility is reviewed; further ones are blanked.
const NAMESPACES: usize = 16;
/// The name in the certificate that is made if there is none.
const NAME: &str = "karpenter";

/// The body of a response: our own, or that of the leader.
type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// What all connections share.
struct Listener {
    server: Arc<Server>,
    certificate: Certificate,
    reviewer: Reviewer,
    searches: Searches,
    /// Where other replicas reach it.
    address: Option<SocketAddr>,
}

/// Serves answers over TLS until `stop`. Failures are log lines: answers are not worth a failed start.
pub(super) async fn serve(server: &Arc<Server>, tasks: &TaskTracker, stop: &CancellationToken) {
    let options = &server.cx.options;
    let port = options.decisions_tls_port;
    if port == 0 {
        return;
    }
    let certificate: Result<Certificate, CertificateError> = match &options.decisions_cert_dir {
        Some(folder) => Certificate::of_folder(folder),
        None => Certificate::self_signed(NAME),
    };
    let certificate = match certificate {
        Ok(certificate) => certificate,
        Err(error) => {
            tracing::error!(logger = "decisions", %error, "not serving decisions over TLS");
            return;
        }
    };
    let socket = match bind(port).await {
        Ok(socket) => socket,
        Err(error) => {
            tracing::error!(logger = "decisions", port, %error, "not serving decisions over TLS");
            return;
        }
    };
    let listener = Arc::new(Listener {
        server: Arc::clone(server),
        certificate,
        reviewer: Reviewer::new(server.cx.clients.no_retry.clone()),
        searches: Searches::default(),
        address: options.pod_ip.map(|ip| SocketAddr::new(ip, port)),
    });
    listener.announce();
    // A stream ends with its connection, after ten minutes, and the client's token is reviewed again.
    let mut accepting = karpenter_listener::Listener::new(socket, Connections::new(CONNECTIONS));
    let announcing = Arc::clone(&listener);
    accepting.tls = Some(Arc::new(move || {
        let config = announcing.certificate.config();
        announcing.announce();
        config
    }));
    let respond = move |request| {
        let listener = Arc::clone(&listener);
        async move { listener.respond(request).await }
    };
    tasks.spawn(accepting.serve(respond, tasks.clone(), stop.clone()));
}

/// Listens on all addresses, of both families if the pod has IPv6.
async fn bind(port: u16) -> std::io::Result<TcpListener> {
    let all: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
    let [dual, v4] = all.map(|address| SocketAddr::from((address, port)));
    match TcpListener::bind(dual).await {
        Ok(listener) => Ok(listener),
        Err(_) => TcpListener::bind(v4).await,
    }
}

impl Listener {
    /// Writes the address and the current certificate into the lease, from its next renewal on.
    fn announce(&self) {
        let (Some(address), decisions) = (self.address, &self.server.decisions) else {
            return;
        };
        let certificate = self.certificate.fingerprint();
        let current = decisions.announcement.load();
        if current
            .as_ref()
            .is_none_or(|it| it.certificate != certificate)
        {
            let endpoint = Endpoint {
                address,
                certificate,
            };
            decisions.announcement.store(Some(Arc::new(endpoint)));
        }
    }

    async fn respond(&self, request: Request<Incoming>) -> Response<Body> {
        let failure = |failure: &Failure| failure.response().map(own);
        if self.server.cx.acting.since().is_none() {
            return match forward::to_leader(&self.server, request).await {
                Ok(response) => response,
                Err(why) => failure(&why),
            };
        }
        match self.answer(request).await {
            Ok(response) => response.map(own),
            Err(why) => failure(&why),
        }
    }

    /// Answers as the leader.
    async fn answer(
        &self,
        mut request: Request<Incoming>,
    ) -> Result<Response<status::Body>, Failure> {
        let token = review::token(request.headers()).ok_or_else(Failure::unauthorized)?;
        let review = self.reviewer.authenticate(token).await?;
        let (asked, ask) = attributes::of(&request)?;
        self.reviewer.require(&review, &asked).await?;
        let Some(ask) = ask else {
            return self.server.answer(request).await;
        };
        let _search = ask
            .searches()
            .then(|| self.searches.begin(review.user()))
            .transpose()?;
        if self.sees_all(&review).await? {
            return self.server.answer(request).await;
        }
        self.may_name(&review, &ask).await?;
        // What is blanked is not compressed.
        request.headers_mut().remove(ACCEPT_ENCODING);
        let answer = self.server.answer(request).await;
        let answer = answer.unwrap_or_else(|failure| failure.response());
        self.blanked(&review, &asked, answer).await
    }

    /// Fails if a question names objects in namespaces that the user may not see: its answer would say whether they exist.
    async fn may_name(&self, review: &Review, ask: &Ask) -> Result<(), Failure> {
        let names: Vec<String> = match ask {
            // It changes objects of any namespace, and depends on those of all.
            Ask::Plan { .. } => {
                let all = Attributes::pods_of("");
                return self.reviewer.require(review, &all).await;
            }
            Ask::Explain { changes, .. } => changes.iter().map(ToString::to_string).collect(),
            Ask::Decisions(select) => select.subject.iter().cloned().collect(),
            _ => Vec::new(),
        };
        for namespace in names.iter().flat_map(|name| referred(name)) {
            let pods = Attributes::pods_of(namespace);
            self.reviewer.require(review, &pods).await?;
        }
        Ok(())
    }

    async fn sees_all(&self, review: &Review) -> Result<bool, Failure> {
        let all = Attributes::pods_of("");
        self.reviewer.allows(review, &all).await
    }

    /// Blanks what an answer says about objects in namespaces that the user may not ask for.
    async fn blanked(
        &self,
        review: &Review,
        asked: &Attributes,
        answer: Response<status::Body>,
    ) -> Result<Response<status::Body>, Failure> {
        let (mut head, body) = answer.into_parts();
        let media = head.headers.get(CONTENT_TYPE);
        if media != Some(&HeaderValue::from_static("application/json")) {
            return Err(Failure::forbidden(
                "streams and files need the right to get pods/explanation of all namespaces",
            ));
        }
        let bytes = match body.collect().await {
            Ok(bytes) => bytes.to_bytes(),
            Err(never) => match never {},
        };
        let mut value: Value =
            serde_json::from_slice(&bytes).map_err(|error| Failure::internal(&error))?;
        let view = self.server.cx.view();
        let known: BTreeSet<&str> = view
            .snapshot
            .namespaces()
            .map(|(name, _)| name.as_str())
            .collect();
        let mut hidden = namespaces(&value, &|word| known.contains(word));
        let mut own = None;
        if asked.names_no_object() {
            hidden.remove(asked.namespace());
        } else {
            // A right to one object is none to its namespace, but what it is called is known to who asks for it.
            own = value.get_mut("metadata").map(Value::take);
        }
        let mut reviewed: Vec<String> = hidden.iter().cloned().collect();
        reviewed.sort_by_key(|namespace| namespace != asked.namespace());
        for namespace in reviewed.into_iter().take(NAMESPACES) {
            let pods = Attributes::pods_of(&namespace);
            if self.reviewer.allows(review, &pods).await? {
                hidden.remove(&namespace);
            }
        }
        blank(&mut value, &|namespace| hidden.contains(namespace));
        if let Some(own) = own {
            value["metadata"] = own;
        }
        let bytes = serde_json::to_vec(&value).map_err(|error| Failure::internal(&error))?;
        head.headers.remove(http::header::CONTENT_LENGTH);
        Ok(Response::from_parts(
            head,
            Full::new(Bytes::from(bytes)).boxed_unsync(),
        ))
    }
}

/// A body of our own, which never fails.
fn own(body: status::Body) -> Body {
    body.map_err(|never| match never {}).boxed_unsync()
}
