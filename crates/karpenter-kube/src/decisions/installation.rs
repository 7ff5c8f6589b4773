//! Reviews Karpenter's own installation: its permissions, and the resources that its feature gates need. Nothing is written; a
//! review that fails is left out.

use futures::StreamExt as _;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use karpenter_decisions::doctor::{Installation, MissingKind, MissingPermission};
use kube::Api;
use kube::api::PostParams;

use crate::context::Context;

/// Reviews that are requested at the same time.
const AT_ONCE: usize = 8;

const READ: &[&str] = &["list", "watch"];

/// A resource, with the verbs that the controllers use: group, resource, verbs.
type Rule = (&'static str, &'static str, &'static [&'static str]);

/// What the controllers need with any settings; the chart's ClusterRole grants it.
pub const RULES: &[Rule] = &[
    ("karpenter.sh", "nodepools", READ),
    ("karpenter.sh", "nodepools", &["update", "patch"]),
    ("karpenter.sh", "nodepools/status", &["update", "patch"]),
    ("karpenter.sh", "nodeclaims", READ),
    (
        "karpenter.sh",
        "nodeclaims",
        &["create", "delete", "update", "patch"],
    ),
    ("karpenter.sh", "nodeclaims/status", &["update", "patch"]),
    ("", "pods", READ),
    ("", "pods", &["delete"]),
    ("", "pods/eviction", &["create"]),
    ("", "nodes", READ),
    ("", "nodes", &["patch", "delete", "update"]),
    ("", "events", &["create", "patch"]),
    ("", "namespaces", READ),
    ("", "persistentvolumes", READ),
    ("", "persistentvolumeclaims", READ),
    ("storage.k8s.io", "storageclasses", READ),
    ("storage.k8s.io", "csinodes", READ),
    ("storage.k8s.io", "volumeattachments", READ),
    ("apps", "daemonsets", READ),
    ("policy", "poddisruptionbudgets", READ),
];

/// The resources of feature gates: gate, group and version, plural.
const GATES: [(&str, &str, &str); 2] = [
    ("NodeOverlay", "karpenter.sh/v1alpha1", "nodeoverlays"),
    (
        "CapacityBuffer",
        "autoscaling.x-k8s.io/v1beta1",
        "capacitybuffers",
    ),
];

pub(super) async fn review(cx: &Context) -> Installation {
    Installation {
        missing_permissions: missing_permissions(cx).await,
        missing_kinds: missing_kinds(cx).await,
        subnets: None,
    }
}

async fn missing_permissions(cx: &Context) -> Option<Vec<MissingPermission>> {
    let mut wanted: Vec<ResourceAttributes> = Vec::new();
    for (group, resource, verbs) in RULES {
        wanted.extend(verbs.iter().map(|verb| attributes(group, resource, verb)));
    }
    for class in &cx.provider.profile().node_classes {
        let read = READ.iter();
        wanted.extend(read.map(|verb| attributes(&class.group, &class.plural, verb)));
    }
    let reviews: Api<SelfSubjectAccessReview> = Api::all(cx.clients.no_retry.clone());
    let answers = futures::stream::iter(wanted).map(|attributes| {
        let reviews = reviews.clone();
        async move {
            let review = SelfSubjectAccessReview {
                spec: SelfSubjectAccessReviewSpec {
                    resource_attributes: Some(attributes.clone()),
                    ..SelfSubjectAccessReviewSpec::default()
                },
                ..SelfSubjectAccessReview::default()
            };
            let answer = reviews.create(&PostParams::default(), &review).await;
            answer.map(|review| {
                let allowed = review.status.is_some_and(|status| status.allowed);
                (!allowed).then(|| missing(attributes))
            })
        }
    });
    let answers: Vec<_> = answers.buffered(AT_ONCE).collect().await;
    let missing: Result<Vec<_>, kube::Error> = answers.into_iter().collect();
    match missing {
        Ok(missing) => Some(missing.into_iter().flatten().collect()),
        Err(error) => {
            tracing::debug!(logger = "decisions", %error, "cannot review the permissions");
            None
        }
    }
}

fn attributes(group: &str, resource: &str, verb: &str) -> ResourceAttributes {
    let (resource, subresource) = match resource.split_once('/') {
        Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
        None => (resource, None),
    };
    ResourceAttributes {
        group: Some(group.to_owned()),
        resource: Some(resource.to_owned()),
        subresource,
        verb: Some(verb.to_owned()),
        ..ResourceAttributes::default()
    }
}

fn missing(attributes: ResourceAttributes) -> MissingPermission {
    let mut resource = attributes.resource.unwrap_or_default();
    if let Some(subresource) = attributes.subresource {
        resource = format!("{resource}/{subresource}");
    }
    if let Some(group) = attributes.group.filter(|group| !group.is_empty()) {
        resource = format!("{resource}.{group}");
    }
    MissingPermission {
        verb: attributes.verb.unwrap_or_default(),
        resource,
    }
}

async fn missing_kinds(cx: &Context) -> Option<Vec<MissingKind>> {
    let gates = &cx.options.feature_gates;
    let mut missing = Vec::new();
    for (gate, version, plural) in GATES {
        let is_on = match gate {
            "NodeOverlay" => gates.node_overlay,
            _ => gates.capacity_buffer,
        };
        if !is_on {
            continue;
        }
        let served = cx.clients.no_retry.list_api_group_resources(version).await;
        let is_served = match served {
            Ok(list) => list.resources.iter().any(|it| it.name == plural),
            Err(kube::Error::Api(status)) if status.is_not_found() => false,
            Err(error) => {
                tracing::debug!(logger = "decisions", %error, "cannot discover resources");
                return None;
            }
        };
        if !is_served {
            let group = version.split('/').next().unwrap_or_default();
            missing.push(MissingKind {
                gate: gate.to_owned(),
                crd: format!("{plural}.{group}"),
            });
        }
    }
    Some(missing)
}
