//! The built-in resources: names, verbs, subresources, field selectors.
//!
//! UPSTREAM: pkg/registry/*/storage, pkg/apis/*/v1/conversion.go (field labels).

use std::sync::Arc;

use kube::core::GroupVersionKind;

use super::schema::Schema;
use super::{
    ALL_VERBS, CREATE_VERB, FieldSelector, Resource, STATUS_VERBS, StorageKey, Subresource,
};

/// A row of the table of built-in resources.
struct Row {
    group: &'static str,
    version: &'static str,
    package: &'static str,
    kind: &'static str,
    plural: &'static str,
    short_names: &'static [&'static str],
    namespaced: bool,
    /// In category `all`.
    all: bool,
    subresources: &'static [&'static str],
    /// Field labels in addition to metadata.name and metadata.namespace.
    fields: &'static [&'static str],
}

const fn row(
    package: (&'static str, &'static str, &'static str),
    kind: &'static str,
    plural: &'static str,
    short_names: &'static [&'static str],
    namespaced: bool,
) -> Row {
    Row {
        group: package.0,
        version: package.1,
        package: package.2,
        kind,
        plural,
        short_names,
        namespaced,
        all: false,
        subresources: &[],
        fields: &[],
    }
}

impl Row {
    const fn all(mut self) -> Self {
        self.all = true;
        self
    }

    const fn sub(mut self, subresources: &'static [&'static str]) -> Self {
        self.subresources = subresources;
        self
    }

    const fn fields(mut self, fields: &'static [&'static str]) -> Self {
        self.fields = fields;
        self
    }
}

type Package = (&'static str, &'static str, &'static str);
const CORE: Package = ("", "v1", "io.k8s.api.core.v1");
const APPS: Package = ("apps", "v1", "io.k8s.api.apps.v1");
const AUTHORIZATION: Package = ("authorization.k8s.io", "v1", "io.k8s.api.authorization.v1");
const AUTOSCALING: Package = ("autoscaling", "v2", "io.k8s.api.autoscaling.v2");
const BATCH: Package = ("batch", "v1", "io.k8s.api.batch.v1");
const NETWORKING: Package = ("networking.k8s.io", "v1", "io.k8s.api.networking.v1");
const POLICY: Package = ("policy", "v1", "io.k8s.api.policy.v1");
const RBAC: Package = ("rbac.authorization.k8s.io", "v1", "io.k8s.api.rbac.v1");
const STORAGE: Package = ("storage.k8s.io", "v1", "io.k8s.api.storage.v1");
const EXTENSIONS: Package = (
    "apiextensions.k8s.io",
    "v1",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1",
);
const SCHEDULING: Package = ("scheduling.k8s.io", "v1", "io.k8s.api.scheduling.v1");
const COORDINATION: Package = ("coordination.k8s.io", "v1", "io.k8s.api.coordination.v1");
const NODE: Package = ("node.k8s.io", "v1", "io.k8s.api.node.v1");
const DISCOVERY: Package = ("discovery.k8s.io", "v1", "io.k8s.api.discovery.v1");
const RESOURCE: Package = ("resource.k8s.io", "v1", "io.k8s.api.resource.v1");

const STATUS: &[&str] = &["status"];
const WORKLOAD: &[&str] = &["status", "scale"];

/// In the order of discovery's groups.
const ROWS: &[Row] = &[
    row(CORE, "ConfigMap", "configmaps", &["cm"], true),
    row(CORE, "Event", "events", &["ev"], true).fields(&[
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent=reportingComponent",
        "source=source.component",
        "type",
    ]),
    row(CORE, "LimitRange", "limitranges", &["limits"], true),
    row(CORE, "Namespace", "namespaces", &["ns"], false)
        .sub(&["status", "finalize"])
        .fields(&["status.phase"]),
    row(CORE, "Node", "nodes", &["no"], false)
        .sub(STATUS)
        .fields(&["spec.unschedulable"]),
    row(
        CORE,
        "PersistentVolumeClaim",
        "persistentvolumeclaims",
        &["pvc"],
        true,
    )
    .sub(STATUS),
    row(
        CORE,
        "PersistentVolume",
        "persistentvolumes",
        &["pv"],
        false,
    )
    .sub(STATUS),
    row(CORE, "Pod", "pods", &["po"], true)
        .all()
        .sub(&["status", "binding", "eviction"])
        .fields(&[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ]),
    row(CORE, "PodTemplate", "podtemplates", &[], true),
    row(
        CORE,
        "ReplicationController",
        "replicationcontrollers",
        &["rc"],
        true,
    )
    .all()
    .sub(WORKLOAD),
    row(CORE, "ResourceQuota", "resourcequotas", &["quota"], true).sub(STATUS),
    row(CORE, "Secret", "secrets", &[], true).fields(&["type"]),
    row(CORE, "ServiceAccount", "serviceaccounts", &["sa"], true),
    row(CORE, "Service", "services", &["svc"], true)
        .all()
        .sub(STATUS)
        .fields(&["spec.clusterIP", "spec.type"]),
    row(APPS, "DaemonSet", "daemonsets", &["ds"], true)
        .all()
        .sub(STATUS),
    row(APPS, "Deployment", "deployments", &["deploy"], true)
        .all()
        .sub(WORKLOAD),
    row(APPS, "ReplicaSet", "replicasets", &["rs"], true)
        .all()
        .sub(WORKLOAD)
        .fields(&["status.replicas"]),
    row(APPS, "StatefulSet", "statefulsets", &["sts"], true)
        .all()
        .sub(WORKLOAD),
    row(
        AUTHORIZATION,
        "SelfSubjectAccessReview",
        "selfsubjectaccessreviews",
        &[],
        false,
    ),
    // Nothing acts on this kind, on CronJobs and RuntimeClasses: manifests of applications have them.
    row(
        AUTOSCALING,
        "HorizontalPodAutoscaler",
        "horizontalpodautoscalers",
        &["hpa"],
        true,
    )
    .all()
    .sub(STATUS),
    row(BATCH, "CronJob", "cronjobs", &["cj"], true)
        .all()
        .sub(STATUS),
    row(BATCH, "Job", "jobs", &[], true)
        .all()
        .sub(STATUS)
        .fields(&["status.successful=status.succeeded"]),
    row(
        NETWORKING,
        "NetworkPolicy",
        "networkpolicies",
        &["netpol"],
        true,
    ),
    row(
        POLICY,
        "PodDisruptionBudget",
        "poddisruptionbudgets",
        &["pdb"],
        true,
    )
    .sub(STATUS),
    row(
        RBAC,
        "ClusterRoleBinding",
        "clusterrolebindings",
        &[],
        false,
    ),
    row(RBAC, "ClusterRole", "clusterroles", &[], false),
    row(RBAC, "RoleBinding", "rolebindings", &[], true),
    row(RBAC, "Role", "roles", &[], true),
    row(STORAGE, "CSIDriver", "csidrivers", &[], false),
    row(STORAGE, "CSINode", "csinodes", &[], false),
    row(STORAGE, "StorageClass", "storageclasses", &["sc"], false),
    row(STORAGE, "VolumeAttachment", "volumeattachments", &[], false).sub(STATUS),
    row(
        EXTENSIONS,
        "CustomResourceDefinition",
        "customresourcedefinitions",
        &["crd", "crds"],
        false,
    )
    .sub(STATUS),
    row(
        SCHEDULING,
        "PriorityClass",
        "priorityclasses",
        &["pc"],
        false,
    ),
    row(COORDINATION, "Lease", "leases", &[], true),
    row(NODE, "RuntimeClass", "runtimeclasses", &[], false),
    row(DISCOVERY, "EndpointSlice", "endpointslices", &[], true),
    row(RESOURCE, "DeviceClass", "deviceclasses", &[], false),
    row(RESOURCE, "ResourceClaim", "resourceclaims", &[], true).sub(STATUS),
    row(
        RESOURCE,
        "ResourceClaimTemplate",
        "resourceclaimtemplates",
        &[],
        true,
    ),
    row(RESOURCE, "ResourceSlice", "resourceslices", &[], false)
        .fields(&["spec.nodeName", "spec.driver"]),
];

/// Returns every built-in resource, in the order of discovery.
pub(super) fn resources() -> Vec<Resource> {
    ROWS.iter().map(resource).collect()
}

fn resource(row: &Row) -> Resource {
    let strings = |items: &[&str]| {
        items
            .iter()
            .map(|item| (*item).to_owned())
            .collect::<Vec<_>>()
    };
    let create_only = row.group == AUTHORIZATION.0;
    let mut categories = Vec::new();
    if row.all {
        categories.push("all".to_owned());
    }
    if row.kind == "CustomResourceDefinition" {
        categories.push("api-extensions".to_owned());
    }
    Resource {
        group: row.group.to_owned(),
        version: row.version.to_owned(),
        kind: row.kind.to_owned(),
        list_kind: format!("{}List", row.kind),
        plural: row.plural.to_owned(),
        singular: row.kind.to_lowercase(),
        short_names: strings(row.short_names),
        categories,
        namespaced: row.namespaced,
        verbs: if create_only { CREATE_VERB } else { ALL_VERBS },
        subresources: row
            .subresources
            .iter()
            .map(|name| subresource(row, name))
            .collect(),
        field_selectors: row.fields.iter().map(|spec| field_selector(spec)).collect(),
        storage: StorageKey {
            group: row.group.to_owned(),
            plural: row.plural.to_owned(),
        },
        storage_version: row.version.to_owned(),
        schema: Arc::new(Schema::named(&format!("{}.{}", row.package, row.kind))),
        custom: None,
    }
}

fn subresource(row: &Row, name: &str) -> Subresource {
    let own = GroupVersionKind::gvk(row.group, row.version, row.kind);
    let (kind, verbs): (_, &'static [&'static str]) = match name {
        "binding" => (GroupVersionKind::gvk("", "v1", "Binding"), CREATE_VERB),
        "eviction" => (
            GroupVersionKind::gvk("policy", "v1", "Eviction"),
            CREATE_VERB,
        ),
        "scale" => (
            GroupVersionKind::gvk("autoscaling", "v1", "Scale"),
            STATUS_VERBS,
        ),
        "finalize" => (own, &["update"]),
        _ => (own, STATUS_VERBS),
    };
    Subresource {
        name: name.to_owned(),
        kind,
        verbs,
    }
}

/// `label` or `label=path`.
fn field_selector(spec: &str) -> FieldSelector {
    let (label, path) = spec.split_once('=').unwrap_or((spec, spec));
    let absent = match label {
        "spec.unschedulable" | "spec.hostNetwork" => "false",
        "status.replicas" | "status.successful" => "0",
        _ => "",
    };
    FieldSelector {
        label: label.to_owned(),
        path: path.split('.').map(str::to_owned).collect(),
        absent,
    }
}
