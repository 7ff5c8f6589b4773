#!/usr/bin/env python3
"""Writes builtin-schemas.json: the schemas of the built-in types for the embedded API server.

Source: the OpenAPI definitions of Kubernetes 1.36 as shipped in the PyPI package `kubernetes-validate`
(Apache-2.0), file `kubernetes_validate/kubernetes-json-schema/v1.36.0-local/_definitions.json`.

    pip download --no-deps kubernetes-validate && unzip kubernetes_validate-*.whl -d kv
    python3 generate_builtin_schemas.py kv/kubernetes_validate/kubernetes-json-schema/v1.36.0-local/_definitions.json

Kept: all types reachable from the kinds of ROOTS. Changed: descriptions are cut to their first sentence, `null` is
removed from types (Go decoding accepts null everywhere), quantities and int-or-strings are marked, references lose
their `#/$defs/` prefix, and the two defaults that complete a list key are added (the source has no defaults).
"""

import json
import re
import sys

ROOTS = """
api.core.v1: Pod Node Namespace Event PersistentVolumeClaim PersistentVolume ConfigMap Secret Service ServiceAccount
api.core.v1: Endpoints PodTemplate ReplicationController LimitRange ResourceQuota Binding
api.coordination.v1: Lease
api.storage.v1: StorageClass CSINode CSIDriver VolumeAttachment
api.apps.v1: DaemonSet Deployment ReplicaSet StatefulSet ControllerRevision
api.batch.v1: Job CronJob
api.policy.v1: PodDisruptionBudget Eviction
api.scheduling.v1: PriorityClass
api.discovery.v1: EndpointSlice
api.autoscaling.v1: Scale
api.autoscaling.v2: HorizontalPodAutoscaler
api.networking.v1: NetworkPolicy
api.rbac.v1: ClusterRole ClusterRoleBinding Role RoleBinding
api.resource.v1: ResourceClaim ResourceClaimTemplate ResourceSlice DeviceClass
api.node.v1: RuntimeClass
api.admissionregistration.v1: MutatingWebhookConfiguration ValidatingWebhookConfiguration
api.authorization.v1: SelfSubjectAccessReview SubjectAccessReview
api.authentication.v1: TokenRequest TokenReview
apiextensions-apiserver.pkg.apis.apiextensions.v1: CustomResourceDefinition
apimachinery.pkg.apis.meta.v1: DeleteOptions Status ObjectMeta ListMeta
"""
PREFIX = "#/$defs/"
DEFAULTS = {
    ("io.k8s.api.core.v1.ContainerPort", "protocol"): "TCP",
    ("io.k8s.api.core.v1.ServicePort", "protocol"): "TCP",
}
QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"


def first_sentence(text):
    text = " ".join(text.split())
    end = re.search(r"(?<!e\.g)(?<!i\.e)\.(?= )", text)
    return text[: end.end()] if end else text


def clean(node):
    if isinstance(node, list):
        return [clean(item) for item in node]
    if not isinstance(node, dict):
        return node
    out = {}
    for key, value in node.items():
        if key == "description" and isinstance(value, str):
            out[key] = first_sentence(value)
        elif key == "type" and isinstance(value, list):
            out[key] = next(item for item in value if item != "null")
        elif key == "$ref":
            out[key] = value.removeprefix(PREFIX)
        elif key == "properties":
            out[key] = {name: clean(item) for name, item in value.items()}
        elif key == "enum":
            continue
        else:
            out[key] = clean(value)
    return out


def references(node):
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref" and isinstance(value, str):
                yield value
            else:
                yield from references(value)
    elif isinstance(node, list):
        for item in node:
            yield from references(item)


def main(path):
    with open(path, encoding="utf-8") as source:
        definitions = {name: clean(node) for name, node in json.load(source)["$defs"].items()}
    definitions[QUANTITY] = {"description": "Quantity is a fixed-point representation of a number.", "type": "string", "format": "quantity"}
    definitions[INT_OR_STRING] = {"description": "IntOrString holds an int32 or a string.", "x-kubernetes-int-or-string": True}
    for (name, field), value in DEFAULTS.items():
        definitions[name]["properties"][field]["default"] = value
    todo = []
    for line in ROOTS.strip().splitlines():
        package, kinds = line.split(": ")
        for kind in kinds.split():
            todo.append(f"io.k8s.{package}.{kind}")
            if f"io.k8s.{package}.{kind}List" in definitions:
                todo.append(f"io.k8s.{package}.{kind}List")
    kept = {}
    while todo:
        name = todo.pop()
        if name not in kept:
            kept[name] = definitions[name]
            todo.extend(references(definitions[name]))
    lines = [f"{json.dumps(name)}:{json.dumps(kept[name], sort_keys=True, separators=(',', ':'))}" for name in sorted(kept)]
    with open("builtin-schemas.json", "w", encoding="utf-8") as target:
        target.write("{\n" + ",\n".join(lines) + "\n}\n")


main(sys.argv[1])
