//! Limits the CPU time of the API server: with a control group, or by stopping it repeatedly where control groups cannot be
//! written.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::task::JoinHandle;

use crate::plane::ControlPlane;

/// The period of the limit.
const PERIOD: Duration = Duration::from_millis(100);

/// Must be dropped after the API server has exited.
pub(super) enum Limit {
    Group(PathBuf),
    Stopping { pid: Pid, task: JoinHandle<()> },
}

impl Limit {
    /// Limits the API server's CPU time to a share of a core.
    pub(super) fn start(plane: &ControlPlane, cores: f64) -> Result<Self> {
        ensure!(
            cores > 0.0 && cores <= 1.0,
            "invalid share of a core: {cores}"
        );
        let id = plane.api_server_id()?;
        if let Ok(group) = group(id, cores) {
            println!("the API server is limited to {cores} cores by its control group");
            return Ok(Self::Group(group));
        }
        println!("the API server is stopped periodically and runs for {cores} of the time");
        let pid = Pid::from_raw(i32::try_from(id)?);
        let pid = pid.ok_or_else(|| anyhow::anyhow!("the API server has no process id"))?;
        let task = tokio::spawn(async move {
            loop {
                let _ = kill_process_group(pid, Signal::CONT);
                tokio::time::sleep(PERIOD.mul_f64(cores)).await;
                let _ = kill_process_group(pid, Signal::STOP);
                tokio::time::sleep(PERIOD.mul_f64(1.0 - cores)).await;
            }
        });
        Ok(Self::Stopping { pid, task })
    }
}

/// Creates a control group for a process: version 2 if it is mounted, otherwise version 1.
fn group(id: u32, cores: f64) -> Result<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let period = PERIOD.as_micros() as f64;
    let quota = format!("{:.0}", period * cores);
    let name = format!("real-cluster-{id}");
    let (group, file, limit) = match root.join("cgroup.controllers").exists() {
        true => (root.join(name), "cpu.max", format!("{quota} {period:.0}")),
        false => (root.join("cpu").join(name), "cpu.cfs_quota_us", quota),
    };
    fs::create_dir(&group)?;
    let limited = fs::write(group.join(file), limit)
        .and_then(|()| fs::write(group.join("cgroup.procs"), id.to_string()));
    if let Err(error) = limited {
        let _ = fs::remove_dir(&group);
        return Err(error.into());
    }
    Ok(group)
}

impl Drop for Limit {
    fn drop(&mut self) {
        match self {
            Self::Group(group) => {
                // It is empty once the API server has exited.
                let _ = fs::remove_dir(group);
            }
            Self::Stopping { pid, task } => {
                task.abort();
                let _ = kill_process_group(*pid, Signal::CONT);
            }
        }
    }
}
