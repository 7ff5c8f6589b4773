//! Volumes, storage and devices.

use serde_json::{Value, json};

use super::{AGE, Column, NAME, Painting, View, painting_of, string, text, whole, wide};

/// Returns the columns of a storage or device kind.
pub(super) fn painting(kind: &str) -> Option<&'static Painting> {
    Some(match kind {
        "PersistentVolume" => &VOLUME,
        "PersistentVolumeClaim" => &CLAIM,
        "StorageClass" => &STORAGE_CLASS,
        "CSINode" => &CSI_NODE,
        "CSIDriver" => &CSI_DRIVER,
        "VolumeAttachment" => &ATTACHMENT,
        "ResourceClaim" => &RESOURCE_CLAIM,
        "ResourceSlice" => &RESOURCE_SLICE,
        _ => return None,
    })
}

/// Formats `RWO,ROX`: the short names of access modes.
fn access_modes(modes: &[Value]) -> String {
    let order = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    order
        .iter()
        .filter(|(name, _)| modes.iter().any(|mode| mode == name))
        .map(|(_, short)| *short)
        .collect::<Vec<_>>()
        .join(",")
}

fn phase<'a>(view: &View<'a>) -> &'a str {
    if view.deleted() {
        "Terminating"
    } else {
        view.str("/status/phase")
    }
}

fn class<'a>(view: &View<'a>) -> &'a str {
    let beta = view
        .at("/metadata/annotations")
        .and_then(|notes| notes.get("volume.beta.kubernetes.io/storage-class"));
    beta.and_then(Value::as_str)
        .unwrap_or_else(|| view.str("/spec/storageClassName"))
}

static VOLUME: Painting = painting_of(
    &[
        NAME,
        text("Capacity", "spec.capacity"),
        text("Access Modes", "spec.accessModes"),
        text("Reclaim Policy", "spec.persistentVolumeReclaimPolicy"),
        text("Status", "status.phase"),
        text("Claim", "spec.claimRef"),
        text("StorageClass", "spec.storageClassName"),
        text("VolumeAttributesClass", "spec.volumeAttributesClassName"),
        text("Reason", "status.reason"),
        AGE,
        wide("VolumeMode", "spec.volumeMode"),
    ],
    |view| {
        let claim = view.at("/spec/claimRef").map_or_else(String::new, |claim| {
            format!("{}/{}", string(claim, "namespace"), string(claim, "name"))
        });
        vec![
            json!(view.name()),
            json!(view.str("/spec/capacity/storage")),
            json!(access_modes(view.list("/spec/accessModes"))),
            json!(view.str("/spec/persistentVolumeReclaimPolicy")),
            json!(phase(view)),
            json!(claim),
            json!(class(view)),
            json!(view.or("/spec/volumeAttributesClassName", "<unset>")),
            json!(view.str("/status/reason")),
            json!(view.age()),
            json!(view.or("/spec/volumeMode", "<unset>")),
        ]
    },
);

static CLAIM: Painting = painting_of(
    &[
        NAME,
        text("Status", "status.phase"),
        text("Volume", "spec.volumeName"),
        text("Capacity", "status.capacity"),
        text("Access Modes", "status.accessModes"),
        text("StorageClass", "spec.storageClassName"),
        text("VolumeAttributesClass", "spec.volumeAttributesClassName"),
        AGE,
        wide("VolumeMode", "spec.volumeMode"),
    ],
    |view| {
        // Capacity and access modes are known once a volume is bound.
        let bound = !view.str("/spec/volumeName").is_empty();
        vec![
            json!(view.name()),
            json!(phase(view)),
            json!(view.str("/spec/volumeName")),
            json!(if bound {
                view.str("/status/capacity/storage")
            } else {
                ""
            }),
            json!(if bound {
                access_modes(view.list("/status/accessModes"))
            } else {
                String::new()
            }),
            json!(class(view)),
            json!(view.or("/spec/volumeAttributesClassName", "<unset>")),
            json!(view.age()),
            json!(view.or("/spec/volumeMode", "<unset>")),
        ]
    },
);

const fn flag(name: &'static str, about: &'static str) -> Column {
    Column {
        kind: "boolean",
        ..text(name, about)
    }
}

static STORAGE_CLASS: Painting = painting_of(
    &[
        NAME,
        text("Provisioner", "provisioner"),
        text("ReclaimPolicy", "reclaimPolicy"),
        text("VolumeBindingMode", "volumeBindingMode"),
        flag("AllowVolumeExpansion", "allowVolumeExpansion"),
        AGE,
    ],
    |view| {
        let is_default = [
            "storageclass.kubernetes.io/is-default-class",
            "storageclass.beta.kubernetes.io/is-default-class",
        ]
        .iter()
        .any(|note| {
            view.at("/metadata/annotations")
                .and_then(|notes| notes.get(note))
                .is_some_and(|value| value == "true")
        });
        vec![
            json!(if is_default {
                format!("{} (default)", view.name())
            } else {
                view.name().to_owned()
            }),
            json!(view.str("/provisioner")),
            json!(view.or("/reclaimPolicy", "Delete")),
            json!(view.or("/volumeBindingMode", "Immediate")),
            json!(
                view.at("/allowVolumeExpansion")
                    .is_some_and(|value| value == true)
            ),
            json!(view.age()),
        ]
    },
);

static CSI_NODE: Painting = painting_of(&[NAME, whole("Drivers", "spec.drivers"), AGE], |view| {
    vec![
        json!(view.name()),
        json!(view.count("/spec/drivers")),
        json!(view.age()),
    ]
});

static CSI_DRIVER: Painting = painting_of(
    &[
        NAME,
        flag("AttachRequired", "spec.attachRequired"),
        flag("PodInfoOnMount", "spec.podInfoOnMount"),
        flag("StorageCapacity", "spec.storageCapacity"),
        text("TokenRequests", "spec.tokenRequests"),
        flag("RequiresRepublish", "spec.requiresRepublish"),
        text("Modes", "spec.volumeLifecycleModes"),
        AGE,
    ],
    |view| {
        let flag = |pointer: &str, absent: bool| {
            view.at(pointer).and_then(Value::as_bool).unwrap_or(absent)
        };
        let tokens = super::joined(view.list("/spec/tokenRequests"), "audience");
        let modes: Vec<&str> = view
            .list("/spec/volumeLifecycleModes")
            .iter()
            .filter_map(Value::as_str)
            .collect();
        vec![
            json!(view.name()),
            json!(flag("/spec/attachRequired", true)),
            json!(flag("/spec/podInfoOnMount", false)),
            json!(flag("/spec/storageCapacity", false)),
            json!(if tokens.is_empty() {
                "<unset>".to_owned()
            } else {
                tokens
            }),
            json!(flag("/spec/requiresRepublish", false)),
            json!(if modes.is_empty() {
                "<none>".to_owned()
            } else {
                modes.join(",")
            }),
            json!(view.age()),
        ]
    },
);

static ATTACHMENT: Painting = painting_of(
    &[
        NAME,
        Column {
            format: "name",
            ..text("Attacher", "spec.attacher")
        },
        text("PV", "spec.source"),
        text("Node", "spec.nodeName"),
        flag("Attached", "status.attached"),
        AGE,
    ],
    |view| {
        vec![
            json!(view.name()),
            json!(view.str("/spec/attacher")),
            json!(view.str("/spec/source/persistentVolumeName")),
            json!(view.str("/spec/nodeName")),
            json!(
                view.at("/status/attached")
                    .is_some_and(|value| value == true)
            ),
            json!(view.age()),
        ]
    },
);

static RESOURCE_CLAIM: Painting = painting_of(&[NAME, text("State", ""), AGE], |view| {
    let mut states = Vec::new();
    if view.deleted() {
        states.push("deleted");
    }
    match view.at("/status/allocation") {
        None if !view.deleted() => states.push("pending"),
        None => {}
        Some(_) => {
            states.push("allocated");
            if view.count("/status/reservedFor") > 0 {
                states.push("reserved");
            }
        }
    }
    vec![
        json!(view.name()),
        json!(states.join(",")),
        json!(view.age()),
    ]
});

static RESOURCE_SLICE: Painting = painting_of(
    &[
        NAME,
        text("Node", "spec.nodeName"),
        text("Driver", "spec.driver"),
        text("Pool", "spec.pool"),
        AGE,
    ],
    |view| {
        vec![
            json!(view.name()),
            json!(view.or("/spec/nodeName", "<unset>")),
            json!(view.str("/spec/driver")),
            json!(view.str("/spec/pool/name")),
            json!(view.age()),
        ]
    },
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_and_claims_show_their_binding() {
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        let volume = json!({"metadata": {"name": "v"}, "spec": {"capacity": {"storage": "5Gi"}, "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
            "claimRef": {"namespace": "n", "name": "c"}, "storageClassName": "gp3", "persistentVolumeReclaimPolicy": "Delete"}, "status": {"phase": "Bound"}});
        assert_eq!(
            json!((VOLUME.cells)(&View {
                object: &volume,
                now
            })),
            json!([
                "v",
                "5Gi",
                "RWO,RWX",
                "Delete",
                "Bound",
                "n/c",
                "gp3",
                "<unset>",
                "",
                "<unknown>",
                "<unset>"
            ])
        );
        let claim = json!({"metadata": {"name": "c", "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"accessModes": ["ReadWriteOnce"]}, "status": {"phase": "Pending"}});
        assert_eq!(
            json!((CLAIM.cells)(&View {
                object: &claim,
                now
            })),
            json!([
                "c",
                "Terminating",
                "",
                "",
                "",
                "",
                "<unset>",
                "<unknown>",
                "<unset>"
            ])
        );
    }
}
