//! The Job controller: runs pods until enough of them have succeeded.
//!
//! Not implemented: failure (pods of a Job fail only with their node, and are replaced), suspension, indexes,
//! deadlines, removal some time after the end, pod failure and success policies, tracking finalizers (results of deleted pods are kept in the job's status), selectors (pods are found by owner).
//!
//! UPSTREAM: pkg/controller/job

use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::pods::{PodControl, deletion_order, from_template, label, report};
use crate::loops::cache::{Change, Key};
use crate::loops::driver::{Context, Controller, Next};

/// The actions of a pass.
struct Plan {
    create: usize,
    delete: usize,
    is_complete: bool,
}

fn plan(spec: &JobSpec, active: usize, succeeded: i32) -> Plan {
    let parallelism = spec.parallelism.unwrap_or(1);
    let wanted = match spec.completions {
        Some(completions) => parallelism.min(completions - succeeded).max(0),
        // A work queue: after one success no more pods are started.
        None if succeeded > 0 => i32::try_from(active).unwrap_or(i32::MAX),
        None => parallelism,
    };
    let wanted = usize::try_from(wanted).unwrap_or(0);
    Plan {
        create: wanted.saturating_sub(active),
        delete: active.saturating_sub(wanted),
        is_complete: match spec.completions {
            Some(completions) => succeeded >= completions,
            None => succeeded > 0 && active == 0,
        },
    }
}

fn is_finished(status: &JobStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|c| c.type_ == "Complete" && c.status == "True")
}

pub(crate) struct Jobs {
    context: Context,
    control: PodControl,
}

impl Jobs {
    pub(crate) fn new(context: Context) -> Self {
        Self {
            context,
            control: PodControl::default(),
        }
    }

    async fn start(&self, job: &Job, spec: &JobSpec, count: usize) -> Result<(), kube::Error> {
        let uid = job.metadata.uid.as_deref().unwrap_or_default();
        let name = job.metadata.name.as_deref().unwrap_or_default();
        let mut new = Vec::new();
        for _ in 0..count {
            let mut pod = from_template(&spec.template, job, &self.context.names.suffix());
            let meta = &mut pod.metadata;
            for prefix in ["batch.kubernetes.io/", ""] {
                label(meta, &format!("{prefix}job-name"), name);
                label(meta, &format!("{prefix}controller-uid"), uid);
            }
            new.push(pod);
        }
        self.control.create(&self.context, uid, new).await
    }
}

impl Controller for Jobs {
    const NAME: &'static str = "job";

    fn keys(&self, change: &Change, keys: &mut Vec<Key>) {
        match change {
            Change::Pod(diff) => keys.extend(self.control.observe(diff, "Job")),
            Change::Job(diff) => keys.push(diff.key()),
            _ => {}
        }
    }

    async fn reconcile(&self, key: &Key) -> Result<Next, kube::Error> {
        let Some(job) = self.context.cache.jobs.get(key) else {
            return Ok(Next::Wait);
        };
        let old = job.status.clone().unwrap_or_default();
        if job.metadata.deletion_timestamp.is_some() || is_finished(&old) {
            return Ok(Next::Wait);
        }
        let now = self.context.clock.now();
        let spec = job.spec.clone().unwrap_or_default();
        let uid = job.metadata.uid.as_deref().unwrap_or_default();
        let pods = self.context.cache.pods_of(uid);
        let size = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
        let succeeded = pods.iter().filter(|p| p.phase() == "Succeeded").count();
        let succeeded = size(succeeded).max(old.succeeded.unwrap_or(0));
        let mut active: Vec<_> = pods.iter().filter(|p| p.is_active()).cloned().collect();
        let plan = plan(&spec, active.len(), succeeded);
        if self.control.expectations_met(uid, now) {
            self.start(&job, &spec, plan.create).await?;
            deletion_order(&mut active);
            let surplus = &active[..plan.delete.min(active.len())];
            self.control.delete(&self.context, uid, surplus).await?;
        }
        let ready = active.iter().filter(|p| p.is_ready()).count();
        let remaining = if plan.is_complete { 0 } else { active.len() };
        let optional = |n: i32| (n > 0).then_some(n);
        let mut new = JobStatus {
            active: optional(size(remaining)),
            ready: Some(if plan.is_complete { 0 } else { size(ready) }),
            succeeded: optional(succeeded),
            ..old.clone()
        };
        if new.start_time.is_none() {
            new.start_time = Some(Time(now));
        }
        if plan.is_complete {
            let condition = |type_: &str| JobCondition {
                type_: type_.to_owned(),
                status: "True".to_owned(),
                reason: Some("CompletionsReached".to_owned()),
                message: Some("Reached expected number of succeeded pods".to_owned()),
                last_probe_time: Some(Time(now)),
                last_transition_time: Some(Time(now)),
            };
            let conditions = new.conditions.get_or_insert_with(Vec::new);
            conditions.extend(["SuccessCriteriaMet", "Complete"].map(condition));
            new.completion_time = Some(Time(now));
        }
        report(&self.context, &*job, job.status.as_ref(), &new).await?;
        Ok(Next::Wait)
    }
}
