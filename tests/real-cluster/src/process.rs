//! Programs that are killed when they are no longer needed.

use std::collections::BTreeMap;
use std::fs;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

/// A program in its own process group, killed with all its children on drop.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    /// Whether it keeps running after this is dropped.
    detached: bool,
}

impl Process {
    /// Starts a program whose output is appended to `log`.
    pub(crate) fn start(name: &str, command: &mut Command, log: &Path) -> Result<Self> {
        let file = File::options().create(true).append(true).open(log)?;
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log: log.to_owned(),
            detached: false,
        })
    }

    /// Returns the id of the process, which is also that of its process group.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Lets it keep running after this is dropped.
    pub(crate) fn detach(&mut self) {
        self.detached = true;
    }

    /// Sends a signal to the process and its children.
    pub(crate) fn signal(&self, signal: Signal) {
        signal_group(self.child.id(), signal);
    }

    /// Returns the exit status, if it has exited.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Fails with the end of its log if it has exited.
    pub(crate) fn is_running(&mut self) -> Result<()> {
        if let Some(status) = self.ended()? {
            bail!("{} ended: {status}\n{}", self.name, self.tail(20));
        }
        Ok(())
    }

    /// Waits until it exits.
    pub(crate) async fn end(&mut self, within: Duration) -> Result<ExitStatus> {
        let deadline = tokio::time::Instant::now() + within;
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            if tokio::time::Instant::now() > deadline {
                bail!("{} does not exit within {within:?}", self.name);
            }
            // The exit of a child cannot be awaited while the child can be killed without a reaper; so it is polled ten times a
            // second.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Kills it and waits until it has exited.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        // It may have exited before.
        let _ = self.child.wait();
    }

    /// Returns the last lines of its log.
    pub(crate) fn tail(&self, lines: usize) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.detached {
            self.kill();
        }
    }
}

/// Sends a signal to a process group, which may have exited.
fn signal_group(id: u32, signal: Signal) {
    let id = i32::try_from(id).ok().and_then(Pid::from_raw);
    if let Some(id) = id {
        let _ = kill_process_group(id, signal);
    }
}

/// Kills detached processes: those of `ids` that still run in `folder`, because process ids are reused.
pub(crate) fn end_all(ids: &BTreeMap<String, u32>, folder: &Path) -> Vec<String> {
    let ours =
        |id: u32| fs::read_link(format!("/proc/{id}/cwd")).is_ok_and(|runs_in| runs_in == folder);
    let mut ended = Vec::new();
    for (name, id) in ids {
        if ours(*id) {
            signal_group(*id, Signal::KILL);
            ended.push(name.clone());
        }
    }
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_and_its_children_are_killed_on_drop() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $!; wait"]);
        let process = Process::start("sh", &mut command, &folder.path().join("log")).unwrap();
        let child = loop {
            let said = process.tail(1);
            if let Ok(id) = said.trim().parse::<u32>() {
                break id;
            }
        };
        let lives = |id: u32| {
            let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z ")
        };
        assert!(lives(child));
        drop(process);
        // The kernel kills it asynchronously.
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while lives(child) {
            assert!(
                std::time::Instant::now() < deadline,
                "{child} is still running"
            );
            std::thread::yield_now();
        }
    }

    #[test]
    fn reused_process_ids_are_not_killed() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sleep");
        let log = folder.path().join("log");
        let mut process = Process::start("sleep", command.arg("600"), &log).unwrap();
        let ids = [("etcd".to_owned(), process.id())].into();
        assert!(end_all(&ids, folder.path()).is_empty());
        process.is_running().unwrap();
    }
}
