//! `kubectl karpenter nodes`: the process, in a pipe and in a real terminal (tmux).

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use karpenter_fixtures::{INSTANCE_TYPE, bare_node, pod};
use serde_json::{Value, json};
use skipped::skipped;
use tempfile::TempDir;

use crate::fixture::{Cluster, Printed};

const PLUGIN: &str = env!("CARGO_BIN_EXE_kubectl-karpenter");

/// The overview of a cluster with many nodes, of which the first has a name with control sequences.
fn overview(nodes: usize) -> Value {
    let of = |value: fn(usize) -> Value| (0..nodes).map(value).collect::<Vec<Value>>();
    json!({
        "kind": "Overview",
        "observed": { "at": "2026-01-06T03:00:00Z" },
        "totals": { "pods": 3 * nodes, "pending": 2 },
        "pending": [{ "reason": "TooLarge", "count": 2 }],
        "nodes": {
            "id": of(|at| json!(format!("claim-{at:03}"))),
            "node": of(|at| match at {
                0 => json!("ip-10-0-0-0\u{1b}[31m\u{1b}]0;owned\u{7}"),
                _ => json!(format!("ip-10-0-0-{at}")),
            }),
            "nodePool": of(|at| json!(["default", "batch"][at % 2])),
            "instanceType": of(|_| json!("m7i.4xlarge")),
            "capacityType": of(|_| json!("spot")),
            "state": of(|_| json!("Ready")),
            "reason": of(|_| json!("Pdb")),
            "text": of(|_| json!("Pdb shop/web prevents pod evictions")),
            "created": of(|_| json!(1_767_600_000)),
            "price": of(|_| json!(250_000)),
            "pods": of(|_| json!(3)),
            "podsAllocatable": of(|_| json!(58)),
            "cpu": of(|at| json!(100 * at)),
            "cpuAllocatable": of(|_| json!(15_890)),
            "memory": of(|_| json!(1000)),
            "memoryAllocatable": of(|_| json!(60_000)),
        },
    })
}

/// Answers a request for the overview, for its stream, which stays open, or for an explanation.
fn answer(mut stream: TcpStream, nodes: usize) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).unwrap_or(0) == 0 {
            return;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let overview = overview(nodes);
    if head.contains("watch=true") {
        let events = format!("event: reset\ndata: {overview}\n\n");
        let text = format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n{events}");
        let _ = stream.write_all(text.as_bytes());
        // Until the client ends the connection.
        let _ = stream.read(&mut byte);
        return;
    }
    let body = match head.contains("/explanation") {
        true => json!({
            "kind": "NodeExplanation", "metadata": { "name": "ip-10-0-0-1" }, "state": "Ready",
            "observed": { "at": "2026-01-06T03:00:00Z" }, "reason": { "id": "Pdb" },
            "blockers": [{ "id": "Pdb", "text": "Pdb shop/web prevents pod evictions\u{1b}[2J" }],
        }),
        false if head.contains("/decisions?") => json!({ "items": [{
            "id": "mic0-7", "at": "2026-01-06T02:59:00Z", "pass": "Disruption",
            "items": [{ "type": "Kept", "nodePool": "default", "reason": "Pdb", "count": 3, "names": ["a", "b", "c"], "pricePerHour": 0.4 }],
        }] }),
        false => overview,
    };
    let body = body.to_string();
    let text = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let _ = stream.write_all(text.as_bytes());
}

/// Starts a server of decisions; returns its URL.
fn server(nodes: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            std::thread::spawn(move || answer(stream, nodes));
        }
    });
    url
}

/// Runs the plugin in a pipe.
fn nodes(args: &[&str]) -> Printed {
    let printed = Command::new(PLUGIN).arg("nodes").args(args).output();
    Printed::from(printed.unwrap())
}

/// Conformance: DASH-13
#[test]
fn in_a_pipe_the_view_is_printed_once_without_control_sequences() {
    let url = server(3);
    let printed = nodes(&["--server", &url]);
    let is_safe = |text: &str| text.chars().all(|c| c == '\n' || !c.is_control());
    assert!(is_safe(&printed.stdout), "{printed:?}");
    for words in [
        r"ip-10-0-0-0\u{1b}[31m\u{1b}]0;owned\u{7}",
        "3 nodes  (0/48 cpu)  0.6%",
        "$0.750/hour | $548/month",
        "9 pods (2 pending: 2 TooLarge)",
        // Nothing is cut.
        "Pdb shop/web prevents pod evictions",
    ] {
        printed.shows(words);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_karpenter_the_api_server_is_asked_and_what_is_missing_is_said() {
    let cluster = Cluster::start(&["default"]).await;
    let bare = |name| bare_node(name).cpu("4").memory("8Gi").pods("110");
    let node = bare("ip-10-0-3-7")
        .label(INSTANCE_TYPE, "m7i.large")
        .label("team", "shop");
    let pod = pod("web").cpu("3").on("ip-10-0-3-7");
    let objects = [node.into_json(), bare("other").into_json(), pod.into_json()];
    cluster.testbed.load(objects);
    let args = "nodes --once --node-selector team=shop --extra-labels team --resources cpu,pods";
    let printed = cluster.run(args).await;
    printed.shows("1 nodes  (3/4 cpu)  75.0%");
    printed.shows("without prices and reasons, because Karpenter cannot be asked: no lease");
    let row = printed.stdout.lines().last().unwrap();
    assert!(
        row.starts_with("ip-10-0-3-7") && row.contains("75%") && row.contains("m7i.large"),
        "{row}"
    );
    assert!(row.ends_with("shop"), "{row}");
    for unknown in ["WHY KEPT", "$/H"] {
        assert!(!printed.stdout.contains(unknown), "{printed:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_cluster_is_an_error_of_one_line() {
    let home = tempfile::tempdir().unwrap();
    let none = home.path().join("none");
    nodes(&["--once", "--kubeconfig", none.to_str().unwrap()]).fails("none");
    for wrong in [
        ["--node-sort", "cost=up"],
        ["--style", "red"],
        ["--resources", "gpu"],
        ["--interval", "0s"],
    ] {
        nodes(&wrong).fails(wrong[0]);
    }
}

/// A terminal of tmux, with a shell; its server ends on drop.
struct Terminal {
    home: TempDir,
    socket: String,
}

static NUMBER: AtomicUsize = AtomicUsize::new(0);

impl Terminal {
    /// Returns a terminal of a size; `None` without tmux.
    fn start(columns: u16, rows: u16) -> Option<Self> {
        if Command::new("tmux").arg("-V").output().is_err() {
            skipped("tmux", "a real terminal");
            return None;
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let terminal = Self {
            home: tempfile::tempdir().unwrap(),
            socket: format!("karpenter-{}-{number}", std::process::id()),
        };
        let (columns, rows) = (columns.to_string(), rows.to_string());
        let size = ["-x", &columns, "-y", &rows];
        terminal.tmux(&[&["new-session", "-d"], &size[..], &["env PS1='$ ' sh"]].concat());
        Some(terminal)
    }

    fn tmux(&self, args: &[&str]) -> String {
        let output = Command::new("tmux")
            .args(["-f", "/dev/null", "-L", &self.socket])
            .args(args)
            .env("TMUX_TMPDIR", self.home.path())
            .env("LC_ALL", "C.UTF-8")
            .env("TERM", "xterm-256color")
            .output();
        let output = output.unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    fn run(&self, line: &str) {
        self.keys(&[line, "Enter"]);
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Waits until the screen is as wanted.
    fn until(&self, what: &str, holds: impl Fn(&str) -> bool) -> String {
        let mut screen = String::new();
        // Each look takes some milliseconds.
        for _ in 0..4_000 {
            screen = self.screen();
            if holds(&screen) {
                return screen;
            }
        }
        panic!("{what}: the screen is\n{screen}");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = Command::new("tmux")
            .args(["-L", &self.socket, "kill-server"])
            .env("TMUX_TMPDIR", self.home.path())
            .output();
    }
}

/// Conformance: DASH-12
#[test]
fn printed_once_the_view_is_as_wide_as_the_terminal() {
    for (columns, why) in [
        (80, "Pdb shop/web"),
        (200, "Pdb shop/web prevents pod evictions"),
    ] {
        let Some(terminal) = Terminal::start(columns, 40) else {
            return;
        };
        terminal.run(&format!(
            "{PLUGIN} nodes --once --server {}; echo end=$?",
            server(4)
        ));
        let screen = terminal.until("the view", |screen| screen.contains("end=0"));
        let rows: Vec<&str> = screen
            .lines()
            .filter(|line| line.starts_with("ip-10-"))
            .collect();
        assert_eq!(rows.len(), 4, "no line is wrapped:\n{screen}");
        assert!(rows[1].contains(why), "{screen}");
        assert!(
            screen.contains("NAME") && screen.contains("WHY KEPT"),
            "{screen}"
        );
    }
}

/// Conformance: DASH-12
#[test]
fn keys_and_resizing_change_the_screen_and_quitting_leaves_it_clean() {
    let Some(terminal) = Terminal::start(80, 24) else {
        return;
    };
    terminal.run("echo before");
    terminal.run(&format!(
        "{PLUGIN} nodes --node-sort name=asc --server {}; echo end=$?",
        server(60)
    ));
    let first = terminal.until("the view", |screen| screen.contains("60 nodes"));
    let screen = terminal.until("the keys", |screen| screen.contains("q quit"));
    assert!(!screen.contains("before"), "{first}");
    assert!(
        screen.contains("ip-10-0-0-1 ") && !screen.contains("ip-10-0-0-59"),
        "{screen}"
    );
    assert_eq!(
        terminal.tmux(&["display", "-p", "#{alternate_on}#{cursor_flag}"]),
        "10\n"
    );

    terminal.keys(&["End"]);
    terminal.until("the last node", |screen| screen.contains("ip-10-0-0-59"));
    terminal.keys(&["Home", "Down", "Enter"]);
    let why = terminal.until("the explanation", |screen| screen.contains("esc back"));
    assert!(why.contains("Pdb"), "{why}");
    terminal.keys(&["Escape"]);
    terminal.until("the table", |screen| screen.contains("WHY KEPT"));
    terminal.keys(&["/"]);
    terminal.keys(&["-l", "0-0-5"]);
    terminal.keys(&["Enter"]);
    terminal.until("the filter", |screen| screen.contains("11 nodes"));
    terminal.keys(&["/"]);
    terminal.keys(&["Escape"]);
    terminal.until("all nodes", |screen| screen.contains("60 nodes"));
    terminal.keys(&["p"]);
    terminal.until("the pools", |screen| {
        screen.contains("NODEPOOL") && screen.contains("batch")
    });
    terminal.keys(&["d"]);
    let decided = terminal.until("the decisions", |screen| screen.contains("mic0-7"));
    assert!(
        decided.contains("keep 3 nodes of default: a, b, c  Pdb"),
        "{decided}"
    );
    terminal.keys(&["Escape"]);
    terminal.keys(&["p", "r", "s"]);
    terminal.until("memory", |screen| {
        screen.contains("MEMORY") && screen.contains("creation=dsc")
    });

    terminal.tmux(&["resize-window", "-x", "130", "-y", "40"]);
    terminal.until("the wider view", |screen| {
        let rows = screen.lines().filter(|line| line.starts_with("ip-10-"));
        screen.contains("prevents pod evictions") && rows.count() > 30
    });
    terminal.tmux(&["resize-window", "-x", "40", "-y", "8"]);
    terminal.until("the narrow view", |screen| {
        !screen.contains("evictions") && screen.contains("nodes")
    });
    terminal.tmux(&["resize-window", "-x", "80", "-y", "24"]);
    terminal.until("the view again", |screen| screen.contains("WHY KEPT"));

    terminal.keys(&["q"]);
    let after = terminal.until("the shell", |screen| screen.contains("end=0"));
    assert!(
        after.contains("before") && !after.contains("WHY KEPT"),
        "{after}"
    );
    assert_eq!(
        terminal.tmux(&["display", "-p", "#{alternate_on}#{cursor_flag}"]),
        "01\n"
    );
    terminal.run("stty -a | grep -o ' icanon'; echo checked");
    terminal.until("lines are edited again", |screen| {
        screen.contains(" icanon\n")
    });
}
