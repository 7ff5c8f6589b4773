//! Devices with dynamic resource allocation.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use crate::case::{Case, SOON, one_on_each_node, running};
use crate::objects::{api_of, apply, delete};
use crate::wait::until;

const DRIVER: &str = "devices.real-cluster.example";

/// Two devices that every node can access: two pods get nodes, the third gets none, because no new node would have a device for
/// it.
pub(super) async fn two_devices_for_three_pods(case: Case) -> Result<()> {
    let class = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": { "name": DRIVER },
        "spec": { "selectors": [{ "cel": { "expression": format!("device.driver == '{DRIVER}'") } }] },
    });
    let slice = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": { "name": DRIVER },
        "spec": {
            "driver": DRIVER, "allNodes": true,
            "pool": { "name": "shared", "generation": 1, "resourceSliceCount": 1 },
            "devices": [{ "name": "one" }, { "name": "two" }],
        },
    });
    for object in [&class, &slice] {
        apply(&case.client, object).await?;
    }
    case.apply(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": { "name": "device" },
        "spec": { "spec": { "devices": { "requests": [
            { "name": "device", "exactly": { "deviceClassName": DRIVER } },
        ] } } },
    }))
    .await?;
    case.pool(json!({})).await?;
    let mut changes = one_on_each_node("work");
    let pod = &mut changes["template"]["spec"];
    pod["resourceClaims"] = json!([{ "name": "device", "resourceClaimTemplateName": "device" }]);
    pod["containers"] = json!([{
        "name": "pause", "image": "pause",
        "resources": { "requests": { "cpu": "500m" }, "claims": [{ "name": "device" }] },
    }]);
    case.deploy("work", 3, "500m", changes).await?;
    until("two pods run", &case.pods(), "", SOON, |seen| {
        Ok((running(seen) == 2).then_some(()))
    })
    .await?;
    // Two batches of the controller.
    case.nodes_stay(Duration::from_secs(25), |seen| {
        ensure!(seen.len() == 2, "{} nodes for two devices", seen.len());
        Ok(())
    })
    .await?;
    for object in [&slice, &class] {
        delete(&api_of(&case.client, object)?, DRIVER).await?;
    }
    Ok(())
}
