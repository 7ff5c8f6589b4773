//! The churn of a rehearsal on a real cluster: a share of the replicas goes and comes back, one pod at a time.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context as _, Result};
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::case::Case;
use crate::objects::{list, name};

/// A percentage of the pods, and the period in which they go and come back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Churn {
    pub(super) share: u32,
    pub(super) period: Duration,
}

/// The pods of a period, and how many of them were chosen in all periods.
struct Replicas {
    pods: Vec<(String, String)>,
    chosen: u64,
}

impl Churn {
    /// Lets pods of a scenario's Deployments go and come back for so long.
    pub(super) async fn run(self, case: &Case, start: Instant, length: Duration) -> Result<()> {
        let mut replicas = Replicas {
            pods: running(&case.pods()).await?,
            chosen: 0,
        };
        let each = replicas.pods.len() * self.share as usize / 100;
        let changes = self.period / u32::try_from(2 * each.max(1))?;
        let mut gone: VecDeque<String> = VecDeque::new();
        for number in 0_u32.. {
            let at = changes * (number + 1);
            if at > length {
                break;
            }
            tokio::time::sleep_until(start + at).await;
            let in_period = number as usize % (2 * each.max(1));
            if in_period >= each {
                if let Some(deployment) = gone.pop_front() {
                    resize(case, &deployment, 1).await?;
                }
                continue;
            }
            let pods = running(&case.pods()).await?;
            if in_period == 0 {
                replicas.pods.clone_from(&pods);
            }
            while let Some((deployment, pod)) = replicas.choose(&pods) {
                // One that was evicted meanwhile does not go.
                if set_lowest_deletion_cost(&case.pods(), &pod).await? {
                    resize(case, &deployment, -1).await?;
                    gone.push_back(deployment);
                    break;
                }
            }
        }
        tokio::time::sleep_until(start + length).await;
        Ok(())
    }
}

impl Replicas {
    /// Chooses the next pod that goes, of those that still run, as the rehearsal does.
    fn choose(&mut self, running: &[(String, String)]) -> Option<(String, String)> {
        for _ in 0..self.pods.len() {
            // Multiples of the golden ratio: any few of them in a row are spread over all pods.
            let place = (self.chosen as f64 * 0.618_033_988_749_894_9).fract();
            self.chosen += 1;
            let pod = self.pods.get((place * self.pods.len() as f64) as usize)?;
            if running.contains(pod) {
                return Some(pod.clone());
            }
        }
        None
    }
}

/// Returns the running pods by name, each after its Deployment.
async fn running(pods: &Api<DynamicObject>) -> Result<Vec<(String, String)>> {
    let runs = |pod: &&Value| {
        pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null()
    };
    let pods = list(pods, "").await?;
    let with_app = pods.iter().filter(runs).map(|pod| {
        let app = pod["metadata"]["labels"]["app"].as_str();
        let app = app.unwrap_or_default().to_owned();
        (app, name(pod).to_owned())
    });
    let mut with_app: Vec<_> = with_app.collect();
    with_app.sort();
    Ok(with_app)
}

/// Lets a pod's ReplicaSet delete it before others; returns whether the pod exists.
async fn set_lowest_deletion_cost(pods: &Api<DynamicObject>, pod: &str) -> Result<bool> {
    let cost = json!({ "controller.kubernetes.io/pod-deletion-cost": "-1000" });
    let patch = Patch::Merge(json!({ "metadata": { "annotations": cost } }));
    match pods.patch(pod, &PatchParams::default(), &patch).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error.into()),
    }
}

async fn resize(case: &Case, deployment: &str, by: i64) -> Result<()> {
    let now = case.deployments().get(deployment).await?;
    let replicas = now.data["spec"]["replicas"].as_i64();
    let replicas = replicas.context("a Deployment has replicas")? + by;
    case.scale(deployment, u32::try_from(replicas)?).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_go_are_spread_over_all_and_none_goes_twice() {
        let pods: Vec<_> = (0..10)
            .map(|n| ("web".to_owned(), format!("web-{n}")))
            .collect();
        let mut replicas = Replicas {
            pods: pods.clone(),
            chosen: 0,
        };
        let mut left = pods;
        let mut names = Vec::new();
        while let Some(pod) = replicas.choose(&left) {
            left.retain(|it| *it != pod);
            names.push(pod.1);
        }
        assert_eq!(names[..4], ["web-0", "web-6", "web-2", "web-8"]);
        let rest = left.len();
        assert!(rest <= 1, "{rest} pods never go");
    }
}
