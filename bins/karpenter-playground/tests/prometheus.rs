//! A real Prometheus that scrapes the playground, with the alert rules and the dashboards of the book.
//!
//! Skipped, with a message, without `prometheus`; `.ci/run` installs it.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use skipped::skipped;
use tempfile::TempDir;

/// A process that is killed on drop.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/karpenter")
}

/// Starts the playground with the pods of the demo; returns it with the address of its metrics.
fn playground(home: &Path) -> (Process, String) {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/demo.yaml");
    let mut child = Command::new(env!("CARGO_BIN_EXE_karpenter-playground"))
        .args(["--metrics", "127.0.0.1:0", "--speed", "10", "--kubeconfig"])
        .arg(home.join("kubeconfig"))
        .arg("--apply")
        .arg(manifest)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let process = Process(child);
    let line = lines
        .by_ref()
        .map(Result::unwrap)
        .find(|l| l.starts_with("metrics at"));
    // The output must be read, or the process blocks.
    std::thread::spawn(move || lines.count());
    let url = line.unwrap().split_whitespace().last().unwrap().to_owned();
    let address = url
        .trim_start_matches("http://")
        .trim_end_matches("/metrics");
    (process, address.to_owned())
}

/// Returns Prometheus' answer to a query, from `promtool`.
fn query(server: &str, expression: &str) -> Result<Value, String> {
    let output = Command::new("promtool")
        .args(["query", "instant", "--format", "json", server, expression])
        .output()
        .unwrap();
    if output.status.success() {
        Ok(serde_json::from_slice(&output.stdout).unwrap())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Returns the queries of a dashboard, with every value of its variables.
fn expressions(dashboard: &Value, found: &mut Vec<String>) {
    match dashboard {
        Value::Object(fields) => {
            for (name, value) in fields {
                match (name.as_str(), value) {
                    ("expr", Value::String(text)) => found.push(text.replace("$nodepool", ".*")),
                    _ => expressions(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| expressions(item, found)),
        _ => {}
    }
}

#[test]
fn prometheus_evaluates_every_query_of_the_dashboards() {
    if Command::new("prometheus")
        .arg("--version")
        .output()
        .is_err()
    {
        skipped("prometheus", "it is not in PATH");
        return;
    }
    let home = TempDir::new().unwrap();
    let (_playground, metrics) = playground(home.path());
    let alerts = chart().join("alerts.yaml").canonicalize().unwrap();
    let config = home.path().join("prometheus.yaml");
    let text = format!(
        "global: {{scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 250ms}}\n\
         rule_files: ['{}']\n\
         scrape_configs: [{{job_name: karpenter, static_configs: [{{targets: ['{metrics}']}}]}}]\n",
        alerts.display()
    );
    std::fs::write(&config, text).unwrap();
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let server = format!("http://127.0.0.1:{port}");
    let _prometheus = Process(
        Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                home.path().join("data").display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let started = Instant::now();
    // At least two scrapes, for rates; by then the pods of the demo have nodes.
    let scraped = "count_over_time(karpenter_cluster_state_synced[1m]) > 1 and on() up{job=\"karpenter\"} == 1";
    loop {
        let answer = query(&server, scraped);
        if answer
            .as_ref()
            .is_ok_and(|found| *found != Value::Array(Vec::new()))
        {
            break;
        }
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "not scraped: {answer:?}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    let of_ours = query(&server, "count({__name__=~\"karpenter_.+\"})").unwrap();
    let series: f64 = of_ours[0]["value"][1].as_str().unwrap().parse().unwrap();
    assert!(series > 100.0, "{series}");

    let mut asked = 0;
    for file in std::fs::read_dir(chart().join("dashboards")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let dashboard = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let mut all = Vec::new();
        expressions(&dashboard, &mut all);
        for expression in all {
            let answer = query(&server, &expression);
            assert!(
                answer.is_ok(),
                "{}: {expression}: {answer:?}",
                path.display()
            );
            asked += 1;
        }
    }
    assert!(asked > 50, "{asked}");
    let broken = query(&server, "prometheus_rule_evaluation_failures_total > 0");
    assert_eq!(broken.unwrap(), Value::Array(Vec::new()));
}

#[test]
fn promtool_accepts_the_alert_rules() {
    let check = Command::new("promtool")
        .args(["check", "rules"])
        .arg(chart().join("alerts.yaml"))
        .output();
    let Ok(output) = check else {
        skipped("promtool", "it is not in PATH");
        return;
    };
    let answer = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{answer}");
}
