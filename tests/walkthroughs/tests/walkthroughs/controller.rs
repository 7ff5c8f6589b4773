//! The controller as a process: its environment, its log, its exit.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::Value;

/// A line of the log with its index.
#[derive(Clone, Debug)]
pub struct Line {
    pub at: usize,
    pub json: Value,
}

impl Line {
    pub fn text(&self, key: &str) -> &str {
        self.json[key].as_str().unwrap_or_default()
    }

    /// Returns the names of its fields.
    pub fn keys(&self) -> Vec<&str> {
        let object = self.json.as_object().unwrap();
        object.keys().map(String::as_str).collect()
    }

    pub fn has_keys(&self, wanted: &[&str]) {
        let keys = self.keys();
        for key in wanted {
            assert!(keys.contains(key), "no `{key}` in {}", self.json);
        }
    }
}

/// The binary: the one that `KARPENTER` names, otherwise the one built next to the tests.
pub fn binary() -> PathBuf {
    if let Some(named) = std::env::var_os("KARPENTER") {
        return named.into();
    }
    let tests = std::env::current_exe().unwrap();
    tests.parent().unwrap().with_file_name("karpenter")
}

pub struct Controller {
    process: Child,
    log: Arc<Mutex<Vec<String>>>,
}

impl Controller {
    /// Starts the binary with exactly this environment.
    pub fn start(env: &BTreeMap<String, String>) -> Self {
        let mut process = Command::new(binary())
            .env_clear()
            .envs(env)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let echo = std::env::var_os("WALKTHROUGH_LOG").is_some();
        let streams: [Box<dyn std::io::Read + Send>; 2] = [
            Box::new(process.stdout.take().unwrap()),
            Box::new(process.stderr.take().unwrap()),
        ];
        for stream in streams {
            let lines = Arc::clone(&log);
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    if echo {
                        eprintln!("{line}");
                    }
                    lines.lock().push(line);
                }
            });
        }
        Self { process, log }
    }

    /// Returns all JSON lines.
    pub fn lines(&self) -> Vec<Line> {
        let log = self.log.lock();
        let lines = log.iter().enumerate();
        lines
            .filter_map(|(at, text)| {
                let json = serde_json::from_str(text).ok()?;
                Some(Line { at, json })
            })
            .collect()
    }

    /// Returns the last lines of the log.
    pub fn tail(&self, lines: usize) -> String {
        let log = self.log.lock();
        log[log.len().saturating_sub(lines)..].join("\n")
    }

    /// Asserts that every line is JSON, and contains none of these texts.
    pub fn has_kept_its_secrets(&self, secrets: &[&str]) {
        for line in self.log.lock().iter() {
            assert!(line.starts_with('{'), "{line}");
            assert!(
                !secrets.iter().any(|secret| line.contains(secret)),
                "{line}"
            );
        }
    }

    pub fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    /// Sends SIGTERM, as a kubelet does, and waits; returns whether the exit was successful.
    pub fn stop(mut self) -> bool {
        let id = self.process.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-TERM", &id])
                .status()
                .unwrap()
                .success()
        );
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status.success();
            }
            assert!(
                Instant::now() < deadline,
                "the controller does not exit:\n{}",
                self.tail(20)
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("last lines of the controller:\n{}", self.tail(60));
        }
        // It may have exited.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
