//! Resource requests and limits of pods.
//!
//! 1. The request of a container is that of its spec; when its `status.resources` is set (in-place resize), the maximum of spec,
//!    `status.resources.requests` and `status.allocatedResources`, without the spec if the resize is infeasible. Init containers
//!    use the spec, restartable ones (sidecars) count as containers.
//! 2. Running: containers plus sidecars. Initialization: each init container plus the sidecars started before it.
//! 3. Per resource the maximum of both; pod-level cpu, memory and hugepages replace it; the overhead is added; `pods` is 1.
//!
//! UPSTREAM: k8s.io/component-helpers resource.PodRequests, pkg/utils/resources/resources.go

use std::collections::BTreeMap;

use karpenter_api::k8s_openapi::api::core::v1 as corev1;
use karpenter_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::resources::{InvalidResource, Resources};

type List = BTreeMap<String, Quantity>;

/// The parts of a pod's requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// The sum over containers and sidecars.
    pub steady: Resources,
    /// The maximum over the steps of initialization.
    pub start: Resources,
}

/// Returns the requests of `pod`, `pods: 1` included.
///
/// # Errors
/// Fails for an invalid quantity.
pub fn pod_requests(pod: &corev1::Pod) -> Result<Resources, InvalidResource> {
    let infeasible = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref())
        .is_some_and(|conditions| {
            conditions.iter().any(|condition| {
                condition.type_ == "PodResizePending"
                    && condition.reason.as_deref() == Some("Infeasible")
            })
        });
    let statuses = |name: &str, init: bool| {
        let status = pod.status.as_ref()?;
        let all = if init {
            status.init_container_statuses.as_ref()
        } else {
            status.container_statuses.as_ref()
        };
        all?.iter().find(|status| status.name == name)
    };
    total(
        pod,
        |container, init| {
            let spec = list(
                container
                    .resources
                    .as_ref()
                    .and_then(|resources| resources.requests.as_ref()),
            )?;
            let status = statuses(&container.name, init).filter(|_| !init || is_sidecar(container));
            match status.and_then(|status| Some((status, status.resources.as_ref()?))) {
                None => Ok(spec),
                Some((status, resources)) => {
                    let mut most = list(resources.requests.as_ref())?;
                    most.max_assign(&list(status.allocated_resources.as_ref())?);
                    if !infeasible {
                        most.max_assign(&spec);
                    }
                    Ok(most)
                }
            }
        },
        |resources| resources.requests.as_ref(),
    )
}

/// Returns the limits of `pod`, summed like its requests.
///
/// # Errors
/// Fails for an invalid quantity.
pub fn pod_limits(pod: &corev1::Pod) -> Result<Resources, InvalidResource> {
    total(
        pod,
        |container, _| {
            list(
                container
                    .resources
                    .as_ref()
                    .and_then(|resources| resources.limits.as_ref()),
            )
        },
        |resources| resources.limits.as_ref(),
    )
}

fn total(
    pod: &corev1::Pod,
    of_container: impl Fn(&corev1::Container, bool) -> Result<Resources, InvalidResource>,
    of_pod: impl Fn(&corev1::ResourceRequirements) -> Option<&List>,
) -> Result<Resources, InvalidResource> {
    let mut total = Resources::new();
    if let Some(spec) = &pod.spec {
        let Requests { steady, start } = parts(spec, of_container)?;
        total = steady;
        total.max_assign(&start);
        for (name, value) in list(spec.resources.as_ref().and_then(of_pod))?.iter() {
            if name == "cpu" || name == "memory" || name.starts_with("hugepages-") {
                total.set(name, value);
            }
        }
        total.add_assign(&list(spec.overhead.as_ref())?);
    }
    total.set("pods", 1);
    Ok(total)
}

fn parts(
    spec: &corev1::PodSpec,
    of_container: impl Fn(&corev1::Container, bool) -> Result<Resources, InvalidResource>,
) -> Result<Requests, InvalidResource> {
    let mut steady = Resources::new();
    for container in &spec.containers {
        steady.add_assign(&of_container(container, false)?);
    }
    let mut sidecars = Resources::new();
    let mut start = Resources::new();
    for container in spec.init_containers.iter().flatten() {
        let requests = of_container(container, true)?;
        if is_sidecar(container) {
            sidecars.add_assign(&requests);
            start.max_assign(&sidecars);
        } else {
            let mut step = sidecars.clone();
            step.add_assign(&requests);
            start.max_assign(&step);
        }
    }
    steady.add_assign(&sidecars);
    Ok(Requests { steady, start })
}

fn is_sidecar(container: &corev1::Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

fn list(quantities: Option<&List>) -> Result<Resources, InvalidResource> {
    quantities.map_or_else(|| Ok(Resources::new()), Resources::requests_from)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn requests(spec: serde_json::Value) -> Resources {
        pod_requests(
            &serde_json::from_value(json!({ "metadata": { "name": "p" }, "spec": spec })).unwrap(),
        )
        .unwrap()
    }

    fn container(cpu: &str, memory: &str) -> serde_json::Value {
        json!({ "name": "c", "resources": { "requests": { "cpu": cpu, "memory": memory } } })
    }

    fn sidecar(cpu: &str, memory: &str) -> serde_json::Value {
        let mut value = container(cpu, memory);
        value["restartPolicy"] = json!("Always");
        value
    }

    const GI: i64 = 1 << 30;

    /// Returns millicores and GiB, rounded to tenths: a fraction of a byte is rounded up to a whole one.
    fn cpu_and_gib(resources: &Resources) -> (i64, f64) {
        let tenths = resources.get("memory") as f64 * 10.0 / GI as f64;
        (resources.get("cpu"), tenths.round() / 10.0)
    }

    /// Conformance: SCH-208
    #[test]
    fn a_pod_requests_the_maximum_of_initialization_and_running() {
        let asked = requests(
            json!({ "initContainers": [container("2", "1Gi")], "containers": [container("1", "3Gi")] }),
        );
        assert_eq!(cpu_and_gib(&asked), (2000, 3.0));
        assert_eq!(asked.get("pods"), 1);
    }

    /// Conformance: SCH-052, SCH-208
    #[test]
    fn an_init_container_before_a_sidecar_does_not_include_its_requests() {
        let asked = requests(json!({
            "initContainers": [container("10", "4Gi"), sidecar("4.9", "2.9Gi")], "containers": [container("6", "2Gi")]
        }));
        assert_eq!(cpu_and_gib(&asked), (10_900, 4.9));
    }

    /// Conformance: SCH-053, SCH-208
    #[test]
    fn an_init_container_after_a_sidecar_includes_its_requests() {
        for (init, main) in [(("5", "1Gi"), ("6", "2Gi")), (("6", "2Gi"), ("5", "1Gi"))] {
            let asked = requests(json!({
                "initContainers": [sidecar("4.9", "2.9Gi"), container(init.0, init.1)], "containers": [container(main.0, main.1)]
            }));
            assert_eq!(cpu_and_gib(&asked), (10_900, 4.9));
        }
    }

    /// Conformance: SCH-208
    #[test]
    fn pod_level_requests_replace_the_sum_and_overhead_is_added() {
        let asked = requests(json!({
            "containers": [container("9", "3Gi")],
            "resources": { "requests": { "cpu": "9900m", "memory": "3.5Gi", "example.com/x": "7" } },
            "overhead": { "cpu": "100m" },
        }));
        assert_eq!(cpu_and_gib(&asked), (10_000, 3.5));
        assert_eq!(asked.get("example.com/x"), 0);
    }

    fn resized(spec_cpu: &str, status: serde_json::Value, conditions: serde_json::Value) -> i64 {
        pod_requests(
            &serde_json::from_value(json!({
                "metadata": { "name": "p" }, "spec": { "containers": [container(spec_cpu, "1Gi")] },
                "status": { "conditions": conditions, "containerStatuses": [status] },
            }))
            .unwrap(),
        )
        .unwrap()
        .get("cpu")
    }

    fn status(resources: serde_json::Value) -> serde_json::Value {
        json!({ "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0, "resources": resources, "allocatedResources": { "cpu": "2" } })
    }

    /// Conformance: SCH-056
    #[test]
    fn a_resized_container_counts_its_allocated_resources_until_reduced() {
        let actual = json!({ "requests": { "cpu": "1500m" } });
        assert_eq!(resized("1", status(actual.clone()), json!([])), 2000);
        assert_eq!(resized("3", status(actual.clone()), json!([])), 3000);
        let mut unset = status(actual.clone());
        unset.as_object_mut().unwrap().remove("resources");
        assert_eq!(resized("1", unset, json!([])), 1000);
        let infeasible =
            json!([{ "type": "PodResizePending", "status": "True", "reason": "Infeasible" }]);
        assert_eq!(resized("3", status(actual), infeasible), 2000);
    }
}
