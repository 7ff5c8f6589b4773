//! The binary and kubectl as processes.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::usable;

/// The process of the playground, killed on drop.
pub struct Playground {
    child: Child,
    home: TempDir,
}

impl Drop for Playground {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn kubectl_is_missing() -> bool {
    usable::kubectl_is_missing(Path::new("kubectl"))
}

impl Playground {
    pub fn start(args: &[&str]) -> Self {
        let home = TempDir::new().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_karpenter-playground"))
            .args(["--listen", "127.0.0.1:0", "--kubeconfig"])
            .arg(home.path().join("kubeconfig"))
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"));
        // The output must be read, or the process blocks.
        std::thread::spawn(move || lines.count());
        Self { child, home }
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.home.path().join("kubeconfig")
    }

    pub fn kubectl(&self, args: &[&str], input: Option<&str>) -> Output {
        let mut child = Command::new("kubectl")
            .args(args)
            .env("KUBECONFIG", self.kubeconfig())
            .env("HOME", self.home.path())
            .stdin(if input.is_some() {
                Stdio::piped()
            } else {
                Stdio::null()
            })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
            stdin.write_all(input.as_bytes()).unwrap();
        }
        child.wait_with_output().unwrap()
    }

    pub fn succeeds(&self, args: &[&str], input: Option<&str>) -> String {
        let output = self.kubectl(args, input);
        assert!(
            output.status.success(),
            "kubectl {args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn fails(&self, args: &[&str], input: Option<&str>) -> String {
        let output = self.kubectl(args, input);
        assert!(
            !output.status.success(),
            "kubectl {args:?} succeeded: {}",
            String::from_utf8_lossy(&output.stdout)
        );
        String::from_utf8(output.stderr).unwrap()
    }

    /// Runs kubectl until the answer is as expected.
    pub fn until(&self, args: &[&str], right: impl Fn(&str) -> bool) -> String {
        let start = Instant::now();
        loop {
            let answer = self.succeeds(args, None);
            if right(&answer) {
                return answer;
            }
            assert!(
                start.elapsed() < Duration::from_secs(180),
                "kubectl {args:?} still prints {answer}"
            );
        }
    }

    /// Waits until a Deployment has this many pods, all of them running.
    pub fn until_pods(&self, deployment: &str, number: usize) {
        let selector = format!("app={deployment}");
        let phases = "jsonpath={range .items[*]}{.status.phase}{\"\\n\"}{end}";
        self.until(&["get", "pods", "-l", &selector, "-o", phases], |phases| {
            phases.lines().count() == number && phases.lines().all(|phase| phase == "Running")
        });
    }

    /// Adds the CRD of EC2NodeClasses, which the provider of simulated nodes does not have.
    pub fn add_ec2_node_classes(&self) {
        let definitions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crds");
        let of_aws = definitions.join("karpenter.k8s.aws_ec2nodeclasses.yaml");
        let of_aws = std::fs::read_to_string(of_aws).unwrap();
        self.succeeds(&["apply", "--server-side", "-f", "-"], Some(&of_aws));
    }

    /// Waits until all pods of docs/examples have run.
    pub fn until_examples(&self) {
        self.until_pods("web", 4);
        let succeeded = "jsonpath={.status.succeeded}";
        self.until(&["get", "job", "report", "-o", succeeded], |pods| {
            pods == "2"
        });
    }
}
