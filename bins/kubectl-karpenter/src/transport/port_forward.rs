//! `kubectl port-forward` as a child process.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::anyhow;
use tokio::sync::oneshot;

use super::flags::ServerFlags;
use super::leader::Leader;
use crate::cluster::Access;
use crate::flags::KubectlFlags;

/// How long kubectl may take until it listens: it may have to start a plugin for credentials, and wait for its user.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(60);

/// The most lines of an error that are printed.
const MAX_LINES: usize = 20;

/// A running child process; it is killed on drop.
pub(super) struct PortForward {
    child: Child,
    /// The port on 127.0.0.1.
    pub(super) port: u16,
    /// The pod at the other end.
    pub(super) leader: Leader,
}

impl Drop for PortForward {
    fn drop(&mut self) {
        stop(&mut self.child);
    }
}

fn stop(child: &mut Child) {
    // It fails only if the process has ended by itself.
    let _ = child.kill();
    let _ = child.wait();
}

impl PortForward {
    /// Starts kubectl, and waits until it listens on a free port.
    pub(super) async fn start(
        kubectl: &KubectlFlags,
        flags: &ServerFlags,
        leader: Leader,
    ) -> anyhow::Result<Self> {
        let program = &flags.kubectl;
        let mut child = Command::new(program)
            .args(kubectl.for_child())
            .args([
                "port-forward",
                "--address",
                "127.0.0.1",
                "--namespace",
                &leader.namespace,
            ])
            .arg(format!("pod/{}", leader.pod))
            .arg(format!(":{}", flags.decisions_port))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| {
                let program = program.display();
                anyhow!("cannot run `{program}`: {error}; install kubectl, or pass --server URL")
            })?;
        let (port, errors) = (
            child.stdout.take().map(listens),
            child.stderr.take().map(first_lines),
        );
        let mut started = Self {
            child,
            port: 0,
            leader,
        };
        // From here on the child ends with `started`.
        let (Some(port), Some(errors)) = (port, errors) else {
            return Err(anyhow!("cannot read the output of kubectl"));
        };
        match tokio::time::timeout(LISTEN_TIMEOUT, port).await {
            Ok(Ok(port)) => {
                started.port = port;
                Ok(started)
            }
            // It has closed its output: it ends, and has printed why.
            Ok(Err(_)) => Err(failure(&started.leader, &errors.await.unwrap_or_default())),
            Err(_) => Err(anyhow!(
                "`kubectl port-forward` to pod {} did not listen within {}s; pass --server URL",
                started.leader.pod,
                LISTEN_TIMEOUT.as_secs()
            )),
        }
    }
}

/// Returns the port of the line `Forwarding from 127.0.0.1:40123 -> 8082`, once it is printed.
fn listens(stdout: ChildStdout) -> oneshot::Receiver<u16> {
    let (found, port) = oneshot::channel();
    // kubectl prints a line for each connection: the pipe is read until it ends, or kubectl would block.
    std::thread::spawn(move || {
        let mut found = Some(found);
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if let Some(port) = forwarded_port(&line)
                && let Some(found) = found.take()
            {
                let _ = found.send(port);
            }
        }
    });
    port
}

fn forwarded_port(line: &str) -> Option<u16> {
    let (address, _) = line.strip_prefix("Forwarding from ")?.split_once(" -> ")?;
    let (_, port) = address.rsplit_once(':')?;
    port.parse().ok()
}

/// Returns the first lines of the standard error, once it is closed.
fn first_lines(stderr: ChildStderr) -> oneshot::Receiver<String> {
    let (sender, errors) = oneshot::channel();
    std::thread::spawn(move || {
        let mut lines = Vec::new();
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if lines.len() < MAX_LINES {
                lines.push(line);
            }
        }
        let _ = sender.send(lines.join("\n"));
    });
    errors
}

/// Explains the error that kubectl has printed.
fn failure(leader: &Leader, printed: &str) -> anyhow::Error {
    let access = |verb, resource| Access {
        verb,
        group: "",
        resource,
        namespace: Some(&leader.namespace),
        name: Some(&leader.pod),
    };
    let needs =
        |access: Access<'_>| anyhow!("cannot {access}: forbidden; it needs {}", access.rule());
    if printed.contains("orbidden") && printed.contains("pods/portforward") {
        return needs(access("create", "pods/portforward"));
    }
    if printed.contains("orbidden") {
        return needs(access("get", "pods"));
    }
    let mut lines = printed
        .lines()
        .map(|line| line.trim_start_matches("error: ").trim());
    let line = lines.rfind(|line| !line.is_empty());
    anyhow!(
        "`kubectl port-forward` to pod {} in namespace {} failed: {}; pass --server URL",
        leader.pod,
        leader.namespace,
        line.unwrap_or("it printed no error")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_that_of_the_line_about_the_first_address() {
        let line = "Forwarding from 127.0.0.1:40123 -> 8082";
        assert_eq!(forwarded_port(line), Some(40123));
        assert_eq!(
            forwarded_port("Forwarding from [::1]:40123 -> 8082"),
            Some(40123)
        );
        assert_eq!(forwarded_port("Handling connection for 40123"), None);
    }

    #[test]
    fn a_missing_right_is_named_with_its_rule() {
        let leader = Leader {
            namespace: "kube-system".to_owned(),
            pod: "karpenter-0".to_owned(),
        };
        let printed = "Error from server (Forbidden): pods \"karpenter-0\" is forbidden: User \"jane\" cannot create resource \"pods/portforward\" in API group \"\" in the namespace \"kube-system\"";
        assert_eq!(
            failure(&leader, printed).to_string(),
            "cannot create pods/portforward \"karpenter-0\" in namespace \"kube-system\": forbidden; it needs a Role in namespace \"kube-system\" with the rule {apiGroups: [\"\"], resources: [\"pods/portforward\"], verbs: [\"create\"]}"
        );
        let printed =
            "error: unable to forward port because pod is not running. Current status=Pending\n";
        assert_eq!(
            failure(&leader, printed).to_string(),
            "`kubectl port-forward` to pod karpenter-0 in namespace kube-system failed: unable to forward port because pod is not running. Current status=Pending; pass --server URL"
        );
    }
}
