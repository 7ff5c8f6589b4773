//! Pods, nodes, events and the other kinds of the core group.
//!
//! UPSTREAM: pkg/printers/internalversion/printers.go

mod event;
mod node;
mod pod;
mod service;

use serde_json::{Value, json};

pub(super) use self::service::shortened;
use super::{
    AGE, CONTAINERS, IMAGES, NAME, Painting, SELECTOR, View, labels_text, painting_of, text, whole,
};

/// Returns the columns of a kind of the core group.
pub(super) fn painting(kind: &str) -> Option<&'static Painting> {
    Some(match kind {
        "Pod" => &pod::POD,
        "Node" => &node::NODE,
        "Event" => &event::EVENT,
        "Namespace" => &NAMESPACE,
        "ConfigMap" => &CONFIG_MAP,
        "Secret" => &SECRET,
        "ServiceAccount" => &SERVICE_ACCOUNT,
        "Service" => &service::SERVICE,
        "Endpoints" => &service::ENDPOINTS,
        "PodTemplate" => &POD_TEMPLATE,
        "ReplicationController" => &REPLICATION_CONTROLLER,
        "LimitRange" => &LIMIT_RANGE,
        "ResourceQuota" => &RESOURCE_QUOTA,
        _ => return None,
    })
}

fn condition<'a>(view: &View<'a>, kind: &str) -> Option<&'a Value> {
    view.list("/status/conditions")
        .iter()
        .find(|condition| condition["type"] == kind)
}

static NAMESPACE: Painting = painting_of(&[NAME, text("Status", "status.phase"), AGE], |view| {
    vec![
        json!(view.name()),
        json!(view.str("/status/phase")),
        json!(view.age()),
    ]
});

static CONFIG_MAP: Painting = painting_of(&[NAME, whole("Data", "data"), AGE], |view| {
    vec![
        json!(view.name()),
        json!(view.count("/data") + view.count("/binaryData")),
        json!(view.age()),
    ]
});

static SECRET: Painting = painting_of(
    &[NAME, text("Type", "type"), whole("Data", "data"), AGE],
    |view| {
        vec![
            json!(view.name()),
            json!(view.str("/type")),
            json!(view.count("/data")),
            json!(view.age()),
        ]
    },
);

static SERVICE_ACCOUNT: Painting = painting_of(&[NAME, whole("Secrets", "secrets"), AGE], |view| {
    vec![
        json!(view.name()),
        json!(view.count("/secrets")),
        json!(view.age()),
    ]
});

static POD_TEMPLATE: Painting = painting_of(
    &[
        NAME,
        text("Containers", ""),
        text("Images", ""),
        text("Pod Labels", ""),
    ],
    |view| {
        let (names, images) = view.containers("/template/spec/containers");
        vec![
            json!(view.name()),
            json!(names),
            json!(images),
            json!(labels_text(view.at("/template/metadata/labels"))),
        ]
    },
);

static REPLICATION_CONTROLLER: Painting = painting_of(
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
        let (names, images) = view.containers("/spec/template/spec/containers");
        vec![
            json!(view.name()),
            json!(view.int("/spec/replicas")),
            json!(view.int("/status/replicas")),
            json!(view.int("/status/readyReplicas")),
            json!(view.age()),
            json!(names),
            json!(images),
            json!(labels_text(view.at("/spec/selector"))),
        ]
    },
);

static LIMIT_RANGE: Painting = painting_of(
    &[NAME, text("Created At", "metadata.creationTimestamp")],
    |view| {
        vec![
            json!(view.name()),
            json!(view.str("/metadata/creationTimestamp")),
        ]
    },
);

static RESOURCE_QUOTA: Painting = painting_of(
    &[NAME, text("Request", ""), text("Limit", ""), AGE],
    |view| {
        let (mut requests, mut limits) = (Vec::new(), Vec::new());
        for (name, hard) in view
            .at("/status/hard")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            let used = view
                .at("/status/used")
                .and_then(|used| used.get(name))
                .and_then(Value::as_str)
                .unwrap_or("0");
            let entry = format!("{name}: {used}/{}", hard.as_str().unwrap_or_default());
            if name.starts_with("limits.") {
                limits.push(entry)
            } else {
                requests.push(entry)
            }
        }
        vec![
            json!(view.name()),
            json!(requests.join(", ")),
            json!(limits.join(", ")),
            json!(view.age()),
        ]
    },
);

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the cells of an object as one line.
    pub(super) fn cells(painting: &Painting, object: &Value) -> String {
        let view = View {
            object,
            now: "2026-01-01T01:00:00Z".parse().unwrap(),
        };
        (painting.cells)(&view)
            .iter()
            .map(|cell| {
                cell.as_str()
                    .map_or_else(|| cell.to_string(), str::to_owned)
            })
            .collect::<Vec<_>>()
            .join(" | ")
    }
}
