//! HTTP server of the stand-in on loopback.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::AwsFake;

/// Maximum size of a request body; AWS's own limits are far below.
const MAX_REQUEST: usize = 8 << 20;

/// A running server. It is stopped on drop.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
}

impl Server {
    /// Returns the URL for `AWS_ENDPOINT_URL`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Stops listening and closes all connections.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

impl AwsFake {
    /// Serves HTTP on 127.0.0.1, on a free port when `port` is 0. Needs a tokio runtime.
    ///
    /// # Errors
    /// If the port cannot be bound.
    pub async fn serve(&self, port: u16) -> io::Result<Server> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let address = listener.local_addr()?;
        let (stop, stopped) = watch::channel(false);
        let aws = self.clone();
        tokio::spawn(async move {
            let mut stopping = stopped.clone();
            let mut connections = JoinSet::new();
            let mut running = pin!(aws.run());
            loop {
                tokio::select! {
                    _ = stopping.wait_for(|s| *s) => break,
                    () = &mut running => break,
                    accepted = listener.accept() => {
                        // A connection that was closed before it was accepted is ignored.
                        if let Ok((stream, _)) = accepted {
                            connections.spawn(serve_connection(aws.clone(), stream));
                        }
                    }
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Ok(Server { address, stop })
    }
}

async fn serve_connection(aws: AwsFake, stream: TcpStream) {
    // Small responses are sent without delay.
    let _unset = stream.set_nodelay(true);
    let service = service_fn(move |request| answer(aws.clone(), request));
    // A closed connection of a client, or a fault that drops the connection, ends here.
    let _ended = auto::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// The connection is dropped by a fault.
#[derive(Debug, thiserror::Error)]
#[error("connection dropped by a fault")]
struct Cut;

async fn answer(aws: AwsFake, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Cut> {
    let (parts, body) = request.into_parts();
    let body = match Limited::new(body, MAX_REQUEST).collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => {
            let mut response = Response::new(Full::default());
            *response.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
            return Ok(response);
        }
    };
    match aws.handle(Request::from_parts(parts, body)).await {
        Ok(response) => Ok(response.map(Full::new)),
        Err(_) => Err(Cut),
    }
}
