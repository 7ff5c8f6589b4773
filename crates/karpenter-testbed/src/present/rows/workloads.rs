//! Workloads: apps, batch, autoscaling.

use serde_json::{Value, json};

use super::{
    AGE, CONTAINERS, Column, IMAGES, NAME, Painting, SELECTOR, View, labels_text, painting_of,
    string, text, whole,
};
use crate::present::age::human_duration;

/// Returns the columns of a workload kind.
pub(super) fn painting(kind: &str) -> Option<&'static Painting> {
    Some(match kind {
        "Deployment" => &DEPLOYMENT,
        "ReplicaSet" => &REPLICA_SET,
        "StatefulSet" => &STATEFUL_SET,
        "DaemonSet" => &DAEMON_SET,
        "Job" => &JOB,
        "CronJob" => &CRON_JOB,
        "ControllerRevision" => &CONTROLLER_REVISION,
        "HorizontalPodAutoscaler" => &AUTOSCALER,
        _ => return None,
    })
}

const TEMPLATE: &str = "/spec/template/spec/containers";

static DEPLOYMENT: Painting = painting_of(
    &[
        NAME,
        text("Ready", ""),
        text("Up-to-date", "status.updatedReplicas"),
        text("Available", "status.availableReplicas"),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    |view| {
        let (names, images) = view.containers(TEMPLATE);
        vec![
            json!(view.name()),
            json!(format!(
                "{}/{}",
                view.int("/status/readyReplicas"),
                view.int("/spec/replicas")
            )),
            json!(view.int("/status/updatedReplicas")),
            json!(view.int("/status/availableReplicas")),
            json!(view.age()),
            json!(names),
            json!(images),
            json!(view.selector("/spec/selector")),
        ]
    },
);

static REPLICA_SET: Painting = painting_of(
    &[
        NAME,
        whole("Desired", "spec.replicas"),
        whole("Current", "status.replicas"),
        whole("Ready", "status.readyReplicas"),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    |view| {
        let (names, images) = view.containers(TEMPLATE);
        vec![
            json!(view.name()),
            json!(view.int("/spec/replicas")),
            json!(view.int("/status/replicas")),
            json!(view.int("/status/readyReplicas")),
            json!(view.age()),
            json!(names),
            json!(images),
            json!(view.selector("/spec/selector")),
        ]
    },
);

static STATEFUL_SET: Painting = painting_of(
    &[NAME, text("Ready", ""), AGE, CONTAINERS, IMAGES],
    |view| {
        let (names, images) = view.containers(TEMPLATE);
        vec![
            json!(view.name()),
            json!(format!(
                "{}/{}",
                view.int("/status/readyReplicas"),
                view.int("/spec/replicas")
            )),
            json!(view.age()),
            json!(names),
            json!(images),
        ]
    },
);

static DAEMON_SET: Painting = painting_of(
    &[
        NAME,
        whole("Desired", "status.desiredNumberScheduled"),
        whole("Current", "status.currentNumberScheduled"),
        whole("Ready", "status.numberReady"),
        whole("Up-to-date", "status.updatedNumberScheduled"),
        whole("Available", "status.numberAvailable"),
        text("Node Selector", "spec.template"),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    |view| {
        let (names, images) = view.containers(TEMPLATE);
        vec![
            json!(view.name()),
            json!(view.int("/status/desiredNumberScheduled")),
            json!(view.int("/status/currentNumberScheduled")),
            json!(view.int("/status/numberReady")),
            json!(view.int("/status/updatedNumberScheduled")),
            json!(view.int("/status/numberAvailable")),
            json!(labels_text(view.at("/spec/template/spec/nodeSelector"))),
            json!(view.age()),
            json!(names),
            json!(images),
            json!(view.selector("/spec/selector")),
        ]
    },
);

static JOB: Painting = painting_of(
    &[
        NAME,
        text("Status", "status.conditions"),
        text("Completions", "status.succeeded"),
        text("Duration", ""),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    |view| {
        let succeeded = view.int("/status/succeeded");
        let completions = match (
            view.at("/spec/completions").and_then(Value::as_i64),
            view.int("/spec/parallelism"),
        ) {
            (Some(completions), _) => format!("{succeeded}/{completions}"),
            (None, parallelism) if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
            (None, _) => format!("{succeeded}/1"),
        };
        let instant = |pointer: &str| {
            view.at(pointer)
                .and_then(Value::as_str)
                .and_then(|text| text.parse::<jiff::Timestamp>().ok())
        };
        let duration = instant("/status/startTime").map_or_else(String::new, |start| {
            let end = instant("/status/completionTime").unwrap_or(view.now);
            human_duration(end.as_second() - start.as_second())
        });
        let holds = |kind: &str| {
            view.list("/status/conditions")
                .iter()
                .any(|c| c["type"] == kind && c["status"] == "True")
        };
        let status = match () {
            () if holds("Complete") => "Complete",
            () if holds("Failed") => "Failed",
            () if view.deleted() => "Terminating",
            () if holds("Suspended") => "Suspended",
            () if holds("FailureTarget") => "FailureTarget",
            () if holds("SuccessCriteriaMet") => "SuccessCriteriaMet",
            () => "Running",
        };
        let (names, images) = view.containers(TEMPLATE);
        vec![
            json!(view.name()),
            json!(status),
            json!(completions),
            json!(duration),
            json!(view.age()),
            json!(names),
            json!(images),
            json!(view.selector("/spec/selector")),
        ]
    },
);

static CRON_JOB: Painting = painting_of(
    &[
        NAME,
        text("Schedule", "spec.schedule"),
        text("Timezone", "spec.timeZone"),
        Column {
            kind: "boolean",
            ..text("Suspend", "spec.suspend")
        },
        whole("Active", "status.active"),
        text("Last Schedule", "status.lastScheduleTime"),
        AGE,
        CONTAINERS,
        IMAGES,
        SELECTOR,
    ],
    |view| {
        let suspended = match view.at("/spec/suspend").and_then(Value::as_bool) {
            Some(true) => "True",
            Some(false) => "False",
            None => "<unset>",
        };
        let last = if view.at("/status/lastScheduleTime").is_some() {
            view.since("/status/lastScheduleTime")
        } else {
            "<none>".to_owned()
        };
        let (names, images) = view.containers("/spec/jobTemplate/spec/template/spec/containers");
        vec![
            json!(view.name()),
            json!(view.str("/spec/schedule")),
            json!(view.or("/spec/timeZone", "<none>")),
            json!(suspended),
            json!(view.count("/status/active")),
            json!(last),
            json!(view.age()),
            json!(names),
            json!(images),
            json!(view.selector("/spec/jobTemplate/spec/selector")),
        ]
    },
);

static CONTROLLER_REVISION: Painting = painting_of(
    &[
        NAME,
        text("Controller", ""),
        whole("Revision", "revision"),
        AGE,
    ],
    |view| {
        let owner = view
            .list("/metadata/ownerReferences")
            .iter()
            .find(|owner| owner["controller"] == true);
        let controller = owner.map_or_else(
            || "<none>".to_owned(),
            |owner| {
                let kind = string(owner, "kind").to_lowercase();
                let group = owner["apiVersion"]
                    .as_str()
                    .and_then(|version| version.split_once('/'))
                    .map(|(group, _)| group);
                let kind = group.map_or(kind.clone(), |group| format!("{kind}.{group}"));
                format!("{kind}/{}", string(owner, "name"))
            },
        );
        vec![
            json!(view.name()),
            json!(controller),
            json!(view.int("/revision")),
            json!(view.age()),
        ]
    },
);

static AUTOSCALER: Painting = painting_of(
    &[
        NAME,
        text("Reference", "spec.scaleTargetRef"),
        text("Targets", "spec.metrics"),
        text("MinPods", "spec.minReplicas"),
        text("MaxPods", "spec.maxReplicas"),
        text("Replicas", "status.currentReplicas"),
        AGE,
    ],
    |view| {
        let minimum = view
            .at("/spec/minReplicas")
            .and_then(Value::as_i64)
            .map_or_else(|| "<unset>".to_owned(), |n| n.to_string());
        vec![
            json!(view.name()),
            json!(format!(
                "{}/{}",
                view.str("/spec/scaleTargetRef/kind"),
                view.str("/spec/scaleTargetRef/name")
            )),
            json!(metrics(view)),
            json!(minimum),
            json!(view.int("/spec/maxReplicas")),
            json!(view.int("/status/currentReplicas")),
            json!(view.age()),
        ]
    },
);

/// `cpu: 12%/50%, memory: <unknown>/1Gi`: resource metrics against their targets.
fn metrics(view: &View<'_>) -> String {
    let current = |name: &str| {
        let status = view
            .list("/status/currentMetrics")
            .iter()
            .find(|metric| metric.pointer("/resource/name").is_some_and(|n| n == name))?;
        let current = status.pointer("/resource/current")?;
        match current.get("averageUtilization").and_then(Value::as_i64) {
            Some(percent) => Some(format!("{percent}%")),
            None => Some(string(current, "averageValue")),
        }
    };
    let show = |metric: &Value| {
        let Some(resource) = metric.get("resource") else {
            return "<unknown>/<unknown>".to_owned();
        };
        let name = string(resource, "name");
        let target = match resource
            .pointer("/target/averageUtilization")
            .and_then(Value::as_i64)
        {
            Some(percent) => format!("{percent}%"),
            None => resource
                .get("target")
                .map(|target| string(target, "averageValue"))
                .unwrap_or_default(),
        };
        format!(
            "{name}: {}/{target}",
            current(&name).unwrap_or_else(|| "<unknown>".to_owned())
        )
    };
    let shown: Vec<String> = view.list("/spec/metrics").iter().map(show).collect();
    match shown.len() {
        0 => "<none>".to_owned(),
        1 | 2 => shown.join(", "),
        more => format!("{} + {} more...", shown[..2].join(", "), more - 2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(painting: &Painting, object: &Value) -> Vec<Value> {
        (painting.cells)(&View {
            object,
            now: "2026-01-01T01:00:00Z".parse().unwrap(),
        })
    }

    #[test]
    fn a_deployment_shows_its_replicas() {
        let deployment = json!({"metadata": {"name": "d", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "x"}, "matchExpressions": [{"key": "t", "operator": "In", "values": ["b", "a"]}]},
                "template": {"spec": {"containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "j"}]}}},
            "status": {"readyReplicas": 1, "updatedReplicas": 2, "availableReplicas": 1}});
        assert_eq!(
            json!(cells(&DEPLOYMENT, &deployment)),
            json!(["d", "1/3", 2, 1, "60m", "a,b", "i,j", "app=x,t in (a,b)"])
        );
    }

    #[test]
    fn a_job_shows_completions_and_duration() {
        let job = json!({"metadata": {"name": "j", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"completions": 2, "template": {}},
            "status": {"succeeded": 1, "startTime": "2026-01-01T00:59:15Z"}});
        assert_eq!(
            json!(cells(&JOB, &job)),
            json!(["j", "Running", "1/2", "45s", "60m", "", "", "<none>"])
        );
    }
}
