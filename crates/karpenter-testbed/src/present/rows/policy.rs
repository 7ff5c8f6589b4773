//! Disruption budgets, leases, priorities, roles, webhooks, endpoints and network policies.

use serde_json::{Value, json};

use super::core_group::shortened;
use super::{AGE, Column, NAME, Painting, View, painting_of, string, text, whole, wide};

/// Returns the columns of a kind of the smaller groups.
pub(super) fn painting(kind: &str) -> Option<&'static Painting> {
    Some(match kind {
        "PodDisruptionBudget" => &BUDGET,
        "Lease" => &LEASE,
        "PriorityClass" => &PRIORITY,
        "RuntimeClass" => &RUNTIME,
        "EndpointSlice" => &SLICE,
        "NetworkPolicy" => &NETWORK_POLICY,
        "Role" | "ClusterRole" | "CustomResourceDefinition" => &CREATED,
        "RoleBinding" | "ClusterRoleBinding" => &BINDING,
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => &WEBHOOKS,
        _ => return None,
    })
}

/// Formats a count or percentage, `N/A` when absent.
fn amount(view: &View<'_>, pointer: &str) -> String {
    match view.at(pointer) {
        None => "N/A".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

static BUDGET: Painting = painting_of(
    &[
        NAME,
        text("Min Available", "spec.minAvailable"),
        text("Max Unavailable", "spec.maxUnavailable"),
        whole("Allowed Disruptions", "status.disruptionsAllowed"),
        AGE,
    ],
    |view| {
        vec![
            json!(view.name()),
            json!(amount(view, "/spec/minAvailable")),
            json!(amount(view, "/spec/maxUnavailable")),
            json!(view.int("/status/disruptionsAllowed")),
            json!(view.age()),
        ]
    },
);

static LEASE: Painting = painting_of(
    &[NAME, text("Holder", "spec.holderIdentity"), AGE],
    |view| {
        vec![
            json!(view.name()),
            json!(view.str("/spec/holderIdentity")),
            json!(view.age()),
        ]
    },
);

static PRIORITY: Painting = painting_of(
    &[
        NAME,
        whole("Value", "value"),
        Column {
            kind: "boolean",
            ..text("Global-Default", "globalDefault")
        },
        AGE,
        text("PreemptionPolicy", "preemptionPolicy"),
    ],
    |view| {
        vec![
            json!(view.name()),
            json!(view.int("/value")),
            json!(view.at("/globalDefault").is_some_and(|value| value == true)),
            json!(view.age()),
            json!(view.or("/preemptionPolicy", "PreemptLowerPriority")),
        ]
    },
);

static RUNTIME: Painting = painting_of(&[NAME, text("Handler", "handler"), AGE], |view| {
    vec![
        json!(view.name()),
        json!(view.str("/handler")),
        json!(view.age()),
    ]
});

static SLICE: Painting = painting_of(
    &[
        NAME,
        text("AddressType", "addressType"),
        text("Ports", "ports"),
        text("Endpoints", "endpoints"),
        AGE,
    ],
    |view| {
        let ports: Vec<String> = view
            .list("/ports")
            .iter()
            .map(|port| string(port, "port"))
            .collect();
        let ports = if ports.is_empty() {
            "<unset>".to_owned()
        } else {
            shortened(&ports)
        };
        let addresses = |endpoint: &Value| {
            endpoint["addresses"]
                .as_array()
                .cloned()
                .unwrap_or_default()
        };
        let endpoints: Vec<String> = view
            .list("/endpoints")
            .iter()
            .flat_map(addresses)
            .filter_map(|address| address.as_str().map(str::to_owned))
            .collect();
        let endpoints = if endpoints.is_empty() {
            "<unset>".to_owned()
        } else {
            shortened(&endpoints)
        };
        vec![
            json!(view.name()),
            json!(view.str("/addressType")),
            json!(ports),
            json!(endpoints),
            json!(view.age()),
        ]
    },
);

static NETWORK_POLICY: Painting = painting_of(
    &[NAME, text("Pod-Selector", "spec.podSelector"), AGE],
    |view| {
        vec![
            json!(view.name()),
            json!(view.selector("/spec/podSelector")),
            json!(view.age()),
        ]
    },
);

static CREATED: Painting = painting_of(
    &[
        NAME,
        Column {
            kind: "date",
            ..text("Created At", "metadata.creationTimestamp")
        },
    ],
    |view| {
        vec![
            json!(view.name()),
            json!(view.str("/metadata/creationTimestamp")),
        ]
    },
);

static BINDING: Painting = painting_of(
    &[
        NAME,
        text("Role", "roleRef"),
        AGE,
        wide("Users", "subjects"),
        wide("Groups", "subjects"),
        wide("ServiceAccounts", "subjects"),
    ],
    |view| {
        let subjects = |kind: &str| {
            let named = view
                .list("/subjects")
                .iter()
                .filter(|subject| subject["kind"] == kind);
            let show = |subject: &Value| match kind {
                "ServiceAccount" => format!(
                    "{}/{}",
                    string(subject, "namespace"),
                    string(subject, "name")
                ),
                _ => string(subject, "name"),
            };
            named.map(show).collect::<Vec<_>>().join(", ")
        };
        vec![
            json!(view.name()),
            json!(format!(
                "{}/{}",
                view.str("/roleRef/kind"),
                view.str("/roleRef/name")
            )),
            json!(view.age()),
            json!(subjects("User")),
            json!(subjects("Group")),
            json!(subjects("ServiceAccount")),
        ]
    },
);

static WEBHOOKS: Painting = painting_of(&[NAME, whole("Webhooks", "webhooks"), AGE], |view| {
    vec![
        json!(view.name()),
        json!(view.count("/webhooks")),
        json!(view.age()),
    ]
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disruption_budget_shows_what_it_allows() {
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        let budget = json!({"metadata": {"name": "b", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"maxUnavailable": "10%"}, "status": {"disruptionsAllowed": 2}});
        assert_eq!(
            json!((BUDGET.cells)(&View {
                object: &budget,
                now
            })),
            json!(["b", "N/A", "10%", 2, "60m"])
        );
        let budget = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1}});
        assert_eq!(
            json!((BUDGET.cells)(&View {
                object: &budget,
                now
            })),
            json!(["b", "1", "N/A", 0, "<unknown>"])
        );
    }
}
