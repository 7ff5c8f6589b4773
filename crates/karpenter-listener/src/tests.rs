//! The listener over connections in memory, in virtual time.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2 as client;
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep};
use tokio_rustls::TlsConnector;

use super::*;

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";

/// Connections that a test makes.
struct Queue(tokio::sync::Mutex<UnboundedReceiver<DuplexStream>>);

impl Accept for Queue {
    type Stream = DuplexStream;

    async fn accept(&self) -> io::Result<DuplexStream> {
        let next = self.0.lock().await.recv().await;
        next.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

/// A listener whose requests take as many seconds as their path says, and a client.
struct World {
    queue: UnboundedSender<DuplexStream>,
    connections: Connections,
    client: Option<Arc<ClientConfig>>,
    stop: CancellationToken,
}

async fn respond(request: Request<Incoming>) -> Response<Full<Bytes>> {
    let seconds = request.uri().path()[1..].parse().unwrap_or_default();
    sleep(Duration::from_secs(seconds)).await;
    Response::new(Full::new(Bytes::from_static(b"ok")))
}

impl World {
    fn new(most: usize, change: impl FnOnce(&mut Listener<Queue>)) -> Self {
        let (queue, accepted) = unbounded_channel();
        let connections = Connections::new(most);
        let accept = Queue(tokio::sync::Mutex::new(accepted));
        let mut listener = Listener::new(accept, connections.clone());
        change(&mut listener);
        let stop = CancellationToken::new();
        tokio::spawn(listener.serve(respond, TaskTracker::new(), stop.clone()));
        Self {
            queue,
            connections,
            client: None,
            stop,
        }
    }

    /// A listener with TLS, and a client that offers these protocols.
    fn with_tls(most: usize, protocols: &[&str]) -> Self {
        let made = rcgen::generate_simple_self_signed(["karpenter".to_owned()]).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let server = Arc::new(server);
        let mut roots = rustls::RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        client.alpn_protocols = protocols.iter().map(|it| it.as_bytes().to_vec()).collect();
        let mut world = Self::new(most, |listener| {
            listener.tls = Some(Arc::new(move || Arc::clone(&server)));
        });
        world.client = Some(Arc::new(client));
        world
    }

    async fn connect(&self) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        self.queue.send(theirs).unwrap();
        settle().await;
        ours
    }

    async fn connect_tls(&self) -> tokio_rustls::client::TlsStream<DuplexStream> {
        let connector = TlsConnector::from(Arc::clone(self.client.as_ref().unwrap()));
        let name = ServerName::try_from("karpenter").unwrap();
        connector.connect(name, self.connect().await).await.unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Lets the tasks run that can.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Waits for the server to close a connection, and returns how long that took.
async fn closed(stream: &mut (impl AsyncRead + Unpin)) -> Duration {
    let began = Instant::now();
    let mut rest = Vec::new();
    // With or without a farewell.
    let _ = tokio::time::timeout(seconds(3600), stream.read_to_end(&mut rest)).await;
    began.elapsed()
}

/// Returns whether a request is answered.
async fn is_answered(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> bool {
    let mut line = [0; 15];
    stream.write_all(GET).await.is_ok()
        && stream.read_exact(&mut line).await.is_ok()
        && line.starts_with(b"HTTP/1.1 200")
}

/// Asks for a path, whose answer takes so many seconds.
async fn begin(stream: &mut DuplexStream, path: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
}

/// A connection of HTTP/2, which stays open while its sender exists.
struct Http2 {
    _sender: client::SendRequest<Full<Bytes>>,
    ended: tokio::task::JoinHandle<hyper::Result<()>>,
}

/// Returns the code of the answer.
async fn ask_http2<S>(stream: S, uri: &str) -> (u16, Http2)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let handshake = client::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    let ended = tokio::spawn(connection);
    let request = Request::get(uri).body(Full::default()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    let code = response.status().as_u16();
    let _sender = sender;
    (code, Http2 { _sender, ended })
}

#[tokio::test(start_paused = true)]
async fn a_full_listener_closes_the_connection_that_is_idle_for_longest() {
    let world = World::new(3, |_| {});
    let mut first = world.connect().await;
    sleep(seconds(1)).await;
    let mut second = world.connect().await;
    sleep(seconds(1)).await;
    let mut busy = world.connect().await;
    begin(&mut busy, "/30").await;
    // It was idle for longer, but has asked since.
    assert!(is_answered(&mut first).await);
    let mut fourth = world.connect().await;
    assert_eq!(closed(&mut second).await, Duration::ZERO);
    assert!(is_answered(&mut fourth).await);
    assert_eq!(world.connections.count(), 3);
    let mut line = [0; 15];
    busy.read_exact(&mut line).await.unwrap();
    let is_answer = line.starts_with(b"HTTP/1.1 200");
    assert!(is_answer, "a request in flight is not idle");
}

#[tokio::test(start_paused = true)]
async fn requests_that_never_end_keep_no_other_one_out() {
    let world = World::new(2, |_| {});
    let mut stuck = Vec::new();
    for _ in 0..2 {
        let mut stream = world.connect().await;
        begin(&mut stream, "/9999").await;
        settle().await;
        stuck.push(stream);
        sleep(seconds(1)).await;
    }
    let mut next = world.connect().await;
    assert!(is_answered(&mut next).await);
    let took = closed(&mut stuck[0]).await;
    assert_eq!(took, Duration::ZERO, "the oldest one made room");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_says_nothing_is_closed_after_ten_seconds() {
    let plain = World::new(8, |_| {});
    assert_eq!(closed(&mut plain.connect().await).await, seconds(10));
    let world = World::with_tls(8, &["h2"]);
    let without_handshake = closed(&mut world.connect().await).await;
    assert_eq!(without_handshake, seconds(10));
    for protocols in [&["h2"][..], &["http/1.1"], &[]] {
        let world = World::with_tls(8, protocols);
        let mut silent = world.connect_tls().await;
        assert_eq!(closed(&mut silent).await, seconds(10), "{protocols:?}");
        assert_eq!(world.connections.count(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn silent_tls_connections_keep_no_request_out() {
    let world = World::with_tls(128, &["h2"]);
    let mut silent = Vec::new();
    for _ in 0..150 {
        silent.push(world.connect_tls().await);
    }
    assert_eq!(world.connections.count(), 128);
    let stream = world.connect_tls().await;
    let (answer, _connection) = ask_http2(stream, "https://karpenter/").await;
    assert_eq!(answer, 200);
    assert_eq!(world.connections.count(), 128);
}

/// HTTP/2: pings keep the connection of a client that answers them open, but not for ever.
#[tokio::test(start_paused = true)]
async fn a_connection_without_requests_is_closed_after_a_minute() {
    let world = World::with_tls(8, &["h2"]);
    let stream = world.connect_tls().await;
    let (answer, connection) = ask_http2(stream, "https://karpenter/70").await;
    assert_eq!(answer, 200, "a request in flight may take longer");
    let began = Instant::now();
    let _ = connection.ended.await.unwrap();
    let idle = began.elapsed();
    assert!((seconds(60)..seconds(61)).contains(&idle), "{idle:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_has_its_time_and_so_has_a_connection() {
    let world = World::new(8, |listener| {
        listener.request = seconds(30);
        listener.lifetime = seconds(300);
    });
    let mut slow = world.connect().await;
    begin(&mut slow, "/9999").await;
    assert_eq!(closed(&mut slow).await, seconds(30));

    let mut chatty = world.connect().await;
    let began = Instant::now();
    while began.elapsed() < seconds(600) && is_answered(&mut chatty).await {
        let mut rest = vec![0; 4096];
        let _ = chatty.read(&mut rest).await;
        sleep(seconds(5)).await;
    }
    assert!(began.elapsed() <= seconds(305), "{:?}", began.elapsed());
}

/// Without limits, 500 of them take 145 MiB.
#[test]
fn unfinished_headers_take_little_memory_and_end() {
    let measured = allocation_counter::measure(|| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let world = World::new(32, |_| {});
            let mut header = b"GET / HTTP/1.1\r\nX: ".to_vec();
            header.resize(300 << 10, b'x');
            let mut open = Vec::new();
            for _ in 0..500 {
                let (mut ours, theirs) = tokio::io::duplex(1024);
                world.queue.send(theirs).unwrap();
                let sending = ours.write_all(&header);
                let _ = tokio::time::timeout(Duration::from_millis(1), sending).await;
                open.push(ours);
            }
            assert!(world.connections.count() <= 32);
            sleep(seconds(11)).await;
            assert_eq!(world.connections.count(), 0);
        });
    });
    assert!(measured.bytes_max < 8 << 20, "{}", measured.bytes_max);
}

/// A source that has run out of file descriptors.
struct Exhausted(Arc<AtomicUsize>);

impl Accept for Exhausted {
    type Stream = DuplexStream;

    async fn accept(&self) -> io::Result<DuplexStream> {
        let before = self.0.fetch_add(1, Ordering::Relaxed);
        assert!(before < 1000, "it does not pause");
        // EMFILE
        Err(io::Error::from_raw_os_error(24))
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_cannot_be_accepted_is_followed_by_a_pause() {
    let attempts = Arc::new(AtomicUsize::new(0));
    let accept = Exhausted(Arc::clone(&attempts));
    let stop = CancellationToken::new();
    let listener = Listener::new(accept, Connections::new(1));
    let serving = listener.serve(respond, TaskTracker::new(), stop.clone());
    let serving = tokio::time::timeout(seconds(10), serving);
    assert!(serving.await.is_err(), "it goes on trying");
    let attempts = attempts.load(Ordering::Relaxed);
    assert!((90..=101).contains(&attempts), "{attempts}");
}

/// A body of frames, and whether it ends after them.
struct Frames(Mutex<Vec<Bytes>>, bool);

impl Frames {
    fn of(frames: usize, frame: &'static [u8], ends: bool) -> Request<Self> {
        let frames = vec![Bytes::from_static(frame); frames];
        Request::new(Self(Mutex::new(frames), ends))
    }
}

impl Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        match (self.0.lock().pop(), self.1) {
            (Some(frame), _) => std::task::Poll::Ready(Some(Ok(http_body::Frame::data(frame)))),
            (None, true) => std::task::Poll::Ready(None),
            (None, false) => std::task::Poll::Pending,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_has_its_length_and_its_time() {
    let bodies = Bodies::new(100);
    let read = |frames, ends| bodies.read(Frames::of(frames, b"abc", ends), 10, seconds(10));
    let (body, held) = read(3, true).await.unwrap();
    assert_eq!((body.as_slice(), bodies.bytes()), (&b"abcabcabc"[..], 9));
    drop(held);
    let refused = read(4, true).await;
    assert!(matches!(refused, Err(Refused::TooLarge(10))), "{refused:?}");
    let began = Instant::now();
    let refused = tokio::time::timeout(seconds(3600), read(1, false)).await;
    let refused = refused.unwrap().unwrap_err().to_string();
    assert_eq!(refused, "the body did not arrive within 10s");
    assert_eq!((began.elapsed(), bodies.bytes()), (seconds(10), 0));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stalls_makes_room_and_one_that_is_worked_on_does_not() {
    let bodies = Bodies::new(10);
    let read = |frames, ends| {
        let bodies = bodies.clone();
        let request = Frames::of(frames, b"abc", ends);
        tokio::spawn(async move { bodies.read(request, 10, seconds(10)).await })
    };
    let (first, second) = (read(1, false), read(1, false));
    settle().await;
    let (_, third) = read(2, true).await.unwrap().unwrap();
    let refused = first.await.unwrap().unwrap_err();
    assert!(
        matches!(refused, Refused::TooLargeTogether),
        "the oldest one: {refused}"
    );
    assert!(!second.is_finished());
    assert_eq!(bodies.bytes(), 9);

    let refused = read(2, true).await.unwrap().unwrap_err();
    assert!(matches!(refused, Refused::TooLargeTogether), "{refused}");
    assert!(second.await.unwrap().is_err());
    assert_eq!(bodies.bytes(), 6);
    // Once its response is sent, it waits for its client again.
    let response = Pieces::from("response".to_owned()).held_by(third);
    assert_eq!(bodies.bytes(), 8);
    assert!(read(2, true).await.unwrap().is_ok());
    drop(response);
    assert_eq!(bodies.bytes(), 0);
}

#[test]
fn a_body_takes_twice_its_length_while_it_is_read() {
    // A little more than a power of two: a buffer that doubles would need three times as much.
    const LENGTH: usize = (8 << 20) + (64 << 10);
    for (frames, frame) in [
        (LENGTH, &b"x"[..]),
        (LENGTH >> 14, &[b'x'; 16 << 10]),
        (1, &[b'x'; LENGTH]),
    ] {
        let request = Frames::of(frames, frame, true);
        let measured = allocation_counter::measure(|| {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().unwrap();
            let reading = async {
                let bodies = Bodies::new(LENGTH);
                bodies.read(request, LENGTH, seconds(60)).await.unwrap()
            };
            assert_eq!(runtime.block_on(reading).0.len(), LENGTH);
        });
        let most = 2 * LENGTH as u64 + (1 << 20);
        let taken = measured.bytes_max;
        assert!(taken < most, "{frames} frames: {taken}");
    }
}
