//! `kubectl karpenter dashboard`: the process, against a small server on loopback.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

/// A process that is killed on drop.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server that answers every request with `page`; returns its port, and the heads of the requests.
fn server() -> (u16, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (heads, seen) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) == 1 {
                head.push(byte[0]);
            }
            // A connection without a request only tests whether the port is open.
            if head.is_empty() {
                continue;
            }
            let answer = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Security-Policy: default-src 'self'\r\nContent-Length: 4\r\nConnection: close\r\n\r\npage";
            let _ = stream.write_all(answer.as_bytes());
            if heads.send(String::from_utf8(head).unwrap()).is_err() {
                return;
            }
        }
    });
    (port, seen)
}

/// Sends a request as it is, and returns the answer.
fn send(port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_page_is_served_below_a_secret_path_to_its_own_host_only() {
    let (upstream, seen) = server();
    let start = || {
        let mut child = Command::new(env!("CARGO_BIN_EXE_kubectl-karpenter"))
            .args(["dashboard", "--server"])
            .arg(format!("http://127.0.0.1:{upstream}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.next().unwrap().unwrap();
        let url = line.rsplit(' ').next().unwrap().to_owned();
        (Process(child), url)
    };
    let (_process, url) = start();
    let (host, path) = url
        .strip_prefix("http://")
        .unwrap()
        .split_once('/')
        .unwrap();
    let port: u16 = host.strip_prefix("127.0.0.1:").unwrap().parse().unwrap();
    let secret = path.strip_suffix('/').unwrap();
    assert_eq!(secret.len(), 32);
    let get = |path: &str, host: &str| {
        let head = "Connection: close\r\nAuthorization: Bearer secret\r\nCookie: a=b";
        send(
            port,
            &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{head}\r\n\r\n"),
        )
    };

    let page = get(&format!("/{secret}/assets/a.js?x=1"), host);
    assert!(
        page.starts_with("HTTP/1.1 200") && page.ends_with("page"),
        "{page}"
    );
    assert!(
        page.contains("content-security-policy: default-src 'self'"),
        "{page}"
    );
    let head = seen.recv().unwrap().to_ascii_lowercase();
    assert!(head.starts_with("get /assets/a.js?x=1 "), "{head}");
    assert!(
        !head.contains("secret") && !head.contains("cookie"),
        "{head}"
    );

    for (path, host, code) in [
        ("/".to_owned(), host, "404"),
        (
            format!("/{}/", secret.replace(|c: char| c != '0', "1")),
            host,
            "404",
        ),
        (format!("/{secret}"), host, "404"),
        (format!("/{secret}/"), "evil.example", "403"),
        (format!("/{secret}/"), "127.0.0.1:1", "403"),
    ] {
        let answer = get(&path, host);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {code}")),
            "{path} {host}: {answer}"
        );
    }
    let post = format!(
        "POST /{secret}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    );
    assert!(send(port, &post).starts_with("HTTP/1.1 405"));
    assert!(seen.try_recv().is_err(), "nothing of it was forwarded");
    let (_other, other) = start();
    assert!(!other.contains(secret), "each time another path");
}
