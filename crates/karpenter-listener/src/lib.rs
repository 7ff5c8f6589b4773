//! The listener of every port: metrics, probes, the conversion webhook, decisions, and the plugin's dashboard.
//!
//! Its clients may be anyone, so each can use a bounded part of it only:
//!
//! - A full listener closes the connection that has been idle for longest, and accepts the next one ([`Connections`]). Listeners with
//!   connections of their own cannot take those of others.
//! - A client has ten seconds for the TLS handshake, for its first request, and for the headers of each request, which have 16 KiB.
//! - A connection without a request in flight is closed after a minute, one with a request after [`Listener::request`], and any
//!   after [`Listener::lifetime`].
//! - Bodies that are read into memory share a budget of bytes ([`Bodies`]), and JSON can be weighed before it is parsed ([`weight`]).
//! - After a connection cannot be accepted, because file descriptors have run out, the next attempt waits.

mod body;
mod connections;
mod pieces;
mod weight;

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use body::{Bodies, Held, Refused};
pub use connections::Connections;
use connections::{Counted, Open};
pub use pieces::Pieces;
pub use weight::weight;

/// How long a client may take for a TLS handshake, for its first request, and for the headers of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection is kept between requests. A client of HTTP/1 has to begin the next one within [`HEADER_TIMEOUT`].
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The default of [`Listener::lifetime`].
const LIFETIME: Duration = Duration::from_mins(10);
/// The most bytes of headers.
const HEADER_BYTES: u16 = 16 << 10;
/// The most concurrent requests of a connection with HTTP/2.
const MAX_STREAMS: u32 = 64;
/// How often a client of HTTP/2 is asked whether it is still there, and how long it may take to answer.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// The pause after a connection cannot be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Returns the TLS settings of the next connection. HTTP/2 is served if they offer `h2`.
pub type Tls = Arc<dyn Fn() -> Arc<ServerConfig> + Send + Sync>;

/// A source of connections.
pub trait Accept: Send + Sync + 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Returns the next connection.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = TcpListener::accept(self).await?;
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}

/// Serves requests of connections.
pub struct Listener<A> {
    /// Where connections come from.
    pub accept: A,
    /// TLS, if clients have to use it.
    pub tls: Option<Tls>,
    /// The connections that are open, which listeners may share.
    pub connections: Connections,
    /// How long a request may take until its response has been sent.
    pub request: Duration,
    /// The longest that a connection is kept open.
    pub lifetime: Duration,
    /// How long requests in flight may go on when a connection is closed at the end of its time, or of the process.
    pub grace: Duration,
}

impl<A: Accept> Listener<A> {
    /// Creates a listener without TLS, whose requests may take as long as a connection is kept: ten minutes.
    pub fn new(accept: A, connections: Connections) -> Self {
        Self {
            accept,
            tls: None,
            connections,
            request: Duration::MAX,
            lifetime: LIFETIME,
            grace: Duration::ZERO,
        }
    }

    /// Accepts connections until `stop`, and serves each in a task of its own.
    pub async fn serve<R, F, B>(self, respond: R, tasks: TaskTracker, stop: CancellationToken)
    where
        R: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + Unpin + 'static,
    {
        let listener = Arc::new(self);
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                accepted = listener.accept.accept() => accepted,
            };
            let Ok(stream) = accepted else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let open = listener.connections.open();
            let (listener, respond) = (Arc::clone(&listener), respond.clone());
            let stop = stop.clone();
            tasks.spawn(async move {
                let closed = open.closed();
                tokio::select! {
                    biased;
                    () = closed.cancelled() => {}
                    () = listener.connection(stream, &open, respond, &stop) => {}
                }
            });
        }
    }

    async fn connection<R, F, B>(
        &self,
        stream: A::Stream,
        open: &Open,
        respond: R,
        stop: &CancellationToken,
    ) where
        R: Fn(Request<Incoming>) -> F + Send + Sync + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + Unpin + 'static,
    {
        let connection = open.connection();
        let service = service_fn(move |mut request: Request<Incoming>| {
            let counted = connection.request();
            request.extensions_mut().insert(connection.closing());
            let answer = respond(request);
            async move {
                let response = answer.await;
                Ok::<_, Infallible>(response.map(|body| Counted::new(body, counted)))
            }
        });
        let Some(tls) = &self.tls else {
            let connection = http1().serve_connection(TokioIo::new(stream), service);
            return self.drive(connection, open, stop).await;
        };
        let handshake = TlsAcceptor::from(tls()).accept(stream);
        // A client without TLS, or one that trusts another authority, gets the error.
        let Ok(Ok(stream)) = tokio::time::timeout(HEADER_TIMEOUT, handshake).await else {
            return;
        };
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            let connection = http2().serve_connection(TokioIo::new(stream), service);
            self.drive(connection, open, stop).await;
        } else {
            let connection = http1().serve_connection(TokioIo::new(stream), service);
            self.drive(connection, open, stop).await;
        }
    }

    /// Serves a connection until its client closes it, or its time is over.
    async fn drive(
        &self,
        connection: impl GracefulConnection,
        open: &Open,
        stop: &CancellationToken,
    ) {
        let mut connection = pin!(connection);
        tokio::select! {
            biased;
            // A broken connection is the client's problem.
            _ = &mut connection => return,
            () = open.overdue(self.request) => {}
            () = tokio::time::sleep(self.lifetime) => {}
            () = stop.cancelled() => {}
        }
        connection.as_mut().graceful_shutdown();
        let _ = tokio::time::timeout(self.grace, connection).await;
    }
}

fn http1() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEADER_BYTES.into());
    builder
}

fn http2() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(HEADER_BYTES.into());
    builder
}

#[cfg(test)]
mod tests;
