//! Chromium, driven over WebDriver by chromedriver.
//!
//! WebDriver is JSON over HTTP, and these tests need few of its commands; the crates for it depend on code under the MPL, which
//! deny.toml does not allow.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use serde_json::{Value, json};
use skipped::skipped;

/// How long a test waits for a condition in the page.
const PATIENCE: Duration = Duration::from_secs(120);

/// A browser with one window; it ends when it is dropped.
pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
    _profile: tempfile::TempDir,
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The driver ends its browser with the session.
        let _ = self.send("DELETE", "", &Value::Null);
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// Returns the first of these programs that can be started.
fn program(names: &[&'static str]) -> Option<&'static str> {
    let works = |name: &&&str| {
        let mut command = Command::new(name);
        command
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    names.iter().find(works).copied()
}

/// Sends JSON to a server on loopback, and returns its answer.
pub fn exchange(port: u16, method: &str, path: &str, body: &Value) -> Result<Value, String> {
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    let exchange = || -> std::io::Result<Vec<u8>> {
        let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", port))?);
        stream.get_ref().set_read_timeout(Some(PATIENCE))?;
        stream.get_mut().write_all((head + &body).as_bytes())?;
        // The driver does not close the connection.
        let mut length = 0;
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line)? <= 2 {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().map_err(std::io::Error::other)?;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body)?;
        Ok(body)
    };
    let body = exchange().map_err(|error| error.to_string())?;
    serde_json::from_slice(&body).map_err(|error| error.to_string())
}

impl Browser {
    /// Starts a browser; `None`, and a line that says so, if it is not installed.
    pub fn start() -> Option<Self> {
        if program(&["chromium", "google-chrome", "chromium-browser"]).is_none() {
            skipped("chromium", "it is not in PATH");
            return None;
        }
        let Some(driver) = program(&["chromedriver"]) else {
            skipped("chromedriver", "it is not in PATH");
            return None;
        };
        let profile = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let log = File::create(profile.path().join("driver.log")).unwrap();
        let child = Command::new(driver)
            .arg(format!("--port={port}"))
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut browser = Self {
            driver: child,
            port,
            session: String::new(),
            _profile: profile,
        };
        let began = Instant::now();
        while browser.http("GET", "/status", &Value::Null).is_err() {
            assert!(began.elapsed() < PATIENCE, "chromedriver does not start");
            std::thread::sleep(Duration::from_millis(50));
        }
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--force-device-scale-factor=1",
            "--window-size=1280,900",
            // No name is resolved: the page must work without a network.
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        ];
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "goog:chromeOptions": { "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
        } } });
        let session = browser.http("POST", "/session", &wanted).unwrap();
        session["sessionId"]
            .as_str()
            .unwrap()
            .clone_into(&mut browser.session);
        Some(browser)
    }

    fn http(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let answer = exchange(self.port, method, path, body)?;
        match answer["value"]["error"].as_str() {
            Some(error) => Err(format!("{error}: {}", answer["value"]["message"])),
            None => Ok(answer["value"].clone()),
        }
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        self.http(method, &format!("/session/{}{path}", self.session), body)
    }

    fn command(&self, path: &str, body: &Value) -> Value {
        self.send("POST", path, body).unwrap()
    }

    pub fn open(&self, url: &str) {
        self.command("/url", &json!({ "url": url }));
    }

    /// Runs the body of a function in the page, and returns its result.
    pub fn run(&self, script: &str) -> Value {
        self.command("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Waits until an expression is true in the page.
    pub fn wait(&self, what: &str, expression: &str) {
        let began = Instant::now();
        let script = format!("return Boolean({expression})");
        while self.run(&script) != true {
            assert!(
                began.elapsed() < PATIENCE,
                "{what}: not after {PATIENCE:?}: {}",
                self.run("return document.body.innerText")
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns the text of the first element of a selector.
    pub fn text(&self, selector: &str) -> String {
        let text = self.run(&format!(
            "return document.querySelector({selector:?})?.innerText ?? ''"
        ));
        text.as_str().unwrap().to_owned()
    }

    /// Presses keys, one after the other: characters, or key codes of WebDriver.
    pub fn keys(&self, keys: &[&str]) {
        let press = |key: &&str| {
            [
                json!({ "type": "keyDown", "value": key }),
                json!({ "type": "keyUp", "value": key }),
            ]
        };
        let actions: Vec<Value> = keys.iter().flat_map(press).collect();
        self.command(
            "/actions",
            &json!({ "actions": [{ "type": "key", "id": "keys", "actions": actions }] }),
        );
    }

    /// Clicks at a position in the window.
    pub fn click(&self, x: i64, y: i64) {
        let actions = json!([
            { "type": "pointerMove", "duration": 0, "x": x, "y": y },
            { "type": "pointerDown", "button": 0 },
            { "type": "pointerUp", "button": 0 },
        ]);
        self.command(
            "/actions",
            &json!({ "actions": [{ "type": "pointer", "id": "mouse", "actions": actions }] }),
        );
    }

    /// Returns the messages of a log (`browser`, `performance`) since it was read last.
    pub fn log(&self, kind: &str) -> Vec<String> {
        let entries = self.command("/se/log", &json!({ "type": kind }));
        let entries = entries.as_array().unwrap().iter();
        entries
            .map(|entry| entry["message"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Sizes the viewport and selects the system's theme.
    pub fn emulate(&self, width: u32, height: u32, theme: &str) {
        let cdp = |cmd: &str, params: Value| {
            self.command(
                "/goog/cdp/execute",
                &json!({ "cmd": cmd, "params": params }),
            )
        };
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500 });
        cdp("Emulation.setDeviceMetricsOverride", size);
        let features = json!([{ "name": "prefers-color-scheme", "value": theme }]);
        cdp(
            "Emulation.setEmulatedMedia",
            json!({ "features": features }),
        );
    }

    /// Writes what the window shows as a PNG.
    pub fn screenshot(&self, path: &Path) {
        let image = self.send("GET", "/screenshot", &Value::Null).unwrap();
        let image = base64::engine::general_purpose::STANDARD.decode(image.as_str().unwrap());
        std::fs::write(path, image.unwrap()).unwrap();
    }
}
